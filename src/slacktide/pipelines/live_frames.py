"""What is known of a frame while it is in flight: its stages, its children, what is lost of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slacktide.domain import Answer, Notice
from slacktide.domain.frames import Feed, Frame, Yield
from slacktide.domain.pipelines import Edge, Pipeline
from slacktide.engine import Engine
from slacktide.pipelines.fan_out import FanOut
from slacktide.pipelines.rest import Rest

Place = tuple[int, ...]
"""Where the rows of a child stand among those of its stage, whichever was answered first: the place
of the child in front of it, and the first of its rows that it was given."""


class ServedStage:
    """One stage of a pipeline, and what is around it."""

    __slots__ = ("after", "edges", "is_join", "model", "name", "version")

    def __init__(self, name: str, pipeline: Pipeline, fan_outs: Sequence[FanOut]) -> None:
        """`fan_outs`: of all edges of the pipeline."""
        self.name = name
        self.model = pipeline.by_name[name].model
        self.version = pipeline.by_name[name].version
        self.is_join = len(pipeline.into[name]) > 1
        self.after = pipeline.downstream(name)
        """The stages that it feeds."""
        self.edges = [
            (number, edge, fan_out)
            for number, (edge, fan_out) in enumerate(zip(pipeline.edges, fan_outs, strict=True))
            if edge.upstream == name
        ]
        """From it, in the pipeline's order; their numbers there."""


class ServedPipeline:
    """A pipeline, and what is learnt of it."""

    __slots__ = ("_begun", "_stages", "fan_outs", "frames", "pipeline", "rest")

    def __init__(self, pipeline: Pipeline, fan_outs: Sequence[FanOut], engine: Engine) -> None:
        self.pipeline = pipeline
        self.fan_outs = tuple(fan_outs)
        """Of its edges."""
        self.frames = 0
        """That have come in here so far, without parts that others have handed over."""
        self.rest = Rest(pipeline, fan_outs, engine)
        self._stages = {name: ServedStage(name, pipeline, fan_outs) for name in pipeline.order}
        self._begun: dict[str, list[tuple[ServedStage, int]]] = {}

    def begun_at(self, begin: str) -> list[tuple[ServedStage, int]]:
        """(stage, how many stages feed it) of all that a frame has that begins at this stage."""
        stages = self._begun.get(begin)
        if stages is None:
            branch = self.pipeline.branches[begin]
            upstream = self.pipeline.upstream
            stages = self._begun[begin] = [
                (self._stages[name], len([feeder for feeder in upstream(name) if feeder in branch]))
                for name in branch
            ]
            stages[0] = (self._stages[begin], 0)
        return stages


class StageProgress:
    """One stage of one frame."""

    __slots__ = ("answered", "missing", "of", "open", "unanswered", "waits_for")

    def __init__(self, of: ServedStage, waits_for: int) -> None:
        self.of = of
        self.waits_for = waits_for
        """Stages that feed it and are not finished."""
        self.open = 0
        """Children and parts without an outcome, and children whose yield is due."""
        self.unanswered = 0
        """Of these, those without an outcome."""
        self.answered = 0
        """Children, and parts, that gave a result."""
        self.missing = False


class LiveFrame:
    """A frame until nothing names what it brought."""

    __slots__ = (
        "announced",
        "awaited",
        "begin",
        "due",
        "ended",
        "fed",
        "frame",
        "lost",
        "named",
        "open",
        "served",
        "stages",
        "started",
        "unfinished",
    )  # fmt: skip

    def __init__(self, frame: Frame | Notice, served: ServedPipeline, begin: str) -> None:
        self.frame = frame
        self.served = served
        self.begin = begin
        self.stages = {of.name: StageProgress(of, fed) for of, fed in served.begun_at(begin)}
        self.unfinished = len(self.stages)
        self.due = math.inf
        self.announced: int | None = None
        """The child whose body is on its way."""
        self.open: dict[int, str] = {}
        """Children and parts that have no outcome, in the order they began; a part's device."""
        self.awaited: list[int] = []
        """Children whose yield is due."""
        self.fed: dict[str, list[tuple[Edge, Feed, Yield, Place]]] = {}
        """By join: what it is to take, once all of it is there, and the place of its giver."""
        self.named = 0
        """Children whose payload is still named."""
        self.lost: Answer | None = None
        """The first answer without a result to a child of the stage where it begins."""
        self.started: Answer | None = None
        """The first with one."""
        self.ended = False

    def missing(self) -> tuple[str, ...]:
        """The stages that are not complete, in order."""
        return tuple(
            name
            for name, stage in self.stages.items()
            if stage.missing or stage.waits_for or stage.unanswered
        )


class Child:
    """A request of a stage, until nothing names its payload; or a part, until it has ended."""

    __slots__ = ("id", "is_part", "live", "place", "rows", "stage")

    def __init__(
        self, id: int, live: LiveFrame, stage: StageProgress, rows: int, *, is_part: bool = False
    ) -> None:
        self.id = id
        self.is_part = is_part
        self.live = live
        self.stage = stage
        self.rows = rows
        self.place: Place = ()


def check_live(
    frames: Iterable[LiveFrame], children: Iterable[Child], awaited: Mapping[int, Child]
) -> None:
    """Raises AssertionError unless frames and children agree: for tests."""
    of: dict[int, list[Child]] = {}
    for child in children:
        of.setdefault(child.live.frame.id, []).append(child)
    yields = dict(awaited)
    for live in frames:
        members = of.pop(live.frame.id, [])
        waiting = [yields.pop(id) for id in live.awaited] if not live.ended else []
        assert live.named == sum(not child.is_part for child in members), live.frame
        assert live.named or not live.ended, live.frame
        assert {*live.open} <= {child.id for child in members}, live.frame
        if live.ended:
            assert not live.open, live.frame
            continue
        assert live.unfinished, live.frame
        for name, stage in live.stages.items():
            unanswered = sum(child.id in live.open for child in members if child.stage is stage)
            assert stage.unanswered == unanswered, (live.frame, name)
            assert stage.open == unanswered + sum(child.stage is stage for child in waiting), name
    assert not of, f"children of frames that are gone: {of}"
    assert not yields, f"yields for frames that are gone: {yields}"
