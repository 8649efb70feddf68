"""`PipelinesPlanner`: the planner of one device, whose stages are placed together with all others.

It counts what comes to the device's stages, reports that each second, and fills its plan in. On one
device it also has placements computed, as its job; what it finds is in force on each device as soon
as its planner is next asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Event, Plan, Submitted
from slacktide.engine import Snapshot
from slacktide.pipelines import Frames
from slacktide.planning.pipelines.control import CHECK_S, PlacementControl, PlacementDecision
from slacktide.planning.pipelines.demand import StageArrivals, counts_of
from slacktide.planning.pipelines.plans import PoolOf, pool_of
from slacktide.planning.planner import JobDone, Owned, PlanField, Planner, Stated, stated_as

OWNED = (
    PlanField.REPLICAS,
    PlanField.PLACEMENT,
    PlanField.BATCH_CAPS,
    PlanField.ROUTES,
    PlanField.WINDOWS,
)


@dataclass(frozen=True, slots=True)
class PlacedPipeline:
    """A pipeline that is to be placed by this planner, as stated under its name."""

    stages: Mapping[str, str]
    """The model of each stage."""


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
        self._filled = -1
        """Revision of what was filled in last."""
        self._report_at = -math.inf

    def owns(self, stated: Stated) -> frozenset[Owned]:
        owned: set[Owned] = set()
        for name, pipeline in stated_as(PlacedPipeline, stated).items():
            owned.add((name, PlanField.PLACES))
            owned |= {(model, field) for model in pipeline.stages.values() for field in OWNED}
        return frozenset(owned)

    def rebase(self, base: Plan, stated: Stated, *, now: float) -> None:
        """See `Planner`. Pipelines that stay keep what is known of them."""
        before, self._seen, self._filled = self._arrivals, {}, -1
        self._arrivals = {}
        for name, pipeline in stated_as(PlacedPipeline, stated).items():
            own = self._arrivals[name] = {}
            for stage, model in pipeline.stages.items():
                own[stage] = before.get(name, {}).get(stage) or StageArrivals()
                self._seen[name, model] = own[stage]

    def observe(self, events: Sequence[Event | JobDone], snapshot: Snapshot, *, now: float) -> None:
        for event in events:
            if type(event) is Submitted:
                request = event.request
                if request.parent is not None:
                    known = self._seen.get((request.client, request.model))
                    if known is not None:
                        known.seen(request.rows, now)
            elif type(event) is JobDone and isinstance(event.answer, PlacementDecision):
                self._control.take(event.answer, now=now)
        if now >= self._report_at and self._arrivals:
            self._report_at = now + CHECK_S
            counts = counts_of(self._frames(), self._arrivals)
            self._control.count(self._device, counts, now=now)

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
        plans = self._control.plans
        self._filled = self._control.revision
        if plans is None or not self._arrivals:
            return draft
        own = plans.of(self._device, draft.lanes, self._pool_of)
        models = {model for _, model in self._seen}
        deployments = [each for each in draft.deployments if each.pool.model not in models]
        routes = [each for each in draft.routes if each.model not in models]
        places = [each for each in draft.places if each.pipeline not in self._arrivals]
        return replace(
            draft,
            lanes=own.lanes,
            deployments=(*deployments, *own.deployments),
            routes=(*routes, *own.routes),
            places=(*places, *own.places),
        )
