"""Our own families of versions and of the server.

The reasons of outcomes are a closed set, so every one of them is there from the first scrape on,
with 0: a rate over the first request of a kind is then right. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slacktide._version import __version__
from slacktide.domain import Circuit, Reason
from slacktide.engine import Snapshot
from slacktide.engine.ledger import State
from slacktide.engine.placement import ReplicaState
from slacktide.executors.arena import MemoryBudget
from slacktide.models.model_counters import Histogram, ModelCounters
from slacktide.models.versions import Catalog
from slacktide.observability.metrics.families import Family, family, per_version, single
from slacktide.observability.metrics.usage import WorkerUsage
from slacktide.observability.metrics.view import VersionView
from slacktide.recording import Recorder

_COUNTS: Mapping[str, Callable[[VersionView], float | None]] = {
    "crashes_total": lambda view: view.counters.crashes,
    "out_of_memory_total": lambda view: view.counters.out_of_memory,
    "circuit_openings_total": lambda view: view.counters.circuit_openings,
    "payload_bytes": lambda view: view.payload_bytes,
    "announced_requests": lambda view: view.states[State.ANNOUNCED],
    "queue_requests": lambda view: view.waiting,
    "running_requests": lambda view: view.states[State.RUNNING],
    "in_flight_requests": lambda view: view.in_flight,
    "profiling_backlog": lambda view: view.states[State.HELD],
    "profiling_runs_total": lambda view: view.counters.samples.run,
    "isolated_requests_total": lambda view: view.counters.samples.isolated,
    "profiling_seconds_total": lambda view: view.counters.samples.run_s,
    "profiling_delayed_requests_total": lambda view: view.counters.samples.delayed,
    "profiling_delay_seconds_total": lambda view: view.counters.samples.delayed_s,
    "unknown_run_keys": lambda view: view.times.unknown_keys,
    "prediction_error_ratio": lambda view: view.times.prediction_error,
    "drift_ratio": lambda view: view.times.drift,
}
_HISTOGRAMS: Mapping[str, Callable[[ModelCounters], Histogram]] = {
    "queue_seconds": lambda counters: counters.queue_s,
    "compute_seconds": lambda counters: counters.compute_s,
    "request_seconds": lambda counters: counters.end_to_end_s,
    "budget_at_completion_seconds": lambda counters: counters.budget_s,
    "batch_rows": lambda counters: counters.batch_rows,
}


def version_families(views: Sequence[VersionView], catalog: Catalog) -> Iterable[Family]:
    """What is known of each version."""
    yield _ready(views, catalog)
    yield _outcomes(views)
    for name, count in _COUNTS.items():
        yield per_version(family(name), views, count)
    for name, histogram in _HISTOGRAMS.items():
        made = family(name)
        for view in views:
            read = histogram(view.counters)
            made.add_histogram(read.bounds, read.counts, read.total, **view.labels)
        yield made
    yield from _classes(views)
    yield from _states(views)


def server_families(
    snapshot: Snapshot, budget: MemoryBudget, workers: WorkerUsage
) -> Iterable[Family]:
    """What belongs to no version."""
    yield single("build_info", 1, version=__version__)
    yield single("payload_in_use_bytes", budget.bytes_in_use)
    yield single("payload_limit_bytes", budget.limit)
    busy = family("lane_busy")
    for name, lane in sorted(snapshot.lanes.items()):
        busy.add(int(lane.running is not None), lane=name)
    yield busy
    yield single("worker_processes", workers.processes)
    yield single("worker_cpu_seconds_total", workers.cpu_s)
    yield single("worker_memory_bytes", workers.memory_bytes)


def recording_families(recorder: Recorder | None) -> Iterable[Family]:
    """Of what is recorded (`--record`); 0 throughout where nothing is to be."""
    stopped = recorder is not None and recorder.stopped is not None
    yield single("recording", int(recorder is not None and not stopped))
    yield single("recording_bytes_total", 0 if recorder is None else recorder.bytes)
    yield single("recording_stopped", int(stopped))


def _ready(views: Sequence[VersionView], catalog: Catalog) -> Family:
    ready = {(view.model, view.version): view.ready for view in views}
    for model, versions in catalog.absent().items():
        for version in versions:
            ready.setdefault((model, version), False)
    made = family("model_ready")
    for (model, version), serves in sorted(ready.items()):
        made.add(int(serves), model=model, version=version)
    return made


def _outcomes(views: Sequence[VersionView]) -> Family:
    made = family("outcomes_total")
    for view in views:
        for reason in Reason:
            count, outcome = view.counters.by_reason.get(reason, 0), reason.kind.value
            made.add(count, **view.labels, outcome=outcome, reason=reason.label)
    return made


def _classes(views: Sequence[VersionView]) -> Iterable[Family]:
    alone, share = family("run_class_seconds"), family("run_class_share")
    for view in views:
        classes = view.times.classes(view.cores)
        for of in range(0 if classes is None else len(classes)):
            assert classes is not None
            labels = {**view.labels, "class": str(of)}
            alone.add(classes.alone(of), **labels)
            share.add(classes.shares[of], **labels)
    return alone, share


def _states(views: Sequence[VersionView]) -> Iterable[Family]:
    replicas, circuits = family("replicas"), family("circuit")
    for view in views:
        for state in ReplicaState:
            replicas.add(view.replicas[state], **view.labels, state=state.value)
        for circuit in Circuit:
            circuits.add(int(view.circuit is circuit), **view.labels, state=circuit.value)
    return replicas, circuits
