"""`MessageIntake`: turns the bytes of an HTTP/2 stream into the messages of a call.

On the wire (gRPC over HTTP/2) each message has a prefix of five bytes: a compression flag and its
length. A short message that has arrived in one piece is used in place; any other is gathered in the
slot of its request if it has one, else in private memory, which is charged to the client.

A call with many messages processes a bounded number of them per turn of the loop, and none while it
is full. Further bytes wait, and the stream's window is not extended meanwhile. So flow control, not
our memory, holds back a client that sends without reading.
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
"""Cost of a message in `Http2Connection.work`."""
NOWHERE = memoryview(bytearray())
"""The place of a message that is discarded."""


class MessageIntake(Http2Stream, ABC):
    """The receiving half of a call."""

    __slots__ = (
        "_backlog", "_compressed", "_length", "_message_bytes", "_place", "_prefix", "_queued",
        "_tasks", "call_head", "filled", "protocol", "since", "state", "whole",
    )  # fmt: skip

    many = False
    """Whether there may be more than one message."""

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> None:
        super().__init__(protocol.http2, id, head)
        self.protocol = protocol
        self.state = protocol.state
        self.call_head = call_head
        self.since: float | None = None if self.many else protocol.now
        """Time at which the wait for a required message began."""
        self.whole = False
        """Whether a message has arrived."""
        self._prefix = b""
        self._place: memoryview | None = None
        """Memory for the current message; None between messages."""
        self._length = self.filled = 0
        """Length of the current message, and how much of it has arrived."""
        self._compressed = False
        self._backlog = b""
        """Unprocessed bytes."""
        self._queued = False
        """Whether the call waits for a turn of the loop."""
        self._message_bytes = 0
        """Bytes charged to the shared memory limits for messages."""
        self._tasks: set[asyncio.Future[Any]] = set()

    # ---------------------------------------------------------------- for subclasses to override

    def message(self, message: Buffer) -> None:
        """Process a message. A message of at most `DIRECT_BYTES` is only valid until this returns.
        An exception ends the call."""

    def passed_over(self) -> None:
        """Called when a message whose place was `NOWHERE` has arrived."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """End the call with the refusal for an exception."""

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        """Memory for a message with this `beginning`; None: any memory will do."""
        return None

    def is_full(self) -> bool:
        """Whether messages must wait."""
        return False

    def taker(self) -> Callable[[Buffer], None]:
        """The function that processes a message once it is inflated. Other messages may come
        meanwhile."""
        return self.message

    def settle(self) -> None:
        """Called when no message waits. Ends the call if the client has sent everything and has all
        answers."""

    # ---------------------------------------------------------------- data

    def received(self, data: memoryview) -> None:
        try:
            consumed = 0 if self._backlog else self._gather(data)
            if consumed < len(data) and not self.finished:
                self.state.hold(self.protocol.client, len(data) - consumed)
                self._backlog += data[consumed:]
                self.holds = True
                self.go_on()
        except Exception as error:
            self.fail(error)

    def received_all(self) -> None:
        if self._backlog:
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
        """Process waiting messages in a later turn; if there are none, read on and `settle`."""
        if self._backlog:
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
        """Use this turn to process some of the waiting bytes."""
        self._queued = False
        self.connection.work = WORK_AT_ONCE
        try:
            consumed = self._gather(memoryview(self._backlog))
        except Exception as error:
            self.fail(error)
        if self._backlog:  # else the call has ended
            self._release(consumed)
            self._backlog = self._backlog[consumed:]
            if self.ended:
                self.received_all()
            self.go_on()

    # ---------------------------------------------------------------- messages

    def _gather(self, data: memoryview) -> int:
        """Process messages in `data`. Returns how many bytes were used: fewer than all if the call
        must wait."""
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
        """Check the prefix of a message. Raises Refusal or WireError."""
        limit = self.state.limits.max_request_bytes
        if length > limit:
            message = f"message: expected at most {limit} bytes, got {length}"
            raise Refusal(TOO_LONG, message, Reason.TOO_LARGE)
        if flag > 1:
            raise BadField("message", "0 or 1 as compression flag", flag)
        if flag and self.call_head.encoding not in ENCODINGS:
            message = "message: compressed, but grpc-encoding is missing"
            raise Refusal(CONTROL_STATUS["internal"], message)
        if self.whole and not self.many:
            raise BadField("message", "one", "more")
        self._compressed = bool(flag)

    def _find_place(self, length: int, beginning: memoryview) -> memoryview:
        place = None if self._compressed else self.place_for(length, beginning)
        if place is None:
            self.state.hold(self.protocol.client, length)
            self._message_bytes += length
            place = memoryview(bytearray(length))
        return place

    def _take(self, message: memoryview) -> None:
        self.whole, self.since = True, None
        self.connection.work -= MESSAGE_WORK
        if self._compressed:
            most = self.state.limits.max_request_bytes
            largest = self.state.data.largest_body()  # over all models: its own is unknown
            self._inflate(Inflation(message, self.call_head.encoding, most, largest))
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

    # ---------------------------------------------------------------- longer work

    def later(
        self,
        answer: Awaitable[T],
        then: Callable[[T], None],
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Call `then` with the result of a coroutine, which is cancelled if the call ends first.
        `failed` gets an exception of the coroutine or of `then`; None: it fails the call."""
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)

        def done(task: asyncio.Future[T]) -> None:
            self._tasks.discard(task)
            if task.cancelled() or self.finished:
                return
            # Do not raise it here: its traceback would hold this frame, which holds the task.
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
        """Release the memory of messages, unless one is still being unpacked."""
        if not self._tasks and self._message_bytes:
            self._release(self._message_bytes)
            self._message_bytes = 0

    def let_all_go(self) -> None:
        """Process no more messages and release all their memory."""
        if self._tasks:
            for task in tuple(self._tasks):
                task.cancel()
        self._place = self.since = None
        if self._message_bytes or self._backlog:
            self._release(self._message_bytes + len(self._backlog))
            self._message_bytes, self._backlog = 0, b""

    def _release(self, size: int) -> None:
        """Release bytes charged to the shared memory limits."""
        if size:
            self.state.buffers.release(size, self.protocol.client)


def _inflated(error: Exception) -> Exception:
    """The error of a failed inflation, with gRPC's status for a message that is too long."""
    if isinstance(error, WireError) and error.reason is Reason.TOO_LARGE:
        return Refusal(TOO_LONG, error.message, error.reason)
    return error
