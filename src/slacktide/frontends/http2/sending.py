"""The sending half of a connection: answers in, frames out, as windows allow.

An answer goes out whole if it fits one frame and the windows; else its data waits in `unsent` of
its stream, and streams take turns, a frame each, whenever there is room again (`pump`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode
from slacktide.frontends.http2.heads import Head

if TYPE_CHECKING:
    from slacktide.frontends.http2.connection import Http2Connection

Buffer: TypeAlias = "bytes | bytearray | memoryview"

STREAM_WINDOW = 1 << 20
"""Bytes that a client may send of a body before it hears that some were taken."""
SEND_AT_ONCE = 256 * 1024
"""Bytes that one call of `pump` puts out."""
MOST_FRAME = 4 * f.FRAME_BYTES
"""Longest frame that we send, even if the client takes longer ones: others wait for its end."""
PATIENCE = 1000.0
PATIENCE_PER_S = 33.0
"""Frames in excess that are borne at once, and in a second (nghttp2's limits on resets)."""
PATIENCE_PER_ANSWER, PATIENCE_PER_FRAME = 8.0, 2.5
"""Given back with an answer, and with a frame of one that is long."""
_LEFT_KEPT = 256
_NOTHING: deque[memoryview] = deque(maxlen=0)


class Http2Stream:
    """A request and its answer. What is called from the connection is for subclasses to take."""

    __slots__ = (
        "blocked_since", "connection", "credit", "ended", "finished", "head", "holds", "id",
        "missing", "owed", "send_window", "trailers", "unsent",
    )  # fmt: skip

    def __init__(self, connection: Http2Connection, id: int, head: Head) -> None:
        self.connection = connection
        self.id = id
        self.head = head
        self.send_window = connection.initial_window
        self.credit = STREAM_WINDOW
        """Bytes that the client may still send."""
        self.owed = 0
        """Bytes taken that it has not been told of."""
        self.holds = False
        """True: grant no more for now. Then `connection.grant` goes on."""
        self.missing = head.length
        """What is left of its Content-Length."""
        self.ended = False
        """The client has sent all."""
        self.finished = False
        """We have; whether or not it has gone out."""
        self.unsent: deque[memoryview] = _NOTHING
        """Data that waits for a window."""
        self.trailers: bytes | None = None
        """What follows `unsent`."""
        self.blocked_since: float | None = None
        """Since when none of `unsent` has gone out; kept by `is_stuck`."""

    def opened(self) -> None:
        """The header section is here."""

    def received(self, data: memoryview) -> None:
        """A piece of the body, to be taken or copied before this returns."""

    def received_all(self) -> None:
        """The body has ended."""

    def aborted(self) -> None:
        """The client has reset the stream, or is gone, or has broken a rule. Nothing follows."""

    def sent(self) -> None:
        """Some of `unsent` has gone out."""


class SendingHalf:
    """What `Http2Connection` sends."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.out: list[Buffer] = []
        """What is to be sent; the owner takes it out."""
        self.streams: dict[int, Http2Stream] = {}
        self._left: deque[int] = deque(maxlen=_LEFT_KEPT)
        """Streams that ended before their client had sent all."""
        self.patience = PATIENCE
        self.initial_window = self.send_window = f.WINDOW
        self._max_frame = f.FRAME_BYTES
        self._table_prefix = b""
        """Of the next header block."""
        self.blocked: deque[Http2Stream] = deque()
        """Streams with something `unsent`, in turn."""
        self.clogged = False
        """Told by the owner: what is put out now would only wait."""
        self.last = 0
        """The latest stream of the client."""
        self.closing = False
        """GOAWAY has been sent: streams that begin now are not answered."""
        self._served = 0
        """The latest that is, then."""

    def respond(
        self, stream: Http2Stream, head: bytes, body: Sequence[Buffer], trailers: bytes
    ) -> None:
        """A whole answer: header block, data (may be empty), and trailers ("" : none)."""
        size = sum(map(len, body))
        id, out, ends = stream.id, self.out, f.END_HEADERS | f.END_STREAM
        if self._table_prefix:
            head, self._table_prefix = self._table_prefix + head, b""
        if not size:
            out.append(f.frame(f.HEADERS, f.END_HEADERS if trailers else ends, id, head))
            if trailers:
                out.append(f.frame(f.HEADERS, ends, id, trailers))
        elif (
            size <= self._max_frame
            and size <= self.send_window
            and size <= stream.send_window
            and not self.clogged
        ):
            self.send_window -= size
            out.append(f.frame(f.HEADERS, f.END_HEADERS, id, head))
            out.append(f.frame_head(size, f.DATA, 0, id))
            out += body
            out.append(f.frame(f.HEADERS, ends, id, trailers))
        else:
            out.append(f.frame(f.HEADERS, f.END_HEADERS, id, head))
            stream.trailers = trailers
            stream.finished = True
            self._queue(stream, body)
            return
        self._finished(stream)

    def begin(self, stream: Http2Stream, head: bytes) -> None:
        """The header block of an answer that goes on with `send`, and ends with `finish`."""
        if self._table_prefix:
            head, self._table_prefix = self._table_prefix + head, b""
        self.out.append(f.frame(f.HEADERS, f.END_HEADERS, stream.id, head))

    def send(self, stream: Http2Stream, body: Sequence[Buffer]) -> None:
        """More data of an answer that has begun: sent by `pump`."""
        self._credit_patience(PATIENCE_PER_ANSWER)
        self._queue(stream, body)

    def finish(self, stream: Http2Stream, trailers: bytes) -> None:
        """The end of an answer that has begun."""
        if stream.unsent:
            stream.trailers = trailers
            stream.finished = True
        else:
            ends = f.END_HEADERS | f.END_STREAM
            self.out.append(f.frame(f.HEADERS, ends, stream.id, trailers))
            self._finished(stream)

    def _queue(self, stream: Http2Stream, body: Sequence[Buffer]) -> None:
        if not stream.unsent:
            stream.unsent = deque()
            self.blocked.append(stream)
        stream.unsent.extend(memoryview(piece) for piece in body if piece)

    def pump(self) -> bool:
        """Send what is queued, as windows allow: streams in turn, a frame each. False: no more can
        be sent now."""
        blocked, room = self.blocked, SEND_AT_ONCE
        untried = len(blocked)
        while untried and room > 0 and self.send_window > 0:
            stream = blocked.popleft()
            count = self._send_frame(stream)
            if stream.unsent:
                blocked.append(stream)
            room -= count
            untried = len(blocked) if count else untried - 1
        return room <= 0

    def is_stuck(self, now: float, seconds: float) -> bool:
        """Whether one of the streams has not got on for so long. To be asked now and then."""
        for stream in self.blocked:
            if stream.blocked_since is None:
                stream.blocked_since = now
            elif now - stream.blocked_since >= seconds:
                return True
        return False

    def _send_frame(self, stream: Http2Stream) -> int:
        """Returns how many bytes of data it has."""
        unsent, most = stream.unsent, min(self._max_frame, self.send_window, stream.send_window)
        size, pieces = 0, []
        while unsent and size < most:
            piece = unsent[0][: most - size]
            if len(piece) == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][len(piece) :]
            pieces.append(piece)
            size += len(piece)
        if not size:
            return 0
        stream.send_window -= size
        self.send_window -= size
        stream.blocked_since = None
        self._credit_patience(PATIENCE_PER_FRAME)
        self.out.append(f.frame_head(size, f.DATA, 0, stream.id))
        self.out += pieces
        if not unsent and stream.trailers is not None:
            ends = f.END_HEADERS | f.END_STREAM
            self.out.append(f.frame(f.HEADERS, ends, stream.id, stream.trailers))
            self._finished(stream)
        stream.sent()
        return size

    def _finished(self, stream: Http2Stream) -> None:
        """All of an answer is out."""
        stream.finished = True
        self._credit_patience(PATIENCE_PER_ANSWER)
        if not stream.ended:
            # The answer is complete: the client need not send the rest.
            self.out.append(f.reset(stream.id, ErrorCode.NO_ERROR))
            self._left.append(stream.id)
        self.streams.pop(stream.id, None)

    def _credit_patience(self, more: float) -> None:
        self.patience = min(PATIENCE, self.patience + more)

    def _drop(self, stream: Http2Stream) -> None:
        """Nothing goes in or out of it any more."""
        if stream.unsent:
            self.blocked.remove(stream)
            stream.unsent = _NOTHING
        stream.finished = True
        stream.aborted()

    def ping(self) -> None:
        """Ask whether the client is there."""
        self.out.append(f.frame(f.PING, 0, 0, b"slackt?!"))

    def go_away(self) -> None:
        """Answer no request that begins from now on; the client learns which those are."""
        if not self.closing:
            self.closing = True
            self._served = self.last
            self.out.append(f.goaway(self.last, ErrorCode.NO_ERROR))
