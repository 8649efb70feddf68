"""A recording of pipelines is predicted: the same frames, with what was seen on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain import (
    Answer,
    Deployment,
    LaneSpec,
    Notice,
    OutcomeKind,
    Plan,
    PoolId,
    Reason,
    Route,
)
from slacktide.domain.frames import (
    AnswerFrame,
    Frame,
    FrameAnnounced,
    FrameArrived,
    FrameCancelled,
    FrameCommand,
    FrameEvent,
    FrameRefused,
    PipelinesChanged,
    PreparePayload,
    StageYielded,
    Yield,
)
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.lab.load.report import Provenance
from slacktide.lab.replay import replay
from slacktide.lab.simulation import ByProfile, Prediction, Simulation, predict
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.recorded_frames import RecordedRows
from slacktide.lab.simulation.recorded_inputs import RecordedInputs, recorded_inputs
from slacktide.lab.simulation.world.hardware import ByPool
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.recording import Recorder, Recording
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

SECONDS = {"detect": 0.010, "brand": 0.004, "plate": 0.006, "owner": 0.002}
TABLES = {name: LatencyTable.linear(s, s / 4, 4, spread=1.2) for name, s in SECONDS.items()}
POOLS = {name: PoolId(name, "1") for name in SECONDS}
PLAN = Plan(
    (LaneSpec("lane", (0,)),),
    tuple(Deployment(pool, "lane", 4) for pool in POOLS.values()),
    tuple(Route(name, pool) for name, pool in POOLS.items()),
)
STREET = Pipeline(
    "street",
    tuple(PipelineStage(name, name) for name in SECONDS),
    (Edge("detect", "brand"), Edge("detect", "plate"), Edge("plate", "owner")),
)
SERVED = ExternalEvent(0.0, PipelinesChanged((STREET,)))


class Camera:
    """Of each frame, how many rows its stages hand on for each of theirs; and what became of it."""

    def __init__(self, counts: dict[int, int]) -> None:
        self.seen = counts
        self.children: dict[int, PreparePayload] = {}
        self.reasons: dict[int, Reason] = {}
        self.over: set[int] = set()

    def still_happens(self, event: FrameEvent) -> bool:
        return not isinstance(event, FrameArrived) or event.frame.id not in self.over

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        if child.kind not in (OutcomeKind.SERVED, OutcomeKind.LATE):
            return None  # it may have been announced, and never made
        payload = self.children[child.id]
        edges = STREET.out_of[payload.stage]
        if not edges:
            return None
        rows = self.seen[payload.request.parent or 0] if payload.stage == "detect" else 1
        return StageYielded(child.id, tuple(Yield(rows * payload.request.rows) for _ in edges))

    def carry_out(self, command: FrameCommand, *, now: float) -> None:
        if isinstance(command, PreparePayload):
            self.children[command.request.id] = command
        if isinstance(command, AnswerFrame):
            self.over.add(command.id)
            self.reasons[command.id] = command.reason

    def on_commands(self, commands: Any, *, now: float) -> None:
        pass


def record(path: Path, items: list[ExternalEvent], *, limit: int = 1 << 30) -> Recording:
    """Frame `id` shows `id % 4` things."""
    recorder = Recorder(path, EngineSettings(), limit=limit)

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times, recipe = CorrectedTimes(TABLES[pool.model]), PoolRecipe("slack")
        recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(times, max_batch=max_batch, view=view)

    def watch(events: Any, now: float, commands: Any) -> None:
        recorder.called(events, now, commands)
        recorder.encode()

    truth = ByPool(
        {
            pool: ByProfile(CorrectedTimes(TABLES[name]), np.random.default_rng(5))
            for name, pool in POOLS.items()
        }
    )
    simulation = Simulation(
        Engine(parts),
        PLAN,
        truth,
        watch=watch,
        watch_frames=recorder.framed,
        start_s=0.01,
        frames=Camera({id: id % 4 for id in range(10_000)}),
    )
    simulation.run([SERVED, *sorted(items, key=lambda item: item.arrival)])
    recorder.close()
    return Recording(path)


def frames(rate: float, count: int, *, first: int = 1) -> list[ExternalEvent]:
    gaps = np.random.default_rng(3).exponential(1.0 / rate, count)
    return [
        ExternalEvent(at, FrameArrived(Frame(first + number, "street", at, at + 0.15)))
        for number, at in enumerate((np.cumsum(gaps) + 0.1).tolist())
    ]


def predicted(recording: Recording, **options: Any) -> Prediction:
    return predict(recording, seeds=(1, 2), provenance=Provenance("", {}, ""), **options)


def read(recording: Recording, **options: Any) -> RecordedInputs:
    return recorded_inputs((line.record for line in recording.lines()), **options)


def complete(prediction: Prediction) -> tuple[float, float]:
    """Shares of frames with all stages in time: recorded, predicted."""
    shares = [
        report.total.reasons.get("on_time", 0) / report.total.submitted
        for report in (prediction.recorded, *prediction.predicted)
    ]
    return shares[0], float(np.mean(shares[1:]))


@pytest.mark.parametrize("after", [0.0, 3.0])
@pytest.mark.parametrize("rate", [20.0, 40.0, 60.0])
def test_as_many_frames_are_complete(tmp_path: Path, rate: float, after: float) -> None:
    prediction = predicted(record(tmp_path / "r", frames(rate, 1000)), after=after)
    assert [stream.name for stream in prediction.recorded.streams] == ["street"]
    assert prediction.predicted[0].total.submitted == prediction.recorded.total.submitted
    live, drawn = complete(prediction)
    assert abs(live - drawn) < 0.03
    assert abs(prediction.difference) < 0.03
    if rate == 60.0:
        assert 0.1 < live < 0.9  # there is something to predict


def test_objects_on_recorded_frames_are_served_again(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", frames(5.0, 40))
    inputs = read(recording, after=0.05)
    assert inputs.frames.pipelines == (STREET,)
    detected = inputs.frames.handed[inputs.frames.key("street", "detect")]
    assert {id: handed.yields[0].rows for id, handed in detected.items()} == {
        id: id % 4 for id in range(1, 41)
    }
    assert {*inputs.scored} == set(range(1, 41))
    assert all(outcome.reason is Reason.ON_TIME for outcome in inputs.ended.values())


def test_announced_cancelled_and_refused_frames_come_again(tmp_path: Path) -> None:
    notice = Notice(2000, "street", 0.35, 0.5, 10, 0.36)
    hopeless = Notice(2001, "street", 0.4, 0.401, 10, 0.405)
    items = [
        *frames(20.0, 40),
        ExternalEvent(0.35, FrameAnnounced(notice)),
        ExternalEvent(0.36, FrameArrived(Frame(2000, "street", 0.35, 0.5))),
        ExternalEvent(0.4, FrameAnnounced(hopeless)),
        ExternalEvent(0.42, FrameArrived(Frame(2001, "street", 0.4, 0.401))),
        ExternalEvent(0.5, FrameRefused(2002, "street", Reason.BAD_INPUT)),
        ExternalEvent(0.6, FrameArrived(Frame(2003, "street", 0.6, 0.9))),
        ExternalEvent(0.601, FrameCancelled(2003, Reason.DISCONNECTED)),
    ]
    recording = record(tmp_path / "r", items)
    inputs = read(recording)
    assert len(inputs.scored) == 43
    assert inputs.turned_away == 1
    assert inputs.ended[2001].reason is Reason.SHORTER_THAN_ALONE
    for report in predicted(recording).predicted:
        assert report.total.submitted == 43
        assert report.total.reasons["shorter_than_alone"] == 1
        assert report.total.reasons["disconnected"] == 1


def test_a_later_part_says_which_pipelines_are_served(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", frames(20.0, 600), limit=200_000)
    assert recording.header.part > 1  # the first is gone
    prediction = predicted(recording)
    assert prediction.recorded.total.submitted > 50
    live, drawn = complete(prediction)
    assert abs(live - drawn) < 0.05


def test_repeated_facts_change_no_replay(tmp_path: Path) -> None:
    recording = record(tmp_path / "r", frames(20.0, 300), limit=400_000)
    assert [path.name for path in recording.paths] == ["r.1", "r"]
    assert replay(recording).difference is None


def test_rows_are_shared_out_evenly_and_none_is_lost() -> None:
    handed = RecordedRows()
    handed.add(3, [Yield(5, nbytes=50), Yield(0)])
    handed.add(1, [Yield(2, nbytes=20), Yield(1)])
    parts = [handed.between(first, first + 1) for first in range(4)]
    assert [sum(part[edge].rows for part in parts) for edge in (0, 1)] == [7, 1]
    assert sum(part[0].nbytes for part in parts) == 70
    assert handed.between(0, 4) == tuple(handed.yields)
