"""Turns a placement into plans: the deployments of each device, and the stages that it hands over.

A replica of a model is a deployment of its pool on a lane (lanes/lane_assignment.py); placed
windows are windows of the lane's timetable.

If pipelines run a model on one device in different configurations, the configuration with the most
rows gets the plain route. Frames of pipelines with another configuration name their pipeline as the
client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.domain.plan import StagePlace
from slacktide.planning.draft import ModelBounds
from slacktide.planning.lanes.best_fit import PlacedReplica
from slacktide.planning.lanes.lane_assignment import assign_replicas
from slacktide.planning.pipelines.costs import EstimateRules, StageCost
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.estimate import PipelineEstimator, make_estimators
from slacktide.planning.pipelines.problem import (
    DeviceView,
    PipelineView,
    PlacedStage,
    PlacementAnswer,
    PlacementError,
    PlacementQuestion,
    StageConfiguration,
)

RULES = EstimateRules()
PoolOf = Callable[[str, StageConfiguration], PoolId]
"""Returns the pool of a model that runs one of its configurations."""


def pool_of(model: str, configuration: StageConfiguration) -> PoolId:
    """Return the pool of the variant with the configuration's name."""
    return PoolId(model, "1", configuration.name)


def lanes_of(device: DeviceView) -> tuple[LaneSpec, ...]:
    """Return the lanes of a device, in the order of its accelerators."""
    return tuple(
        LaneSpec(f"{accelerator}.{stream}", (), f"cuda:{accelerator}")
        for accelerator in range(device.accelerators)
        for stream in range(device.streams)
    )


def placed_whole(question: PlacementQuestion, placed: Placed) -> Placed:
    """Move stages so that whenever a stage runs on another device than the stage before it, it can
    be handed over together with all later stages: stages between a fork and its join stay on the
    fork's device. Raises PlacementError if one cannot run there."""
    whole_pipelines = []
    for estimator, stages in zip(make_estimators(question, RULES), placed, strict=True):
        whole_stages = list(stages)
        for at, view in enumerate(estimator.pipeline.stages):
            device = whole_stages[view.inflows[0].stage].device if at else whole_stages[0].device
            if whole_stages[at].device != device and not _is_closed(estimator.pipeline, at):
                whole_stages[at] = _moved(estimator, at, whole_stages[at], device)
        whole_pipelines.append(tuple(whole_stages))
    return tuple(whole_pipelines)


_Placement = tuple[Sequence[StageCost], Sequence[PlacedStage]]
"""The stages of a pipeline: their costs and places."""


class DevicePlans:
    """The plans of all devices, from one placement."""

    def __init__(self, question: PlacementQuestion, answer: PlacementAnswer) -> None:
        """Raises ValueError if a stage cannot run as placed."""
        self.question, self.answer = question, answer
        self.whole, self.placed = answer.with_spares(question)
        """Question and placement in which a divided pipeline is two."""
        self._estimators = make_estimators(self.whole, RULES)
        pairs = zip(self._estimators, self.placed, strict=True)
        self._costs = [estimator.chosen(placed) for estimator, placed in pairs]
        whole_answer = replace(answer, pipelines=self.placed)
        self.replicas, self.timetables = assign_replicas(self.whole, whole_answer, self._costs)

    def of(self, device: str, lanes: Sequence[LaneSpec] = (), pool_of: PoolOf = pool_of) -> Plan:
        """Return the plan of `device`. `lanes`: its lanes in order; default: `lanes_of`."""
        host = self.question.device(device)
        lanes = lanes or lanes_of(host)
        if len(lanes) != host.lanes:
            raise PlacementError(f"{device!r}: expected {host.lanes} lanes, got {len(lanes)}")
        device_lanes = [
            replace(lane, timetable=self.timetables.get((device, stream)))
            for stream, lane in enumerate(lanes)
        ]
        deployments = tuple(
            Deployment(
                pool_of(replica.model, self._configuration(replica)),
                lanes[replica.lane].name,
                replica.batch,
            )
            for replica in self.replicas
            if replica.device == device
        )
        routes = tuple(self._routes(device, pool_of))
        places = tuple(self._places(device))
        return Plan(tuple(device_lanes), deployments, routes, places=places)

    def bounds(self, device: str) -> dict[str, ModelBounds]:
        """Return bounds for other planners of `device`, by model. If a model runs in several
        configurations, the bounds are those of the most accurate configuration."""
        bounds: dict[str, ModelBounds] = {}
        ranks: dict[str, float] = {}
        for replica in self.replicas:
            chosen, model = self._configuration(replica), replica.model
            if replica.device != device or ranks.get(model, -math.inf) > chosen.accuracy:
                continue
            ranks[model] = chosen.accuracy
            bounds[model] = ModelBounds(chosen.name, cores=chosen.cores or None, exits=chosen.exits)
        return bounds

    def _configuration(self, replica: PlacedReplica) -> StageConfiguration:
        name, at = replica.stages[0]
        return self._view(name).stages[at].configurations[replica.configuration]

    def _view(self, name: str) -> PipelineView:
        return next(pipeline for pipeline in self.whole.pipelines if pipeline.name == name)

    def _routes(self, device: str, pool_of: PoolOf) -> Iterator[Route]:
        """Yield a plain route per model, and one per pipeline with another configuration of it."""
        rows: dict[str, dict[PoolId, float]] = {}
        by_pipeline: dict[tuple[str, str], PoolId] = {}
        for estimator, placed in zip(self._estimators, self.placed, strict=True):
            for view, stage, rate in zip(
                estimator.pipeline.stages, placed, estimator.rates, strict=True
            ):
                if stage.device == device:
                    model = view.model_in(estimator.pipeline)
                    pool = pool_of(model, view.configurations[stage.configuration])
                    pools = rows.setdefault(model, {})
                    pools[pool] = pools.get(pool, 0.0) + rate
                    by_pipeline[model, estimator.pipeline.owner] = pool
        plain = {model: max(pools, key=pools.__getitem__) for model, pools in rows.items()}
        for model, pool in plain.items():
            yield Route(model, pool)
        for (model, pipeline), pool in by_pipeline.items():
            if pool != plain[model]:
                yield Route(model, pool, client=pipeline)

    def _places(self, device_name: str) -> Iterator[StagePlace]:
        """Yield places of stages elsewhere that follow a stage or camera of this device."""
        spares = {
            estimator.pipeline.owner: (costs, placed)
            for estimator, costs, placed in zip(
                self._estimators, self._costs, self.placed, strict=True
            )
            if estimator.pipeline.spare_of
        }
        for estimator, costs, placed in zip(
            self._estimators, self._costs, self.answer.pipelines, strict=False
        ):
            spare = spares.get(estimator.pipeline.name)
            if spare is not None and estimator.pipeline.source == device_name:
                yield from self._shared(estimator, (costs, placed), spare)
                continue
            local_stages = [stage.device == device_name for stage in placed]
            reached = [estimator.pipeline.source == device_name] * len(local_stages)
            for at, view in enumerate(estimator.pipeline.stages):
                before = [inflow.stage for inflow in view.inflows]
                reached[at] = reached[at] or any(local_stages[up] or reached[up] for up in before)
            for at in range(len(placed)):
                if reached[at] and not local_stages[at]:
                    yield self._place(estimator, costs, placed, at, device_name)

    def _shared(
        self, estimator: PipelineEstimator, first: _Placement, spare: _Placement
    ) -> Iterator[StagePlace]:
        """Yield the places of a divided pipeline, as seen from its camera's device."""
        source = estimator.pipeline.source
        begins_here = first[1][0].device == source
        local, remote = (first, spare) if begins_here else (spare, first)
        for at, stage in enumerate(local[1]):
            costs, placed = list(local[0]), list(local[1])
            costs[at], placed[at] = remote[0][at], remote[1][at]
            place = self._place(estimator, costs, placed, at, source)
            if stage.device != source:
                yield place
            elif place.transfer:  # else it would be late there
                yield replace(place, takes="late" if begins_here else "timely")

    def _place(
        self,
        estimator: PipelineEstimator,
        costs: Sequence[StageCost],
        placed: Sequence[PlacedStage],
        at: int,
        device_name: str,
    ) -> StagePlace:
        """Return the place of a handed-over stage. If its path takes longer than the SLO, no
        transfer time is reserved: it is late anyway, and must not take time from other branches."""
        stage = placed[at]
        before = {placed[inflow.stage].device for inflow in estimator.pipeline.stages[at].inflows}
        if before != {stage.device} and not _is_closed(estimator.pipeline, at):
            name = f"{estimator.pipeline.name}/{estimator.pipeline.stages[at].name}"
            raise PlacementError(f"{name} cannot be handed over: other stages feed its branch too")
        place = [device.name for device in estimator.devices].index(device_name)
        cost, transfer, back = costs[at], self._arrival(estimator, costs, at), 0.0
        for begin, to, _, size in estimator.hand_overs:
            if (begin, to) == (at, -1):
                back = estimator.transfer(cost.device, place, size)
        back = back or estimator.transfer(cost.device, place, 0.0)
        rows = max(1, math.ceil(estimator.rates[at] / estimator.pipeline.rate - 1e-9))
        batches = [batch_size for batch_size in self.question.batches if batch_size <= stage.batch]
        batch = min((b for b in batches if b >= rows), default=stage.batch)
        rounds = math.ceil(math.ceil(rows / batch) / max(1, stage.replicas))
        number = self.question.batches.index(batch)
        batch_cost = estimator.cost(at, cost.device, cost.configuration, number)
        assert batch_cost is not None
        ahead = self._ahead(estimator, costs, at)
        if ahead + transfer + rounds * batch_cost.p99 + back >= estimator.pipeline.slo:
            transfer = back = 0.0
        return StagePlace(
            estimator.pipeline.name,
            estimator.pipeline.stages[at].name,
            stage.device,
            rounds * batch_cost.p99,
            transfer,
            back,
        )

    def _arrival(self, estimator: PipelineEstimator, costs: Sequence[StageCost], at: int) -> float:
        """Return the seconds that the rows of a stage take to reach its device."""
        arrival = 0.0
        for begin, to, _, size in estimator.hand_overs:
            if to == at:
                origin = costs[begin].device if begin >= 0 else 0
                size *= costs[at].row_share
                arrival = max(arrival, estimator.transfer(origin, costs[at].device, size))
        return arrival

    def _ahead(self, estimator: PipelineEstimator, costs: Sequence[StageCost], at: int) -> float:
        """Return the seconds of the longest path to a stage, with one batch of each stage."""
        return max(
            (
                self._ahead(estimator, costs, inflow.stage)
                + self._arrival(estimator, costs, inflow.stage)
                + costs[inflow.stage].p99
                for inflow in estimator.pipeline.stages[at].inflows
            ),
            default=0.0,
        )


def _is_closed(pipeline: PipelineView, stage: int) -> bool:
    """Whether only `stage` and its branch feed the stages after it (`Pipeline.is_closed`)."""
    branch = {stage}
    for at, view in enumerate(pipeline.stages):
        fed = [inflow.stage in branch for inflow in view.inflows]
        if any(fed):
            if not all(fed):
                return False
            branch.add(at)
    return True


def _moved(estimator: PipelineEstimator, at: int, stage: PlacedStage, device: str) -> PlacedStage:
    names = [host.name for host in estimator.devices]
    batches = [batch_size for batch_size in estimator.question.batches if batch_size <= stage.batch]
    for batch in reversed(range(len(batches))):
        cost = estimator.cost(at, names.index(device), stage.configuration, batch)
        if cost is not None:
            return PlacedStage(device, batches[batch], cost.replicas, stage.configuration)
    view = estimator.pipeline.stages[at]
    raise PlacementError(
        f"pipeline {estimator.pipeline.name!r}: stage {view.name!r} feeds a join, so it must run "
        f"on {device!r}, which it does not fit"
    )
