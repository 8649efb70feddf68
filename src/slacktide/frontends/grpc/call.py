"""`GrpcCall`: one gRPC call, which is a stream of HTTP/2, and the frame around every method.

On the wire (gRPC over HTTP/2) a request is headers, then messages in data frames, each behind a
prefix of five bytes: compressed or not, and its length. The call is judged at its headers: the gate
first, then the method. Whole messages go to `message`; one that has come in one piece is not copied
on the way. An answer is headers, messages, and trailers with the status; a refusal trailers alone.

Everything runs in callbacks on the loop. What a callback raises ends the call with its status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, TypeVar

from slacktide.domain import Outcome, Reason
from slacktide.frontends.grpc.metadata import (
    CONTENT_TYPE,
    ENCODINGS,
    TOO_LONG,
    CallHead,
    trailers_of,
)
from slacktide.frontends.http2 import ErrorCode, Head, Http2Stream
from slacktide.frontends.http2.frames import header_block
from slacktide.frontends.ports import AccessRecord
from slacktide.frontends.refusals import Refusal, refusal_of
from slacktide.frontends.security import Verdict
from slacktide.frontends.unpacking import DIRECT_BYTES, Inflation
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.status import CONTROL_STATUS, WireStatus, status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

T = TypeVar("T")

_ANSWER_HEAD = header_block(200, (CONTENT_TYPE,))
_OK_TRAILERS = header_block(None, ((b"grpc-status", b"0"),))
_PREFIX = Struct(">BI")


class GrpcCall(Http2Stream):
    """A call in progress. Subclasses take messages and answer; they fill in `model`, `request_id`
    and `outcome` for the log."""

    __slots__ = (
        "_arriving", "_begun", "_compressed", "_filled", "_leaving", "_logged", "_place",
        "_prefix", "_put_out", "_tasks", "first_byte", "model", "outcome", "protocol",
        "request_id", "said", "since", "state", "whole",
    )  # fmt: skip

    many = False
    """Whether there may be more than one message."""

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol.http2, id, head)
        self.protocol = protocol
        self.state = protocol.state
        self.said = said
        self.first_byte = protocol.now
        """Monotonic seconds when its headers arrived."""
        self.since: float | None = self.first_byte
        """Since when a message is awaited that must come."""
        self.whole = False
        """A message has come."""
        self.model = ""
        self.request_id = ""
        self.outcome: Outcome | None = None
        """Of a call that is one request."""
        self._prefix = b""
        self._place: memoryview | None = None
        """Where the current message comes into."""
        self._filled = 0
        self._compressed = False
        self._arriving = self._leaving = 0
        """Bytes of the common buffer that it holds."""
        self._put_out = 0
        """Bytes of answers since it was last flushed."""
        self._begun = self._logged = False
        self._tasks: set[asyncio.Future[Any]] = set()

    # ---------------------------------------------------------------- for subclasses to take

    def begin(self) -> None:
        """The gate has let it pass. What these raise ends the call."""

    def message(self, message: Buffer) -> None:
        """A message; one of at most `DIRECT_BYTES` is to be taken before this returns."""

    def is_full(self) -> bool:
        """Whether no message is to be begun now."""
        return False

    def half_closed(self) -> None:
        """The client has sent all."""

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        """Where a message that has `begun` belongs; None: anywhere."""
        return None

    def cancelled(self, reason: Reason) -> None:
        """It ends without an answer, or with the refusal of `error`."""

    def failed(self, error: Exception) -> None:
        """It ends with the refusal that `error` means."""
        self.cancelled(Reason.RUNTIME_ERROR)

    def drain(self) -> None:
        """The server takes no more requests."""

    # ---------------------------------------------------------------- what comes in

    def opened(self) -> None:
        said, state = self.said, self.state
        self.request_id = said.headers.get(b"x-request-id", b"").decode("latin-1")
        try:
            if said.http_status != 200:
                self._begun = True  # it does not speak gRPC: a status of HTTP is all
                self._end(header_block(said.http_status, ()), str(said.http_status))
                return
            method = said.method
            if method is not None and state.authorize is not None:
                # Browsers do not speak gRPC, so no page is behind its `:authority`, and what comes
                # through a proxy has its Origin. A content type of pages has been refused.
                verdict = state.authorize(method.group, said.headers)
                if verdict is not Verdict.PASS:
                    name = "UNAUTHENTICATED" if verdict.status == 401 else "PERMISSION_DENIED"
                    raise Refusal(WireStatus(verdict.status, name), verdict.value)
            if said.error is not None:
                self.fail(said.error)  # not raised: it would keep the frames of every call
                return
            self.begin()
        except Exception as error:
            self.fail(error)

    def received(self, data: memoryview) -> None:
        try:
            self.take_messages(data)
        except Exception as error:
            self.fail(error)

    def take_messages(self, data: memoryview) -> int:
        """Take what is here of messages. Returns how much was: less than all if it is full."""
        at, end = 0, len(data)
        while at < end and not self.finished:
            place = self._place
            if place is not None:
                count = min(end - at, len(place) - self._filled)
                place[self._filled : self._filled + count] = data[at : at + count]
                at += count
                self._advance(count)
                continue
            if self.is_full():
                break
            if self._prefix or end - at < _PREFIX.size:
                count = _PREFIX.size - len(self._prefix)
                self._prefix += data[at : at + count]
                at += count
                if len(self._prefix) < _PREFIX.size:
                    break
                flag, length = _PREFIX.unpack(self._prefix)
                self._prefix = b""
            else:
                flag, length = _PREFIX.unpack_from(data, at)
                at += _PREFIX.size
            self._expect(flag, length)
            if end - at >= length:
                message = data[at : at + length]
                lasting = flag or length > DIRECT_BYTES
                self._take_whole(memoryview(bytes(message)) if lasting else message)
                at += length
            else:
                self._begin_message(length, data[at:])
        return at

    def _expect(self, flag: int, length: int) -> None:
        """A message's prefix has come. Raises Refusal or WireError."""
        limit = self.state.limits.max_request_bytes
        if length > limit:
            message = f"message: expected at most {limit} bytes, got {length}"
            raise Refusal(TOO_LONG, message, Reason.TOO_LARGE)
        if flag > 1:
            raise BadField("message", "0 or 1 before its length", flag)
        if flag and self.said.encoding not in ENCODINGS:
            message = "message: compressed, but no grpc-encoding is named"
            raise Refusal(CONTROL_STATUS["internal"], message)
        if self.whole and not self.many:
            raise BadField("message", "one", "more")
        self._compressed = bool(flag)

    def _begin_message(self, length: int, begun: memoryview) -> None:
        place = None if self._compressed else self.place_for(length, begun)
        if place is None and not self.finished:
            self.state.hold(self.protocol.client, length)
            self._arriving += length
            place = memoryview(bytearray(length))
        self._place, self._filled = place, 0
        self.since = self.since or self.protocol.now

    def _advance(self, count: int) -> None:
        self._filled += count
        place = self._place
        if place is not None and self._filled == len(place):
            self._place = None
            self._take_whole(place)
            self._let_go()

    def _let_go(self) -> None:
        """Give back what messages held, unless one is still being unpacked."""
        if not self._tasks:
            self._arriving = self._release(self._arriving)

    def _take_whole(self, message: memoryview) -> None:
        self.whole, self.since = True, None
        if not self._compressed:
            self.message(message)
            return
        limit = self.state.limits.max_request_bytes
        inflation = Inflation(message, self.said.encoding, limit)
        try:
            done = inflation.step(DIRECT_BYTES)
        except WireError as error:
            raise _inflated(error) from None
        if done:
            self.message(inflation.data)
        else:
            self.later(self._inflate(inflation), self.message)

    async def _inflate(self, inflation: Inflation) -> bytearray:
        try:
            return await self.state.unpacker.inflate(inflation, self.protocol.client)
        except WireError as error:
            raise _inflated(error) from None

    def received_all(self) -> None:
        try:
            if self._place is not None or self._prefix:
                expected = f"{len(self._place or b'.....')} bytes"
                raise BadField("message", expected, len(self._prefix) or self._filled)
            if not (self.whole or self.many):
                raise Refusal(status_of(Reason.BAD_INPUT), "the call has no message")
            self.half_closed()
        except Exception as error:
            self.fail(error)

    def check(self, now: float) -> None:
        """Look at the clock."""
        limits, budget = self.state.limits, self.said.budget_s
        if self.finished:
            return
        if budget is not None and now - self.first_byte >= budget:
            message = "the deadline has passed"
            self.fail(Refusal(status_of(Reason.EXPIRED), message, Reason.EXPIRED))
        elif self.since is not None:
            allowed = limits.body_timeout_s + self._filled / limits.min_body_rate
            if now - max(self.since, self.protocol.reading_since) >= allowed:
                message = "the message did not arrive in time"
                self.fail(Refusal(status_of(Reason.NO_BODY), message, Reason.NO_BODY))

    def later(self, answer: Awaitable[T], then: Callable[[T], None]) -> None:
        """Go on with what a coroutine returns; it is cancelled if the call ends before."""
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)

        def done(task: asyncio.Future[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            # Not raised here: its traceback would hold this frame, and the frame the task.
            failure = task.exception()
            if isinstance(failure, Exception):
                self.fail(failure)
            elif not self.finished:
                try:
                    then(task.result())
                    self._let_go()
                except Exception as error:
                    self.fail(error)

        task.add_done_callback(done)

    # ---------------------------------------------------------------- what goes out

    def answer(self, pieces: Sequence[Buffer]) -> None:
        """The one answer of a unary call, in pieces."""
        self._put(pieces)
        self.finish()

    def write(self, pieces: Sequence[Buffer]) -> None:
        """One of many answers, in pieces."""
        if not self.finished:
            self._put(pieces)
            self._flush()

    def _put(self, pieces: Sequence[Buffer]) -> None:
        connection = self.connection
        if not self._begun:
            self._begun = True
            connection.begin(self, _ANSWER_HEAD)
        size = sum(map(len, pieces))
        connection.send(self, [_PREFIX.pack(0, size), *pieces])
        self._put_out += size

    def finish(self) -> None:
        """The end of an answer."""
        if not self.finished:
            self._end(_OK_TRAILERS, "OK")

    def _flush(self) -> None:
        """Send what has been put out. What a client does not take is counted: beyond its part of
        memory, it does without."""
        self.protocol.flush()
        size, self._put_out = self._put_out, 0
        if self.unsent:
            try:
                self.state.hold(self.protocol.client, size)
                self._leaving += size
            except WireError:
                self.connection.reset(self, ErrorCode.ENHANCE_YOUR_CALM)
                self.protocol.flush()

    def fail(self, error: Exception) -> None:
        """End with what an exception means."""
        if self.finished:
            if not isinstance(error, (WireError, Refusal)):
                refusal_of(error, what=self.said.name)
            return
        self.failed(error)
        if not self.finished:
            strict = self.state.limits.triton_strict
            self.refuse(refusal_of(error, triton_strict=strict, what=self.said.name))

    def refuse(self, refusal: Refusal) -> None:
        """End with a status."""
        fields = trailers_of(refusal)
        if self.outcome is None and refusal.reason is not None:
            self.outcome = Outcome(refusal.reason, self.first_byte)
        self._end(header_block(None, fields), refusal.status.grpc)

    def _end(self, trailers: bytes, status: str) -> None:
        self.connection.finish(self, trailers if self._begun else _ANSWER_HEAD + trailers)
        self._ended(status)
        self._flush()

    def sent(self) -> None:
        if not self.unsent:
            self._leaving = self._release(self._leaving)

    def aborted(self) -> None:
        if not self._logged:
            try:
                self.cancelled(Reason.CLIENT_CANCELLED if self.whole else Reason.NO_BODY)
            except Exception as error:
                refusal_of(error, what=self.said.name)
            self._ended("CANCELLED")
        self._leaving = self._release(self._leaving)

    def _ended(self, status: str) -> None:
        """It has its status."""
        self._logged = True
        self._place = self.since = None
        self._arriving = self._release(self._arriving)
        for task in tuple(self._tasks):
            task.cancel()
        state = self.state
        if state.access_log is not None:
            seconds = state.clock() - self.first_byte
            client, name = self.protocol.client, self.said.name
            state.log_access(
                AccessRecord(
                    "grpc",
                    client,
                    name,
                    self.model,
                    status,
                    seconds,
                    self.request_id,
                    outcome=self.outcome,
                )
            )

    def _release(self, size: int) -> int:
        """Give back so many bytes of the common buffer. Returns how many are left of them."""
        if size:
            self.state.buffers.release(size, self.protocol.client)
        return 0


def _inflated(error: WireError) -> Exception:
    """What is wrong with a compressed message, as gRPC says it."""
    if error.reason is Reason.TOO_LARGE:
        return Refusal(TOO_LONG, error.message, error.reason)
    return error
