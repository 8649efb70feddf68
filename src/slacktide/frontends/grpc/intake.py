"""`MessageIntake`: a stream of HTTP/2 as the messages of a call.

On the wire (gRPC over HTTP/2) each message is behind a prefix of five bytes: compressed or not, and
its length. A short one that is here in one piece is taken as it is; any other is gathered in one
place: that of its request if it has one, else private memory, which is counted.

A call of many messages takes so many in a turn of the loop, and while it is not full. What else has
come waits as bytes, and its stream is granted no more: so a client that sends without reading is
held back by flow control and not by our memory.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar

from slacktide.domain import Reason
from slacktide.frontends.common.refusals import Refusal
from slacktide.frontends.grpc.metadata import ENCODINGS, TOO_LONG, CallHead
from slacktide.frontends.http2 import Head, Http2Stream
from slacktide.frontends.http2.connection import WORK_AT_ONCE
from slacktide.frontends.unpacking import DIRECT_BYTES, Inflation
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.status import CONTROL_STATUS, status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

T = TypeVar("T")

PREFIX = Struct(">BI")
MESSAGE_WORK: Final = 16
"""Of a message, as `Http2Connection.work` counts it."""
NOWHERE = memoryview(bytearray())
"""The place of a message that is passed over."""


class MessageIntake(Http2Stream, ABC):
    """The receiving half of a call."""

    __slots__ = (
        "_arriving", "_compressed", "_length", "_place", "_prefix", "_queued", "_rest", "_tasks",
        "filled", "protocol", "said", "since", "state", "whole",
    )  # fmt: skip

    many = False
    """Whether there may be more than one message."""

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol.http2, id, head)
        self.protocol = protocol
        self.state = protocol.state
        self.said = said
        self.since: float | None = None if self.many else protocol.now
        """Since when a message has been awaited that must come."""
        self.whole = False
        """A message has come."""
        self._prefix = b""
        self._place: memoryview | None = None
        """Where the current message comes into; None: none is coming."""
        self._length = self.filled = 0
        """Of that message; and how much of it is here."""
        self._compressed = False
        self._rest = b""
        """What has come and not been taken."""
        self._queued = False
        """It waits for a turn of the loop."""
        self._arriving = 0
        """Bytes of the common buffer that messages hold."""
        self._tasks: set[asyncio.Future[Any]] = set()

    # ---------------------------------------------------------------- for subclasses to take

    def message(self, message: Buffer) -> None:
        """A message; one of at most `DIRECT_BYTES` is to be taken before this returns. What this
        raises ends the call."""

    def passed_over(self) -> None:
        """A message whose place was `NOWHERE` is here."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """End the call with what an exception means."""

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        """Where a message that has `begun` belongs; None: anywhere."""
        return None

    def is_full(self) -> bool:
        """Whether no message is to be begun now."""
        return False

    def taker(self) -> Callable[[Buffer], None]:
        """What takes a message that is here, but is still to be inflated: others may come before
        it has been."""
        return self.message

    def settle(self) -> None:
        """No message waits: end, if the client has ended and all is answered."""

    # ---------------------------------------------------------------- data

    def received(self, data: memoryview) -> None:
        try:
            consumed = 0 if self._rest else self._gather(data)
            if consumed < len(data) and not self.finished:
                self.state.hold(self.protocol.client, len(data) - consumed)
                self._rest += data[consumed:]
                self.holds = True
                self.go_on()
        except Exception as error:
            self.fail(error)

    def received_all(self) -> None:
        if self._rest:
            return
        try:
            if self._place is not None or self._prefix:
                length = PREFIX.size if self._place is None else self._length
                raise BadField("message", f"{length} bytes", len(self._prefix) or self.filled)
            if self.many:
                self.go_on()
            elif not self.whole:
                raise Refusal(status_of(Reason.BAD_INPUT), "the call has no message")
        except Exception as error:
            self.fail(error)

    def go_on(self) -> None:
        """There may be room for messages again, or nothing may be left to do."""
        if self._rest:
            if not self._queued and not self.is_full():
                self._queued = True
                self.state.turns.wait(self.protocol.client, self._in_turn)
        elif not self.finished:
            if self.holds:
                self.holds = False
                self.connection.grant(self)
                self.protocol.flush()
            self.settle()

    def _in_turn(self) -> None:
        """Take a piece of what waits."""
        self._queued = False
        self.connection.work = WORK_AT_ONCE
        try:
            consumed = self._gather(memoryview(self._rest))
        except Exception as error:
            self.fail(error)
        if self._rest:  # else it has ended
            self._release(consumed)
            self._rest = self._rest[consumed:]
            if self.ended:
                self.received_all()
            self.go_on()

    # ---------------------------------------------------------------- messages

    def _gather(self, data: memoryview) -> int:
        """Take what is here of messages. Returns how much was: less than all if no more may be."""
        at, end = 0, len(data)
        while at < end and not self.finished:
            if self._place is None:
                if self.many and (self.connection.work <= 0 or self.is_full()):
                    break
                prefix = self._prefix + data[at : at + PREFIX.size - len(self._prefix)]
                at += len(prefix) - len(self._prefix)
                if len(prefix) < PREFIX.size:
                    self._prefix = prefix
                    self.since = self.since or self.protocol.now
                    break
                self._prefix = b""
                flag, length = PREFIX.unpack(prefix)
                self._expect(flag, length)
                if not flag and length <= DIRECT_BYTES and length <= end - at:
                    at += length
                    self._take(data[at - length : at])
                    continue
                self._length, self.filled = length, 0
                self.since = self.since or self.protocol.now
                self._place = self._find_place(length, data[at:])
            place, filled = self._place, self.filled
            count = min(end - at, self._length - filled)
            if place is not NOWHERE:
                place[filled : filled + count] = data[at : at + count]
            at += count
            self.filled = filled + count
            if self.filled == self._length:
                self._place = self.since = None
                if place is NOWHERE:
                    self.passed_over()
                else:
                    self._take(place)
                self._let_go()
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

    def _find_place(self, length: int, begun: memoryview) -> memoryview:
        place = None if self._compressed else self.place_for(length, begun)
        if place is None:
            self.state.hold(self.protocol.client, length)
            self._arriving += length
            place = memoryview(bytearray(length))
        return place

    def _take(self, message: memoryview) -> None:
        self.whole, self.since = True, None
        self.connection.work -= MESSAGE_WORK
        if self._compressed:
            most = self.state.limits.max_request_bytes
            largest = self.state.data.largest_body()  # of any: its model is named in the message
            self._inflate(Inflation(message, self.said.encoding, most, largest))
        else:
            self.message(message)

    def _inflate(self, inflation: Inflation) -> None:
        try:
            if inflation.step(DIRECT_BYTES):
                self.message(inflation.data)
                return
        except WireError as error:
            raise _inflated(error) from None
        inflated = self.state.unpacker.inflate(inflation, self.protocol.client)
        self.later(inflated, self.taker(), lambda error: self.fail(_inflated(error)))

    # ---------------------------------------------------------------- what takes longer

    def later(
        self,
        answer: Awaitable[T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Go on with what a coroutine returns, or with what it or that raises; it is cancelled if
        the call ends before. `failed` None: the call fails."""
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)

        def done(task: asyncio.Future[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled() or self.finished:
                return
            # Not raised here: its traceback would hold this frame, and the frame the task.
            failure = task.exception()
            if failure is None:
                try:
                    then(task.result())
                except Exception as error:
                    failure = error
            if isinstance(failure, Exception):
                (failed or self.fail)(failure)
            self._let_go()

        task.add_done_callback(done)

    def _let_go(self) -> None:
        """Give back what messages held, unless one is still being unpacked."""
        if not self._tasks and self._arriving:
            self._release(self._arriving)
            self._arriving = 0

    def let_all_go(self) -> None:
        """Take no more, and give back all that messages hold."""
        if self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
        self._place = self.since = None
        if self._arriving or self._rest:
            self._release(self._arriving + len(self._rest))
            self._arriving, self._rest = 0, b""

    def _release(self, size: int) -> None:
        """Give back so many bytes of the common buffer."""
        if size:
            self.state.buffers.release(size, self.protocol.client)


def _inflated(error: Exception) -> Exception:
    """What is wrong with a compressed message, as gRPC says it."""
    if isinstance(error, WireError) and error.reason is Reason.TOO_LARGE:
        return Refusal(TOO_LONG, error.message, error.reason)
    return error
