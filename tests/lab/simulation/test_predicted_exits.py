"""What becomes of requests that leave early, predicted from a recording's beginning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.simulation.drawn_exit_tables import DrawnExits

from slacktide.domain import (
    Batch,
    Deployment,
    ExitMode,
    ExitPolicy,
    ExitReport,
    LaneSpec,
    Leaving,
    Plan,
    PoolId,
    Replica,
    Request,
    Route,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.load.report import Provenance
from slacktide.lab.simulation import AsExpected, Simulation, predict
from slacktide.lab.simulation.exit_tables import ExitTable, TableExits
from slacktide.lab.simulation.recorded_exits import ObservedExits, RecordedExits
from slacktide.planning.exits import ExitsPlanner, StatedExits
from slacktide.profiles import CorrectedTimes
from slacktide.recording import Recorder, Recording
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

POOL = PoolId("m", "1")
PLAN = Plan((LaneSpec("lane", (0,)),), (Deployment(POOL, "lane", 4),), (Route("m", POOL),))
RECIPE = PoolRecipe("slack", exits=True)


def record(path: Path, table: ExitTable, stated: StatedExits, rate: float) -> Recording:
    recorder = Recorder(path, EngineSettings(), limit=1 << 30)

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(table.times)
        recorder.opened(pool, max_batch, RECIPE, lambda: export_times(times))
        return RECIPE.parts(times, max_batch=max_batch, view=view)

    def watch(events: Any, now: float, commands: Any) -> None:
        recorder.called(events, now, commands)
        recorder.encode()

    gaps = np.random.default_rng(5).exponential(1.0 / rate, len(table))
    arrivals = (np.cumsum(gaps) + 1.0).tolist()
    simulation = Simulation(
        Engine(parts, EngineSettings()),
        PLAN,
        AsExpected(CorrectedTimes(table.times)),
        watch=watch,
        planners=(ExitsPlanner(),),
        stated={"m": stated},
        exits={"m": TableExits(table)},
    )
    requests = (Request(id, "m", at, at + 0.05) for id, at in enumerate(arrivals))
    simulation.run(requests, until=arrivals[-1] + 5.0)
    recorder.close()
    return Recording(path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [ExitMode.RELEASE, ExitMode.AUTO])
@pytest.mark.parametrize("rate", [30.0, 55.0])
def test_it_agrees_with_what_came(mode: ExitMode, rate: float, tmp_path: Path) -> None:
    table = DrawnExits(inputs=6_000, memory=0.5).table(6)  # its halves are alike
    recording = record(tmp_path / "run.rec", table, StatedExits(mode=mode), rate)
    origin = Provenance("", {}, "")
    prediction = predict(recording, seeds=(1, 2), provenance=origin, after=0.5 * 6_000 / rate)
    recorded, drawn = prediction.recorded.total, prediction.predicted[0].total
    assert recorded.reasons["early_exit"] > 400
    early = recorded.reasons["early_exit"] / recorded.submitted
    assert drawn.reasons["early_exit"] / drawn.submitted == pytest.approx(early, abs=0.1)
    assert abs(prediction.difference) <= 0.02


@pytest.mark.parametrize("enlarge", [False, True])
@pytest.mark.parametrize("rate", [70.0, 110.0])
def test_exits_of_a_models_own_are_predicted_from_batches_that_rows_left(
    enlarge: bool, rate: float, tmp_path: Path
) -> None:
    """None of their batches is judged, and with `enlarge` none ever runs whole."""
    table = DrawnExits(inputs=3_000, memory=0.5).table(6)
    fixed: dict[str, Any] = {"ramps": (2, 6), "thresholds": (0.4, 0.2), "learnt": False}
    stated = StatedExits(mode=ExitMode.SHRINK, enlarge=enlarge, **fixed)
    recording = record(tmp_path / "run.rec", table, stated, rate)
    prediction = predict(
        recording, seeds=(1, 2), provenance=Provenance("", {}, ""), after=0.5 * 3_000 / rate
    )
    recorded, drawn = prediction.recorded.total, prediction.predicted[0].total
    early = [total.reasons["early_exit"] / total.submitted for total in (recorded, drawn)]
    assert early[1] == pytest.approx(early[0], abs=0.03)
    assert abs(prediction.difference) <= 0.02


def batch(leaving: Leaving, judged: bool = False) -> Batch:
    members = (Request(1, "m", 0.0, 9.0),)
    replica = Replica(1, POOL, "lane", (0,), 4)
    return Batch(1, replica, members, 1, 0.0, 9.0, leaving=leaving, judged=judged)


def test_recorded_verdicts_are_drawn_for_the_ramps_that_are_active_now() -> None:
    observed = ObservedExits()
    report = ExitReport((1, 4), ((0.2, 0.1),), ((True, True),), (-1,), (0.25, 0.75))
    observed.note(batch(Leaving.SHRINK), report, 1.0)
    assert not observed.rows
    observed.note(batch(Leaving.RUN_ON), report, 1.0)
    exits = RecordedExits(
        {POOL: observed},
        {POOL: CorrectedTimes(DrawnExits(inputs=9).table(0).times)},
        np.random.default_rng(0),
    )
    policy = ExitPolicy(POOL, (0, 2, 4), (0.5, 0.15, 0.15))
    course = exits.course(batch(Leaving.RUN_ON), policy, 2.0)
    assert course.report.uncertainty == ((float("inf"), 0.2, 0.1),)
    assert course.report.left == (2,)
    assert course.report.stage_s == (0.5, 1.5, 1.5)
    assert course.seconds == 2.0
