"""Frames of a recording and the objects seen on them, for simulated serving.

The rows that a stage hands on depend on the frame's content, so they are read from the recording;
how long its requests take and which are dropped is simulated. A frame whose stage had no result in
the recording hands on the rows of another frame, drawn at random. A stage hands on rows some time
after its answer, when its outputs have been read: the median delay of the recording's beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from statistics import median

import numpy as np

from slacktide.domain import (
    Answer,
    Command,
    Event,
    Notice,
    Outcome,
    Request,
    Submitted,
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
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.pipelines import HAS_RESULT, Pipeline
from slacktide.recording import FramesCall
from slacktide.recording.records import frame_answers, prepared

_BOTH = {slot.name for slot in fields(Notice)} & {slot.name for slot in fields(Frame)}


@dataclass(slots=True)
class RecordedRows:
    """Rows that one stage handed on for one frame."""

    rows: int = 0
    """Rows of the stage."""
    yields: list[Yield] = field(default_factory=list)
    """Rows that these rows yielded in all, by outgoing edge of the stage."""

    def add(self, rows: int, yields: Sequence[Yield]) -> None:
        """Add the yields of one more request of the stage, with `rows` rows."""
        self.rows += rows
        before = self.yields or [Yield(0)] * len(yields)
        self.yields = [
            Yield(
                a.rows + b.rows,
                b.signature or a.signature,
                b.work_hint if a.work_hint is None else a.work_hint,
                a.nbytes + b.nbytes,
                a.refused or b.refused,
            )
            for a, b in zip(before, yields, strict=True)
        ]

    def between(self, first: int, end: int) -> tuple[Yield, ...]:
        """Return the yields of rows `first` to `end`, as if all rows had yielded equally."""

        def of(count: int) -> int:
            return count * end // self.rows - count * first // self.rows

        return tuple(
            Yield(of(part.rows), part.signature, part.work_hint, of(part.nbytes), part.refused)
            for part in self.yields
        )


@dataclass(slots=True)
class FrameInputs:
    """Frames of a recording, and the rows that their stages handed on."""

    pipelines: tuple[Pipeline, ...] = ()
    """Pipelines served when the prediction begins."""
    items: list[ExternalEvent] = field(default_factory=list)
    handed: dict[str, dict[int, RecordedRows]] = field(default_factory=dict)
    """By pipeline and stage (`key`), then by frame id."""
    reads_s: float = 0.0
    """Seconds from a stage's answer until it hands on rows; 0: unknown."""

    @staticmethod
    def key(pipeline: str, stage: str) -> str:
        return f"{pipeline}.{stage}"


class FrameInputsReader:
    """Collects frames in one pass over a recording."""

    def __init__(self) -> None:
        self.inputs = FrameInputs()
        self.ended: dict[int, Outcome] = {}
        self.requests: dict[int, Request] = {}
        """By id: frames that came after the beginning, as requests to their pipelines."""
        self.refused: set[int] = set()
        """Frames that the server itself turned away."""
        self.open: set[int] = set()
        """Frames without an outcome when the recording ended."""
        self._notices: dict[int, tuple[Notice, float]] = {}
        self._frames: dict[int, tuple[Frame, float]] = {}
        self._pipelines: dict[int, str] = {}
        self._stages: dict[int, str] = {}
        self._children: dict[int, Request] = {}
        self._answered: dict[int, float] = {}
        self._waits: list[float] = []

    def submitted(self, events: Sequence[Event]) -> None:
        """Note the stages' requests among events that the engine got."""
        for event in events:
            if isinstance(event, Submitted) and event.request.parent is not None:
                self._children[event.request.id] = event.request

    def answered(self, id: int, at: float) -> None:
        """Note when a request of a stage was answered."""
        self._answered[id] = at

    def call(self, call: FramesCall, *, counts: bool) -> None:
        """Read one call. `counts`: False in the recording's beginning, which is not predicted."""
        for id, stage in prepared(call):
            self._stages[id] = stage
        for id, outcome in frame_answers(call):
            self.ended[id] = outcome
        event = call.event
        if isinstance(event, StageYielded):
            self._yielded(event, call.now, counts=counts)
        elif isinstance(event, PipelinesChanged) and not counts:
            self.inputs.pipelines = event.pipelines
        elif event is not None and counts:
            self._came(event, call.now)
        elif isinstance(event, FrameArrived):
            self._pipelines[event.frame.id] = event.frame.pipeline

    def _yielded(self, event: StageYielded, now: float, *, counts: bool) -> None:
        child = self._children.get(event.request)
        stage = self._stages.get(event.request)
        if child is None or stage is None or child.parent not in self._pipelines:
            return
        key = FrameInputs.key(self._pipelines[child.parent], stage)
        of_stage = self.inputs.handed.setdefault(key, {})
        of_stage.setdefault(child.parent, RecordedRows()).add(child.rows, event.yields)
        if not counts and event.request in self._answered:
            self._waits.append(now - self._answered[event.request])

    def _came(self, event: FrameEvent, now: float) -> None:
        inputs = self.inputs
        match event:
            case FrameAnnounced():
                self._notices[event.notice.id] = event.notice, now
            case FrameArrived():
                frame = event.frame
                self._frames[frame.id] = frame, now
                self._pipelines[frame.id] = frame.pipeline
            case FrameRefused():
                self.refused.add(event.id)
                inputs.items.append(ExternalEvent(now, event))
            case FrameCancelled() if event.id in self._notices or event.id in self._frames:
                inputs.items.append(ExternalEvent(now, event))
            case PipelinesChanged():
                inputs.items.append(ExternalEvent(now, event))

    def finish(self) -> FrameInputs:
        inputs = self.inputs
        inputs.reads_s = median(self._waits) if self._waits else 0.0
        self.open = (self._notices.keys() | self._frames.keys()) - self.ended.keys()
        like = {frame.pipeline: frame for frame, _ in self._frames.values()}
        for id, (notice, at) in self._notices.items():
            if id not in self.ended:
                continue
            inputs.items.append(ExternalEvent(at, FrameAnnounced(notice)))
            if id not in self._frames and self.ended[id].at == at and notice.model in like:
                # Turned away before its body was read: assume the body of another frame.
                notice_fields = {name: getattr(notice, name) for name in _BOTH}
                frame = like[notice.model]
                whole = {slot.name: getattr(frame, slot.name) for slot in fields(Frame)}
                self._frames[id] = Frame(**(whole | notice_fields)), max(at, notice.complete_at)
            elif id not in self._frames:
                self.requests[id] = _as_request(notice, notice.model)
        for id, (frame, at) in self._frames.items():
            if id in self.ended:
                inputs.items.append(ExternalEvent(at, FrameArrived(frame)))
                self.requests[id] = _as_request(frame, frame.pipeline)
        return inputs


def _as_request(frame: Frame | Notice, pipeline: str) -> Request:
    return Request(frame.id, pipeline, frame.arrival, frame.deadline, application=frame.application)


class RecordedFrames:
    """A `SimulatedFrames` whose stages hand on the recorded rows."""

    def __init__(
        self,
        inputs: FrameInputs,
        ended: Callable[[int, Outcome], None],
        random: np.random.Generator,
    ) -> None:
        """`ended` is called with the outcome of each frame."""
        self.put: Callable[[float, FrameEvent], None]
        """Adds an event at absolute seconds. The caller must set it before the run."""
        self._inputs = inputs
        self._ended = ended
        self._random = random
        self._over: set[int] = set()
        self._pipelines: dict[int, Pipeline] = {}
        """Pipeline of each frame."""
        self._children: dict[int, PreparePayload] = {}
        self._rows: dict[tuple[int, str], int] = {}
        """By (frame, stage): number of rows whose yields were handed on."""
        self._of: dict[tuple[int, str], RecordedRows | None] = {}
        self._served: dict[str, Pipeline] = {}

    def still_happens(self, event: FrameEvent) -> bool:
        """Return whether a frame still arrives: its sender drops it once it has an outcome."""
        if isinstance(event, FrameArrived):
            if event.frame.pipeline in self._served:
                self._pipelines[event.frame.id] = self._served[event.frame.pipeline]
            return event.frame.id not in self._over
        if isinstance(event, PipelinesChanged):
            self._served |= {pipeline.name: pipeline for pipeline in event.pipelines}
        return True

    def answered(self, child: Answer, *, now: float) -> None:
        """Schedule the stage's yields for when the outputs have been read."""
        payload = self._children.pop(child.id, None)
        if payload is None or child.reason.kind not in HAS_RESULT:
            return
        frame, rows = payload.request.parent or 0, payload.request.rows
        pipeline = self._pipelines[frame]
        if not pipeline.out_of[payload.stage]:
            return
        key = frame, payload.stage
        if key not in self._of:
            self._of[key] = self._handed(pipeline.name, *key)
        handed, first = self._of[key], self._rows.get(key, 0)
        self._rows[key] = first + rows
        if handed is None:  # the recording has no result of this stage
            yields = tuple(Yield(0) for _ in pipeline.out_of[payload.stage])
        else:
            yields = handed.between(first, first + rows)
        self.put(now + self._inputs.reads_s, StageYielded(child.id, yields))

    def _handed(self, pipeline: str, frame: int, stage: str) -> RecordedRows | None:
        by_frame = self._inputs.handed.get(FrameInputs.key(pipeline, stage), {})
        if frame in by_frame or not by_frame:
            return by_frame.get(frame)
        return by_frame[list(by_frame)[int(self._random.integers(len(by_frame)))]]

    def carry_out(self, command: FrameCommand, *, now: float) -> None:
        if isinstance(command, PreparePayload):
            self._children[command.request.id] = command
        elif isinstance(command, AnswerFrame):
            self._over.add(command.id)
            self._ended(command.id, command)

    def on_commands(self, commands: Sequence[Command], *, now: float) -> None:
        """Do nothing: the hardware carries out batches."""
