"""Our own families, by the rules of OpenMetrics: base units in the name, counters end in `_total`.

The reasons of outcomes are a closed set, so every one of them is there from the first scrape on,
with 0: a rate over the first request of a kind is then right. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from slacktide._version import __version__
from slacktide.domain import Circuit, Reason
from slacktide.engine import Snapshot
from slacktide.engine.ledger import State
from slacktide.engine.placement import ReplicaState
from slacktide.executors.arena import MemoryBudget
from slacktide.models.tally import Histogram, Tally
from slacktide.models.versions import Catalog
from slacktide.observability.metrics.exposition import Family
from slacktide.observability.metrics.processes import WorkerUsage
from slacktide.observability.metrics.view import VersionView
from slacktide.recording import Recorder

_RESULT = "of requests with a result"
_COUNTS: Sequence[tuple[str, str, str, Callable[[VersionView], float]]] = (
    ("crashes_total", "counter", "Replicas lost", lambda view: view.tally.crashes),
    (
        "out_of_memory_total",
        "counter",
        "Of these, those that took more than limits.worker_memory",
        lambda view: view.tally.out_of_memory,
    ),
    (
        "circuit_openings_total",
        "counter",
        "How often crashes made it unavailable, failed tries included",
        lambda view: view.tally.circuit_openings,
    ),
    (
        "payload_bytes",
        "gauge",
        "Shared memory that payloads take, bytes",
        lambda view: view.payload_bytes,
    ),
    (
        "announced_requests",
        "gauge",
        "Requests whose body is on its way",
        lambda view: view.states[State.ANNOUNCED],
    ),
    ("queue_requests", "gauge", "Requests that wait to run", lambda view: view.waiting),
    (
        "running_requests",
        "gauge",
        "Requests in a running batch",
        lambda view: view.states[State.RUNNING],
    ),
    ("in_flight_requests", "gauge", "Calls that have no answer yet", lambda view: view.in_flight),
    (
        "held_samples",
        "gauge",
        "Answered requests kept to be run again alone",
        lambda view: view.states[State.SAMPLE],
    ),
    (
        "samples_total",
        "counter",
        "Answered requests run again alone, to learn how long they are",
        lambda view: view.tally.samples.run,
    ),
    (
        "singled_out_requests_total",
        "counter",
        "Requests run alone though a batch was ready, to learn how long they are",
        lambda view: view.tally.samples.singled,
    ),
    (
        "sample_seconds_total",
        "counter",
        "Lane time that this took, seconds",
        lambda view: view.tally.samples.run_s,
    ),
    (
        "sample_delayed_requests_total",
        "counter",
        "Requests that came meanwhile and waited for the end of it",
        lambda view: view.tally.samples.delayed,
    ),
    (
        "sample_delay_seconds_total",
        "counter",
        "How long they waited for that, together, seconds",
        lambda view: view.tally.samples.delayed_s,
    ),
    (
        "unknown_run_keys",
        "gauge",
        "Applications and hint bins with too few samples, predicted to take the model's p99",
        lambda view: view.times.unknown_keys,
    ),
)
_HISTOGRAMS: Sequence[tuple[str, str, Callable[[Tally], Histogram]]] = (
    (
        "queue_seconds",
        f"From arrival to the start of the batch, {_RESULT}",
        lambda tally: tally.queue_s,
    ),
    (
        "compute_seconds",
        f"From the start of the batch to the answer, {_RESULT}",
        lambda tally: tally.compute_s,
    ),
    (
        "request_seconds",
        f"From arrival to the answer, {_RESULT}",
        lambda tally: tally.end_to_end_s,
    ),
    (
        "budget_at_completion_seconds",
        "Left until the deadline; negative: too late",
        lambda tally: tally.budget_s,
    ),
    ("batch_rows", "Rows in each batch that ran", lambda tally: tally.batch_rows),
)


def version_families(views: Sequence[VersionView], catalog: Catalog) -> Iterable[Family]:
    """What is known of each version."""
    yield _ready(views, catalog)
    yield _outcomes(views)
    for name, kind, help, count in _COUNTS:
        family = Family(f"slacktide_{name}", kind, help)
        for view in views:
            family.add(count(view), model=view.model, version=view.version)
        yield family
    for name, help, histogram in _HISTOGRAMS:
        family = Family(f"slacktide_{name}", "histogram", help)
        for view in views:
            read = histogram(view.tally)
            family.add_histogram(
                read.bounds, read.counts, read.total, model=view.model, version=view.version
            )
        yield family
    yield from _predictions(views)
    yield from _classes(views)
    yield _replicas(views)
    yield _circuits(views)


def server_families(
    snapshot: Snapshot, budget: MemoryBudget, workers: WorkerUsage
) -> Iterable[Family]:
    """What belongs to no version."""
    build = Family("slacktide_build_info", "gauge", "Always 1")
    build.add(1, version=__version__)
    yield build
    yield Family.single(
        "slacktide_payload_in_use_bytes",
        "gauge",
        "Shared memory that payloads of all models take, bytes",
        budget.bytes_in_use,
    )
    yield Family.single(
        "slacktide_payload_limit_bytes",
        "gauge",
        "Most that slacktide_payload_in_use_bytes may become",
        budget.limit,
    )
    yield _busy(snapshot)
    yield Family.single(
        "slacktide_worker_processes", "gauge", "Worker processes that live", workers.processes
    )
    yield Family.single(
        "slacktide_worker_cpu_seconds_total",
        "counter",
        "CPU time of all workers, seconds",
        workers.cpu_s,
    )
    yield Family.single(
        "slacktide_worker_memory_bytes",
        "gauge",
        "Private memory of all workers, bytes",
        workers.memory_bytes,
    )


def recording_families(recorder: Recorder | None) -> Iterable[Family]:
    """Of what is recorded (`--record`); 0 throughout where nothing is to be."""
    recording = recorder is not None and recorder.stopped is None
    yield Family.single(
        "slacktide_recording", "gauge", "1 while the engine's events are recorded", int(recording)
    )
    yield Family.single(
        "slacktide_recording_bytes_total",
        "counter",
        "Recorded so far, bytes",
        0 if recorder is None else recorder.bytes,
    )
    yield Family.single(
        "slacktide_recording_stopped",
        "gauge",
        "1 if recording has stopped because it could not be written",
        int(recorder is not None and recorder.stopped is not None),
    )


def _ready(views: Sequence[VersionView], catalog: Catalog) -> Family:
    ready = {(view.model, view.version): view.ready for view in views}
    for model, versions in catalog.absent().items():
        for version in versions:
            ready.setdefault((model, version), False)
    family = Family("slacktide_model_ready", "gauge", "1 if it serves, else 0")
    for (model, version), serves in sorted(ready.items()):
        family.add(int(serves), model=model, version=version)
    return family


def _outcomes(views: Sequence[VersionView]) -> Family:
    family = Family("slacktide_outcomes_total", "counter", "How requests ended, and why")
    for view in views:
        by_reason = view.tally.by_reason
        for reason in Reason:
            family.add(
                by_reason.get(reason, 0),
                model=view.model,
                version=view.version,
                outcome=reason.kind.value,
                reason=reason.label,
            )
    return family


def _predictions(views: Sequence[VersionView]) -> Iterable[Family]:
    error = Family(
        "slacktide_prediction_error_ratio",
        "gauge",
        "Mean of |observed − predicted| ÷ predicted batch time, lately",
    )
    drift = Family("slacktide_drift_ratio", "gauge", "Observed batch times ÷ those of the profile")
    for view in views:
        if view.times.prediction_error is not None:
            error.add(view.times.prediction_error, model=view.model, version=view.version)
        drift.add(view.times.drift, model=view.model, version=view.version)
    return error, drift


def _classes(views: Sequence[VersionView]) -> Iterable[Family]:
    alone = Family(
        "slacktide_run_class_seconds",
        "gauge",
        "Mean time of a request of this run class by itself, seconds; absent while all are alike",
    )
    share = Family("slacktide_run_class_share", "gauge", "Its part of the arrivals, 0 to 1")
    for view in views:
        classes = view.times.classes(view.cores)
        for of in range(0 if classes is None else len(classes)):
            assert classes is not None
            labels = {"model": view.model, "version": view.version, "class": str(of)}
            alone.add(classes.alone(of), **labels)
            share.add(classes.shares[of], **labels)
    return alone, share


def _replicas(views: Sequence[VersionView]) -> Family:
    family = Family("slacktide_replicas", "gauge", "Replicas by state")
    for view in views:
        for state in ReplicaState:
            family.add(
                view.replicas[state], model=view.model, version=view.version, state=state.value
            )
    return family


def _circuits(views: Sequence[VersionView]) -> Family:
    family = Family("slacktide_circuit", "gauge", "1 for the state of its circuit, else 0")
    for view in views:
        for state in Circuit:
            here = int(view.circuit is state)
            family.add(here, model=view.model, version=view.version, state=state.value)
    return family


def _busy(snapshot: Snapshot) -> Family:
    busy = Family("slacktide_lane_busy", "gauge", "1 while a batch runs on it")
    for name, lane in sorted(snapshot.lanes.items()):
        busy.add(int(lane.running is not None), lane=name)
    return busy
