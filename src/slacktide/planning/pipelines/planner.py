"""`PipelinesPlanner`: the planner of one device, whose stages are placed together with all others.

It counts what comes to the device's stages, reports that each second, and fills its plan in. On one
device it also has placements computed, as its job; what it finds is in force on each device as soon
as its planner is next asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Deployment, Event, Plan, PoolId, Request, Submitted
from slacktide.domain.pipelines import Pipeline
from slacktide.engine import Snapshot
from slacktide.pipelines import Frames
from slacktide.planning.pipelines.control import CHECK_S, PlacementControl, PlacementDecision
from slacktide.planning.pipelines.demand import StageArrivals, counts_of
from slacktide.planning.pipelines.plans import PoolOf, pool_of
from slacktide.planning.planner import JobDone, Owned, PlanField, Planner, Stated, stated_as
from slacktide.planning.scaling.planner import ScaledModel
from slacktide.planning.variants.family import Family

OWNED = frozenset(
    (
        PlanField.REPLICAS,
        PlanField.PLACEMENT,
        PlanField.BATCH_CAPS,
        PlanField.ROUTES,
        PlanField.WINDOWS,
    )
)
OF_FAMILY = OWNED - {PlanField.BATCH_CAPS, PlanField.ROUTES}


@dataclass(frozen=True, slots=True)
class PlacedPipeline:
    """A pipeline that is to be placed by this planner, as stated under its name."""

    stages: Mapping[str, str]
    """The model of each stage."""
    pipeline: Pipeline | None = None
    """Its edges and its deadline, where these are not known from elsewhere."""


def fields_of(model: str, stated: Stated) -> frozenset[PlanField]:
    """What a placement fills in of a model. What its settings leave to planners of cores and of
    variants they decide, within bounds: where cores or replicas have a range, all of it; of a
    family, which variant runs and its batches."""
    if model in stated_as(ScaledModel, stated):
        return frozenset()
    family = stated_as(Family, stated).get(model)
    return OWNED if family is None or family.planner == "none" else OF_FAMILY


class PipelinesPlanner(Planner):
    """Of one device."""

    name = "pipelines"

    def __init__(
        self,
        control: PlacementControl,
        device: str,
        frames: Callable[[], Frames | None],
        *,
        leads: bool = False,
        pool_of: PoolOf = pool_of,
    ) -> None:
        """`frames`: those of the device, once it has any. `leads`: whether placements are computed
        here; so on one device."""
        self._control, self._device, self._leads = control, device, leads
        self._frames = frames
        self._pool_of = pool_of
        self._arrivals: dict[str, dict[str, StageArrivals]] = {}
        """By pipeline and stage."""
        self._seen: dict[tuple[str, str], StageArrivals] = {}
        """By client, which is the pipeline's name, and model."""
        self._fields: dict[str, frozenset[PlanField]] = {}
        """What is filled in of each model."""
        self._filled = -1
        """Revision of what was filled in last."""
        self._explained = 0
        """Revision of what `reason` was last given for."""
        self._report_at = -math.inf

    def owns(self, stated: Stated) -> frozenset[Owned]:
        pipelines = stated_as(PlacedPipeline, stated)
        owned = {(name, PlanField.PLACES) for name in pipelines}
        owned |= {
            (model, field)
            for pipeline in pipelines.values()
            for model in pipeline.stages.values()
            for field in fields_of(model, stated)
        }
        return frozenset(owned)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        """See `Planner`. Pipelines that stay keep what is known of them."""
        before, self._seen, self._filled = self._arrivals, {}, -1
        self._arrivals = {}
        self._fields = {}
        for name, pipeline in stated_as(PlacedPipeline, stated).items():
            stage_arrivals = self._arrivals[name] = {}
            for stage, model in pipeline.stages.items():
                self._fields[model] = fields_of(model, stated)
                stage_arrivals[stage] = before.get(name, {}).get(stage) or StageArrivals()
                self._seen[name, model] = stage_arrivals[stage]

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        for event in events:
            if type(event) is Submitted:
                if event.request.parent is not None:
                    self._came(event.request, now)
            elif type(event) is JobDone and isinstance(event.answer, PlacementDecision):
                self._control.take(event.answer, now=now)
        if now >= self._report_at and self._arrivals:
            self._report_at = now + CHECK_S
            counts = counts_of(self._frames(), self._arrivals)
            self._control.count(self._device, counts, now=now)

    def _came(self, request: Request, now: float) -> None:
        """A request of a stage."""
        arrivals = self._seen.get((request.client, request.model))
        if arrivals is not None:
            arrivals.seen(request.rows, now)

    def next_wakeup(self, snapshot: Snapshot) -> float:
        if not self._arrivals:
            return math.inf
        if self._filled != self._control.revision:
            return 0.0
        if self._leads:
            return min(self._report_at, self._control.next_wakeup())
        return self._report_at

    def is_urgent(self, snapshot: Snapshot, *, now: float) -> bool:
        if self._leads and self._control.next_wakeup() <= now:
            return True
        return bool(self._arrivals) and self._filled != self._control.revision

    def meanwhile_at(self) -> float:
        return 0.0 if self._filled != self._control.revision else self._report_at

    def job(self, snapshot: Snapshot, *, now: float) -> Callable[[], object] | None:
        if not self._leads:
            return None
        self._control.look(now=now)
        return self._control.job(now=now)

    def plan(self, snapshot: Snapshot, draft: Plan, *, now: float) -> Plan:
        """What others have placed on lanes beside its models stays there, without a window."""
        self._explain()
        plans = self._control.plans
        self._filled = self._control.revision
        if plans is None or not self._arrivals:
            return draft
        self.bounds = plans.bounds(self._device)
        device_plan = plans.of(self._device, draft.lanes, self._pool_of)
        whole = {model for model, fields in self._fields.items() if fields == OWNED}
        lanes: dict[str, dict[str, None]] = {}
        for deployment in device_plan.deployments:
            if self._fields[deployment.pool.model] == OF_FAMILY:
                lanes.setdefault(deployment.pool.model, {})[deployment.lane] = None
        deployments = [
            deployment
            for deployment in draft.deployments
            if deployment.pool.model not in lanes and deployment.pool.model not in whole
        ]
        deployments += [
            deployment for deployment in device_plan.deployments if deployment.pool.model in whole
        ]
        deployments += moved(draft, lanes)
        routes = [route for route in draft.routes if route.model not in whole]
        places = [place for place in draft.places if place.pipeline not in self._arrivals]
        return replace(
            draft,
            lanes=device_plan.lanes,
            deployments=tuple(deployments),
            routes=(*routes, *(route for route in device_plan.routes if route.model in whole)),
            places=(*places, *device_plan.places),
        )

    def _explain(self, *, again: bool = False) -> None:
        """Say why, of what has not been filled in yet; `again`: of what is now filled in whole."""
        is_new = again or self._explained != self._control.revision
        self.reason = self._control.reason if is_new else ""
        self._explained = self._control.revision


def moved(draft: Plan, lanes: Mapping[str, Iterable[str]]) -> Iterator[Deployment]:
    """What `draft` has of these models, on these lanes instead."""
    pools: dict[PoolId, Deployment] = {}
    present = {(deployment.pool, deployment.lane): deployment for deployment in draft.deployments}
    for deployment in draft.deployments:
        if deployment.pool.model in lanes:
            pools.setdefault(deployment.pool, deployment)
    for pool, deployment in pools.items():
        for lane in lanes[pool.model]:
            yield present.get((pool, lane), replace(deployment, lane=lane))
