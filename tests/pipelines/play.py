"""An engine's part, played by hand: children are answered as a test says, and nothing else."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from slacktide.domain import (
    Announced,
    Answer,
    Cancelled,
    FreeSlots,
    Plan,
    Reason,
    Request,
    StagePlace,
    Submitted,
)
from slacktide.domain.frames import (
    AnswerFrame,
    CancelPart,
    Feed,
    Frame,
    FrameArrived,
    FreeFrame,
    PartAnswered,
    PipelinesChanged,
    PreparePayload,
    SendPart,
    StageYielded,
    Yield,
)
from slacktide.domain.pipelines import Edge, Pipeline, PipelineStage
from slacktide.pipelines import Frames
from slacktide.profiles import PointTime


def graph(*arrows: str, more: tuple[str, ...] = ()) -> Pipeline:
    """`graph("a>b", "b>c")`: stages by name, each with a model of its name in capitals."""
    ends = [tuple(arrow.split(">")) for arrow in arrows]
    names = dict.fromkeys([name for pair in ends for name in pair] + list(more))
    edges = tuple(Edge(upstream, downstream) for upstream, downstream in ends)
    return Pipeline("p", tuple(PipelineStage(n, n.upper()) for n in names), edges)


class Times:
    """`seconds` for each row."""

    revision = 0

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def of(self, rows: int, cores: int, members: object = ()) -> PointTime:
        return PointTime(rows * self.seconds)


class EngineStub:
    """What `Frames` reads of an engine."""

    def __init__(self, seconds: dict[str, float], max_batch: int) -> None:
        self.plan = Plan()
        self.seconds = seconds
        self.max_batch = max_batch

    def snapshot(self, *, now: float) -> Any:
        return self

    def served_by(self, request: Request) -> Any:
        if request.model not in self.seconds:
            return None
        times = Times(self.seconds[request.model])
        return SimpleNamespace(max_batch=self.max_batch, replicas=1, cores=1, times=times)


class Play:
    """`Frames` with one pipeline, and all that it has asked for."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        seconds: float = 0.01,
        max_batch: int = 8,
        places: tuple[StagePlace, ...] = (),
    ) -> None:
        self.now = 0.0
        self.pipeline = pipeline
        models = {stage.model: seconds for stage in pipeline.stages}
        self.engine = EngineStub(models, max_batch)
        self.engine.plan = Plan(places=places)
        self.frames = Frames(self.engine)  # type: ignore[arg-type]
        self.stage_of: dict[int, str] = {}
        self.requests: dict[int, Request] = {}
        self.feeds: dict[int, tuple[Feed, ...]] = {}
        self.open: dict[int, Request] = {}
        """Children that the engine has without an outcome."""
        self.announced: set[int] = set()
        self.named: set[int] = set()
        """Children whose payload a batch still names."""
        self.yields_due: dict[int, str] = {}
        self.parts: dict[int, tuple[Frame, str]] = {}
        self.cancelled: list[int] = []
        self.outcomes: dict[int, AnswerFrame] = {}
        self.freed: list[int] = []
        self.tell(PipelinesChanged((pipeline,)))

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def tell(self, *events: Any, commands: tuple[Any, ...] = ()) -> None:
        self._carry_out(*self.frames.handle(events, commands, now=self.now))

    def arrives(self, id: int = 1, budget: float = 0.2, **fields: Any) -> None:
        self.tell(FrameArrived(Frame(id, "p", self.now, self.now + budget, **fields)))

    def ends(self, id: int, reason: Reason = Reason.ON_TIME, *, free: bool = True) -> None:
        """The engine answers a child, and frees its payload, or keeps it for now."""
        request = self.open.pop(id)
        result = reason.kind.value in ("served", "late")
        if result and self.pipeline.out_of[self.stage_of[id]]:
            self.yields_due[id] = self.stage_of[id]
        answer = Answer(reason, self.now, 0.001, 0.002, request.rows, id=id)
        self.tell(commands=(answer, FreeSlots((id,), 0)) if free else (answer,))
        if not free:
            self.named.add(id)

    def frees(self, id: int) -> None:
        self.named.remove(id)
        self.tell(commands=(FreeSlots((id,), 0),))

    def yields(self, id: int, *rows: int, refused: Reason | None = None) -> None:
        self.yields_due.pop(id, None)
        self.tell(StageYielded(id, tuple(Yield(row, refused=refused) for row in rows)))

    def stage(self, name: str) -> list[Request]:
        """Its children without an outcome, in the order they began."""
        return [request for id, request in self.open.items() if self.stage_of[id] == name]

    def passes(self, seconds: float) -> None:
        self.now += seconds
        if self.frames.next_deadline <= self.now:
            self._carry_out(*self.frames.expire(now=self.now))
        self.frames.check()

    # ── what is asked for ────────────────────────────────────────────────────────────────────

    def _carry_out(self, events: Any, commands: Any) -> None:
        for command in commands:
            match command:
                case PreparePayload():
                    request = command.request
                    assert request.parent not in self.outcomes, "a child begins too late"
                    assert request.id not in self.feeds
                    self.stage_of[request.id] = command.stage
                    self.feeds[request.id] = command.feeds
                case SendPart():
                    assert command.part.parent not in self.outcomes, "a part begins too late"
                    self.parts[command.part.id] = (command.part, command.device)
                case CancelPart():
                    del self.parts[command.id]
                case AnswerFrame():
                    assert command.id not in self.outcomes, "answered twice"
                    self.outcomes[command.id] = command
                case FreeFrame():
                    assert command.id in self.outcomes, "freed before its answer"
                    assert command.id not in self.freed, "freed twice"
                    own = [
                        request
                        for request in self.requests.values()
                        if request.parent == command.id
                    ]
                    needed = self.open.keys() | self.named
                    assert not [request for request in own if request.id in needed], (
                        "freed too early"
                    )
                    self.freed.append(command.id)
        for event in events:
            match event:
                case Submitted():
                    request = event.request
                    assert request.id in self.feeds, "submitted without a payload"
                    self.open[request.id] = self.requests[request.id] = request
                    self.announced.discard(request.id)
                case Announced():
                    self.announced.add(event.notice.id)
                case Cancelled():
                    self.cancelled.append(event.id)
        self.frames.check()

    def obey(self, *, running: frozenset[int] = frozenset()) -> None:
        """Do as the engine does with what was cancelled. Those that run stay named."""
        ids, self.cancelled = self.cancelled, []
        for id in ids:
            if id in self.announced:
                self.announced.remove(id)
                answer = Answer(Reason.CLIENT_CANCELLED, self.now, id=id)
                self.tell(commands=(answer, FreeSlots((id,), 0)))
            elif id in self.open:
                self.ends(id, Reason.CLIENT_CANCELLED, free=id not in running)
                self.yields_due.pop(id, None)

    def quiet(self) -> bool:
        return not (self.open or self.named or self.parts or self.announced) and math.isinf(
            self.frames.next_deadline
        )


def part_answered(id: int, reason: Reason = Reason.ON_TIME, *missing: str) -> PartAnswered:
    return PartAnswered(id, reason, missing)
