"""`DeviceFrames`: arrivals of frames and outputs of stages on one of several devices.

A frame belongs to the device of its camera. A part of a frame that another device sends here is
treated as a separate frame (device_parts.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge

from slacktide.domain import (
    Answer,
    Batch,
    Command,
    Event,
    FreeSlots,
    OutcomeKind,
    Plan,
    RunBatch,
)
from slacktide.domain.frames import (
    AnswerFrame,
    CancelPart,
    Frame,
    FrameArrived,
    FrameCommand,
    FrameEvent,
    FreeFrame,
    PreparePayload,
    SendPart,
    StageYielded,
    Yield,
)
from slacktide.lab.simulation.device_parts import DeviceParts, Devices
from slacktide.lab.simulation.items import ExternalEvent
from slacktide.lab.simulation.local_frames import LocalChild, LocalFrame, SentPart
from slacktide.lab.simulation.world.stage_rows import CameraFrame, PipelineCamera
from slacktide.pipelines import HAS_RESULT
from slacktide.planning.exits import RampsLearnt
from slacktide.planning.pipelines.demand import StageArrivals


class DeviceFrames:
    """Frames of one device. Counts their outcomes in a score shared by all devices."""

    def __init__(
        self,
        name: str,
        devices: Devices,
        put: Callable[[float, Event | FrameEvent | RampsLearnt], None],
    ) -> None:
        """`put`: add an event on this device, at absolute seconds."""
        self.name = name
        self.put = put
        self.plan: Callable[[], Plan] = Plan
        """The plan in force."""
        self.shrunk: Mapping[str, float] = {}
        """By pipeline: factor on the bytes of frames whose source is elsewhere; 1 if absent."""
        self.arrivals: Mapping[str, Mapping[str, StageArrivals]] = {}
        """By pipeline and stage: arrivals, counted for planners; absent ones are not counted."""
        self.accuracy: Callable[[LocalChild, int], float] | None = None
        """Accuracy of the answers to (request, id). At later stages it is multiplied by that of the
        frame's source. None: all answers are right."""
        self._score = devices.score
        self._next_id = 0
        self.frames: dict[int, LocalFrame] = {}
        self.children: dict[int, LocalChild] = {}
        self.parts = DeviceParts(self, devices)
        """Parts that this device sends to other devices."""
        self._does: Mapping[type, Callable[..., None]] = {
            PreparePayload: self._prepare,
            AnswerFrame: self._answer,
            FreeFrame: self._free,
            SendPart: self.parts.send,
            CancelPart: self.parts.cancel,
        }

    # ── frames come ──────────────────────────────────────────────────────────────────────────

    def coming(self, cameras: Sequence[PipelineCamera]) -> Iterator[ExternalEvent]:
        """Yield the frames of these cameras in order."""
        for at, number, picture in merge(*map(_numbered, cameras, range(len(cameras)))):
            yield ExternalEvent(at, self._arrives(at, picture, cameras[number]))

    def _arrives(self, at: float, picture: CameraFrame, camera: PipelineCamera) -> FrameArrived:
        self._next_id += 1
        id = self._next_id
        self.frames[id] = LocalFrame(id, picture, 0, None)
        name, nbytes = picture.rows.pipeline.name, round(camera.nbytes)
        return FrameArrived(Frame(id, name, at, picture.deadline, client=name, nbytes=nbytes))

    # ── what the simulation asks ─────────────────────────────────────────────────────────────

    def still_happens(self, event: FrameEvent) -> bool:
        """Return True: cameras withdraw no frame."""
        return True

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        """Note a request's answers at a sink, or return the rows that its outputs hand on."""
        if child.reason.kind not in HAS_RESULT:
            return None
        request = self.children[child.id]
        frame = request.frame
        picture, rows = frame.picture, frame.picture.rows
        edges = rows.out_of[request.stage]
        exact = 1.0 if self.accuracy is None else self.accuracy(request, child.id)
        if request.stage == rows.pipeline.source:
            picture.accuracy = exact
            exact = 1.0
        if not edges:
            frame.sunk += request.rows
            frame.worth += request.rows * exact * picture.accuracy
            frame.nbytes += request.rows * rows.answers.get(request.stage, 0.0)
            return None
        yields = []
        for edge in edges:
            first, end = rows.span(picture, edge, request.first, request.first + request.rows)
            if first:
                frame.bases[child.id, edge] = first
            count = end - first
            handed = rows.edges[edge]
            yields.append(
                Yield(count, handed.shape(picture.spin), nbytes=round(count * handed.nbytes))
            )
        return StageYielded(child.id, tuple(yields))

    def carry_out(self, command: FrameCommand, *, now: float) -> None:
        """Carry out a command about a frame."""
        self._does[type(command)](command, now)

    def _runs(self, batch: Batch) -> None:
        children = self.children
        for member in batch.members:
            child = children.get(member.id)
            if child is not None:
                child.batch = batch

    def on_commands(self, commands: Sequence[Command], *, now: float) -> None:
        """Note which requests run. Forget requests whose payload is no longer used, and count the
        time that they ran in vain."""
        for command in commands:
            if type(command) is RunBatch:
                self._runs(command.batch)
            if type(command) is not FreeSlots:
                continue
            for id in command.ids:
                child = self.children.pop(id, None)
                if child is None or child.batch is None:
                    continue
                batch = child.batch
                share = child.rows / batch.rows
                self._score.ran_s += (now - batch.started) * share
                ended = max(child.frame.picture.ended_at, batch.started)
                if ended < now:
                    self._score.wasted_s += (now - ended) * share

    # ── commands ─────────────────────────────────────────────────────────────────────────────

    def _prepare(self, command: PreparePayload, now: float) -> None:
        request = command.request
        frame = self.frames[request.parent or 0]
        first = frame.base(command.feeds[0])
        self.children[request.id] = LocalChild(frame, command.stage, request.rows, first)
        counted = self.arrivals.get(frame.picture.rows.pipeline.name)
        if counted is not None:
            counted[command.stage].add(request.rows, now)
        self._score.requests += 1
        self._score.rows += request.rows

    def _answer(self, command: AnswerFrame, now: float) -> None:
        frame = self.frames[command.id]
        picture, sent = frame.picture, frame.part
        if sent is None:
            reason = command.reason
            picture.ended_at = now
            served = reason.kind is OutcomeKind.SERVED
            in_time, worth = (frame.sunk, frame.worth) if served else (0, 0.0)
            self._score.ended(
                command.pipeline, picture.arrival, picture.offered, in_time, reason, now, worth
            )
            return
        sent.begin.answer(sent, frame, command, now)

    def _free(self, command: FreeFrame, now: float) -> None:
        del self.frames[command.id]

    def take_part(self, sent: SentPart, at: float) -> None:
        """Take in a part that another device sent and that arrives at `at`."""
        self._next_id += 1
        sent.remote_id = id = self._next_id
        self.frames[id] = LocalFrame(id, sent.frame.picture, sent.first, sent)
        self.put(at, FrameArrived(replace(sent.part, id=id)))


def _numbered(camera: PipelineCamera, number: int) -> Iterator[tuple[float, int, CameraFrame]]:
    for at, picture in camera.frames():
        yield at, number, picture
