"""Requests that leave early, recorded: replayed to the bit, and why ramps are what they are."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from tests.lab.simulation.drawn_exit_tables import DrawnExits

from slacktide.domain import (
    AbortBatch,
    Command,
    Deployment,
    Event,
    ExitMode,
    LaneSpec,
    Leaving,
    Plan,
    PoolId,
    PublishExits,
    Request,
    Route,
    RunBatch,
)
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.replay import replay
from slacktide.lab.replay.decisions import Decision, ExitsChanged, Notes
from slacktide.lab.replay.explain import lines
from slacktide.lab.simulation import AsExpected, Simulation
from slacktide.lab.simulation.exit_tables import TableExits
from slacktide.lab.simulation.items import Failure
from slacktide.planning.exits import ExitsPlanner, StatedExits
from slacktide.profiles import ClassedTimes, ExitTimes
from slacktide.recording import Recorder, Recording
from slacktide.recording.records import Call, Header, Reader, answers, header_line, read_header
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

POOL = PoolId("m", "1")
RECIPE = PoolRecipe("slack", exits=True)


class RecordedExits:
    """One model on one lane under the planner of early exits; its worker dies now and then."""

    def __init__(
        self,
        path: Path,
        stated: StatedExits | None = None,
        *,
        requests: int = 700,
        changes_at: int | None = None,
    ) -> None:
        """From `changes_at` on ramps are often wrong."""
        drawn = DrawnExits(inputs=requests, positions=5, changes_at=changes_at).table(4)
        self.table = replace(drawn, uncertainty=drawn.uncertainty.astype(float).round(3))
        self.path = path
        settings = EngineSettings()
        self.recorder = Recorder(path, settings, limit=64 << 20)
        self.engine = Engine(self._parts, settings)
        self.commands: Counter[type] = Counter()
        self.leaving: Counter[Leaving] = Counter()
        plan = Plan((LaneSpec("l", (0,)),), (Deployment(POOL, "l", 4),), (Route("m", POOL),))
        simulation = Simulation(
            self.engine,
            plan,
            AsExpected(ClassedTimes(self.table.times)),
            watch=self._watch,
            planners=(ExitsPlanner(),),
            stated={"m": stated or StatedExits()},
            exits={"m": TableExits(self.table)},
            check=True,
        )
        chance, now = random.Random(5), 1.0
        items: list[Request | Failure] = []
        for id in range(requests):
            now += chance.expovariate(40.0 + 60.0 * (id % 300 > 150))
            budget = chance.choice((0.015, 0.04, 0.2))  # a whole pass takes 0.02 s
            items.append(Request(id, "m", now, now + budget, final=id % 10 == 0))
            if id % 400 == 399:
                items.append(Failure(now, "l"))
        simulation.run(items)
        self.recorder.close()

    def _parts(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = ClassedTimes(self.table.times)
        self.recorder.opened(pool, max_batch, RECIPE, lambda: export_times(times))
        return RECIPE.parts(times, max_batch=max_batch, view=view)

    def _watch(self, events: list[Event], now: float, commands: list[Command]) -> None:
        self.recorder.called(events, now, commands)
        self.recorder.encode()
        self.commands.update(map(type, commands))
        self.leaving.update(c.batch.leaving for c in commands if isinstance(c, RunBatch))


@pytest.mark.parametrize("mode", ExitMode)
def test_a_run_with_exits_is_replayed_to_the_bit(tmp_path: Path, mode: ExitMode) -> None:
    run = RecordedExits(tmp_path / "run.rec", StatedExits(mode=mode))
    recording = Recording(run.path)
    outcomes = [
        outcome
        for line in recording.lines()
        if isinstance(line.record, Call)
        for _, outcome in answers(line.record)
    ]
    assert sum(outcome.ramp is not None for outcome in outcomes) > 50
    assert run.commands[PublishExits] > 2
    if mode is ExitMode.AUTO:
        assert run.commands[AbortBatch] > 0
        assert {Leaving.RUN_ON, Leaving.SHRINK} <= set(run.leaving)
    replayed = replay(recording)
    assert replayed.difference is None
    times = replayed.engine.snapshot().pools[POOL].times
    pool_times = run.engine.snapshot().pools[POOL].times
    assert isinstance(times, ExitTimes)
    assert times.revision == pool_times.revision
    assert times.of(2, 1).quantile(0.3) == pool_times.of(2, 1).quantile(0.3)


def changes_of(path: Path) -> tuple[list[ExitsChanged], str]:
    """What is told of the policies of a recording."""
    decisions: list[Decision] = []
    notes = Notes(decisions.append)
    assert replay(Recording(path), notes, pools=notes.pools).difference is None
    changes = [decision for decision in decisions if isinstance(decision, ExitsChanged)]
    return changes, "\n".join(line for change in changes for line in lines(change, begin=0.0))


def test_decisions_tell_why_ramps_moved(tmp_path: Path) -> None:
    _, text = changes_of(RecordedExits(tmp_path / "run.rec").path)
    assert "ramps of m:1 are now none: ramps are not trained yet; thresholds none" in text
    assert "(were none): the first ramps; thresholds 0 at " in text
    assert re.search(r" \(were [\d, ]+\): ramp \d \(block_\d\): .+; thresholds [\d.]+ at \d", text)
    assert "; auto, 100% of batches judged" in text


def test_decisions_tell_how_thresholds_were_tuned_and_what_ramps_did(tmp_path: Path) -> None:
    stated = StatedExits(mode=ExitMode.RELEASE, moving=False)
    run = RecordedExits(tmp_path / "run.rec", stated, requests=1200, changes_at=700)
    changes, text = changes_of(run.path)
    assert ", tuned on judged rows" in text
    alarm = "; release, 100% of batches judged: alarm: answers of ramps differ from the model's"
    assert alarm in text
    with_rows = [change for change in changes if change.left]
    for change in with_rows:
        assert change.judged == change.rows >= sum(change.left.values())
        assert f"since the last change {change.rows} rows; answered early: " in text
    assert sum(sum(change.left.values()) for change in with_rows) > 50
    assert sum(sum(change.differed.values()) for change in with_rows) > 1


def test_recordings_of_before_exits_are_read() -> None:
    plain = orjson.loads(orjson.dumps(header_line(Header("ab", 1, "0", "", EngineSettings()))))
    lacking = {
        "Plan": ["lanes", "deployments", "routes", "inputs"],
        "RowsReleased": ["batch", "ids"],
        "BatchFinished": ["batch", "timing"],
        "BatchAborted": ["batch"],
    }
    stated = {k: v for k, v in plain["layout"].items() if k not in ("ExitPolicy", "ExitReport")}
    header = read_header(plain | {"layout": stated | lacking})
    read = Reader(header.layout).record([1.0, [["BatchAborted", 3], ["RowsReleased", 3, [1]]], []])
    assert isinstance(read, Call)
    assert read.events[0].exits is None  # type: ignore[union-attr]
    assert read.events[1].ramp == -1  # type: ignore[union-attr]
