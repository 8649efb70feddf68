"""Families of samples, how they are written, and our own: what each is called, its kind, its help.

Written as Prometheus text 0.0.4, numbers as plain decimal digits: some consumers read the page with
patterns rather than a parser, so counters keep the names they are given, and 150754811904 never
becomes 1.50754811904e+11. Ours follow OpenMetrics: base units in the name, counters end in
`_total`; docs/metrics.md says more of each. What a scrape reads is one `VersionView` for each
version, engine and catalog side by side. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from slacktide.domain import Circuit
from slacktide.engine import Snapshot
from slacktide.engine.ledger import State
from slacktide.engine.phases import ReplicaState
from slacktide.executors.ports import SessionSize
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.models.learnt import PoolTimes
from slacktide.models.versions import Catalog, LoadedExits, VersionState

_PIECE_LINES = 256


class Sample(NamedTuple):
    """One line. `suffix` comes after the family's name (`_bucket`, `_sum`, `_count` or nothing)."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(slots=True)
class MetricFamily:
    """Everything of one name. `kind` is `counter`, `gauge` or `histogram`."""

    name: str
    kind: str
    help: str
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def single(cls, name: str, kind: str, help: str, value: float) -> MetricFamily:
        """A family of one sample without labels."""
        return cls(name, kind, help, [Sample({}, value)])

    def add(self, value: float, **labels: str) -> None:
        """One more sample."""
        self.samples.append(Sample(labels, value))

    def add_histogram(
        self, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
    ) -> None:
        """`counts` has one entry for each upper bound and one for what is above them all. With a
        negative bound there is no `_sum`, which could fall, and therefore no `_count` (OpenMetrics,
        on histograms); the last bucket is the count."""
        below = 0
        for bound, count in zip((*map(plain, bounds), "+Inf"), counts, strict=True):
            below += count
            self.samples.append(Sample({**labels, "le": bound}, below, "_bucket"))
        if bounds[0] >= 0:
            self.samples.append(Sample(labels, total, "_sum"))
            self.samples.append(Sample(labels, below, "_count"))


def write(families: Iterable[MetricFamily]) -> bytes:
    """The text of these families, each with its help and type before its samples."""
    return b"".join(pieces(families))


def pieces(families: Iterable[MetricFamily]) -> Iterator[bytes]:
    """The same, at most so many lines at a time that each piece takes about a millisecond.
    Families of one name that follow one another are one."""
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
    """Decimal digits without an exponent; at most nine of them after the point."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.9f}".rstrip("0").rstrip(".")


def escaped(text: str) -> str:
    """A label's value between its quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# Name without `slacktide_`, kind, help.
_TABLE = """
build_info                       gauge    Always 1
model_ready                      gauge    1 if the version serves, else 0
outcomes_total                   counter  How requests ended, and why
crashes_total                    counter  Replicas lost
out_of_memory_total              counter  Replicas lost beyond limits.worker_memory
circuit_openings_total           counter  Times that crashes made a version unavailable
damaged_pictures_total           counter  Pictures answered although decoding them showed damage
circuit                          gauge    1 for the state of the version's circuit, else 0
replicas                         gauge    Replicas by state
payload_bytes                    gauge    Shared memory of payloads, bytes
payload_in_use_bytes             gauge    Shared memory of payloads of all models, bytes
payload_limit_bytes              gauge    Limit on slacktide_payload_in_use_bytes
announced_requests               gauge    Requests whose body is still arriving
queue_requests                   gauge    Requests waiting to run
unmeasured_requests              gauge    Those whose run time cannot be judged yet
rescued_total                    counter  Requests moved to a smaller variant for lack of time
running_requests                 gauge    Requests in a running batch
in_flight_requests               gauge    Calls without an answer yet
profiling_backlog                gauge    Answered requests kept for a profiling run
profiling_runs_total             counter  Answered requests run again alone, to learn their times
isolated_requests_total          counter  Requests run alone although a batch was ready, likewise
profiling_seconds_total          counter  Lane time spent on profiling runs, seconds
profiling_delayed_requests_total counter  Requests delayed by a profiling run
profiling_delay_seconds_total    counter  Total delay of requests by profiling runs, seconds
unknown_run_keys                 gauge    Applications and hint bins with too few samples
prediction_error_ratio           gauge    Mean of |observed − predicted| ÷ predicted, lately
drift_ratio                      gauge    Observed batch times ÷ those of the profile
run_class_seconds                gauge    Mean time alone of a run class, seconds; absent with one
run_class_share                  gauge    Share of the run class in arrivals, 0 to 1
queue_seconds                    histogram Arrival to start of the batch, requests with a result
compute_seconds                  histogram Start of the batch to answer, requests with a result
request_seconds                  histogram Arrival to answer, requests with a result
budget_at_completion_seconds     histogram Budget left at the answer; negative: late
batch_rows                       histogram Rows in each batch that ran
stage_requests_total             counter  Requests of a pipeline's stages, by how they ended
stage_seconds                    histogram Input there to answer, requests of a stage
stage_slack_seconds              histogram Time left of the stage's part of the deadline
stage_loop_seconds_total         counter  Event loop time spent between stages, seconds
edge_rows                        gauge    Rows that a stage hands on for each of its own, lately
edge_burstiness                  gauge    Coefficient of variation of the same
session_bytes                    gauge    Memory of a replica's session by its threads, bytes
client_sessions                  gauge    Clients that stream frames
client_sessions_mapped           gauge    Those that may expect answers in time
client_sessions_opened_total     counter  Sessions begun
client_sessions_refused_total    counter  Hellos refused: too many sessions, or too many at a time
frames_on_time_total             counter  Frames of sessions answered in time
frames_missed_total              counter  Frames of sessions refused, given up, late or failed
frames_of_other_size_total       counter  Frames of another size than their client was told
link_falls_total                 counter  Times that the bandwidth of a session fell
missed_windows_total             counter  Windows without a batch although a request had waited
lane_busy                        gauge    1 while a batch runs on the lane
lane_cores                       gauge    Cores of the lane, as confirmed
lane_target_cores                gauge    Cores that the lane is to have
lane_core_seconds_total          counter  Cores of the lane × time, busy or not, seconds
target_cores                     gauge    Planner's target: cores of each replica
target_replicas                  gauge    Planner's target: number of replicas
required_replicas                gauge    Replicas that the forecast requires, allowed or not
planned_batch_rows               gauge    Planned limit on rows in a batch
predicted_late_requests          gauge    Requests that would be late even with the target
plan_reason                      gauge    1 for the reason of the target in force
expected_rows_per_second         gauge    Arrival rate that the planner expects
expected_budget_seconds          gauge    Budget that the planner expects of arrivals
plan_condition                   gauge    1 if this condition keeps the model from its target
plans_total                      counter  Plans made, other than by loads and unloads
planning_seconds_total           counter  Time of the server's event loop spent on planning, seconds
planned_sessions                 gauge    Sessions of clients that stream frames to a family
unmapped_sessions                gauge    Sessions for whose frames no variant has time
planned_accuracy                 gauge    Mean accuracy planned for the frames of sessions, 0 to 1
capacity_room_ratio              gauge    Share of a lane's throughput that is planned with
bandwidth_room_ratio             gauge    Share of a link's bandwidth that is planned with
variant_plans_total              counter  Searches for the variants of lanes and sessions
variant_planning_seconds_total   counter  Time that these took beside the event loop, seconds
variant_switches_total           counter  Lanes that were given another variant
variant_mismatches_total         counter  Lanes that were given a variant that was not loaded yet
placements_total                 counter  Placements of pipelines that were computed
early_placements_total           counter  Those that did not wait for their time
placement_seconds_total          counter  Time that these took beside the event loop, seconds
placement_moves_total            counter  Times that a model was given other lanes by one
placement_rebounds_total         counter  Times that a model was given other bounds
placement_expected_ratio         gauge    Share of what could be served that is expected to be
early_exits_total                counter  Requests that an early exit has answered
exit_judged_rows_total           counter  Rows whose answer by an early exit was held to the model's
exit_agreeing_rows_total         counter  Those of them in which both gave the same answer
exit_saved_seconds_total         counter  Time by which early answers came before their batch's end
exit_accuracy                    gauge    Share of the last judged answers that were the model's
exit_agreement                   gauge    The same of one early exit, on all rows that came to it
exit_threshold                   gauge    Uncertainty below which a row leaves; 0: none does
exit_mode                        gauge    1 for what becomes of rows that have their answer
exit_feedback_ratio              gauge    Share of batches that run on, to be judged
exit_overhead_ratio              gauge    Measured share of a pass that early exits add
exit_revision                    gauge    Revision of what the early exits have learnt; 0: nothing
exit_alarms_total                counter  Times that no row left for a while, for wrong answers
resizes_total                    counter  Resizes of lanes, by outcome
resize_seconds                   histogram Decision to confirmation by all replicas, seconds
pod_cpu_limit_cores              gauge    CPU limit of the server's pod, in force
pod_cpu_required_cores           gauge    CPU that models and the server's loop require together
pod_condition                    gauge    1 for the condition that keeps the pod from its target
worker_processes                 gauge    Living worker processes
worker_cpu_seconds_total         counter  CPU time of all workers, seconds
worker_memory_bytes              gauge    Private memory of all workers, bytes
recording                        gauge    1 while the engine's events are recorded
recording_bytes_total            counter  Bytes recorded so far
recording_stopped                gauge    1 if recording has stopped because it could not be written
log_lines_lost_total             counter  Log lines that nothing read in time, by source
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
"""Names of the last release by those of now, beside which they are shown for one release."""


def family(name: str) -> MetricFamily:
    """The family of this name (without `slacktide_`), empty. Raises KeyError if there is none."""
    return MetricFamily(f"slacktide_{name}", *_FAMILIES[name])


def single(name: str, value: float, **labels: str) -> MetricFamily:
    """The same with one sample."""
    labelled = family(name)
    labelled.samples.append(Sample(labels, value))
    return labelled


def per_version(
    metric: MetricFamily, views: Sequence[VersionView], read: Callable[[VersionView], float | None]
) -> MetricFamily:
    """`metric` with a sample for each version, but for those of which `read` knows nothing."""
    for view in views:
        value = read(view)
        if value is not None:
            metric.add(value, **view.labels)
    return metric


WAITING = (State.QUEUED, State.UNMEASURED, State.QUARANTINED)


@dataclass(slots=True)
class VersionView:
    """One version. While it is loaded anew, both its loads are counted together: they share a
    counters, and predictions are those of the later one."""

    model: str
    version: str
    counters: ModelCounters
    times: PoolTimes | None
    """None: it is a pipeline, which has none of its own."""
    cores: int = 1
    ready: bool = False
    sessions: Sequence[SessionSize] = ()
    """Of one replica."""
    in_flight: int = 0
    payload_bytes: int = 0
    states: Counter[State] = field(default_factory=Counter)
    """Requests that the engine knows, by where they are."""
    replicas: Counter[ReplicaState] = field(default_factory=Counter)
    circuit: Circuit = Circuit.CLOSED
    exits: LoadedExits | None = None

    @property
    def labels(self) -> Mapping[str, str]:
        """Those of its samples."""
        return {"model": self.model, "version": self.version}

    @property
    def waiting(self) -> int:
        """Requests that are here and do not run yet."""
        return sum(self.states[state] for state in WAITING)


def look(catalog: Catalog, snapshot: Snapshot) -> tuple[VersionView, ...]:
    """Every version that has replicas, by model and number."""
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
