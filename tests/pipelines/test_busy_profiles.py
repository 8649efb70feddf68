"""Pipelines whose profiles were measured on a busy machine, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.pipelines.test_frames_in_virtual_time import Street

from slacktide.domain import Deployment, LaneSpec, OutcomeKind, Plan, PoolId, Route
from slacktide.domain.frames import Frame, FrameArrived, PipelinesChanged
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import ByProfile, Simulation
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.world.hardware import ByPool
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import make_scheduler

SLO = 1.0
STAGES = ("find", "turn", "read")
PIPELINE = Pipeline(
    "pages",
    tuple(PipelineStage(name, name) for name in STAGES),
    tuple(Edge(a, b) for a, b in pairwise(STAGES)),
    slo=SLO,
)
POOLS = {model: PoolId(model, "1") for model in STAGES}
SECONDS = {"find": 0.04, "turn": 0.01, "read": 0.08}


def played(busy: float, rate: float, *, busy_stages: tuple[str, ...] = STAGES) -> list[bool]:
    """Whether each frame in turn had all its stages. Profiles of `busy_stages` are that many times
    too long."""

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        factor = busy if pool.model in busy_stages else 1.0
        times = CorrectedTimes(
            LatencyTable.linear(0.0, factor * SECONDS[pool.model], 8, spread=1.1)
        )
        scheduler = make_scheduler("slack", {}, max_batch=max_batch, times=times, view=view)
        return PoolParts(scheduler, times)

    street, rng = Street(PIPELINE, 3), np.random.default_rng(1)
    street.random.randint = lambda low, high: 1  # type: ignore[method-assign]
    plan = Plan(
        (LaneSpec("lane", (0,)),),
        tuple(Deployment(pool, "lane", 8) for pool in POOLS.values()),
        tuple(Route(model, pool) for model, pool in POOLS.items()),
    )
    tables = {m: LatencyTable.linear(0.0, seconds, 8, spread=1.1) for m, seconds in SECONDS.items()}
    truth = ByPool({pool: ByProfile(CorrectedTimes(tables[m]), rng) for m, pool in POOLS.items()})
    simulation = Simulation(Engine(parts), plan, truth, frames=street)
    frames = [Frame(n, "pages", n / rate, n / rate + SLO) for n in range(1, 41)]
    items = [ExternalEvent(0.0, PipelinesChanged((PIPELINE,)))]
    simulation.run(
        [*items, *(ExternalEvent(frame.arrival, FrameArrived(frame)) for frame in frames)]
    )
    ends = [street.outcomes[frame.id] for frame in frames]
    return [end.kind is OutcomeKind.SERVED and not end.missing for end in ends]


@pytest.mark.parametrize("rate", [0.8, 3.0, 6.0])
@pytest.mark.parametrize("busy", [1.0, 5.0, 18.0])
def test_no_frame_loses_its_last_stages(busy: float, rate: float) -> None:
    assert all(played(busy, rate))


def test_one_stage_with_a_wrong_profile_is_tried_too() -> None:
    assert all(played(20.0, 3.0, busy_stages=("read",)))
