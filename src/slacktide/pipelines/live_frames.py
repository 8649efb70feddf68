"""`LiveFrame`: a frame in flight, with its stages and children."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from slacktide.domain import Answer, Notice
from slacktide.domain.frames import Feed, Frame, Yield
from slacktide.domain.pipelines import Edge, Pipeline
from slacktide.engine import Engine
from slacktide.pipelines.fan_out import FanOut
from slacktide.pipelines.reserves import Reserves

Place = tuple[int, ...]
"""Position of a child's rows among the rows of its stage, independent of the order of answers: the
place of the child that yielded the rows, then the index of the first row in that yield."""


class ServedStage:
    """One stage of a served pipeline."""

    __slots__ = ("after", "decodes", "edges", "is_join", "model", "name", "version")

    def __init__(self, name: str, pipeline: Pipeline, fan_outs: Sequence[FanOut]) -> None:
        """`fan_outs`: for all edges of the pipeline."""
        self.name = name
        self.model = pipeline.by_name[name].model
        self.version = pipeline.by_name[name].version
        self.is_join = len(pipeline.into[name]) > 1
        cuts = any(edge.each for edge in pipeline.into[name])
        self.decodes = cuts or pipeline.by_name[name].sees_frame
        """Whether its workers decode the frame's picture, which the source does in any case."""
        self.after = pipeline.downstream(name)
        """The stages that it feeds."""
        self.edges = [
            (number, edge, fan_out)
            for number, (edge, fan_out) in enumerate(zip(pipeline.edges, fan_outs, strict=True))
            if edge.upstream == name
        ]
        """(index in the pipeline, edge, fan-out) of its outgoing edges, in order."""


class ServedPipeline:
    """A pipeline and its learnt fan-outs and reserves."""

    __slots__ = ("_by_begin", "_stages", "fan_outs", "frames", "pipeline", "reserves")

    def __init__(self, pipeline: Pipeline, fan_outs: Sequence[FanOut], engine: Engine) -> None:
        self.pipeline = pipeline
        self.fan_outs = tuple(fan_outs)
        """Fan-outs of the pipeline's edges, in their order."""
        self.frames = 0
        """Number of frames so far, without parts from other devices."""
        self.reserves = Reserves(pipeline, fan_outs, engine)
        self._stages = {name: ServedStage(name, pipeline, fan_outs) for name in pipeline.order}
        self._by_begin: dict[str, list[tuple[ServedStage, int]]] = {}

    def begun_at(self, begin: str) -> list[tuple[ServedStage, int]]:
        """(stage, number of its feeders) for all stages of a frame that begins at `begin`."""
        stages = self._by_begin.get(begin)
        if stages is None:
            branch = self.pipeline.branches[begin]
            upstream = self.pipeline.upstream
            stages = self._by_begin[begin] = [
                (self._stages[name], len([feeder for feeder in upstream(name) if feeder in branch]))
                for name in branch
            ]
            stages[0] = (self._stages[begin], 0)
        return stages


class StageProgress:
    """The state of one stage of one frame."""

    __slots__ = ("answered", "missing", "of", "open", "unanswered", "waits_for")

    def __init__(self, of: ServedStage, waits_for: int) -> None:
        self.of = of
        self.waits_for = waits_for
        """Number of unfinished stages that feed it."""
        self.open = 0
        """Number of children and parts without an outcome, plus children whose yield is awaited."""
        self.unanswered = 0
        """Number of children and parts without an outcome."""
        self.answered = 0
        """Number of children and parts with a result."""
        self.missing = False


class LiveFrame:
    """A frame, from its first event until its inputs are released."""

    __slots__ = (
        "announced", "answer_by", "awaited", "begin", "ended", "fed", "frame", "lost", "named",
        "open", "served", "stages", "started", "unfinished",
    )  # fmt: skip

    def __init__(self, frame: Frame | Notice, served: ServedPipeline, begin: str) -> None:
        self.frame = frame
        self.served = served
        self.begin = begin
        self.stages = {of.name: StageProgress(of, fed) for of, fed in served.begun_at(begin)}
        self.unfinished = len(self.stages)
        self.answer_by = math.inf
        """Latest time at which the frame is answered."""
        self.announced: int | None = None
        """Id of the announced child, whose body has not arrived; None: there is none."""
        self.open: dict[int, str] = {}
        """Device of each part without an outcome, or '' for a child that runs here; by id, oldest
        first."""
        self.awaited: list[int] = []
        """Ids of children whose yield is awaited."""
        self.fed: dict[str, list[tuple[Edge, Feed, Yield, Place]]] = {}
        """By join: its inputs so far, each with the place of the child that yielded the input."""
        self.named = 0
        """Number of children whose payloads are not released."""
        self.lost: Answer | None = None
        """First answer without a result, among the answers for its first stage."""
        self.started: Answer | None = None
        """First answer with a result, among the answers for its first stage."""
        self.ended = False

    def missing(self) -> tuple[str, ...]:
        """The incomplete stages, in order."""
        return tuple(
            name
            for name, stage in self.stages.items()
            if stage.missing or stage.waits_for or stage.unanswered
        )


class Child:
    """A request of a stage, kept until its payload is released; or a part, kept until it ends."""

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
    """Raise AssertionError unless frames and children are consistent. For tests."""
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
