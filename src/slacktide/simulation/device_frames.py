"""`DeviceFrames`: what stages give and where frames and parts go, on one of several devices.

Frames that a camera brings belong to their device. A part goes over the link to another one, is a
frame of its own there, and its answer comes back the same way; what nothing waits for any more is
taken off the links, and withdrawn where it already is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from slacktide.domain import (
    Answer,
    Batch,
    Command,
    Event,
    FreeSlots,
    OutcomeKind,
    Plan,
    Reason,
    RunBatch,
)
from slacktide.domain.frames import (
    AnswerFrame,
    CancelPart,
    Feed,
    Frame,
    FrameArrived,
    FrameCancelled,
    FrameCommand,
    FrameEvent,
    FreeFrame,
    PartAnswered,
    PreparePayload,
    SendPart,
    StageYielded,
    Yield,
)
from slacktide.planning.exits import RampsLearnt
from slacktide.planning.pipelines.demand import StageArrivals
from slacktide.simulation.device_links import PartLink, Sending
from slacktide.simulation.frame_score import FrameScore
from slacktide.simulation.items import ExternalEvent
from slacktide.simulation.stage_rows import PipelineCamera, SeenFrame

HAS_RESULT = (OutcomeKind.SERVED, OutcomeKind.LATE)


class HereFrame:
    """A frame, or a part of one, on the device where it is."""

    __slots__ = ("bases", "first", "id", "nbytes", "part", "seen", "sunk", "worth")

    def __init__(self, id: int, seen: SeenFrame, first: int, part: SentPart | None) -> None:
        self.id = id
        self.seen = seen
        self.first = first
        """Of a part: which of its stage's rows is the first."""
        self.part = part
        self.sunk = 0
        """Rows that are answered at sinks."""
        self.nbytes = 0.0
        """Of these answers."""
        self.worth = 0.0
        """Of them, those that are right, by accuracies."""
        self.bases: dict[tuple[int, int], int] = {}
        """By (child, edge): which of the downstream's rows is the first; those that are not 0."""

    def base(self, feed: Feed) -> int:
        """Which of its stage's rows is the first of these."""
        if feed.edge is None:
            return self.first + feed.first
        return self.bases.get((feed.request, feed.edge), 0) + feed.first


class HereChild:
    """A request of a stage, until nothing names its payload."""

    __slots__ = ("batch", "first", "frame", "rows", "stage")

    def __init__(self, frame: HereFrame, stage: str, rows: int, first: int) -> None:
        self.frame = frame
        self.stage = stage
        self.rows = rows
        self.first = first
        self.batch: Batch | None = None


class SentPart:
    """A part that was handed over, until it has ended where it came from."""

    __slots__ = (
        "answer",
        "begin",
        "first",
        "frame",
        "nbytes",
        "part",
        "share",
        "sunk",
        "there",
        "to",
        "worth",
    )

    def __init__(
        self, begin: DeviceFrames, frame: HereFrame, part: Frame, to: DeviceFrames, first: int
    ) -> None:
        self.begin, self.to = begin, to
        self.frame = frame
        self.part = part
        self.first = first
        """Which of its stage's rows is the first."""
        self.there = 0
        """Its id on the other device; 0: it is on its way."""
        self.answer: AnswerFrame | None = None
        """Once it is on its way back; with so many rows answered at sinks, of so many bytes."""
        self.sunk = 0
        self.nbytes = self.worth = 0.0
        self.share = 1.0
        """Of its bytes that were sent: a frame may have been made smaller."""


PartSending = Sending[SentPart]
DeviceLink = PartLink[SentPart]


class Devices(Protocol):
    """What a device knows of the others."""

    score: FrameScore

    def frames_on(self, device: str) -> DeviceFrames: ...

    def link(self, begin: str, end: str) -> DeviceLink: ...  # raises SimulationError

    def link_changed(self, link: DeviceLink, *, now: float) -> None: ...

    def call_at(self, at: float, call: Callable[[float], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class _OnLink:
    sending: PartSending
    link: DeviceLink


class DeviceFrames:
    """Of one device. Counts what came of them in the score of all."""

    def __init__(
        self,
        name: str,
        devices: Devices,
        put: Callable[[float, Event | FrameEvent | RampsLearnt], None],
    ) -> None:
        """`put`: have something happen on this device, at absolute seconds."""
        self.name = name
        self.put = put
        self.plan: Callable[[], Plan] = Plan
        """The plan in force."""
        self.shrunk: Mapping[str, float] = {}
        """By pipeline: what its frames, sent for the source, are of their bytes; else all."""
        self.arrivals: Mapping[str, Mapping[str, StageArrivals]] = {}
        """By pipeline and stage: what has come, for planners; else nothing is counted."""
        self.accuracy: Callable[[HereChild, int], float] | None = None
        """Of the answers to a request, by its id; the source's goes for all behind it. None:
        all are right."""
        self._devices = devices
        self._score = devices.score
        self._next_id = 0
        self.frames: dict[int, HereFrame] = {}
        self.children: dict[int, HereChild] = {}
        self.parts: dict[int, SentPart] = {}
        """That began here and have not ended."""
        self._sending: dict[int, _OnLink] = {}
        """By `id` of the SentPart: where it is, on a link."""
        self._does: Mapping[type, Callable[..., None]] = {
            PreparePayload: self._prepare,
            AnswerFrame: self._answer,
            FreeFrame: self._free,
            SendPart: self._send,
            CancelPart: self._cancel,
        }
        self._rests: dict[tuple[str, str], float] = {}
        self._rests_of: Plan | None = None

    # ── frames come ──────────────────────────────────────────────────────────────────────────

    def coming(self, cameras: Sequence[PipelineCamera]) -> Iterator[ExternalEvent]:
        """All frames of these cameras, in order."""
        heads: list[tuple[float, int, SeenFrame, Iterator[tuple[float, SeenFrame]]]] = []
        for number, camera in enumerate(cameras):
            frames = camera.frames()
            for at, seen in frames:
                heads.append((at, number, seen, frames))
                break
        heads.sort(key=lambda head: head[:2])
        while heads:
            at, number, seen, frames = heads.pop(0)
            yield ExternalEvent(at, self._arrives(at, seen, cameras[number]))
            for following, next_seen in frames:
                heads.append((following, number, next_seen, frames))
                if len(heads) > 1:
                    heads.sort(key=lambda head: head[:2])
                break

    def _arrives(self, at: float, seen: SeenFrame, camera: PipelineCamera) -> FrameArrived:
        self._next_id += 1
        id = self._next_id
        self.frames[id] = HereFrame(id, seen, 0, None)
        name, nbytes = seen.rows.pipeline.name, round(camera.nbytes)
        return FrameArrived(Frame(id, name, at, seen.deadline, client=name, nbytes=nbytes))

    # ── what the simulation asks ─────────────────────────────────────────────────────────────

    def wanted(self, event: FrameEvent) -> bool:
        """All that happens does."""
        return True

    def answered(self, child: Answer, *, now: float) -> StageYielded | None:
        """What the outputs of a request hand on."""
        if child.reason.kind not in HAS_RESULT:
            return None
        here = self.children[child.id]
        frame = here.frame
        seen, rows = frame.seen, frame.seen.rows
        edges = rows.out_of[here.stage]
        exact = 1.0 if self.accuracy is None else self.accuracy(here, child.id)
        if here.stage == rows.pipeline.source:
            seen.accuracy = exact
            exact = 1.0
        if not edges:
            frame.sunk += here.rows
            frame.worth += here.rows * exact * seen.accuracy
            frame.nbytes += here.rows * rows.answers.get(here.stage, 0.0)
            return None
        yields = []
        for edge in edges:
            first, end = rows.span(seen, edge, here.first, here.first + here.rows)
            if first:
                frame.bases[child.id, edge] = first
            count = end - first
            handed = rows.edges[edge]
            yields.append(
                Yield(count, handed.shape(seen.spin), nbytes=round(count * handed.nbytes))
            )
        return StageYielded(child.id, tuple(yields))

    def carry_out(self, command: FrameCommand, *, now: float) -> None:
        """Do what is to be done for frames."""
        self._does[type(command)](command, now)

    def _runs(self, batch: Batch) -> None:
        children = self.children
        for member in batch.members:
            child = children.get(member.id)
            if child is not None:
                child.batch = batch

    def told(self, commands: Sequence[Command], *, now: float) -> None:
        """Children whose payload nothing names any more are forgotten, and what ran for nothing is
        counted."""
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
                ended = max(child.frame.seen.ended_at, batch.started)
                if ended < now:
                    self._score.wasted_s += (now - ended) * share

    # ── commands ─────────────────────────────────────────────────────────────────────────────

    def _prepare(self, command: PreparePayload, now: float) -> None:
        request = command.request
        frame = self.frames[request.parent or 0]
        first = frame.base(command.feeds[0])
        self.children[request.id] = HereChild(frame, command.stage, request.rows, first)
        counted = self.arrivals.get(frame.seen.rows.pipeline.name)
        if counted is not None:
            counted[command.stage].seen(request.rows, now)
        self._score.requests += 1
        self._score.rows += request.rows

    def _answer(self, command: AnswerFrame, now: float) -> None:
        here = self.frames[command.id]
        seen, sent = here.seen, here.part
        if sent is None:
            reason = command.reason
            seen.ended_at = now
            served = reason.kind is OutcomeKind.SERVED
            in_time, worth = (here.sunk, here.worth) if served else (0, 0.0)
            self._score.ended(
                command.pipeline, seen.arrival, seen.offered, in_time, reason, now, worth
            )
            return
        if sent.part.id not in sent.begin.parts:
            return  # nothing waits for it any more
        served = command.reason.kind in HAS_RESULT
        sent.answer, sent.sunk = command, here.sunk if served else 0
        nbytes = sent.nbytes = here.nbytes if served else 0.0
        sent.worth = here.worth if served else 0.0
        link = self._devices.link(self.name, sent.begin.name)
        sending = Sending(sent, nbytes, seen.deadline)
        sent.begin._sending[sent.part.id] = _OnLink(sending, link)
        link.offer(sending, now=now)
        self._devices.link_changed(link, now=now)

    def _free(self, command: FreeFrame, now: float) -> None:
        del self.frames[command.id]

    def _send(self, command: SendPart, now: float) -> None:
        part = command.part
        here = self.frames[part.parent or 0]
        to = self._devices.frames_on(command.device)
        link = self._devices.link(self.name, command.device)
        until = math.inf if part.best_effort else part.deadline - self._rest(part)
        sent = SentPart(self, here, part, to, here.base(command.feeds[0]))
        self.parts[part.id] = sent
        nbytes = float(part.nbytes)
        if part.stage == here.seen.rows.pipeline.source:
            sent.share = self.shrunk.get(part.pipeline, 1.0)
            nbytes *= sent.share
        sending = Sending(sent, nbytes, until)
        self._sending[part.id] = _OnLink(sending, link)
        link.offer(sending, now=now)
        self._devices.link_changed(link, now=now)

    def _rest(self, part: Frame) -> float:
        """Seconds that a part's own stage is said to take where it goes."""
        plan = self.plan()
        if plan is not self._rests_of:
            self._rests_of = plan
            self._rests = {(each.pipeline, each.stage): each.p99 for each in plan.places}
        return self._rests.get((part.pipeline, part.stage), 0.0)

    def _cancel(self, command: CancelPart, now: float) -> None:
        sent = self.parts.pop(command.id, None)
        if sent is None:
            return  # it has been answered at this very instant
        self._score.parts["cancelled"] += 1
        on = self._sending.pop(command.id, None)
        if on is not None:
            on.link.drop(on.sending, now=now)
            self._devices.link_changed(on.link, now=now)
        if sent.there and sent.answer is None:
            at = self._devices.link(self.name, sent.to.name).message_at(now=now)
            if at < math.inf:
                sent.to.put(at, FrameCancelled(sent.there, command.reason))

    # ── links ────────────────────────────────────────────────────────────────────────────────

    def arrived(self, sent: SentPart, at: float) -> None:
        """All of a part, or of its answer, has left, and is there at `at`."""
        id = sent.part.id
        self._sending.pop(id, None)
        if sent.answer is None:
            sent.to.take_part(sent, at)
            return
        self._devices.call_at(at, partial(self._back, sent))

    def _back(self, sent: SentPart, now: float) -> None:
        """The answer to a part is here."""
        answer, id = sent.answer, sent.part.id
        if self.parts.pop(id, None) is None or answer is None:
            return  # nothing waits for it any more
        self._score.parts["answered"] += 1
        sent.frame.sunk += sent.sunk
        sent.frame.worth += sent.worth
        sent.frame.nbytes += sent.nbytes
        self.put(now, PartAnswered(id, answer.reason, answer.missing, answer.detail))

    def take_part(self, sent: SentPart, at: float) -> None:
        """A part of another device comes in at `at`."""
        self._next_id += 1
        sent.there = id = self._next_id
        self.frames[id] = HereFrame(id, sent.frame.seen, sent.first, sent)
        part = sent.part
        self.put(
            at,
            FrameArrived(
                Frame(
                    id,
                    part.pipeline,
                    part.arrival,
                    part.deadline,
                    part.rows,
                    part.penalty,
                    part.signature,
                    part.best_effort,
                    part.application,
                    part.client,
                    part.work_hint,
                    part.network_time,
                    part.size,
                    part.final,
                    part.stage,
                    part.parent,
                    part.nbytes,
                )
            ),
        )

    def given_up(self, sent: SentPart, now: float) -> None:
        """A part, or its answer, cannot be where it is to go in time."""
        id = sent.part.id
        self._sending.pop(id, None)
        if self.parts.pop(id, None) is not None:
            self._score.parts["given up"] += 1
            self.put(now, PartAnswered(id, Reason.EXPIRED, detail="its link was too slow"))
