"""Our own families: versions, scaling, sessions, pipelines, exits, the server.

Every reason of an outcome is exported from the first scrape on, with 0, so that rates include the
first request with that reason. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slacktide._version import __version__
from slacktide.cluster import Hindrance, PodAllocator
from slacktide.domain import Circuit, ExitMode, PoolId, Reason
from slacktide.engine import Snapshot
from slacktide.engine.phases import ReplicaState
from slacktide.engine.request_table import State
from slacktide.executors import worker_output
from slacktide.executors.hand_over.arena import MemoryBudget
from slacktide.models.calls.model_counters import Histogram, ModelCounters
from slacktide.models.resize_tracker import ResizeOutcome, ResizeTracker
from slacktide.models.versions import Catalog
from slacktide.observability import log_writer
from slacktide.observability.metrics.families import (
    MetricFamily,
    VersionView,
    family,
    per_version,
    single,
)
from slacktide.observability.metrics.usage import WorkerUsage
from slacktide.planning.exits import ExitsStatus
from slacktide.planning.pipelines import PlacementStatus
from slacktide.planning.scaling import ScaledModel, ScalingPlanner, ScalingStatus
from slacktide.planning.variants import VariantsStatus
from slacktide.recording import Recorder
from slacktide.runtime import Runtime

_NOTHING: Mapping[Any, Any] = {}
_COUNTS: Mapping[str, Callable[[VersionView], float | None]] = {
    "crashes_total": lambda view: view.counters.crashes,
    "out_of_memory_total": lambda view: view.counters.out_of_memory,
    "circuit_openings_total": lambda view: view.counters.circuit_openings,
    "damaged_pictures_total": lambda view: view.counters.damaged_pictures,
    "payload_bytes": lambda view: view.payload_bytes,
    "announced_requests": lambda view: view.states[State.ANNOUNCED],
    "queue_requests": lambda view: view.waiting,
    "unmeasured_requests": lambda view: view.states[State.UNMEASURED],
    "running_requests": lambda view: view.states[State.RUNNING],
    "in_flight_requests": lambda view: view.in_flight,
    "profiling_backlog": lambda view: view.states[State.HELD],
    "profiling_runs_total": lambda view: view.counters.samples.run,
    "isolated_requests_total": lambda view: view.counters.samples.isolated,
    "profiling_seconds_total": lambda view: view.counters.samples.run_s,
    "profiling_delayed_requests_total": lambda view: view.counters.samples.delayed,
    "profiling_delay_seconds_total": lambda view: view.counters.samples.delayed_s,
    "unknown_run_keys": lambda view: None if view.times is None else view.times.unknown_keys,
    "prediction_error_ratio": lambda view: (
        None if view.times is None else view.times.prediction_error
    ),
    "drift_ratio": lambda view: None if view.times is None else view.times.drift,
}
_HISTOGRAMS: Mapping[str, Callable[[ModelCounters], Histogram]] = {
    "queue_seconds": lambda counters: counters.queue_s,
    "compute_seconds": lambda counters: counters.compute_s,
    "request_seconds": lambda counters: counters.end_to_end_s,
    "budget_at_completion_seconds": lambda counters: counters.budget_s,
    "batch_rows": lambda counters: counters.batch_rows,
}


def version_families(views: Sequence[VersionView], catalog: Catalog) -> Iterable[MetricFamily]:
    """Families with samples for each version."""
    yield _ready(views, catalog)
    yield from _outcomes(views)
    for name, count in _COUNTS.items():
        yield per_version(family(name), views, count)
    for name, histogram in _HISTOGRAMS.items():
        yield family(name)
        for view in views:  # one family per version, because the page is written in pieces
            metric, read = family(name), histogram(view.counters)
            metric.add_histogram(read.bounds, read.counts, read.total, **view.labels)
            yield metric
    yield from _classes(views)
    yield from _states(views)


def server_families(
    snapshot: Snapshot, budget: MemoryBudget, workers: WorkerUsage
) -> Iterable[MetricFamily]:
    """Families of the whole server."""
    yield single("build_info", 1, version=__version__)
    yield single("payload_in_use_bytes", budget.bytes_in_use)
    yield single("payload_limit_bytes", budget.limit)
    busy = family("lane_busy")
    for name, lane in sorted(snapshot.lanes.items()):
        busy.add(int(lane.running is not None), lane=name)
    yield busy
    missed = family("missed_windows_total")
    for name, lane in sorted(snapshot.lanes.items()):
        for model, windows in sorted(lane.missed.items()):
            missed.add(windows, lane=name, model=model)
    yield missed
    rescued, counts = family("rescued_total"), snapshot.counts
    for model in sorted({pool.model for pool in snapshot.pools if pool.variant}):
        rescued.add(counts[model].rescued if model in counts else 0, model=model)
    yield rescued
    yield single("worker_processes", workers.processes)
    yield single("worker_cpu_seconds_total", workers.cpu_s)
    yield single("worker_memory_bytes", workers.memory_bytes)


def peer_families(
    states: Mapping[str, tuple[bool, float]] = _NOTHING,
    forwarded: Mapping[tuple[str, str], int] = _NOTHING,
) -> Iterable[MetricFamily]:
    """Peers by name (whether each is used, and its round trip in seconds), and the numbers of
    forwarded requests by model and direction."""
    requests, up = family("forwarded_requests_total"), family("peer_up")
    rtt = family("peer_rtt_seconds")
    for (model, direction), count in sorted(forwarded.items()):
        requests.add(count, model=model, direction=direction)
    for peer, (is_used, seconds) in sorted(states.items()):
        up.add(int(is_used), peer=peer)
        rtt.add(seconds, peer=peer)
    return requests, up, rtt


def recording_families(recorder: Recorder | None) -> Iterable[MetricFamily]:
    """Families of the recording (`--record`); all 0 without one."""
    stopped = recorder is not None and recorder.stopped is not None
    yield single("recording", int(recorder is not None and not stopped))
    yield single("recording_bytes_total", 0 if recorder is None else recorder.bytes)
    yield single("recording_stopped", int(stopped))


def log_families() -> Iterable[MetricFamily]:
    """Log lines lost in this process."""
    lost = family("log_lines_lost_total")
    lost.add(log_writer.LOST.count, source="log")
    lost.add(worker_output.LOST.count, source="workers")
    yield lost


def _ready(views: Sequence[VersionView], catalog: Catalog) -> MetricFamily:
    ready = {(view.model, view.version): view.ready for view in views}
    for model, versions in catalog.absent().items():
        for version in versions:
            ready.setdefault((model, version), False)
    readiness = family("model_ready")
    for (model, version), serves in sorted(ready.items()):
        readiness.add(int(serves), model=model, version=version)
    return readiness


def _outcomes(views: Sequence[VersionView]) -> Iterable[MetricFamily]:
    yield family("outcomes_total")
    for view in views:
        metric = family("outcomes_total")
        for reason in Reason:
            count, outcome = view.counters.by_reason.get(reason, 0), reason.kind.value
            metric.add(count, **view.labels, outcome=outcome, reason=reason.label)
        yield metric


def _classes(views: Sequence[VersionView]) -> Iterable[MetricFamily]:
    alone, share = family("run_class_seconds"), family("run_class_share")
    for view in views:
        classes = None if view.times is None else view.times.classes(view.cores)
        for of in range(0 if classes is None else len(classes)):
            assert classes is not None
            labels = {**view.labels, "class": str(of)}
            alone.add(classes.alone(of), **labels)
            share.add(classes.shares[of], **labels)
    return alone, share


def _states(views: Sequence[VersionView]) -> Iterable[MetricFamily]:
    replicas, circuits = family("replicas"), family("circuit")
    for view in views:
        for state in ReplicaState:
            replicas.add(view.replicas[state], **view.labels, state=state.value)
        for circuit in Circuit:
            circuits.add(int(view.circuit is circuit), **view.labels, state=circuit.value)
    return replicas, circuits


CONDITIONS = ("cores_short", "replicas_short", "beyond_limits", "unconfirmed")
"""Conditions that keep a model from its planner's target, each 0 or 1."""


def scaling_families(
    snapshot: Snapshot, runtime: Runtime, scaling: ScalingPlanner, resizes: ResizeTracker
) -> Iterable[MetricFamily]:
    """Cores of lanes and their cost, the planners' targets, and resizes."""
    yield from _lanes(snapshot, runtime)
    yield from _targets(scaling.status(snapshot), scaling.models)
    yield single("plans_total", runtime.plans)
    yield single("planning_seconds_total", runtime.planning_s)
    yield from _resizes(resizes)


def session_families(views: Sequence[VersionView]) -> Iterable[MetricFamily]:
    """Memory of the sessions of a replica."""
    metric = family("session_bytes")
    for view in views:
        for session in view.sessions:
            metric.add(session.nbytes, **view.labels, threads=str(session.threads))
    yield metric


def variants_families(statuses: Mapping[str, VariantsStatus]) -> Iterable[MetricFamily]:
    """Plans for the clients of model families."""
    named: Mapping[str, Callable[[VariantsStatus], float]] = {
        "planned_sessions": lambda status: status.sessions,
        "unmapped_sessions": lambda status: status.unmapped,
        "planned_accuracy": lambda status: status.accuracy,
        "capacity_room_ratio": lambda status: status.headroom.capacity,
        "bandwidth_room_ratio": lambda status: status.headroom.bandwidth,
        "variant_plans_total": lambda status: status.plans,
        "variant_planning_seconds_total": lambda status: status.planning_s,
        "variant_switches_total": lambda status: status.switches,
        "variant_mismatches_total": lambda status: status.mismatches,
    }
    for name, value in named.items():
        metric = family(name)
        for model, status in sorted(statuses.items()):
            metric.add(value(status), model=model)
        yield metric


def placement_families(status: PlacementStatus) -> Iterable[MetricFamily]:
    """Placements of pipelines."""
    for name, value in {
        "placements_total": status.decided,
        "early_placements_total": status.early,
        "placement_seconds_total": status.planning_s,
        "placement_moves_total": status.moves,
        "placement_rebounds_total": status.rebounds,
        "placement_expected_ratio": status.expected,
    }.items():
        yield single(name, value)


def exit_families(
    views: Sequence[VersionView], statuses: Mapping[PoolId, ExitsStatus]
) -> Iterable[MetricFamily]:
    """Early exits of models. While a version is reloaded, the status of its newer copy is shown."""
    statuses_by_version = {(pool.model, pool.version): statuses[pool] for pool in sorted(statuses)}
    early, saved = family("early_exits_total"), family("exit_saved_seconds_total")
    judged, agreeing = family("exit_judged_rows_total"), family("exit_agreeing_rows_total")
    accuracy, alarms = family("exit_accuracy"), family("exit_alarms_total")
    agreement, threshold = family("exit_agreement"), family("exit_threshold")
    mode, feedback = family("exit_mode"), family("exit_feedback_ratio")
    overhead, revision = family("exit_overhead_ratio"), family("exit_revision")
    changes, missed = family("exit_judged_changes_total"), family("exit_missed_changes_total")
    delay = family("exit_change_delay_frames")
    for view, exits in ((view, view.exits) for view in views if view.exits is not None):
        counters, labels = view.counters, view.labels
        for ramp, count in sorted(counters.exits.items()):
            early.add(count, **_of_ramp(view, ramp))
        for ramp, (rows, agreed) in sorted(counters.judged.items()):
            judged.add(rows, **_of_ramp(view, ramp))
            agreeing.add(agreed, **_of_ramp(view, ramp))
        saved.add(counters.exits_saved_s, **labels)
        revision.add(exits.revision, **labels)
        status = statuses_by_version.get((view.model, view.version))
        if status is None:
            continue
        if (of_changes := status.answer_changes) is None:
            alarms.add(status.alarms, **labels)
        else:
            alarms.add(status.alarms + of_changes.alarms, **labels)
            changes.add(of_changes.judged, **labels)
            missed.add(of_changes.missed, **labels)
            if of_changes.delay_p95 is not None:
                delay.add(of_changes.delay_p95, **labels)
        if status.judged:
            accuracy.add(status.accuracy, **labels)
        if status.overhead is not None:
            overhead.add(status.overhead, **labels)
        policy = status.policy
        if policy is None:
            continue
        feedback.add(policy.feedback, **labels)
        for exit_mode in ExitMode:
            mode.add(int(exit_mode is policy.mode), **labels, mode=exit_mode.value)
        for ramp, limit in zip(policy.ramps, policy.thresholds, strict=True):
            threshold.add(limit, **_of_ramp(view, ramp))
            if ramp in status.agreement:
                agreement.add(status.agreement[ramp], **_of_ramp(view, ramp))
    yield from (early, judged, agreeing, saved, accuracy, agreement, threshold)
    yield from (mode, feedback, overhead, revision, alarms, changes, missed, delay)


def _of_ramp(view: VersionView, ramp: int) -> dict[str, str]:
    assert view.exits is not None
    return {**view.labels, "position": str(ramp), "tensor": view.exits.name(ramp)}


def client_families(sums: Mapping[str, int]) -> Iterable[MetricFamily]:
    """Sums over all clients that stream frames, without a label for each of them."""
    for name, value in sums.items():
        yield single(name, value)


def pod_families(pod: PodAllocator) -> Iterable[MetricFamily]:
    """CPU of the server's own pod, if it is resized."""
    yield single("pod_cpu_limit_cores", math.inf if pod.limit is None else pod.limit / 1000)
    yield single("pod_cpu_required_cores", pod.needed / 1000)
    condition = family("pod_condition")
    for hindrance in Hindrance:
        condition.add(int(pod.hindrance is hindrance), condition=hindrance.value)
    yield condition


def _lanes(snapshot: Snapshot, runtime: Runtime) -> Iterable[MetricFamily]:
    cores, target = family("lane_cores"), family("lane_target_cores")
    for name, lane in sorted(snapshot.lanes.items()):
        cores.add(len(lane.cores), lane=name)
        target.add(len(lane.target), lane=name)
    used = family("lane_core_seconds_total")
    for name, seconds in sorted(runtime.usage.totals(now=snapshot.now).items()):
        used.add(seconds, lane=name)
    return cores, target, used


def _targets(
    statuses: Mapping[str, ScalingStatus], models: Mapping[str, ScaledModel]
) -> Iterable[MetricFamily]:
    cores, replicas = family("target_cores"), family("target_replicas")
    needed, batch = family("required_replicas"), family("planned_batch_rows")
    late, reason = family("predicted_late_requests"), family("plan_reason")
    rate, budget = family("expected_rows_per_second"), family("expected_budget_seconds")
    condition = family("plan_condition")
    for model, status in sorted(statuses.items()):
        target = status.target
        if target is not None:
            cores.add(target.cores, model=model)
            replicas.add(target.replicas, model=model)
            needed.add(target.needed, model=model)
            batch.add(target.batch, model=model)
            late.add(target.late, model=model)
            reason.add(1, model=model, reason=target.reason)
        rate.add(status.rate, model=model)
        if status.budget < math.inf:
            budget.add(status.budget, model=model)
        for name, holds in zip(CONDITIONS, _conditions(status, models[model]), strict=True):
            condition.add(int(holds), model=model, condition=name)
    return cores, replicas, needed, batch, late, reason, rate, budget, condition


def _conditions(status: ScalingStatus, model: ScaledModel) -> tuple[bool, ...]:
    """Whether each of `CONDITIONS` holds."""
    planned, sizes = status.target, status.lanes.values()
    aimed = max((target for _, target in sizes), default=0)
    return (
        planned is not None and bool(sizes) and aimed < planned.cores,
        planned is not None and len(sizes) < planned.replicas,
        planned is not None and planned.needed > model.limits.replicas_max,
        any(cores != target for cores, target in sizes),
    )


def _resizes(tracker: ResizeTracker) -> Iterable[MetricFamily]:
    resizes, seconds = family("resizes_total"), family("resize_seconds")
    for outcome in ResizeOutcome:
        resizes.add(tracker.outcomes[outcome], outcome=outcome.value)
    read = tracker.seconds
    seconds.add_histogram(read.bounds, read.counts, read.total)
    return resizes, seconds
