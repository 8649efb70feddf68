"""`ServerLanes`: a server's lanes for the models of pipelines, as a placement sets them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Timetable
from slacktide.engine import Snapshot
from slacktide.planning.planner import PlanField
from slacktide.planning.variants.planned_family import replicas_up

if TYPE_CHECKING:  # avoids an import cycle
    from slacktide.planning.pipelines.plans import DevicePlans
    from slacktide.planning.pipelines.server_question import LaneGroup


class ServerLanes:
    """Lanes of all models of pipelines."""

    def __init__(self, *, caps: bool) -> None:
        """`caps`: whether the placement bounds batches."""
        self.by_model: dict[str, dict[str, int]] = {}
        """By model: its lanes, with the largest batch on each; empty: as the settings state."""
        self.moves = 0
        """Number of times that a model was given other lanes."""
        self.moving = False
        """Whether replicas stay on old lanes until the replicas on new lanes are up."""
        self._caps = caps
        self._timetables: dict[str, Timetable] = {}
        self._stated: dict[str, tuple[str, ...]] = {}
        """By model: its lanes, as the settings state."""

    def rebase(self, base: Plan) -> None:
        """Take the lanes that the settings state from `base`."""
        self._stated = {}
        for deployment in base.deployments:
            lanes = self._stated.get(deployment.pool.model, ())
            self._stated[deployment.pool.model] = (*lanes, deployment.lane)

    def clear(self) -> None:
        """Forget the placement: all lanes are as the settings state."""
        self.by_model, self._timetables = {}, {}

    def apply(self, plans: DevicePlans, groups: Iterable[LaneGroup], *, stays: bool) -> None:
        """Put a placement in force. `stays`: models whose batches are unbounded keep their number
        of lanes."""
        names = {group.name: group.lanes for group in groups}
        by_model: dict[str, dict[str, int]] = {}
        for replica in plans.replicas:
            lanes = by_model.setdefault(replica.model, {})
            lane = names[replica.device][replica.lane]
            lanes[lane] = max(replica.batch, lanes.get(lane, 0))
        before = self.by_model
        if not self._caps and not plans.timetables:  # taking lanes away would gain nothing
            by_model = {
                model: self._widened(model, lanes, stays=stays) for model, lanes in by_model.items()
            }
        elif not plans.timetables and {model: len(lanes) for model, lanes in before.items()} == {
            model: len(lanes) for model, lanes in by_model.items()
        }:  # lanes of a group are alike
            by_model = {
                model: dict.fromkeys(before[model], max(lanes.values()))
                for model, lanes in by_model.items()
            }
        self.moves += sum(
            set(lanes) != set(before.get(model, self._stated.get(model, ())))
            for model, lanes in by_model.items()
        )
        self.by_model = by_model
        self._timetables = {
            names[device][number]: table for (device, number), table in plans.timetables.items()
        }

    def write(
        self, draft: Plan, snapshot: Snapshot, fields: Mapping[str, frozenset[PlanField]]
    ) -> Plan:
        """Return `draft` with each model on its new lanes, and also on its old lanes until it is up
        on the new lanes. `fields`: by model, the fields that the placement owns."""
        self.moving = False
        lane_names = {lane.name for lane in draft.lanes}
        lanes: dict[str, dict[str, int]] = {}
        for model, caps in self.by_model.items():
            if PlanField.PLACEMENT not in fields.get(model, ()) or not caps.keys() <= lane_names:
                continue
            up = {lane for lane, _ in replicas_up(model, snapshot)}
            lanes[model] = dict(caps)
            if not caps.keys() <= up:
                self.moving = True
                lanes[model] |= dict.fromkeys(up & lane_names, max(caps.values())) | caps
        deployments = [
            deployment for deployment in draft.deployments if deployment.pool.model not in lanes
        ]
        for deployment in _moved(draft, lanes):
            model = deployment.pool.model
            if self._caps and PlanField.BATCH_CAPS in fields[model]:
                cap = min(deployment.max_batch, lanes[model][deployment.lane])
                deployment = replace(deployment, max_batch=cap)
            deployments.append(deployment)
        models: dict[str, set[str]] = {}
        for deployment in deployments:
            models.setdefault(deployment.lane, set()).add(deployment.pool.model)
        return replace(
            draft,
            lanes=tuple(self._timed(lane, models.get(lane.name, set())) for lane in draft.lanes),
            deployments=tuple(deployments),
        )

    def _widened(self, model: str, caps: Mapping[str, int], *, stays: bool) -> dict[str, int]:
        """Return the lanes that the settings state, and more if the placement needs more."""
        stated = dict.fromkeys(self._stated.get(model, ()))
        lanes = dict.fromkeys((*stated, *self.by_model.get(model, ()), *caps))
        before = len(self.by_model.get(model, stated))
        count = before if stays else max(len(stated), len(caps))
        return dict.fromkeys(list(lanes)[:count], max(caps.values()))

    def _timed(self, lane: LaneSpec, models: Collection[str]) -> LaneSpec:
        """Return `lane` with the placement's windows, if each of its models has a window."""
        table = self._timetables.get(lane.name)
        if table is None or not {window.model for window in table.windows} >= set(models):
            return lane
        return replace(lane, timetable=table)


def _moved(plan: Plan, lanes: Mapping[str, Iterable[str]]) -> Iterator[Deployment]:
    """Yield the deployments of these models in `plan`, moved to these lanes."""
    pools: dict[PoolId, Deployment] = {}
    present = {(deployment.pool, deployment.lane): deployment for deployment in plan.deployments}
    for deployment in plan.deployments:
        if deployment.pool.model in lanes:
            pools.setdefault(deployment.pool, deployment)
    for pool, deployment in pools.items():
        for lane in lanes[pool.model]:
            yield present.get((pool, lane), replace(deployment, lane=lane))
