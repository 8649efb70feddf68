"""Families about cores and replicas that change while models serve. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slacktide.cluster import Hindrance, PodAllocator
from slacktide.engine import Snapshot
from slacktide.models.resizing import ResizeOutcome, Resizing
from slacktide.observability.metrics.exposition import Family
from slacktide.observability.metrics.view import VersionView
from slacktide.planning.scaling import ScaledModel, ScalingPlanner, ScalingStatus
from slacktide.runtime import Runtime

CONDITIONS = ("cores_short", "replicas_short", "beyond_limits", "unconfirmed")
"""What keeps a model from having what its planner wishes for, each 0 or 1."""


def scaling_families(
    snapshot: Snapshot, runtime: Runtime, scaling: ScalingPlanner, resizing: Resizing
) -> Iterable[Family]:
    """What lanes have and cost, what planners wish for, and what became of resizes."""
    yield from _lanes(snapshot, runtime)
    yield from _targets(scaling.status(snapshot), scaling.models)
    yield Family.single(
        "slacktide_plans_total",
        "counter",
        "Plans made while models served, not counting loads and unloads",
        runtime.plans,
    )
    yield Family.single(
        "slacktide_planning_seconds_total",
        "counter",
        "Time that planning took of the server's loop, seconds",
        runtime.planning_s,
    )
    yield from _resizes(resizing)


def session_families(views: Sequence[VersionView]) -> Iterable[Family]:
    """What the sessions of a replica take."""
    family = Family(
        "slacktide_session_bytes",
        "gauge",
        "Memory that one replica's session with so many threads takes, bytes",
    )
    for view in views:
        for session in view.sessions:
            family.add(
                session.nbytes,
                model=view.model,
                version=view.version,
                threads=str(session.threads),
            )
    yield family


def pod_families(pod: PodAllocator) -> Iterable[Family]:
    """The CPU of our own pod, where it is resized."""
    limit = math.inf if pod.limit is None else pod.limit / 1000
    yield Family.single("slacktide_pod_cpu_limit_cores", "gauge", "CPU limit in force", limit)
    yield Family.single(
        "slacktide_pod_cpu_needed_cores",
        "gauge",
        "What models and the server's loop are to have together",
        pod.needed / 1000,
    )
    condition = Family(
        "slacktide_pod_condition", "gauge", "1 for what keeps the pod from what is wished for"
    )
    for each in Hindrance:
        condition.add(int(pod.hindrance is each), condition=each.value)
    yield condition


def _lanes(snapshot: Snapshot, runtime: Runtime) -> Iterable[Family]:
    cores = Family("slacktide_lane_cores", "gauge", "Cores it has, as read back")
    target = Family("slacktide_lane_target_cores", "gauge", "Cores it is to have")
    for name, lane in sorted(snapshot.lanes.items()):
        cores.add(len(lane.cores), lane=name)
        target.add(len(lane.target), lane=name)
    used = Family(
        "slacktide_lane_core_seconds_total", "counter", "Cores it had × time, busy or not, seconds"
    )
    for name, seconds in sorted(runtime.usage.totals(now=snapshot.now).items()):
        used.add(seconds, lane=name)
    return cores, target, used


def _targets(
    found: Mapping[str, ScalingStatus], models: Mapping[str, ScaledModel]
) -> Iterable[Family]:
    cores = Family("slacktide_wished_cores", "gauge", "Cores of each replica that are wished for")
    replicas = Family("slacktide_wished_replicas", "gauge", "Replicas that are wished for")
    needed = Family(
        "slacktide_needed_replicas",
        "gauge",
        "Replicas that the forecast needs, allowed or not",
    )
    batch = Family("slacktide_planned_batch_rows", "gauge", "Most rows in a batch, as planned")
    late = Family(
        "slacktide_predicted_late_requests",
        "gauge",
        "Requests waiting or expected that would be late even with what is wished for",
    )
    reason = Family("slacktide_plan_reason", "gauge", "1 for the reason of the wish in force")
    rate = Family("slacktide_expected_rows_per_second", "gauge", "Arrivals that are planned for")
    budget = Family(
        "slacktide_expected_budget_seconds", "gauge", "Left to arrivals that are planned for"
    )
    condition = Family(
        "slacktide_plan_condition", "gauge", "1 if this keeps the model from what is wished for"
    )
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


def _resizes(resizing: Resizing) -> Iterable[Family]:
    resizes = Family("slacktide_resizes_total", "counter", "Resizes of lanes, by how they ended")
    for outcome in ResizeOutcome:
        resizes.add(resizing.outcomes[outcome], outcome=outcome.value)
    seconds = Family(
        "slacktide_resize_seconds",
        "histogram",
        "From the decision to the confirmation by every replica on the lane, seconds",
    )
    read = resizing.seconds
    seconds.add_histogram(read.bounds, read.counts, read.total)
    return resizes, seconds
