"""Requests of three shapes, once learnt, are scheduled as if their times had been known."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain import (
    Batch,
    Deployment,
    LaneSpec,
    Notice,
    Outcome,
    Plan,
    PoolId,
    Request,
    Route,
    Signature,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.load.report import Provenance
from slacktide.lab.replay import replay
from slacktide.lab.simulation import Simulation, predict
from slacktide.profiles import (
    BatchTimes,
    CorrectedTimes,
    LatencyTable,
    ShapeClasses,
    ShapedTimes,
    TimeDistribution,
)
from slacktide.profiles.shape_classes import ClassTimes, ShapeSorting
from slacktide.profiles.time_distribution import MixedTime
from slacktide.recording import Recorder, Recording
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

POOL = PoolId("m", "1")
PLAN = Plan((LaneSpec("lane", (0,)),), (Deployment(POOL, "lane", 8),), (Route("m", POOL),))
SIDES = (100, 160, 320)
SCATTER = 0.05


def shape(side: int) -> Signature:
    return ((3, side, side),)


TABLES = {
    shape(side): LatencyTable.linear(
        0.004, 0.016 * (side / 100) ** 2, 8, spread=float(np.exp(2.33 * SCATTER))
    )
    for side in SIDES
}
ALONE = [table.expected(1, 1) for table in TABLES.values()]


class Truth:
    """What batches take: by their shape, with some scatter; the first of each shape longer."""

    def __init__(self, seed: int, *, first: float = 1.0) -> None:
        self._generator = np.random.default_rng(seed)
        self._first = dict.fromkeys(TABLES, first)

    def seconds(self, batch: Batch, cores: int) -> float:
        signature = batch.members[0].signature
        return self.draw(signature, batch.rows) * self._first.pop(signature, 1.0)

    def draw(self, signature: Signature, rows: int) -> float:
        scatter = float(np.exp(SCATTER * self._generator.standard_normal()))
        return TABLES[signature].expected(rows, 1) * scatter


class KnownTimes(BatchTimes):
    """The true times, known beforehand and never learnt."""

    def __init__(self) -> None:
        self._times = {signature: CorrectedTimes(table) for signature, table in TABLES.items()}
        works = {key: (alone, 1.0) for key, alone in zip(TABLES, ALONE, strict=True)}
        self._classes = ShapeClasses(
            ShapeSorting.of(works, None, 30_000),
            tuple(ClassTimes([(times, 1.0)]) for times in self._times.values()),
            (1 / 3, 1 / 3, 1 / 3),
            1,
        )

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> TimeDistribution:
        if members:
            return self._times[members[0].signature].of(rows, cores)
        parts = tuple(times.of(rows, cores) for times in self._times.values())
        return MixedTime(parts, (1.0, 1.0, 1.0))

    def classes(self, cores: int) -> ShapeClasses:
        return self._classes


def learnt(batches: int = 40) -> ShapedTimes:
    """What so many batches of each shape have taught."""
    times = ShapedTimes(TABLES[shape(100)], shape(100))
    truth, rng = Truth(5), np.random.default_rng(6)
    for _ in range(batches):
        for signature in TABLES:
            rows = int(rng.integers(1, 5))
            members = tuple(request(i, 0.0, 1.0, signature) for i in range(rows))
            times.observe(truth.draw(signature, rows), members, rows, 1)
    return times


def request(id: int, arrival: float, slo: float, signature: Signature) -> Request:
    return Request(id, "m", arrival, arrival + slo, signature=signature)


@cache
def requests(slo: float, count: int, seed: int) -> tuple[Request, ...]:
    """Poisson at 0.7 × capacity; deadlines `slo` × the time that each takes alone."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(float(np.mean(ALONE)) / 0.7, count)) + 0.1
    kinds = rng.integers(0, 3, count)
    return tuple(
        request(i, float(at), slo * ALONE[kind], shape(SIDES[kind]))
        for i, (at, kind) in enumerate(zip(arrivals, kinds, strict=True))
    )


def goodput(policy: str, times: BatchTimes, slo: float, seed: int, *, first: float = 1.0) -> float:
    """Share answered in time."""
    served: list[bool] = []

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        return PoolRecipe(policy).parts(times, max_batch=max_batch, view=view)

    def answered(request: Request | Notice, outcome: Outcome) -> None:
        served.append(outcome.reason.name == "ON_TIME")

    engine = Engine(parts, EngineSettings())
    Simulation(engine, PLAN, Truth(seed, first=first), answered=answered).run(
        requests(slo, 1200, seed)
    )
    return float(np.mean(served))


@pytest.mark.parametrize("policy", ["slack", "edf", "orloj", "clockwork", "nexus"])
@pytest.mark.parametrize("slo", [3.0, 10.0])
def test_learnt_shapes_are_scheduled_as_well_as_known_ones(policy: str, slo: float) -> None:
    seeds = (1, 2, 3)
    baseline = np.mean([goodput(policy, KnownTimes(), slo, seed) for seed in seeds])
    with_learnt = np.mean([goodput(policy, learnt(), slo, seed) for seed in seeds])
    assert with_learnt > baseline - 0.02
    if policy == "slack" and slo == 10.0:
        assert with_learnt > 0.97


@pytest.mark.parametrize(("slo", "less"), [(3.0, 0.025), (10.0, 0.01)])
def test_new_shapes_with_slow_first_runs_cost_little_and_not_for_long(
    slo: float, less: float
) -> None:
    """One slow run must not have the tight deadlines of its shape refused from then on."""
    seeds = (0, 1, 2)
    baseline = np.mean([goodput("slack", KnownTimes(), slo, seed) for seed in seeds])
    fresh = [
        goodput("slack", ShapedTimes(TABLES[shape(100)], shape(100)), slo, seed, first=3.5)
        for seed in seeds
    ]
    assert np.mean(fresh) > baseline - less


def test_more_is_in_time_than_where_all_are_taken_for_the_profiled_shape() -> None:
    for slo, more in ((3.0, 0.05), (10.0, 0.02)):
        alike = goodput("slack", CorrectedTimes(TABLES[shape(100)]), slo, 1)
        assert goodput("slack", learnt(), slo, 1) > alike + more


@pytest.mark.parametrize("slo", [3.0, 10.0])
@pytest.mark.parametrize("guess", [False, True])
def test_shapes_that_come_for_the_first_time_cost_next_to_nothing(guess: bool, slo: float) -> None:
    """One shape was profiled, or none: the others run alone once, and are judged from then on."""

    def new() -> ShapedTimes:
        if guess:
            return ShapedTimes(LatencyTable.linear(0.0, 0.05, 8, spread=100.0), ())
        return ShapedTimes(TABLES[shape(100)], shape(100))

    seeds = (1, 2, 3)
    baseline = np.mean([goodput("slack", KnownTimes(), slo, seed) for seed in seeds])
    assert np.mean([goodput("slack", new(), slo, seed) for seed in seeds]) > baseline - 0.01


def recorded(path: Path, times: ShapedTimes) -> Recording:
    """Of a server that begins with these predictions."""
    recorder = Recorder(path, EngineSettings(), limit=1 << 30)
    recipe = PoolRecipe("slack")

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(times, max_batch=max_batch, view=view)

    def watch(events: Any, now: float, commands: Any) -> None:
        recorder.called(events, now, commands)
        recorder.encode()

    Simulation(Engine(parts, EngineSettings()), PLAN, Truth(1), watch=watch).run(
        requests(3.0, 400, 1)
    )
    recorder.close()
    return Recording(path)


def test_a_recording_with_shapes_is_replayed(tmp_path: Path) -> None:
    times = learnt(2)
    again = ShapedTimes(times.table, times.reference)
    again.load(times.export())
    outcome = replay(recorded(tmp_path / "a.rec", again))
    assert outcome.difference is None
    assert outcome.events > 600


def test_a_prediction_takes_shapes_that_never_ran_in_proportion_to_their_size(
    tmp_path: Path,
) -> None:
    recording = recorded(tmp_path / "a.rec", ShapedTimes(TABLES[shape(100)], shape(100)))
    prediction = predict(recording, seeds=(1, 2, 3), provenance=Provenance("", {}, ""))
    assert abs(prediction.difference) < 0.1  # the largest is guessed 5 % too long
    (note,) = [note for note in prediction.notes if "guessed" in note]
    assert int(note.split()[0]) > 10
    prediction = predict(recording, seeds=(1,), provenance=Provenance("", {}, ""), after=5.0)
    assert not any("guessed" in note for note in prediction.notes)
