"""`ServerSeats`: on which lanes of a server replicas sit, as a placement answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Timetable
from slacktide.engine import Snapshot
from slacktide.planning.pipelines.plans import DevicePlans
from slacktide.planning.pipelines.server_question import LaneGroup
from slacktide.planning.planner import PlanField
from slacktide.planning.variants.planned_family import replicas_up


class ServerSeats:
    """Of all models of pipelines."""

    def __init__(self, *, caps: bool) -> None:
        """`caps`: whether batches are bounded by the answer."""
        self.by_model: dict[str, dict[str, int]] = {}
        """Its lanes, with the largest batch on each; empty: as settings say."""
        self.moves = 0
        """Models that were given other lanes."""
        self.moving = False
        """Whether replicas stay where they were until others are up."""
        self._caps = caps
        self._timetables: dict[str, Timetable] = {}
        self._at_first: dict[str, tuple[str, ...]] = {}
        """By model: its lanes, as settings say."""

    def rebase(self, base: Plan) -> None:
        """What settings say from now on."""
        self._at_first = {}
        for deployment in base.deployments:
            lanes = self._at_first.get(deployment.pool.model, ())
            self._at_first[deployment.pool.model] = (*lanes, deployment.lane)

    def clear(self) -> None:
        """All is as settings say."""
        self.by_model, self._timetables = {}, {}

    def settle(self, plans: DevicePlans, groups: Iterable[LaneGroup], *, stays: bool) -> None:
        """An answer is in force. `stays`: no lane is taken or given where it bounds no batches."""
        lanes = {group.name: group.lanes for group in groups}
        layout: dict[str, dict[str, int]] = {}
        for replica in plans.replicas:
            seats = layout.setdefault(replica.model, {})
            lane = lanes[replica.device][replica.stream]
            seats[lane] = max(replica.batch, seats.get(lane, 0))
        before = self.by_model
        if not self._caps and not plans.timetables:  # a lane less would be no gain
            layout = {m: self._widened(m, seats, stays=stays) for m, seats in layout.items()}
        elif not plans.timetables and {m: len(s) for m, s in before.items()} == {
            m: len(s) for m, s in layout.items()
        }:  # which of lanes that are alike does not matter
            layout = {m: dict.fromkeys(before[m], max(s.values())) for m, s in layout.items()}
        at_first = self._at_first
        self.moves += sum(set(layout[m]) != set(before.get(m, at_first.get(m, ()))) for m in layout)
        self.by_model = layout
        self._timetables = {
            lanes[device][stream]: table for (device, stream), table in plans.timetables.items()
        }

    def filled(
        self, draft: Plan, snapshot: Snapshot, fields: Mapping[str, frozenset[PlanField]]
    ) -> Plan:
        """`draft` with models on their lanes, and, until those there are up, where they are as
        well. `fields`: what is filled in of each model."""
        self.moving = False
        lane_names = {lane.name for lane in draft.lanes}
        lanes: dict[str, dict[str, int]] = {}
        for model, seats in self.by_model.items():
            if PlanField.PLACEMENT not in fields.get(model, ()) or not seats.keys() <= lane_names:
                continue
            up = {lane for lane, _ in replicas_up(model, snapshot)}
            lanes[model] = dict(seats)
            if not seats.keys() <= up:
                self.moving = True
                lanes[model] |= dict.fromkeys(up & lane_names, max(seats.values())) | seats
        deployments = [
            deployment for deployment in draft.deployments if deployment.pool.model not in lanes
        ]
        for deployment in _moved(draft, lanes):
            model = deployment.pool.model
            if self._caps and PlanField.BATCH_CAPS in fields[model]:
                cap = min(deployment.max_batch, lanes[model][deployment.lane])
                deployment = replace(deployment, max_batch=cap)
            deployments.append(deployment)
        on: dict[str, set[str]] = {}
        for deployment in deployments:
            on.setdefault(deployment.lane, set()).add(deployment.pool.model)
        return replace(
            draft,
            lanes=tuple(self._timed(lane, on.get(lane.name, set())) for lane in draft.lanes),
            deployments=tuple(deployments),
        )

    def _widened(self, model: str, seats: Mapping[str, int], *, stays: bool) -> dict[str, int]:
        """The lanes that settings say, and as many more as rows ask for."""
        stated_lanes = dict.fromkeys(self._at_first.get(model, ()))
        lanes = dict.fromkeys((*stated_lanes, *self.by_model.get(model, ()), *seats))
        before = len(self.by_model.get(model, stated_lanes))
        count = before if stays else max(len(stated_lanes), len(seats))
        return dict.fromkeys(list(lanes)[:count], max(seats.values()))

    def _timed(self, lane: LaneSpec, models: Collection[str]) -> LaneSpec:
        """With the windows of an answer, if each model there has one."""
        table = self._timetables.get(lane.name)
        if table is None or not {window.model for window in table.windows} >= set(models):
            return lane
        return replace(lane, timetable=table)


def _moved(plan: Plan, lanes: Mapping[str, Iterable[str]]) -> Iterator[Deployment]:
    """The deployments of these models in `plan`, on these lanes instead."""
    pools: dict[PoolId, Deployment] = {}
    present = {(deployment.pool, deployment.lane): deployment for deployment in plan.deployments}
    for deployment in plan.deployments:
        if deployment.pool.model in lanes:
            pools.setdefault(deployment.pool, deployment)
    for pool, deployment in pools.items():
        for lane in lanes[pool.model]:
            yield present.get((pool, lane), replace(deployment, lane=lane))
