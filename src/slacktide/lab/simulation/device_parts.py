"""`DeviceParts`: parts of frames that one device has handed over to others.

A part goes over the link to another device, which serves it like a frame; the answer comes back
over the opposite link. A part that nothing waits for any more is taken off its link, or cancelled
on the device that has received it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from slacktide.domain import Plan, Reason
from slacktide.domain.frames import (
    AnswerFrame,
    CancelPart,
    Frame,
    FrameCancelled,
    PartAnswered,
    SendPart,
)
from slacktide.lab.simulation.frame_score import FrameScore
from slacktide.lab.simulation.local_frames import LocalFrame, SentPart
from slacktide.lab.simulation.world.device_links import PartLink, Sending
from slacktide.pipelines import HAS_RESULT

if TYPE_CHECKING:
    from slacktide.lab.simulation.world.device_frames import DeviceFrames

PartSending = Sending[SentPart]
DeviceLink = PartLink[SentPart]


class Devices(Protocol):
    """The other devices and links, as one device needs them."""

    score: FrameScore

    def frames_on(self, device: str) -> DeviceFrames: ...

    def link(self, begin: str, end: str) -> DeviceLink: ...  # raises SimulationError

    def link_changed(self, link: DeviceLink, *, now: float) -> None: ...

    def call_at(self, at: float, call: Callable[[float], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class _OnLink:
    sending: PartSending
    link: DeviceLink


class DeviceParts:
    """Parts that one device has sent to others."""

    def __init__(self, frames: DeviceFrames, devices: Devices) -> None:
        self.open: dict[int, SentPart] = {}
        """Parts that have not ended."""
        self._frames, self._devices = frames, devices
        self._score = devices.score
        self._on_links: dict[int, _OnLink] = {}
        """By part id: parts, or answers to them, that are on a link."""
        self._rests: dict[tuple[str, str], float] = {}
        self._rests_of: Plan | None = None

    def send(self, command: SendPart, now: float) -> None:
        """Send a part to another device."""
        part = command.part
        frames = self._frames
        frame = frames.frames[part.parent or 0]
        to = self._devices.frames_on(command.device)
        link = self._devices.link(frames.name, command.device)
        until = math.inf if part.best_effort else part.deadline - self._stage_p99(part)
        sent = SentPart(self, frame, part, to, frame.base(command.feeds[0]))
        self.open[part.id] = sent
        nbytes = float(part.nbytes)
        if part.stage == frame.picture.rows.pipeline.source:
            sent.share = frames.shrunk.get(part.pipeline, 1.0)
            nbytes *= sent.share
        self._offer(Sending(sent, nbytes, until), link, now)

    def _offer(self, sending: PartSending, link: DeviceLink, now: float) -> None:
        self._on_links[sending.message.part.id] = _OnLink(sending, link)
        link.offer(sending, now=now)
        self._devices.link_changed(link, now=now)

    def _stage_p99(self, part: Frame) -> float:
        """Return the p99 seconds that the plan states for the stage of `part`; 0 if none."""
        plan = self._frames.plan()
        if plan is not self._rests_of:
            self._rests_of = plan
            self._rests = {(place.pipeline, place.stage): place.p99 for place in plan.places}
        return self._rests.get((part.pipeline, part.stage), 0.0)

    def cancel(self, command: CancelPart, now: float) -> None:
        """Cancel a part: nothing waits for it any more."""
        sent = self.open.pop(command.id, None)
        if sent is None:
            return  # answered at the same instant
        self._score.parts["cancelled"] += 1
        on = self._on_links.pop(command.id, None)
        if on is not None:
            on.link.drop(on.sending, now=now)
            self._devices.link_changed(on.link, now=now)
        if sent.remote_id and sent.answer is None:
            at = self._devices.link(self._frames.name, sent.to.name).message_at(now=now)
            if at < math.inf:
                sent.to.put(at, FrameCancelled(sent.remote_id, command.reason))

    def answer(self, sent: SentPart, frame: LocalFrame, command: AnswerFrame, now: float) -> None:
        """Send the answer to a part from the other device back to this one."""
        if sent.part.id not in self.open:
            return  # nothing waits for it any more
        sent.answer = command
        if command.reason.kind in HAS_RESULT:
            sent.sunk, sent.nbytes, sent.worth = frame.sunk, frame.nbytes, frame.worth
        link = self._devices.link(sent.to.name, self._frames.name)
        self._offer(Sending(sent, sent.nbytes, frame.picture.deadline), link, now)

    def arrived(self, sent: SentPart, at: float) -> None:
        """Note that a part, or its answer, has left the link and arrives at `at`."""
        id = sent.part.id
        self._on_links.pop(id, None)
        if sent.answer is None:
            sent.to.take_part(sent, at)
            return
        self._devices.call_at(at, partial(self._back, sent))

    def _back(self, sent: SentPart, now: float) -> None:
        """Take in the answer to a part, which has arrived."""
        answer, id = sent.answer, sent.part.id
        if self.open.pop(id, None) is None or answer is None:
            return  # nothing waits for it any more
        self._score.parts["answered"] += 1
        sent.frame.sunk += sent.sunk
        sent.frame.worth += sent.worth
        sent.frame.nbytes += sent.nbytes
        self._frames.put(now, PartAnswered(id, answer.reason, answer.missing, answer.detail))

    def given_up(self, sent: SentPart, now: float) -> None:
        """Expire a part if it, or the answer to it, cannot arrive in time."""
        id = sent.part.id
        self._on_links.pop(id, None)
        if self.open.pop(id, None) is not None:
            self._score.parts["given up"] += 1
            self._frames.put(now, PartAnswered(id, Reason.EXPIRED, detail="its link was too slow"))
