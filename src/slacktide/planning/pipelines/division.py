"""Divides the frames of pipelines between the camera's device and a server.

Each pipeline gets a *spare* placement beside its own: on a server if it begins on the camera's
device, and the reverse. A frame goes to the spare if it would be late in the first placement and
not there (pipelines/children.py). So frames are divided by the moment, without a new plan when a
link falls, and the estimate stays that of the first placement.
"""

from __future__ import annotations

from collections.abc import Sequence

from slacktide.planning.pipelines.costs import EstimateRules, Load, StageCost
from slacktide.planning.pipelines.distribution import Placed
from slacktide.planning.pipelines.estimate import PipelineEstimator, load_of
from slacktide.planning.pipelines.problem import (
    PlacedStage,
    PlacementAnswer,
    PlacementQuestion,
)

BATCH_SHARE = 0.25
"""Largest share of the SLO that the p99 of a batch may take in a spare placement."""


def divide(question: PlacementQuestion, placed: Placed, rules: EstimateRules) -> PlacementAnswer:
    """Return `placed` with spare placements where there is memory for them."""
    estimators, chosen, load = load_of(question, rules, placed)
    spares = []
    for estimator, costs in zip(estimators, chosen, strict=True):
        spares.append(_spare(estimator, costs, load) if _may_divide(estimator, costs) else ())
    return PlacementAnswer(placed, spares=tuple(spares))


def _may_divide(estimator: PipelineEstimator, costs: Sequence[StageCost]) -> bool:
    """Whether frames come in beside a server, and no branch comes back from it."""
    if len(estimator.devices) < 2 or estimator.devices[0].server or not estimator.pipeline.rate:
        return False
    for stage, cost in zip(estimator.pipeline.stages, costs, strict=True):
        before = [costs[inflow.stage].device for inflow in stage.inflows]
        if len(before) > 1 or (cost.device == 0 and any(before)):
            return False
    return True


def _spare(
    estimator: PipelineEstimator, costs: Sequence[StageCost], load: Load
) -> tuple[PlacedStage, ...]:
    """Return the spare placement of a pipeline, and add its memory to `load`; empty if there is too
    little memory or time."""
    at_home = costs[0].device == 0
    host = 1 if at_home else 0
    place, device = estimator.places[host], estimator.devices[host]
    free = device.accelerators * device.memory - load.memory[place]
    spare: list[StageCost] = []
    for at, first in enumerate(costs):
        is_behind = all(
            spare[inflow.stage].device == host for inflow in estimator.pipeline.stages[at].inflows
        )
        cost = _cost(estimator, at, host, first.configuration)
        if at_home and first.device:
            spare.append(first)
        elif cost is not None and is_behind and cost.memory <= free:
            free -= cost.memory
            spare.append(cost)
        elif at_home or not at:
            return ()
        else:
            spare.append(first)
    load.memory[place] = device.accelerators * device.memory - free
    return estimator.placed(spare)


def _cost(
    estimator: PipelineEstimator, at: int, device: int, configuration: int
) -> StageCost | None:
    """Return the cost of the largest batch that takes a small part of the SLO, or else of one row;
    None if the stage cannot be in time on this device."""
    best = estimator.cost(at, device, configuration, 0)
    if best is None or best.p99 > estimator.pipeline.slo:
        return None
    for batch in range(1, len(estimator.question.batches)):
        cost = estimator.cost(at, device, configuration, batch)
        if cost is None or cost.p99 > BATCH_SHARE * estimator.pipeline.slo:
            break
        best = cost
    return best._replace(memory=best.memory / best.replicas)
