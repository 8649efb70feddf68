"""What bounds are worth: a detector of several sizes and what is behind it on one lane, in virtual
time, with and without a placement."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
from tests.pipelines.test_frames_in_virtual_time import Street

from slacktide.domain import (
    Answer,
    Command,
    Deployment,
    LaneSpec,
    OutcomeKind,
    Plan,
    PoolId,
    Route,
    RunBatch,
)
from slacktide.domain.frames import Frame, FrameArrived, PipelinesChanged, StageYielded, Yield
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import ByProfile, Simulation
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.world.hardware import ByPool
from slacktide.planning.pipelines import PlacedPipeline, ServerPipelinesPlanner, make_placement
from slacktide.planning.scaling import ScalingPlanner
from slacktide.planning.variants import Family, FamilyVariant, VariantsPlanner
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import make_scheduler

ACCURACY = {128: 0.284, 192: 0.556, 256: 0.731, 320: 0.849, 384: 0.901, 448: 0.933, 576: 0.963}
"""Of the example `street`."""
STAGES = {"street": 8, "brand": 32, "plate": 32}
PIPELINE = Pipeline(
    "traffic",
    tuple(PipelineStage(name, name) for name in STAGES),
    (Edge("street", "brand"), Edge("street", "plate")),
    slo=0.2,
)
TABLES = {
    str(side): LatencyTable.linear(0.003 + row, row, 8, spread=1.25)
    for side, row in ((side, 0.03 * (side / 576) ** 2) for side in ACCURACY)
} | {
    model: LatencyTable.linear(0.001 + row, row, 32, spread=1.25)
    for model, row in (("brand", 0.002), ("plate", 0.0028))
}
POOLS = [
    *(PoolId("street", "1", str(side)) for side in ACCURACY),
    PoolId("brand", "1"),
    PoolId("plate", "1"),
]
WARM = 10.0


def times_of(pool: PoolId) -> CorrectedTimes:
    return CorrectedTimes(TABLES[pool.variant or pool.model])


def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
    times = times_of(pool)
    scheduler = make_scheduler("slack", {}, max_batch=max_batch, times=times, view=view)
    return PoolParts(scheduler, times, size=int(pool.variant or 0))


class Traffic(Street):
    """Two to nine vehicles a frame; notes which size the detector ran at."""

    def __init__(self, seed: int) -> None:
        super().__init__(PIPELINE, seed)
        self.sizes: dict[int, int] = {}
        self._batches: dict[int, str] = {}

    def on_commands(self, commands: Sequence[Command], *, now: float) -> None:
        for command in commands:
            if type(command) is RunBatch:
                ran = dict.fromkeys(
                    (member.id for member in command.batch.members),
                    command.batch.replica.pool.variant,
                )
                self._batches |= ran

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        ends = child.kind not in (OutcomeKind.SERVED, OutcomeKind.LATE)
        if ends or self.stages[child.id] != "street":
            return None
        parent = self.requests[child.id].parent
        assert parent is not None
        self.sizes[parent] = int(self._batches[child.id])
        rows = self.random.choice((2, 3, 5, 6, 8, 9))
        return StageYielded(child.id, (Yield(rows), Yield(rows)))


def played(
    rate: float, *, placed: bool, family: bool = True, seconds: float = 30.0
) -> tuple[float, float]:
    """(share of frames that are complete in time, accuracy of all, what is missing counting 0)."""
    pools = [pool for pool in POOLS if family or pool.variant in ("", "320")]
    traffic, draw = Traffic(1), random.Random(1)
    sizes = tuple(FamilyVariant(str(s), a, s) for s, a in ACCURACY.items())
    stated: dict[str, object] = {"street": Family(sizes)} if family else {}
    planners = [ScalingPlanner((0,)), VariantsPlanner()]
    if placed:
        policy = make_placement("pipeline", on_one_server=True)
        placement = ServerPipelinesPlanner(policy, lambda: simulation.runtime.frames)
        planners = [placement, *planners]
        stated["traffic"] = PlacedPipeline({name: name for name in STAGES}, PIPELINE)
    routes = {pool.model: Route(pool.model, pool) for pool in pools}
    plan = Plan(
        (LaneSpec("lane", (0,)),),
        tuple(Deployment(pool, "lane", STAGES[pool.model]) for pool in pools),
        tuple(routes.values()),
    )
    rng = np.random.default_rng(1)
    truth = ByPool({pool: ByProfile(times_of(pool), rng) for pool in pools})
    simulation = Simulation(
        Engine(parts), plan, truth,
        planners=planners, stated=stated, frames=traffic, job_s=0.02, check=True,
    )  # fmt: skip
    items, at, judged = [ExternalEvent(0.0, PipelinesChanged((PIPELINE,)))], 0.0, set()
    while at < seconds:
        at += draw.uniform(0.4, 1.6) / rate
        frame = Frame(len(items), "traffic", at, at + 0.2)
        items.append(ExternalEvent(at, FrameArrived(frame)))
        if at > WARM:
            judged.add(frame.id)
    simulation.run(items)
    ends = {id: traffic.outcomes[id] for id in judged}
    complete = {
        id: 1.0 - len(end.missing) / 2 if end.kind is OutcomeKind.SERVED else 0.0
        for id, end in ends.items()
    }
    worth = [ACCURACY.get(traffic.sizes.get(id, 0), 0.0) * part for id, part in complete.items()]
    return fmean(part == 1.0 for part in complete.values()), fmean(worth)


@pytest.mark.slow
def test_stages_behind_a_detector_have_time_where_it_is_bounded() -> None:
    """By itself it takes the largest size for which its own requests are in time."""
    for rate in (14.0, 22.0):
        without, before = played(rate, placed=False)
        complete, worth = played(rate, placed=True)
        assert complete > without + 0.08
        assert worth > before + 0.03


def test_where_lanes_have_time_accuracy_is_not_given_up_for_chance() -> None:
    """Half of the deadline kept for it would cost a tenth."""
    without, before = played(8.0, placed=False)
    complete, worth = played(8.0, placed=True)
    assert complete > without - 0.01
    assert worth > before - 0.01


def test_batches_of_fixed_models_are_not_bounded() -> None:
    """A bound makes only more batches of the same rows."""
    without = played(28.0, placed=False, family=False)
    assert played(28.0, placed=True, family=False) == without


class Seats:
    """What runs where: of `octopinf`, on two lanes, over spans of so many frames a second."""

    def __init__(self, *spans: tuple[float, float]) -> None:
        self.street, draw = Traffic(2), random.Random(2)
        self.ran: list[tuple[float, str, str]] = []
        """(when, model, lane) of batches."""
        self.placement = ServerPipelinesPlanner(
            make_placement("octopinf", on_one_server=True), lambda: self.simulation.runtime.frames
        )
        pools = [PoolId("street", "1", "576"), PoolId("brand", "1"), PoolId("plate", "1")]
        plan = Plan(
            (LaneSpec("one", (0,)), LaneSpec("two", (1,))),
            tuple(Deployment(p, lane, STAGES[p.model]) for p in pools for lane in ("one", "two")),
            tuple(Route(pool.model, pool) for pool in pools),
        )
        rng = np.random.default_rng(2)
        self.simulation = Simulation(
            Engine(parts), plan, ByPool({pool: ByProfile(times_of(pool), rng) for pool in pools}),
            planners=[self.placement], frames=self.street, job_s=0.02, watch=self._watch,
            stated={"traffic": PlacedPipeline({name: name for name in STAGES}, PIPELINE)},
        )  # fmt: skip
        self.items, at, until = [ExternalEvent(0.0, PipelinesChanged((PIPELINE,)))], 0.0, 0.0
        for rate, seconds in spans:
            until += seconds
            while at < until:
                at += draw.uniform(0.4, 1.6) / rate
                frame = Frame(len(self.items), "traffic", at, at + 0.2, client="camera")
                self.items.append(ExternalEvent(at, FrameArrived(frame)))

    def _watch(self, events: Sequence[object], now: float, commands: Sequence[Command]) -> None:
        self.ran += [
            (now, command.batch.replica.pool.model, command.batch.replica.lane)
            for command in commands
            if type(command) is RunBatch
        ]

    def lanes(self, model: str, since: float, until: float) -> set[str]:
        """On which batches of it have begun."""
        return {lane for at, name, lane in self.ran if name == model and since <= at < until}


def test_instances_of_octopinf_follow_the_rows_of_stages() -> None:
    """Between two plans, which are made after 2 and 62 s: one more where rows ask for it, and it
    goes again 240 s later."""
    seats = Seats((6.0, 100.0), (28.0, 100.0), (6.0, 220.0))
    seats.simulation.run(seats.items)
    assert seats.placement.status().decided == 2
    for since, until in ((5.0, 100.0), (400.0, 420.0)):
        assert seats.lanes("street", since, until) == {"one"}
    assert seats.lanes("street", 170.0, 190.0) == {"one", "two"}


def test_instances_of_octopinf_stay_until_their_rows_are_counted() -> None:
    seats = Seats((28.0, 90.0))
    seats.simulation.run(seats.items)
    assert seats.placement.status().decided == 2
    for since in range(20, 90, 10):
        assert seats.lanes("street", since, since + 10) == {"one", "two"}
