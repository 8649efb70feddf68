"""StreamFrames: a session of a client that streams frames (`wire/proto/frames.proto`).

A frame is announced by a small message, which the engine gets as a notice, and comes behind it
into the slot that it was given. It is acknowledged at its last byte, and answered once: when it has
run, or as soon as it is given up, be that before it is here. What comes of a frame that is given up
is timed and acknowledged all the same, but kept nowhere. `docs/stream.md` is the protocol for those
that write clients.

What is unanswered or unsent is counted as on other streams, and beyond a limit messages wait. A
frame that cannot be served fails alone; a message that is none, or no hello at first, ends the
stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slacktide.domain import Reason
from slacktide.frontends.common.connection import waited
from slacktide.frontends.common.refusals import Refusal, refusal_in, refusal_of
from slacktide.frontends.grpc.inference import InferenceRpc, InferRequest
from slacktide.frontends.grpc.intake import NOWHERE
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import FrameSession, InferenceCall
from slacktide.wire.calls import Buffer, InferReply, SizeAdvice
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.frame_messages import (
    FrameHead,
    advice_message,
    answer_pieces,
    frame_head,
    read_client_message,
    terms_of,
)
from slacktide.wire.proto import messages as m
from slacktide.wire.status import microseconds, status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

SILENT_S: Final = 3.0
"""A client from which nothing comes for so long is gone."""
AT_ONCE_S: Final = 1e-4
"""What is read together with its announcement is taken to have needed so long."""
MOST_UINT32: Final = 2**32 - 1
AROUND_IMAGE: Final = 4096
"""Bytes that a frame may have beside its image: names, shapes, parameters."""


class FrameRequest(InferRequest):
    """One frame, from its announcement, or its first byte, to its answer and its last byte."""

    __slots__ = (
        "_stream", "announced_at", "answered", "arrived_at", "begun", "frame", "nbytes", "size",
        "start",
    )  # fmt: skip

    def __init__(self, stream: FrameStream, frame: int, now: float, age: float) -> None:
        session = stream.session
        budget = session.terms.slo - min(age, session.terms.slo) - session.rtt
        if stream.said.budget_s is not None:
            budget = min(budget, stream.said.budget_s - (now - stream.first_byte))
        super().__init__(stream, "frames", now, max(0.0, budget))
        self._context.session = session.id
        self._stream = stream
        self.frame = frame
        """As the client calls it."""
        self.announced_at: float | None = None
        """None: it came without."""
        self.nbytes, self.size = 0, (0, 0)
        """Of its image, as announced: bytes, width and height."""
        self.begun = 0, 0.0
        """How much of its message was here when that began, and when that was."""
        self.start = 0
        """Where its message becomes a ModelInferRequest."""
        self.answered = False
        self.arrived_at: float | None = None
        """When its last byte came."""

    @property
    def is_awaited(self) -> bool:
        """Whether nothing has come of it, and the engine does not know of it."""
        return self._slot is None and self.arrived_at is None and not self.answered

    def expect(self, length: int) -> bool:
        """Have the engine know of it, or see that it is no longer than it was to be. False: it has
        failed."""
        session, now = self._stream.session, self._context.first_byte
        try:
            if self._slot is None:
                expected_s = session.transfer_time(self.nbytes or length, now=now)
                self._context.complete_at = now + expected_s
                self.announce(session.terms.model, session.terms.version, length)
            elif length > len(self._slot):
                raise BadField("bytes", f"about the frame's {length}", self.nbytes)
        except (WireError, Refusal) as error:
            self.fail(error)
            return False
        return True

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        if self.answered or not self.expect(length):
            return NOWHERE
        return super().place_for(length, begun)

    def take(self, message: Buffer, start: int = 0) -> None:
        # One that came with its announcement is no surprise to the engine any more.
        if self._slot is None or self.expect(len(message)):
            super().take(message, start)

    def _know(self, model: str, version: str | None) -> InferenceCall:
        terms = self._stream.session.terms
        if model != terms.model:
            raise BadField("model_name", f"the session's {terms.model!r}", model)
        return super()._know(model, version or terms.version)

    def _place(self, call: InferenceCall, length: int) -> memoryview | InferReply:
        return call.announce(length, self._stream.said.parameters, self._given_up)

    def _given_up(self, reply: InferReply) -> None:
        self._stream.given_up(self, reply)


class FrameStream(InferenceRpc):
    """A call of StreamFrames."""

    __slots__ = (
        "_announcing", "_coming", "_draining", "_frames", "_heard", "_here", "_late", "_session",
        "_unsent",
    )  # fmt: skip

    many = True

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self._session: FrameSession | None = None
        self._frames: dict[int, FrameRequest] = {}
        """Unanswered, by the client's ids, in the order they came."""
        self._announcing: list[FrameRequest] = []
        """Those that this turn of the loop has announced."""
        self._late: dict[int, FrameRequest] = {}
        """Answered before they were here; the oldest are forgotten."""
        self._coming: FrameRequest | None = None
        """The one whose message has begun."""
        self._here = self._unsent = 0
        """Frames that are here and unanswered; answers that may not all have gone out."""
        self._heard = protocol.now
        """When the last byte came."""
        self._draining = False

    @property
    def session(self) -> FrameSession:
        """Raises BadField before the hello."""
        if self._session is None:
            raise BadField("message", "a hello first", "another message")
        return self._session

    # ---------------------------------------------------------------- messages

    def begin(self) -> None:
        self.connection.measure_rtt(self._heard)

    def received(self, data: memoryview) -> None:
        self._heard = self.protocol.now
        super().received(data)

    def is_full(self) -> bool:
        most = self.state.settings.stream_in_flight
        # An announced frame must not wait behind its own announcement.
        return self._here + self._unsent >= most or len(self._frames) >= 2 * most

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        head = frame_head(begun, length)
        if self._draining and (head is None or head.id not in self._frames):
            return NOWHERE
        if head is None:
            return None
        frame = self._coming = self._frame(head)
        frame.begun = len(begun), self.protocol.now
        return frame.place_for(length, begun)

    def message(self, message: Buffer) -> None:
        frame, self._coming = self._coming, None
        if frame is None:
            self._read(message)
        else:
            self._arrived(frame, message)

    def passed_over(self) -> None:
        frame, self._coming = self._coming, None
        if frame is not None:
            self._arrived(frame, b"")

    def taker(self) -> Callable[[Buffer], None]:
        return self._read

    def _read(self, message: Buffer) -> None:
        """A message that is here, whole."""
        head = frame_head(message, len(message))
        if self._draining and (head is None or head.id not in self._frames):
            return
        if head is not None:
            self._arrived(self._frame(head), message)
            return
        read = read_client_message(message)
        kind = read.WhichOneof("message")
        if kind == "hello":
            self._welcome(read.hello)
        elif kind == "announcement":
            self._announced(read.announcement)
        elif kind == "frame":  # its fields are not in their order
            frame = self._frame(FrameHead(read.frame.id, read.frame.bytes_per_s, 0))
            self._arrived(frame, read.frame.request.SerializeToString())
        else:
            raise BadField("message", "a hello, an announcement or a frame", "nothing")

    def _welcome(self, hello: m.Hello) -> None:
        terms = terms_of(hello)
        if self._session is None:
            self.model = terms.model
            session = self.state.data.open_session(terms, self.protocol.client, self._advise)
            self._session = session
        else:
            session = self._session
            session.change(terms)
        input, variants = session.welcome()
        advice = session.advice
        welcome = m.Welcome(
            session=session.id,
            input=input,
            variants=[m.Variant(name=n, size=s, accuracy=a) for n, s, a in variants],
            advice=None if advice is None else advice_message(advice),
        )
        self.write([m.ServerMessage(welcome=welcome).SerializeToString()])

    def _announced(self, announcement: m.Announcement) -> None:
        session, now = self.session, self.protocol.now
        session.rtt = self.connection.rtt
        frame = FrameRequest(self, announcement.id, now, announcement.age_us * 1e-6)
        if announcement.id in self._frames:
            self.turned_away(frame, BadField("id", "one that is in no other use", announcement.id))
            return
        self._frames[announcement.id] = frame
        frame.announced_at, frame.size = now, (announcement.width, announcement.height)
        length, limit = announcement.bytes, self.state.limits.max_request_bytes
        frame.nbytes = length
        if not 0 < length <= limit:
            frame.fail(BadField("bytes", f"1 to {limit}", length, Reason.TOO_LARGE))
            return
        if not self._announcing:
            asyncio.get_running_loop().call_soon(self._announce)
        self._announcing.append(frame)

    def _announce(self) -> None:
        """Have the engine know of the frames that this turn of the loop has announced and not
        brought."""
        frames, self._announcing = self._announcing, []
        for frame in frames:
            if frame.is_awaited and self._frames.get(frame.frame) is frame:
                frame.expect(frame.nbytes + AROUND_IMAGE)

    def _frame(self, head: FrameHead) -> FrameRequest:
        """The one that was announced, or a new one."""
        if head.bytes_per_s:
            self.session.told(head.bytes_per_s)
        frame = self._late.pop(head.id, None) or self._frames.get(head.id)
        if frame is None or frame.arrived_at is not None:
            existing, frame = frame, FrameRequest(self, head.id, self.state.clock(), 0.0)
            if existing is not None:
                frame.fail(BadField("id", "one that is in no other use", head.id))
            else:
                self._frames[head.id] = frame
        frame.start = head.start
        return frame

    def _arrived(self, frame: FrameRequest, message: Buffer) -> None:
        """The last byte of a frame is here."""
        now = frame.arrived_at = self.protocol.now  # when it was read, however busy the loop is
        nbytes, since = len(message) or self.filled, frame.announced_at
        seconds = 0.0
        if since is not None and not stood_still(since, now):
            seconds = max(now - since, AT_ONCE_S)
        acknowledgement = m.Acknowledgement(
            id=frame.frame, transfer_us=min(microseconds(seconds), MOST_UINT32)
        )
        before, begun_at = frame.begun
        if seconds and 0 < 2 * before < nbytes and now > begun_at:
            # It may have begun some time after its announcement: then its rest shows the link.
            seconds = min(seconds, (now - begun_at) * nbytes / (nbytes - before))
        self.session.arrived(nbytes, seconds, frame.size, now=now)
        self.write([m.ServerMessage(acknowledgement=acknowledgement).SerializeToString()])
        if frame.answered:
            frame.cancel(Reason.CLIENT_CANCELLED)
        else:
            self._here += 1
            frame.take(message, frame.start)

    # ---------------------------------------------------------------- answers

    def replied(self, request: InferRequest, reply: InferReply) -> None:
        assert isinstance(request, FrameRequest)
        turns = self.state.turns
        since = turns.clock()
        try:
            if reply.outputs is None:
                refusal = refusal_in(reply, triton_strict=self.state.limits.triton_strict)
                self._answer(request, reply, refusal=_refusal(refusal))
            else:
                pieces = self.state.codec.reply_pieces(reply, request.wanted)
                self._answer(request, reply, pieces)
        except Exception as error:
            self.fail(error)
        turns.spent(self.protocol.client, since)

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        assert isinstance(request, FrameRequest)
        if isinstance(error, (WireError, Refusal)):
            refusal = refusal_of(error, triton_strict=self.state.limits.triton_strict)
            self._answer(request, None, refusal=_refusal(refusal))
        else:
            self.fail(error)

    def given_up(self, frame: FrameRequest, reply: InferReply) -> None:
        """The engine has no use for a frame that is not here yet."""
        now = self.state.clock()
        if frame is not self._coming:
            frame.cancel(Reason.NO_BODY)
        if frame.announced_at is not None and not stood_still(frame.announced_at, now):
            came = self.filled if frame is self._coming else 0
            self.session.stalled(came, frame.nbytes, now - frame.announced_at, now=now)
        refusal = refusal_in(reply, triton_strict=self.state.limits.triton_strict)
        self._answer(frame, reply, refusal=_refusal(refusal))

    def _answer(
        self,
        frame: FrameRequest,
        reply: InferReply | None,
        response: list[Buffer] | None = None,
        refusal: m.Refusal | None = None,
    ) -> None:
        session, now = self.session, self.state.clock()
        frame.answered = True
        if self._frames.get(frame.frame) is frame:
            del self._frames[frame.frame]
        seconds = 0.0
        if frame.arrived_at is not None:
            seconds = now - frame.arrived_at
            self._here -= 1
        elif frame is not self._coming and frame.announced_at is not None:
            self._late[frame.frame] = frame
            if len(self._late) > self.state.settings.stream_in_flight:
                del self._late[next(iter(self._late))]
        outcome = None if reply is None else reply.outcome
        session.answered(outcome, now)
        advice = session.advice
        answer = m.Answer(
            id=frame.frame,
            advice=None if advice is None else advice_message(advice),
            variant="" if reply is None else reply.variant,
            refusal=refusal,
            server_us=min(microseconds(seconds), MOST_UINT32),
        )
        self._unsent += 1
        self.write(answer_pieces(answer, response or ()))
        if not self.unsent:
            self._unsent = 0
        self.go_on()

    def _advise(self, advice: SizeAdvice) -> None:
        """What the session is told has changed."""
        if not self.finished:
            self.write([m.ServerMessage(advice=advice_message(advice)).SerializeToString()])

    def sent(self) -> None:
        if not self.unsent:
            self._unsent = 0
        super().sent()

    def settle(self) -> None:
        if self.ended:  # what was announced does not come
            for frame in [frame for frame in self._frames.values() if frame.arrived_at is None]:
                del self._frames[frame.frame]
                frame.cancel(Reason.NO_BODY)
        if not self._frames:
            if self.ended:
                self.finish()
            elif self._draining:
                self.refuse(Refusal(status_of(Reason.DRAINING), "the server is shutting down"))

    # ---------------------------------------------------------------- the clock, and the end

    def check(self, now: float) -> None:
        super().check(now)
        if self.finished:
            return
        self.connection.measure_rtt(now)
        self.protocol.flush_soon()
        if self._session is not None and not stood_still(self._heard, now):
            self._session.idle(now)
        heard = max(self._heard, self.protocol.reading_since)
        if not self._rest and waited(heard, now) >= SILENT_S:
            message = f"the client has been silent for {SILENT_S:g} s"
            self.fail(Refusal(status_of(Reason.NO_BODY), message, Reason.DISCONNECTED))

    def drain(self) -> None:
        self._draining = True
        self.go_on()

    def cancelled(self, reason: Reason) -> None:
        frames = [*self._frames.values()]
        if self._coming is not None:
            frames.append(self._coming)
        self._frames, self._coming = {}, None
        for frame in frames:
            frame.cancel(Reason.CLIENT_CANCELLED)

    def about(self) -> tuple[str, str]:
        return self.model, "" if self._session is None else self._session.id

    def _ended(self, status: str) -> None:
        super()._ended(status)
        if self._session is not None:
            self._session.close()


def stood_still(since: float, now: float) -> bool:
    """Whether the server has: then what came between shows nothing of the link."""
    return waited(since, now) < now - since


def _refusal(refusal: Refusal) -> m.Refusal:
    reason = "" if refusal.reason is None else refusal.reason.label
    return m.Refusal(reason=reason, message=refusal.message)
