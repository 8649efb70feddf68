"""Our own families, by the rules of OpenMetrics: base units in the name, counters end in `_total`.

The reasons of outcomes are a closed set, so every one of them is there from the first scrape on,
with 0: a rate over the first request of a kind is then right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from slacktide import __version__
from slacktide.domain import Reason
from slacktide.engine import Engine
from slacktide.engine.lane import ReplicaState
from slacktide.engine.ledger import State
from slacktide.executors.budget import MemoryBudget
from slacktide.server.metrics.view import VersionView
from slacktide.server.metrics.workers import WorkerUsage
from slacktide.server.tally import Histogram
from slacktide.server.versions import Catalog

_VERSION = ("model", "version")


def version_families(views: Sequence[VersionView], catalog: Catalog) -> Iterable[Metric]:
    """What is known of each version."""
    yield _ready(views, catalog)
    yield _outcomes(views)
    yield from _requests(views)
    yield from _histograms(views)
    yield from _predictions(views)
    yield _replicas(views)
    crashes = CounterMetricFamily("slacktide_crashes", "Replicas lost", labels=_VERSION)
    payload = GaugeMetricFamily(
        "slacktide_payload_bytes", "Shared memory that payloads take, bytes", labels=_VERSION
    )
    for view in views:
        crashes.add_metric((view.model, view.version), view.tally.crashes)
        payload.add_metric((view.model, view.version), view.payload_bytes)
    yield crashes
    yield payload


def server_families(engine: Engine, budget: MemoryBudget, workers: WorkerUsage) -> Iterable[Metric]:
    """What belongs to no version."""
    build = GaugeMetricFamily("slacktide_build_info", "Always 1", labels=("version",))
    build.add_metric((__version__,), 1)
    yield build
    yield GaugeMetricFamily(
        "slacktide_payload_in_use_bytes",
        "Shared memory that payloads of all models take, bytes",
        budget.bytes_in_use,
    )
    yield GaugeMetricFamily(
        "slacktide_payload_limit_bytes",
        "Most that slacktide_payload_in_use_bytes may become",
        budget.limit,
    )
    yield from _lanes(engine)
    yield GaugeMetricFamily(
        "slacktide_worker_processes", "Worker processes that live", workers.processes
    )
    yield CounterMetricFamily(
        "slacktide_worker_cpu_seconds", "CPU time of all workers, seconds", workers.cpu_s
    )
    yield GaugeMetricFamily(
        "slacktide_worker_memory_bytes", "Private memory of all workers", workers.memory_bytes
    )


def _ready(views: Sequence[VersionView], catalog: Catalog) -> Metric:
    ready = {(view.model, view.version): view.ready for view in views}
    for model, versions in catalog.absent().items():
        for version in versions:
            ready.setdefault((model, version), False)
    family = GaugeMetricFamily("slacktide_model_ready", "1 if it serves, else 0", labels=_VERSION)
    for key, serves in sorted(ready.items()):
        family.add_metric(key, int(serves))
    return family


def _outcomes(views: Sequence[VersionView]) -> Metric:
    family = CounterMetricFamily(
        "slacktide_outcomes",
        "How requests ended, and why",
        labels=(*_VERSION, "outcome", "reason"),
    )
    for view in views:
        for reason in Reason:
            family.add_metric(
                (view.model, view.version, reason.kind.value, reason.label),
                view.tally.by_reason.get(reason, 0),
            )
    return family


def _requests(views: Sequence[VersionView]) -> Iterable[Metric]:
    announced = GaugeMetricFamily(
        "slacktide_announced_requests", "Requests whose body is on its way", labels=_VERSION
    )
    waiting = GaugeMetricFamily(
        "slacktide_queue_requests", "Requests that wait to run", labels=_VERSION
    )
    running = GaugeMetricFamily(
        "slacktide_running_requests", "Requests in a running batch", labels=_VERSION
    )
    in_flight = GaugeMetricFamily(
        "slacktide_in_flight_requests", "Calls that have no answer yet", labels=_VERSION
    )
    for view in views:
        key = (view.model, view.version)
        announced.add_metric(key, view.states[State.ANNOUNCED])
        waiting.add_metric(key, view.waiting)
        running.add_metric(key, view.states[State.RUNNING])
        in_flight.add_metric(key, view.in_flight)
    return announced, waiting, running, in_flight


def _histograms(views: Sequence[VersionView]) -> Iterable[Metric]:
    result = "of requests with a result"
    families = (
        ("slacktide_queue_seconds", f"From arrival to the start of the batch, {result}"),
        ("slacktide_compute_seconds", f"From the start of the batch to the answer, {result}"),
        ("slacktide_request_seconds", f"From arrival to the answer, {result}"),
        ("slacktide_budget_at_completion_seconds", "Left until the deadline; negative: too late"),
        ("slacktide_batch_rows", "Rows in each batch that ran"),
    )
    made = [HistogramMetricFamily(name, help, labels=_VERSION) for name, help in families]
    for view in views:
        tally = view.tally
        read = (
            tally.queue_s,
            tally.compute_s,
            tally.end_to_end_s,
            tally.budget_s,
            tally.batch_rows,
        )
        for family, histogram in zip(made, read, strict=True):
            # With negative buckets there is no sum, and the library leaves it out.
            family.add_metric((view.model, view.version), _buckets(histogram), histogram.total)
    return made


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets = []
    below = 0
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        below += count
        buckets.append((bound, float(below)))
    return buckets


def _predictions(views: Sequence[VersionView]) -> Iterable[Metric]:
    error = GaugeMetricFamily(
        "slacktide_prediction_error_ratio",
        "Mean of |observed − predicted| ÷ predicted batch time, lately",
        labels=_VERSION,
    )
    drift = GaugeMetricFamily(
        "slacktide_drift_ratio", "Observed batch times ÷ those of the profile", labels=_VERSION
    )
    for view in views:
        key = (view.model, view.version)
        if view.times.prediction_error is not None:
            error.add_metric(key, view.times.prediction_error)
        drift.add_metric(key, view.times.drift)
    return error, drift


def _replicas(views: Sequence[VersionView]) -> Metric:
    family = GaugeMetricFamily(
        "slacktide_replicas", "Replicas by state", labels=(*_VERSION, "state")
    )
    for view in views:
        for state in ReplicaState:
            family.add_metric((view.model, view.version, state.value), view.replicas[state])
    return family


def _lanes(engine: Engine) -> Iterable[Metric]:
    busy = GaugeMetricFamily("slacktide_lane_busy", "1 while a batch runs on it", labels=("lane",))
    cores = GaugeMetricFamily("slacktide_lane_cores", "Cores it has", labels=("lane",))
    for name, lane in sorted(engine.state.lanes.items()):
        busy.add_metric((name,), int(lane.running is not None))
        cores.add_metric((name,), len(lane.cores))
    return busy, cores
