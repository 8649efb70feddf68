"""Triton's families, for dashboards made for Triton.

Units (µs, ms or seconds, as in the names) and meanings follow Triton's documentation, and counters
have no `_total`. Triton's summaries are missing, because they need quantiles of single requests,
which a histogram cannot give. Cache metrics are missing because there is no cache; without one,
Triton shows none either. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slacktide.domain import OutcomeKind, Reason
from slacktide.executors.cgroups import Memory
from slacktide.models.calls.model_counters import ModelCounters
from slacktide.observability.metrics.families import MetricFamily, VersionView, per_version
from slacktide.observability.metrics.usage import Gpu

_OF_KIND: Mapping[OutcomeKind, str] = {
    OutcomeKind.DROPPED: "REJECTED",
    OutcomeKind.REJECTED: "REJECTED",
    OutcomeKind.FAILED: "BACKEND",
    OutcomeKind.CANCELLED: "CANCELED",
}
_CLIENTS_FAULT = (Reason.BAD_INPUT, Reason.NOT_FOUND, Reason.TOO_LARGE)
FAILURES = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


def failure_of(reason: Reason) -> str | None:
    """Triton's reason for a failed request; None if it has a result. REJECTED means that the
    scheduler refused it or let it time out, OTHER that the request itself was invalid."""
    return "OTHER" if reason in _CLIENTS_FAULT else _OF_KIND.get(reason.kind)


_COUNTERS: Sequence[tuple[str, str, Callable[[ModelCounters], float]]] = (
    (
        "request_success",
        "Requests answered with a result",
        lambda counters: counters.end_to_end_s.count,
    ),
    ("count", "Rows inferred", lambda counters: counters.rows_served),
    ("exec_count", "Batches executed", lambda counters: counters.executions),
)
_DURATIONS: Sequence[tuple[str, str, Callable[[ModelCounters], float]]] = (
    ("request", "From arrival to answer", lambda counters: counters.end_to_end_s.total),
    ("queue", "Waiting to run", lambda counters: counters.queue_s.total),
    ("compute_input", "Gathering inputs", lambda counters: counters.compute.input_s),
    ("compute_infer", "Running the model", lambda counters: counters.compute.infer_s),
    ("compute_output", "Returning outputs", lambda counters: counters.compute.output_s),
)


def model_families(views: Sequence[VersionView]) -> Iterable[MetricFamily]:
    """Families with samples for each version."""
    for name, help, count in _COUNTERS:
        yield _counter(name, help, views, count)
    for name, help, seconds in _DURATIONS:
        help = f"{help}, total microseconds of requests with a result"
        yield _counter(f"{name}_duration_us", help, views, _microseconds(seconds))
    yield _failures(views)
    name, help = "nv_inference_pending_request_count", "Requests waiting to run"
    yield per_version(MetricFamily(name, "gauge", help), views, lambda view: view.waiting)
    yield from _first_response(views)
    load = MetricFamily("nv_model_load_duration_secs", "gauge", "Time to load, seconds")
    yield per_version(load, views, lambda view: view.counters.load_s)


def machine_families(cpu_utilization: float, memory: Memory) -> Iterable[MetricFamily]:
    """Processors and memory available to this server."""
    single = MetricFamily.single
    return (
        single("nv_cpu_utilization", "gauge", "CPU time in use, 0 to 1", cpu_utilization),
        single("nv_cpu_memory_total_bytes", "gauge", "Available memory", memory.total),
        single("nv_cpu_memory_used_bytes", "gauge", "Memory in use", memory.used),
    )


def gpu_families(gpus: Sequence[Gpu]) -> Iterable[MetricFamily]:
    """A sample for each GPU. `gpu_uuid` must be the only label."""
    families = (
        MetricFamily("nv_gpu_utilization", "gauge", "Share of time that a kernel ran, 0 to 1"),
        MetricFamily("nv_gpu_memory_total_bytes", "gauge", "GPU memory, bytes"),
        MetricFamily("nv_gpu_memory_used_bytes", "gauge", "GPU memory in use, bytes"),
        MetricFamily("nv_gpu_power_usage", "gauge", "GPU power, watts"),
    )
    for gpu in gpus:
        values = (gpu.utilization, gpu.memory_total, gpu.memory_used, gpu.power_w)
        for family, value in zip(families, values, strict=True):
            if value is not None:
                family.add(value, gpu_uuid=gpu.uuid)
    return families


def _counter(
    name: str, help: str, views: Sequence[VersionView], count: Callable[[ModelCounters], float]
) -> MetricFamily:
    counter = MetricFamily(f"nv_inference_{name}", "counter", help)
    return per_version(counter, views, lambda view: count(view.counters))


def _microseconds(seconds: Callable[[ModelCounters], float]) -> Callable[[ModelCounters], int]:
    return lambda counters: round(seconds(counters) * 1e6)


def _failures(views: Sequence[VersionView]) -> MetricFamily:
    family = MetricFamily("nv_inference_request_failure", "counter", "Requests without a result")
    for view in views:
        counts = dict.fromkeys(FAILURES, 0)
        for reason, count in view.counters.by_reason.items():
            failure = failure_of(reason)
            if failure is not None:
                counts[failure] += count
        for failure, count in counts.items():
            family.add(count, **view.labels, reason=failure)
    return family


def _first_response(views: Sequence[VersionView]) -> Iterable[MetricFamily]:
    name = "nv_inference_first_response_histogram_ms"
    help = "From arrival to the only answer, milliseconds"
    yield MetricFamily(name, "histogram", help)
    for view in views:
        family, end_to_end = MetricFamily(name, "histogram", help), view.counters.end_to_end_s
        family.add_histogram(
            [bound * 1e3 for bound in end_to_end.bounds],
            end_to_end.counts,
            end_to_end.total * 1e3,
            **view.labels,
        )
        yield family
