"""Families about cores and replicas that change while models serve. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slacktide.cluster import Hindrance, PodAllocator
from slacktide.engine import Snapshot
from slacktide.models.resize_tracker import ResizeOutcome, ResizeTracker
from slacktide.observability.metrics.families import Family, family, single
from slacktide.observability.metrics.view import VersionView
from slacktide.planning.scaling import ScaledModel, ScalingPlanner, ScalingStatus
from slacktide.runtime import Runtime

CONDITIONS = ("cores_short", "replicas_short", "beyond_limits", "unconfirmed")
"""What keeps a model from the target of its planner, each 0 or 1."""


def scaling_families(
    snapshot: Snapshot, runtime: Runtime, scaling: ScalingPlanner, resizes: ResizeTracker
) -> Iterable[Family]:
    """What lanes have and cost, what planners aim at, and what became of resizes."""
    yield from _lanes(snapshot, runtime)
    yield from _targets(scaling.status(snapshot), scaling.models)
    yield single("plans_total", runtime.plans)
    yield single("planning_seconds_total", runtime.planning_s)
    yield from _resizes(resizes)


def session_families(views: Sequence[VersionView]) -> Iterable[Family]:
    """What the sessions of a replica take."""
    made = family("session_bytes")
    for view in views:
        for session in view.sessions:
            made.add(session.nbytes, **view.labels, threads=str(session.threads))
    yield made


def pod_families(pod: PodAllocator) -> Iterable[Family]:
    """The CPU of our own pod, where it is resized."""
    yield single("pod_cpu_limit_cores", math.inf if pod.limit is None else pod.limit / 1000)
    yield single("pod_cpu_required_cores", pod.needed / 1000)
    condition = family("pod_condition")
    for each in Hindrance:
        condition.add(int(pod.hindrance is each), condition=each.value)
    yield condition


def _lanes(snapshot: Snapshot, runtime: Runtime) -> Iterable[Family]:
    cores, target = family("lane_cores"), family("lane_target_cores")
    for name, lane in sorted(snapshot.lanes.items()):
        cores.add(len(lane.cores), lane=name)
        target.add(len(lane.target), lane=name)
    used = family("lane_core_seconds_total")
    for name, seconds in sorted(runtime.usage.totals(now=snapshot.now).items()):
        used.add(seconds, lane=name)
    return cores, target, used


def _targets(
    found: Mapping[str, ScalingStatus], models: Mapping[str, ScaledModel]
) -> Iterable[Family]:
    cores, replicas = family("target_cores"), family("target_replicas")
    needed, batch = family("required_replicas"), family("planned_batch_rows")
    late, reason = family("predicted_late_requests"), family("plan_reason")
    rate, budget = family("expected_rows_per_second"), family("expected_budget_seconds")
    condition = family("plan_condition")
    for model, status in sorted(found.items()):
        wanted = status.target
        if wanted is not None:
            cores.add(wanted.cores, model=model)
            replicas.add(wanted.replicas, model=model)
            needed.add(wanted.needed, model=model)
            batch.add(wanted.batch, model=model)
            late.add(wanted.late, model=model)
            reason.add(1, model=model, reason=wanted.reason)
        rate.add(status.rate, model=model)
        if status.budget < math.inf:
            budget.add(status.budget, model=model)
        for name, holds in zip(CONDITIONS, _conditions(status, models[model]), strict=True):
            condition.add(int(holds), model=model, condition=name)
    return cores, replicas, needed, batch, late, reason, rate, budget, condition


def _conditions(status: ScalingStatus, model: ScaledModel) -> tuple[bool, ...]:
    """In the order of `CONDITIONS`."""
    wanted, sizes = status.target, status.lanes.values()
    aimed = max((target for _, target in sizes), default=0)
    return (
        wanted is not None and bool(sizes) and aimed < wanted.cores,
        wanted is not None and len(sizes) < wanted.replicas,
        wanted is not None and wanted.needed > model.limits.replicas_max,
        any(cores != target for cores, target in sizes),
    )


def _resizes(tracker: ResizeTracker) -> Iterable[Family]:
    resizes, seconds = family("resizes_total"), family("resize_seconds")
    for outcome in ResizeOutcome:
        resizes.add(tracker.outcomes[outcome], outcome=outcome.value)
    read = tracker.seconds
    seconds.add_histogram(read.bounds, read.counts, read.total)
    return resizes, seconds
