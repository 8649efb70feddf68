"""A burst of rows that takes more than a deadline, in virtual time: what was learnt in it does not
have every frame refused when it is over."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from tests.pipelines.test_frames_in_virtual_time import Street

from slacktide.domain import Answer, Deployment, LaneSpec, OutcomeKind, Plan, PoolId, Route
from slacktide.domain.frames import Frame, FrameArrived, PipelinesChanged, StageYielded, Yield
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import ByProfile, Simulation
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.world.hardware import ByPool
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import make_scheduler

SLO, OVER_AT, END = 0.2, 20.0, 75.0
PIPELINE = Pipeline(
    "cars",
    (PipelineStage("find", "find"), PipelineStage("brand", "brand")),
    (Edge("find", "brand"),),
    slo=SLO,
)
TABLES = {
    "find": LatencyTable.linear(0.06, 0.04, 4, spread=1.2),
    "brand": LatencyTable.linear(0.001, 0.0025, 64, spread=1.2),
}
POOLS = {model: PoolId(model, "1") for model in TABLES}


def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
    times = CorrectedTimes(TABLES[pool.model])
    scheduler = make_scheduler("slack", {}, max_batch=max_batch, times=times, view=view)
    return PoolParts(scheduler, times)


class Burst(Street):
    """Two vehicles a frame, and more at first."""

    def __init__(self, first: int) -> None:
        super().__init__(PIPELINE, 1)
        self.first = first

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        ends = child.kind not in (OutcomeKind.SERVED, OutcomeKind.LATE)
        if ends or self.stages[child.id] != "find":
            return None
        return StageYielded(child.id, (Yield(self.first if now < OVER_AT else 2),))


@pytest.mark.parametrize("first", [2, 40, 50, 60, 70])
def test_frames_are_complete_again_soon_after_a_burst(first: int) -> None:
    """Of 60 vehicles, without forgetting, none would ever be again."""
    street, rng = Burst(first), np.random.default_rng(1)
    plan = Plan(
        (LaneSpec("lane", (0,)),),
        (Deployment(POOLS["find"], "lane", 4), Deployment(POOLS["brand"], "lane", 64)),
        tuple(Route(model, pool) for model, pool in POOLS.items()),
    )
    truth = ByPool({pool: ByProfile(CorrectedTimes(TABLES[m]), rng) for m, pool in POOLS.items()})
    simulation = Simulation(Engine(parts), plan, truth, frames=street)
    frames = [Frame(n, "cars", n / 4, n / 4 + SLO) for n in range(1, round(4 * END))]
    items = [ExternalEvent(0.0, PipelinesChanged((PIPELINE,)))]
    simulation.run(
        [*items, *(ExternalEvent(frame.arrival, FrameArrived(frame)) for frame in frames)]
    )

    def complete(begin: float) -> float:
        ends = [street.outcomes[frame.id] for frame in frames if begin < frame.arrival]
        return fmean(end.kind is OutcomeKind.SERVED and not end.missing for end in ends)

    assert complete(OVER_AT + 40.0) > 0.9
    assert first == 2 or complete(0.0) < 0.9  # it was one that hurts
