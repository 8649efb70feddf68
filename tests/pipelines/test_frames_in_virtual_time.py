"""Pipelines over the real engine, in virtual time: what is served, recorded and replayed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from slacktide.domain import (
    Answer,
    Command,
    Deployment,
    LaneSpec,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    Request,
    Route,
    StagePlace,
)
from slacktide.domain.frames import (
    AnswerFrame,
    Frame,
    FrameArrived,
    FrameCancelled,
    FrameCommand,
    FrameEvent,
    FreeFrame,
    PartAnswered,
    PipelinesChanged,
    PreparePayload,
    SendPart,
    StageYielded,
    Yield,
)
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.engine import Engine, EngineSettings, PoolParts, PoolView
from slacktide.engine.request_table import ModelCounts
from slacktide.lab.replay import replay
from slacktide.lab.simulation import ByProfile, Simulation
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.world.hardware import ByPool
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.recording import Recorder, Recording, RecordingError
from slacktide.recording.times import export_times
from slacktide.scheduling import PoolRecipe

SECONDS = {"detector": 0.010, "brand": 0.004, "plate": 0.006, "owner": 0.003}
TABLES = {m: LatencyTable.linear(s, s / 4, 4, spread=1.2) for m, s in SECONDS.items()}
POOLS = {model: PoolId(model, "1") for model in SECONDS}
PLAN = Plan(
    (LaneSpec("lane", (0,)), LaneSpec("other", (1,))),
    tuple(Deployment(pool, lane, 4) for pool in POOLS.values() for lane in ("lane", "other")),
    tuple(Route(model, pool) for model, pool in POOLS.items()),
)
TRAFFIC = Pipeline(
    "traffic",
    tuple(PipelineStage(name, name) for name in SECONDS),
    (Edge("detector", "brand"), Edge("detector", "plate"), Edge("plate", "owner")),
)


class Street:
    """What cameras send and what is seen on it, drawn from a seed."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline = pipeline
        self.random = random.Random(seed)
        self.stages: dict[int, str] = {}
        self.rows: dict[int, int] = {}
        self.outcomes: dict[int, AnswerFrame] = {}
        self.freed: list[int] = []
        self.children: list[tuple[Request, Answer]] = []
        self.requests: dict[int, Request] = {}
        self.parts: list[SendPart] = []

    def still_happens(self, event: FrameEvent) -> bool:
        return True

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        self.children.append((self.requests[child.id], child))
        edges = self.pipeline.out_of[self.stages[child.id]]
        if child.kind not in (OutcomeKind.SERVED, OutcomeKind.LATE) or not edges:
            return None
        rows = self.rows[child.id]
        return StageYielded(child.id, tuple(Yield(self.random.randint(0, 4) * rows) for _ in edges))

    def carry_out(self, command: FrameCommand, *, now: float) -> None:
        match command:
            case PreparePayload():
                assert command.request.parent not in self.outcomes
                self.stages[command.request.id] = command.stage
                self.rows[command.request.id] = command.request.rows
                self.requests[command.request.id] = command.request
            case AnswerFrame():
                assert command.id not in self.outcomes
                self.outcomes[command.id] = command
            case FreeFrame():
                assert command.id in self.outcomes
                self.freed.append(command.id)
            case SendPart():
                self.parts.append(command)

    def on_commands(self, commands: Sequence[Command], *, now: float) -> None:
        assert not any(isinstance(command, AnswerFrame) for command in commands)


class World:
    """An engine that serves the models of the street, recorded."""

    def __init__(self, path: Path, *, seed: int = 1, places: tuple[StagePlace, ...] = ()) -> None:
        self.path = path
        self.recorder = Recorder(path, EngineSettings(), limit=1 << 30)
        self.street = Street(TRAFFIC, seed)
        self.engine = Engine(self.pool)
        self.plan = replace(PLAN, places=places)
        truth = ByPool(
            {
                pool: ByProfile(CorrectedTimes(TABLES[model]), np.random.default_rng(seed))
                for model, pool in POOLS.items()
            }
        )
        self.simulation = Simulation(
            self.engine,
            self.plan,
            truth,
            watch=self.recorder.called,
            watch_frames=self.recorder.framed,
            frames=self.street,
            check=True,
        )

    def pool(self, pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        times = CorrectedTimes(TABLES[pool.model])
        recipe = PoolRecipe("slack", {})
        self.recorder.opened(pool, max_batch, recipe, lambda: export_times(times))
        return recipe.parts(times, max_batch=max_batch, view=view)

    def run(self, *items: ExternalEvent) -> None:
        served = ExternalEvent(0.0, PipelinesChanged((TRAFFIC,)))
        self.simulation.run(sorted([served, *items], key=lambda item: item.arrival))
        self.recorder.close()

    @property
    def counts(self) -> ModelCounts:
        assert self.simulation.runtime.frames is not None
        return self.simulation.runtime.frames.counts["traffic"]


def arrivals(count: int, rate: float, slo: float, *, seed: int) -> list[ExternalEvent]:
    """Frames, some of whose clients go."""
    chance, now, items = random.Random(seed), 0.1, []
    for id in range(1, count + 1):
        now += chance.expovariate(rate)
        items.append(ExternalEvent(now, FrameArrived(Frame(id, "traffic", now, now + slo))))
        if chance.random() < 0.1:
            gone = FrameCancelled(id, Reason.DISCONNECTED)
            items.append(ExternalEvent(now + chance.random() * slo, gone))
    return items


def counted(answers: Iterable[AnswerFrame]) -> Counter[Reason]:
    return Counter(answer.reason for answer in answers)


def test_with_time_enough_frames_are_whole_and_in_time(tmp_path: Path) -> None:
    world = World(tmp_path / "r")
    world.run(*arrivals(200, 10.0, 0.5, seed=3))
    reasons = counted(world.street.outcomes.values())
    assert reasons[Reason.ON_TIME] + reasons[Reason.DISCONNECTED] == 200
    assert sorted(world.street.freed) == list(range(1, 201))


@pytest.mark.parametrize("seed", [1, 2])
def test_overload_makes_answers_partial_and_no_frame_is_late_or_lost(
    tmp_path: Path, seed: int
) -> None:
    world = World(tmp_path / "r", seed=seed)
    world.run(*arrivals(400, 90.0, 0.15, seed=seed))
    street, reasons = world.street, counted(world.street.outcomes.values())
    assert sum(reasons.values()) == 400
    assert sorted(street.freed) == list(range(1, 401))
    assert reasons[Reason.PARTIAL] > 10
    assert reasons[Reason.ON_TIME] > 10
    assert reasons[Reason.AFTER_DEADLINE] == 0
    assert world.counts.requests == 400
    assert world.counts.by_reason == dict(reasons)
    for answer in street.outcomes.values():
        assert (answer.reason is Reason.PARTIAL) == (
            bool(answer.missing) and answer.kind is OutcomeKind.SERVED
        )
    for request, answer in street.children:
        frame = street.outcomes[request.parent or 0]
        if answer.at > frame.at:
            assert answer.kind in (OutcomeKind.DROPPED, OutcomeKind.CANCELLED)
    # The engine keeps its own law of the children.
    engine = world.engine.snapshot().counts
    assert sum(counts.requests for counts in engine.values()) == len(street.children)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_replay_is_identical_to_the_bit(tmp_path: Path, seed: int) -> None:
    places = (StagePlace("traffic", "plate", "far", 0.01), StagePlace("traffic", "owner", "far"))
    world = World(tmp_path / "r", seed=seed, places=places[: 2 * (seed % 2)])
    world.run(*arrivals(200, 90.0, 0.15, seed=seed))
    assert bool(world.street.parts) == bool(seed % 2)
    replayed = replay(Recording(world.path))
    assert replayed.difference is None
    assert replayed.events == world.engine.events_seen


def tampered(path: Path, change: Callable[[dict[str, Any]], bool]) -> Path:
    lines = path.read_bytes().splitlines()
    for number, text in enumerate(lines):
        line = orjson.loads(text)
        if isinstance(line, dict) and "frames" in line and change(line):
            lines[number] = orjson.dumps(line)
            break
    else:
        raise AssertionError("nothing to change")
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def test_a_replay_finds_what_was_otherwise(tmp_path: Path) -> None:
    world = World(tmp_path / "r")
    world.run(*arrivals(20, 90.0, 0.15, seed=1))

    def other_answer(line: dict[str, Any]) -> bool:
        answers = [command for command in line["commands"] if command[0] == "AnswerFrame"]
        for answer in answers:
            answer[-1] = ["owner"]
        return bool(answers)

    difference = replay(Recording(tampered(world.path, other_answer))).difference
    assert difference is not None
    assert difference.recorded != difference.replayed


def test_a_child_that_the_engine_was_not_told_of_is_found(tmp_path: Path) -> None:
    world = World(tmp_path / "r")
    world.run(*arrivals(20, 90.0, 0.15, seed=1))
    lines = world.path.read_bytes().splitlines()
    number = next(
        i for i, text in enumerate(lines) if text.startswith(b"[") and b'"Submitted"' in text
    )
    now, events, commands = orjson.loads(lines[number])
    events = [event for event in events if event[0] != "Submitted"]
    lines[number] = orjson.dumps([now, events, commands])
    world.path.write_bytes(b"\n".join(lines) + b"\n")
    assert replay(Recording(world.path)).difference is not None


def test_an_impossible_line_of_frames_is_named(tmp_path: Path) -> None:
    world = World(tmp_path / "r")
    world.run(*arrivals(20, 90.0, 0.15, seed=1))

    def bad_rows(line: dict[str, Any]) -> bool:
        arrived = [event for event in line["events"] if event[0] == "FrameArrived"]
        for event in arrived:
            event[1][4] = "many"
        return bool(arrived)

    with pytest.raises(RecordingError, match=r"FrameArrived\.frame\.rows: expected a whole number"):
        replay(Recording(tampered(world.path, bad_rows)))


def test_an_unloaded_model_leaves_answers_without_its_stage(tmp_path: Path) -> None:
    world = World(tmp_path / "r")
    left = replace(
        world.plan,
        deployments=tuple(d for d in world.plan.deployments if d.pool.model != "brand"),
        routes=tuple(r for r in world.plan.routes if r.model != "brand"),
    )
    world.run(*arrivals(100, 10.0, 0.5, seed=3), ExternalEvent(3.0, PlanChanged(left)))
    outcomes = world.street.outcomes.values()
    assert len(outcomes) == 100
    late = [
        outcome for outcome in outcomes if outcome.at > 3.5 and outcome.reason is Reason.PARTIAL
    ]
    assert late
    assert {answer.missing for answer in late} == {("brand",)}


def test_a_part_that_is_never_answered_ends_with_its_frame(tmp_path: Path) -> None:
    places = (StagePlace("traffic", "plate", "far"), StagePlace("traffic", "owner", "far"))
    world = World(tmp_path / "r", places=places)
    frame = ExternalEvent(0.1, FrameArrived(Frame(1, "traffic", 0.1, 0.4)))
    world.street.random.seed(1)
    world.run(frame, ExternalEvent(9.0, PartAnswered(-2, Reason.ON_TIME)))
    (sent,) = world.street.parts
    assert sent.part.parent == 1
    assert world.street.outcomes[1].reason is Reason.PARTIAL
    assert world.street.outcomes[1].missing == ("plate", "owner")
    assert world.street.outcomes[1].at <= 0.4
