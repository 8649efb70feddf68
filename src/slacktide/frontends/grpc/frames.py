"""StreamFrames: the session of a client that streams frames (`wire/proto/frames.proto`).

A small message announces a frame. The engine gets notice of it, and the frame is then received into
the slot reserved for it. It is acknowledged at its last byte and answered once: when it has run, or
as soon as it is dropped, even before it arrives. The bytes of a dropped frame are still timed and
acknowledged, but not kept. `docs/stream.md` describes the protocol for authors of clients.

As on other streams, messages wait while too many frames are unanswered or have unsent answers. A
frame that cannot be served fails alone; an invalid message, or a first message other than hello,
ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from slacktide.domain import Reason
from slacktide.frontends.common.connection import waited
from slacktide.frontends.common.refusals import Refusal, refusal_in
from slacktide.frontends.grpc.inference import InferRequest, StreamRpc
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
"""Seconds of silence after which a client counts as gone."""
AT_ONCE_S: Final = 1e-4
"""Assumed transfer time of a frame that was read together with its announcement."""
MOST_UINT32: Final = 2**32 - 1
AROUND_IMAGE: Final = 4096
"""Bytes that a frame may have besides its image: names, shapes, parameters."""


class FrameRequest(InferRequest):
    """A frame, from its announcement or first byte to its answer and last byte."""

    __slots__ = (
        "_stream", "announced_at", "answered", "arrived_at", "first_piece", "frame", "nbytes",
        "size", "start",
    )  # fmt: skip

    def __init__(self, stream: FrameStream, frame: int, now: float, age: float) -> None:
        session = stream.session
        budget = session.terms.slo - min(age, session.terms.slo) - session.rtt
        if stream.call_head.budget_s is not None:
            budget = min(budget, stream.call_head.budget_s - (now - stream.first_byte))
        super().__init__(stream, "frames", now, max(0.0, budget))
        self._context.session = session.id
        self._stream = stream
        self.frame = frame
        """The client's id of the frame."""
        self.announced_at: float | None = None
        """Time of its announcement; None if there was none."""
        self.nbytes, self.size = 0, (0, 0)
        """Announced size of its image: bytes; width and height."""
        self.first_piece = 0, 0.0
        """Bytes of its message in the first piece that arrived, and that piece's time."""
        self.start = 0
        """Offset of the ModelInferRequest in its message."""
        self.answered = False
        self.arrived_at: float | None = None
        """Time at which its last byte arrived; None before."""

    @property
    def is_awaited(self) -> bool:
        """Whether no byte of the frame has arrived and the engine has no notice of it."""
        return self._slot is None and self.arrived_at is None and not self.answered

    def expect(self, length: int) -> bool:
        """Announce the frame to the engine, or check that it is not longer than announced. Returns
        False if the frame has failed."""
        session, now = self._stream.session, self._context.first_byte
        try:
            if self._slot is None:
                expected_s = session.transfer_time(self.nbytes or length, now=now)
                self._context.complete_at = now + expected_s
                self.announce(session.terms.model, session.terms.version, length)
            elif length > len(self._slot):
                raise BadField("bytes", f"roughly the frame's {length} bytes", self.nbytes)
        except (WireError, Refusal) as error:
            self.fail(error)
            return False
        return True

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        if self.answered or not self.expect(length):
            return NOWHERE
        return super().place_for(length, beginning)

    def take(self, message: Buffer, start: int = 0) -> None:
        # A frame that arrived together with its announcement needs no notice.
        if self._slot is None or self.expect(len(message)):
            super().take(message, start)

    def _begin_call(self, model: str, version: str | None) -> InferenceCall:
        terms = self._stream.session.terms
        if model != terms.model:
            raise BadField("model_name", f"the session's {terms.model!r}", model)
        return super()._begin_call(model, version or terms.version)

    def _place(self, call: InferenceCall, length: int) -> memoryview | InferReply:
        return call.announce(length, self._stream.call_head.parameters, self._dropped)

    def _dropped(self, reply: InferReply) -> None:
        self._stream.dropped(self, reply)


class FrameStream(StreamRpc):
    """A call of StreamFrames."""

    __slots__ = (
        "_announcing", "_answered_early", "_current", "_frames", "_last_byte_at", "_received_count",
        "_session",
    )  # fmt: skip

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> None:
        super().__init__(protocol, id, head, call_head)
        self._session: FrameSession | None = None
        self._frames: dict[int, FrameRequest] = {}
        """Unanswered frames by the client's ids, in order of arrival."""
        self._announcing: list[FrameRequest] = []
        """Frames announced in this turn of the loop."""
        self._answered_early: dict[int, FrameRequest] = {}
        """Frames answered before they arrived; the oldest are forgotten."""
        self._current: FrameRequest | None = None
        """The frame whose message is arriving."""
        self._received_count = 0
        """Frames that have arrived and are unanswered."""
        self._last_byte_at = protocol.now

    @property
    def session(self) -> FrameSession:
        """The session. Raises BadField before the hello."""
        if self._session is None:
            raise BadField("message", "a hello first", "another message")
        return self._session

    # ---------------------------------------------------------------- messages

    def begin(self) -> None:
        self.connection.measure_rtt(self._last_byte_at)

    def received(self, data: memoryview) -> None:
        self._last_byte_at = self.protocol.now
        super().received(data)

    def is_full(self) -> bool:
        most = self.state.settings.stream_in_flight
        # An announced frame must not wait behind its own announcement.
        return self._received_count + self._unsent_count >= most or len(self._frames) >= 2 * most

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        head = frame_head(beginning, length)
        if self._draining and (head is None or head.id not in self._frames):
            return NOWHERE
        if head is None:
            return None
        frame = self._current = self._frame(head)
        frame.first_piece = len(beginning), self.protocol.now
        return frame.place_for(length, beginning)

    def message(self, message: Buffer) -> None:
        frame, self._current = self._current, None
        if frame is None:
            self._read(message)
        else:
            self._arrived(frame, message)

    def passed_over(self) -> None:
        frame, self._current = self._current, None
        if frame is not None:
            self._arrived(frame, b"")

    def taker(self) -> Callable[[Buffer], None]:
        return self._read

    def _read(self, message: Buffer) -> None:
        """Process a complete message."""
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
        elif kind == "frame":  # with its fields in another order
            frame = self._frame(FrameHead(read.frame.id, read.frame.bytes_per_s, 0))
            self._arrived(frame, read.frame.request.SerializeToString())
        else:
            raise BadField("message", "a hello, an announcement or a frame", "nothing")

    def _welcome(self, hello: m.Hello) -> None:
        terms = terms_of(hello)
        if self._session is None:
            self.model = terms.model
            session = self.state.data.open_session(terms, self.protocol.client, self._advise)
            session.move = self._move
            self._session = session
        else:
            session = self._session
            session.change(terms)
        input, variants = session.welcome()
        advice = session.advice
        welcome = m.Welcome(
            session=session.id,
            input=input,
            keeps_shape=session.keeps_shape,
            short_side=session.short_side,
            variants=[m.Variant(name=n, size=s, accuracy=a) for n, s, a in variants],
            advice=None if advice is None else advice_message(advice),
        )
        self.write([m.ServerMessage(welcome=welcome).SerializeToString()])

    def _announced(self, announcement: m.Announcement) -> None:
        session, now = self.session, self.protocol.now
        session.rtt = self.connection.rtt
        frame = FrameRequest(self, announcement.id, now, announcement.age_us * 1e-6)
        if announcement.id in self._frames:
            self.turned_away(frame, BadField("id", "an unused id", announcement.id))
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
        """Give the engine notice of the frames announced in this turn of the loop, unless they have
        begun to arrive."""
        frames, self._announcing = self._announcing, []
        for frame in frames:
            if frame.is_awaited and self._frames.get(frame.frame) is frame:
                frame.expect(frame.nbytes + AROUND_IMAGE)

    def _frame(self, head: FrameHead) -> FrameRequest:
        """The announced frame with this id, or a new one."""
        if head.bytes_per_s:
            self.session.report_rate(head.bytes_per_s)
        frame = self._answered_early.pop(head.id, None) or self._frames.get(head.id)
        if frame is None or frame.arrived_at is not None:
            existing, frame = frame, FrameRequest(self, head.id, self.state.clock(), 0.0)
            if existing is not None:
                frame.fail(BadField("id", "an unused id", head.id))
            else:
                self._frames[head.id] = frame
        frame.start = head.start
        return frame

    def _arrived(self, frame: FrameRequest, message: Buffer) -> None:
        """Process a frame whose last byte has arrived."""
        now = frame.arrived_at = self.protocol.now  # when it was read, not when the loop got to it
        nbytes, since = len(message) or self.filled, frame.announced_at
        seconds = 0.0
        if since is not None and not stood_still(since, now):
            seconds = max(now - since, AT_ONCE_S)
        acknowledgement = m.Acknowledgement(
            id=frame.frame, transfer_us=min(microseconds(seconds), MOST_UINT32)
        )
        before, first_at = frame.first_piece
        if seconds and 0 < 2 * before < nbytes and now > first_at:
            # The client may have begun to send it long after its announcement. The bytes after the
            # first piece then show the rate of the link.
            seconds = min(seconds, (now - first_at) * nbytes / (nbytes - before))
        self.session.arrived(nbytes, seconds, frame.size, now=now)
        self.write([m.ServerMessage(acknowledgement=acknowledgement).SerializeToString()])
        if frame.answered:
            frame.cancel(Reason.CLIENT_CANCELLED)
        else:
            self._received_count += 1
            frame.take(message, frame.start)

    # ---------------------------------------------------------------- answers

    def answer_request(self, request: InferRequest, reply: InferReply) -> None:
        assert isinstance(request, FrameRequest)
        if reply.outputs is None:
            refusal = refusal_in(reply, triton_strict=self.state.limits.triton_strict)
            self._answer(request, reply, refusal=refusal)
        else:
            pieces = self.state.codec.reply_pieces(reply, request.output_names)
            self._answer(request, reply, pieces)

    def refuse_request(self, request: InferRequest, refusal: Refusal) -> None:
        assert isinstance(request, FrameRequest)
        self._answer(request, None, refusal=refusal)

    def dropped(self, frame: FrameRequest, reply: InferReply) -> None:
        """Answer a frame that the engine dropped before it arrived."""
        now = self.state.clock()
        if frame is not self._current:
            frame.cancel(Reason.NO_BODY)
        if frame.announced_at is not None and not stood_still(frame.announced_at, now):
            received = self.filled if frame is self._current else 0
            self.session.stalled(received, frame.nbytes, now - frame.announced_at, now=now)
        self.answer_request(frame, reply)

    def _answer(
        self,
        frame: FrameRequest,
        reply: InferReply | None,
        response: list[Buffer] | None = None,
        refusal: Refusal | None = None,
    ) -> None:
        session, now = self.session, self.state.clock()
        frame.answered = True
        if self._frames.get(frame.frame) is frame:
            del self._frames[frame.frame]
        seconds = 0.0
        if frame.arrived_at is not None:
            seconds = now - frame.arrived_at
            self._received_count -= 1
        elif frame is not self._current and frame.announced_at is not None:
            self._answered_early[frame.frame] = frame
            if len(self._answered_early) > self.state.settings.stream_in_flight:
                del self._answered_early[next(iter(self._answered_early))]
        outcome = None if reply is None else reply.outcome
        session.answered(outcome, now)
        advice = session.advice
        answer = m.Answer(
            id=frame.frame,
            advice=None if advice is None else advice_message(advice),
            variant="" if reply is None else reply.variant,
            refusal=None if refusal is None else _refusal_message(refusal),
            server_us=min(microseconds(seconds), MOST_UINT32),
        )
        self.put_answer(answer_pieces(answer, response or ()))

    def _advise(self, advice: SizeAdvice) -> None:
        """Send the session's advice, which has changed."""
        if not self.finished:
            self.write([m.ServerMessage(advice=advice_message(advice)).SerializeToString()])

    def _move(self, address: str) -> None:
        """Tell the client that the server at a gRPC address would answer it sooner."""
        if not (self.finished or self._draining):
            self.write([m.ServerMessage(move=m.Move(address=address)).SerializeToString()])

    def has_unanswered(self) -> bool:
        return bool(self._frames)

    def settle(self) -> None:
        if self.ended:  # announced frames can no longer come
            for frame in [frame for frame in self._frames.values() if frame.arrived_at is None]:
                del self._frames[frame.frame]
                frame.cancel(Reason.NO_BODY)
        super().settle()

    # ---------------------------------------------------------------- clock and end

    def check(self, now: float) -> None:
        super().check(now)
        if self.finished:
            return
        self.connection.measure_rtt(now)
        self.protocol.flush_soon()
        if self._session is not None and not stood_still(self._last_byte_at, now):
            self._session.idle(now)
        heard = max(self._last_byte_at, self.protocol.reading_since)
        if not self._backlog and waited(heard, now) >= SILENT_S:
            message = f"no message from the client for {SILENT_S:g} s"
            self.fail(Refusal(status_of(Reason.NO_BODY), message, Reason.DISCONNECTED))

    def cancelled(self, reason: Reason) -> None:
        frames = [*self._frames.values()]
        if self._current is not None:
            frames.append(self._current)
        self._frames, self._current = {}, None
        for frame in frames:
            frame.cancel(Reason.CLIENT_CANCELLED)

    def about(self) -> tuple[str, str]:
        return self.model, "" if self._session is None else self._session.id

    def _ended(self, status: str) -> None:
        super()._ended(status)
        if self._session is not None:
            self._session.close()


def stood_still(since: float, now: float) -> bool:
    """Whether the server was too busy between two moments for their difference to show the link's
    speed."""
    return waited(since, now) < now - since


def _refusal_message(refusal: Refusal) -> m.Refusal:
    reason = "" if refusal.reason is None else refusal.reason.label
    return m.Refusal(reason=reason, message=refusal.message)
