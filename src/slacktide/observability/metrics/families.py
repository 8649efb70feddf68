"""Metric families, their text format, and the table of our own families: name, kind, help.

The format is Prometheus text 0.0.4 with plain decimal digits. Some consumers read the page with
patterns instead of a parser, so Triton's counters keep their names, and 150754811904 is never
written as 1.50754811904e+11. Our own families follow OpenMetrics: names contain base units, and
counters end in `_total`; docs/metrics.md describes each. A scrape reads one `VersionView` per
version, which combines engine and catalog. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from slacktide.domain import Circuit
from slacktide.engine import Snapshot
from slacktide.engine.phases import ReplicaState
from slacktide.engine.request_table import State
from slacktide.executors.ports import SessionSize
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.learnt import PoolTimes
from slacktide.models.versions import Catalog, LoadedExits, VersionState

_PIECE_LINES = 256


class Sample(NamedTuple):
    """A line of a family. `suffix` follows the family's name: `_bucket`, `_sum`, `_count` or
    nothing."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(slots=True)
class MetricFamily:
    """The samples with one name. `kind` is `counter`, `gauge` or `histogram`."""

    name: str
    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def single(cls, name: str, kind: str, help: str, value: float) -> MetricFamily:
        """A family with a single sample without labels."""
        return cls(name, kind, help, [Sample({}, value)])

    def add(self, value: float, **labels: str) -> None:
        """Add a sample."""
        self.samples.append(Sample(labels, value))

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """Add a histogram. `counts` has an entry for each upper bound and one for larger values.
        With a negative bound there is no `_sum`, because it could fall, and therefore no `_count`
        (OpenMetrics, on histograms); the last bucket is the count."""
        below = 0
        for bound, count in zip((*map(plain, bounds), "+Inf"), counts, strict=True):
            below += count
            self.samples.append(Sample({**labels, "le": bound}, below, "_bucket"))
        if bounds[0] >= 0:
            self.samples.append(Sample(labels, total, "_sum"))
            self.samples.append(Sample(labels, below, "_count"))


def write(families: Iterable[MetricFamily]) -> bytes:
    """The text of families, each with its help and type before its samples."""
    return b"".join(pieces(families))


def pieces(families: Iterable[MetricFamily]) -> Iterator[bytes]:
    """The text in pieces, each of which takes about a millisecond. Consecutive families with the
    same name are merged."""
    lines = _lines(families)
    while piece := "".join(islice(lines, _PIECE_LINES)):
        yield piece.encode()


def _lines(families: Iterable[MetricFamily]) -> Iterator[str]:
    name = ""
    for family in families:
        if family.name != name:
            name = family.name
            help_text = family.help.replace("\\", r"\\").replace("\n", r"\n")
            yield f"# HELP {name} {help_text}\n"
            yield f"# TYPE {name} {family.kind}\n"
        for labels, value, suffix in family.samples:
            pairs = ",".join([f'{key}="{escaped(text)}"' for key, text in labels.items()])
            braces = f"{{{pairs}}}" if pairs else ""
            yield f"{name}{suffix}{braces} {plain(value)}\n"


def plain(value: float) -> str:
    """Format a number without an exponent, with at most nine digits after the point."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.9f}".rstrip("0").rstrip(".")


def escaped(text: str) -> str:
    """Escape a label's value."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# Name without `slacktide_`, kind, help.
_TABLE = """
build_info                       gauge    Always 1; the labels describe the build
model_ready                      gauge    1 if the version serves, else 0
outcomes_total                   counter  Requests by outcome and reason
crashes_total                    counter  Crashes of replicas
out_of_memory_total              counter  Crashes of replicas that exceeded limits.worker_memory
circuit_openings_total           counter  Times a version became unavailable after crashes
damaged_pictures_total           counter  Damaged pictures that were answered nevertheless
circuit                          gauge    1 for the current state of the version's circuit, else 0
replicas                         gauge    Replicas by state
payload_bytes                    gauge    Shared memory used by payloads, bytes
payload_in_use_bytes             gauge    Shared memory used by payloads of all models, bytes
payload_limit_bytes              gauge    Limit on slacktide_payload_in_use_bytes
announced_requests               gauge    Requests whose body is still arriving
queue_requests                   gauge    Requests waiting to run
unmeasured_requests              gauge    Waiting requests whose run time is still unknown
rescued_total                    counter  Requests moved to a smaller variant to answer them in time
running_requests                 gauge    Requests in a running batch
in_flight_requests               gauge    Calls that are not answered yet
profiling_backlog                gauge    Answered requests that wait for a profiling run
profiling_runs_total             counter  Answered requests run again alone to measure them
isolated_requests_total          counter  Requests run alone, instead of in a batch, to measure them
profiling_seconds_total          counter  Lane time spent on profiling runs, seconds
profiling_delayed_requests_total counter  Requests delayed by a profiling run
profiling_delay_seconds_total    counter  Total delay of requests by profiling runs, seconds
unknown_run_keys                 gauge    Applications and hint bins with too few samples
prediction_error_ratio           gauge    Recent mean of |observed − predicted| ÷ predicted
drift_ratio                      gauge    Observed batch times ÷ those of the profile
run_class_seconds                gauge    Mean run time alone of a run class, seconds
run_class_share                  gauge    Share of the run class in arrivals, 0 to 1
queue_seconds                    histogram Arrival to start of the batch, requests with a result
compute_seconds                  histogram Start of the batch to answer, requests with a result
request_seconds                  histogram Arrival to answer, requests with a result
budget_at_completion_seconds     histogram Budget left at the answer; negative: late
batch_rows                       histogram Rows in each executed batch
stage_requests_total             counter  Requests of a pipeline's stages, by outcome
stage_seconds                    histogram From a stage's complete input to its answer
stage_slack_seconds              histogram Time left of a stage's share of the deadline
stage_loop_seconds_total         counter  Event loop time spent between stages, seconds
edge_rows                        gauge    Recent rows passed on per row of the stage
edge_burstiness                  gauge    Coefficient of variation of the rows passed on per row
session_bytes                    gauge    Memory of a replica's session, by number of threads, bytes
client_sessions                  gauge    Open sessions of clients that stream frames
client_sessions_mapped           gauge    Open sessions that can expect answers in time
client_sessions_opened_total     counter  Sessions opened
client_sessions_refused_total    counter  Sessions refused at opening: too many open or opening
frames_on_time_total             counter  Frames of sessions answered in time
frames_missed_total              counter  Frames of sessions refused, dropped, late or failed
frames_of_other_size_total       counter  Frames whose size differs from the advice
link_falls_total                 counter  Times the bandwidth of a session fell
missed_windows_total             counter  Windows without a batch although a request was waiting
lane_busy                        gauge    1 while a batch runs on the lane
lane_cores                       gauge    Confirmed cores of the lane
lane_target_cores                gauge    Target cores of the lane
lane_core_seconds_total          counter  Core-seconds held by the lane, busy or idle
target_cores                     gauge    Planner's target: cores of each replica
target_replicas                  gauge    Planner's target: number of replicas
required_replicas                gauge    Replicas that the forecast requires, ignoring limits
planned_batch_rows               gauge    Planned limit on rows in a batch
predicted_late_requests          gauge    Requests that would be late even with the target
plan_reason                      gauge    1 for the reason for the current target
expected_rows_per_second         gauge    Arrival rate that the planner expects
expected_budget_seconds          gauge    Time budget that the planner expects of requests, seconds
plan_condition                   gauge    1 if this condition keeps the model from its target
plans_total                      counter  Plans made, except by loads and unloads
planning_seconds_total           counter  Event loop time spent on planning, seconds
planned_sessions                 gauge    Sessions of clients that stream frames to a family
unmapped_sessions                gauge    Sessions for whose frames no variant is fast enough
planned_accuracy                 gauge    Mean accuracy planned for the frames of sessions, 0 to 1
capacity_room_ratio              gauge    Share of a lane's throughput that plans may count on
bandwidth_room_ratio             gauge    Share of a link's bandwidth that plans may count on
variant_plans_total              counter  Searches for the variants of lanes and sessions
variant_planning_seconds_total   counter  Time spent on these searches off the event loop, seconds
variant_switches_total           counter  Lanes switched to another variant
variant_mismatches_total         counter  Lanes switched to a variant that was not loaded yet
placements_total                 counter  Computed placements of pipelines
early_placements_total           counter  Placements computed before their regular time
placement_seconds_total          counter  Time spent on placements off the event loop, seconds
placement_moves_total            counter  Times a placement moved a model to other lanes
placement_rebounds_total         counter  Changes of a model's limits on cores, variants or exits
placement_expected_ratio         gauge    Expected placement result as a share of the best possible
early_exits_total                counter  Requests answered by an early exit
exit_judged_rows_total           counter  Rows whose early answer was compared with the model's
exit_agreeing_rows_total         counter  Compared rows with the same answer
exit_saved_seconds_total         counter  Time from early answers to their batch's end, seconds
exit_accuracy                    gauge    Share of recent compared answers that agree
exit_agreement                   gauge    Share of all rows at an early exit whose answer agrees
exit_threshold                   gauge    Uncertainty below which rows leave; 0: none do
exit_mode                        gauge    1 for the current treatment of answered rows
exit_feedback_ratio              gauge    Share of batches that run to the end for comparison
exit_overhead_ratio              gauge    Measured time that early exits add, as a share of a pass
exit_revision                    gauge    Revision of the learnt early exits; 0: none
exit_alarms_total                counter  Times early exits were paused because of wrong answers
exit_judged_changes_total        counter  Judged changes of the model's answer within sessions
exit_missed_changes_total        counter  Judged changes not followed within two frames
exit_change_delay_frames         gauge    Delay to a lasting answer, 95th percentile; 3: above 2
resizes_total                    counter  Resizes of lanes, by outcome
resize_seconds                   histogram Decision to confirmation by all replicas, seconds
pod_cpu_limit_cores              gauge    Current CPU limit of the server's pod
pod_cpu_required_cores           gauge    CPU that the models and the server's loop require
pod_condition                    gauge    1 for the condition that keeps the pod from its target
worker_processes                 gauge    Running worker processes
worker_cpu_seconds_total         counter  CPU time of all workers, seconds
worker_memory_bytes              gauge    Private memory of all workers, bytes
recording                        gauge    1 while the engine's events are recorded
recording_bytes_total            counter  Bytes recorded so far
recording_stopped                gauge    1 if recording has stopped because writing failed
log_lines_lost_total             counter  Log lines lost, by source
offered_share                    gauge    Work offered by clients / capacity of the lanes
forwarded_requests_total         counter  Requests forwarded by or to this server
peer_up                          gauge    1 if the peer may be sent requests, else 0
peer_rtt_seconds                 gauge    Round trip of an empty message to the peer, seconds
"""
_FAMILIES: Mapping[str, tuple[str, str]] = {
    name: (kind, help)
    for name, kind, help in (line.split(maxsplit=2) for line in _TABLE.strip().splitlines())
}

OLD_NAMES: Mapping[str, str] = {
    "slacktide_profiling_backlog": "slacktide_held_samples",
    "slacktide_profiling_runs_total": "slacktide_samples_total",
    "slacktide_isolated_requests_total": "slacktide_singled_out_requests_total",
    "slacktide_profiling_seconds_total": "slacktide_sample_seconds_total",
    "slacktide_profiling_delayed_requests_total": "slacktide_sample_delayed_requests_total",
    "slacktide_profiling_delay_seconds_total": "slacktide_sample_delay_seconds_total",
    "slacktide_target_cores": "slacktide_wished_cores",
    "slacktide_target_replicas": "slacktide_wished_replicas",
    "slacktide_required_replicas": "slacktide_needed_replicas",
    "slacktide_pod_cpu_required_cores": "slacktide_pod_cpu_needed_cores",
}
"""The previous names of renamed families, which are exported too for one release."""


def family(name: str) -> MetricFamily:
    """An empty family, by its name without `slacktide_`. Raises KeyError if unknown."""
    return MetricFamily(f"slacktide_{name}", *_FAMILIES[name])


def single(name: str, value: float, **labels: str) -> MetricFamily:
    """A family with a single sample, by its name without `slacktide_`."""
    labelled = family(name)
    labelled.samples.append(Sample(labels, value))
    return labelled


def per_version(
    metric: MetricFamily, views: Sequence[VersionView], read: Callable[[VersionView], float | None]
) -> MetricFamily:
    """Add a sample for each version for which `read` does not return None."""
    for view in views:
        value = read(view)
        if value is not None:
            metric.add(value, **view.labels)
    return metric


WAITING = (State.QUEUED, State.UNMEASURED, State.QUARANTINED)


@dataclass(slots=True)
class VersionView:
    """A version of a model. During a reload, both loads are counted together: they share counters,
    and predictions are those of the later one."""

    model: str
    version: str
    counters: ModelCounters
    times: PoolTimes | None
    """None for a pipeline, which has no times of its own."""
    cores: int = 1
    ready: bool = False
    sessions: Sequence[SessionSize] = ()
    """Sizes of the sessions of one replica."""
    in_flight: int = 0
    payload_bytes: int = 0
    states: Counter[State] = field(default_factory=Counter)
    """Requests in the engine by state."""
    replicas: Counter[ReplicaState] = field(default_factory=Counter)
    circuit: Circuit = Circuit.CLOSED
    exits: LoadedExits | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its samples."""
        return {"model": self.model, "version": self.version}

    @property
    def waiting(self) -> int:
        """Requests that wait to run."""
        return sum(self.states[state] for state in WAITING)


def look(catalog: Catalog, snapshot: Snapshot) -> tuple[VersionView, ...]:
    """A view of every loaded version, sorted by model and version."""
    pools, requests = snapshot.pools, snapshot.requests
    views: dict[tuple[str, str], VersionView] = {}
    for loaded in sorted(catalog.all(), key=lambda loaded: loaded.generation):
        key = (loaded.name, loaded.version)
        view = views.get(key)
        if view is None:
            view = views[key] = VersionView(*key, loaded.counters, None)
        view.counters = loaded.counters
        view.ready |= loaded.state is VersionState.READY
        view.in_flight += loaded.in_flight
        if loaded.front is not loaded:
            continue
        main = loaded.pool
        view.times, view.cores = main.times, main.cores
        view.sessions = main.sessions or view.sessions
        view.exits = loaded.exits
        view.payload_bytes += loaded.arena.bytes_in_use
        for id in (loaded_pool.id for loaded_pool in loaded.pools):
            view.states += requests.get(id, Counter())
            pool = pools.get(id)
            if pool is not None:
                view.replicas.update(replica.state for replica in pool.replicas)
                view.circuit = pool.circuit
    return tuple(views[key] for key in sorted(views))
