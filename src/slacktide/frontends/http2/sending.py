"""The sending half of a connection: answers in, frames out, as windows allow.

An answer goes out whole if it fits one frame and the windows; else its data waits in `unsent` of
its stream, and streams take turns, a frame each, whenever there is room again (`pump`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Final

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode
from slacktide.frontends.http2.heads import Head
from slacktide.frontends.http2.reading import Buffer

if TYPE_CHECKING:
    from slacktide.frontends.http2.connection import Http2Connection

STREAM_WINDOW: Final = 1 << 20
"""Bytes that a client may send of a body before it hears that some were taken."""
SEND_AT_ONCE: Final = 256 * 1024
"""Bytes that one call of `pump` puts out."""
MOST_FRAME = 4 * f.FRAME_BYTES
"""Longest frame that we send, even if the client takes longer ones: others wait for its end."""
PATIENCE: Final = 1000.0
PATIENCE_PER_S: Final = 33.0
"""Frames in excess that are borne at once, and in a second (nghttp2's limits on resets)."""
PATIENCE_PER_PART: Final = 4.0
PATIENCE_PER_FRAME: Final = 2.5
"""Given back with a message and with the end of an answer, and with a frame of one that is long."""
LEAST_RATE: Final = 16 * 1024
"""Bytes/s at which a client must take what its windows hold back (as bodies must come)."""
RTT_EVERY_S: Final = 1.0
RTT_LOST_S: Final = 10.0
RTT_PING: Final = b"slackrtt"
_MOST_LEFT: Final = 2048
NOTHING: deque[memoryview] = deque(maxlen=0)


class Http2Stream:
    """A request and its answer. What is called from the connection is for subclasses to take."""

    __slots__ = (
        "connection", "credit", "ended", "finished", "head", "holds", "id", "missing", "owed",
        "send_window", "stuck_since", "trailers", "unsent",
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
        self.unsent: deque[memoryview] = NOTHING
        """Data that waits for a window."""
        self.trailers = b""
        """What follows, once it is finished."""
        self.stuck_since: float | None = None
        """Since when `unsent` has not got on; kept by `is_stuck`."""

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
        self._ending: Http2Stream | None = None
        """The stream that is taking the last of its client's data."""
        self._left: dict[int, None] = {}
        """Streams that ended before their client had sent all, the latest last."""
        self.patience = PATIENCE
        self.rtt = 0.0
        """Seconds that a message of no length needs there and back, where that was measured: the
        least of the last times, as others wait behind data."""
        self._rtts: deque[float] = deque(maxlen=8)
        self._rtt_asked, self._rtt_asked_at = False, -inf
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

    def begin(self, stream: Http2Stream, head: bytes) -> None:
        """The header block of an answer, which goes on with `send` and ends with `finish`."""
        self._put_block(stream, head, f.END_HEADERS)

    def send(self, stream: Http2Stream, body: Sequence[Buffer], size: int) -> None:
        """Data of an answer that has begun, `size` bytes: what does not fit is sent by `pump`."""
        self.patience += PATIENCE_PER_PART
        if not size:
            return
        if (
            size > self._max_frame
            or size > self.send_window
            or size > stream.send_window
            or self.clogged
            or stream.unsent
        ):
            if not stream.unsent:
                stream.unsent = deque()
                self.blocked.append(stream)
            stream.unsent.extend(memoryview(piece) for piece in body if piece)
        else:
            self._put_data(stream, size, body)

    def finish(self, stream: Http2Stream, trailers: bytes) -> None:
        """The end of an answer; all of it, if it has not begun."""
        self.patience += PATIENCE_PER_PART
        stream.finished = True
        stream.trailers = trailers
        if not stream.unsent:
            self._finish(stream)

    def _put_block(self, stream: Http2Stream, block: bytes, flags: int) -> None:
        if self._table_prefix:
            block, self._table_prefix = self._table_prefix + block, b""
        self.out.append(f.frame(f.HEADERS, flags, stream.id, block))

    def _put_data(self, stream: Http2Stream, size: int, pieces: Sequence[Buffer]) -> None:
        stream.send_window -= size
        self.send_window -= size
        self.out.append(f.frame_head(size, f.DATA, 0, stream.id))
        self.out += pieces

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

    def is_stuck(self, now: float, seconds: float, waited: Callable[[float, float], float]) -> bool:
        """Whether one of the answers has not got on for so long: each `LEAST_RATE` bytes that were
        taken give it a second more. To be asked now and then. `waited`: how much of the time
        between two moments counts."""
        for stream in self.blocked:
            since = stream.stuck_since
            stream.stuck_since = now if since is None else min(since, now)
            if waited(stream.stuck_since, now) >= seconds:
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
        self._put_data(stream, size, pieces)
        if stream.stuck_since is not None:
            stream.stuck_since += size / LEAST_RATE
        self.patience += PATIENCE_PER_FRAME
        if not unsent:
            stream.stuck_since = None
            if stream.finished:
                self._finish(stream)
        stream.sent()
        return size

    def _finish(self, stream: Http2Stream) -> None:
        """All of an answer is out but its end."""
        self._put_block(stream, stream.trailers, f.END_HEADERS | f.END_STREAM)
        if not stream.ended and stream is not self._ending:
            # The answer is complete: the client need not send the rest.
            self.out.append(f.reset(stream.id, ErrorCode.NO_ERROR))
            self._leave(stream.id)
        del self.streams[stream.id]

    def _leave(self, id: int) -> None:
        """A stream has ended before its client has sent all."""
        if len(self._left) >= _MOST_LEFT:
            del self._left[next(iter(self._left))]
        self._left[id] = None

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream without an answer, or in the middle of it."""
        del self.streams[stream.id]
        self.out.append(f.reset(stream.id, code))
        self._leave(stream.id)
        self._drop(stream)

    def _drop(self, stream: Http2Stream) -> None:
        """Nothing goes in or out of it any more."""
        if stream.unsent:
            self.blocked.remove(stream)
            stream.unsent = NOTHING
        stream.finished = True
        stream.aborted()

    def ping(self) -> None:
        """Ask whether the client is there."""
        self.out.append(f.frame(f.PING, 0, 0, b"slackt?!"))

    def measure_rtt(self, now: float) -> None:
        """Have `rtt` measured, unless it is being, or was within the last second."""
        wait = RTT_LOST_S if self._rtt_asked else RTT_EVERY_S
        if not self.closing and now - self._rtt_asked_at >= wait:
            self._rtt_asked, self._rtt_asked_at = True, now
            self.out.append(f.frame(f.PING, 0, 0, RTT_PING))

    def go_away(self) -> None:
        """Answer no request that begins from now on; the client learns which those are."""
        if not self.closing:
            self.closing = True
            self._served = self.last
            self.out.append(f.goaway(self.last, ErrorCode.NO_ERROR))
