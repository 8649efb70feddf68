"""The sending half of a connection: answers in, frames out, as windows allow.

An answer is sent immediately if it fits into one frame and the windows. Otherwise its data waits in
its stream's `unsent`, and streams take turns, a frame each, whenever there is room again (`pump`).
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
"""Bytes of a body that a client may send before its window is extended."""
SEND_AT_ONCE: Final = 256 * 1024
"""Bytes that one call of `pump` sends."""
MOST_FRAME = 4 * f.FRAME_BYTES
"""Longest frame that we send, even if the client accepts longer ones: other streams wait for its
end."""
PATIENCE: Final = 1000.0
PATIENCE_PER_S: Final = 33.0
"""Frames without progress allowed in a burst, and per second (nghttp2's limits on resets)."""
PATIENCE_PER_PART: Final = 4.0
PATIENCE_PER_FRAME: Final = 2.5
"""Patience restored by each message and by the end of an answer; by each frame of a long answer."""
LEAST_RATE: Final = 16 * 1024
"""Bytes/s at which a client must read blocked answers, like `min_body_rate` for bodies."""
RTT_EVERY_S: Final = 1.0
RTT_LOST_S: Final = 10.0
RTT_PING: Final = b"slackrtt"
_MOST_LEFT: Final = 2048
NOTHING: deque[memoryview] = deque(maxlen=0)


class Http2Stream:
    """A request and its answer. Subclasses override the methods that the connection calls."""

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
        """Processed bytes by which the window has not been extended yet."""
        self.holds = False
        """Whether to extend the window only by calling `connection.grant`."""
        self.missing = head.length
        """Bytes of Content-Length still missing."""
        self.ended = False
        """Whether the client has sent everything."""
        self.finished = False
        """Whether the answer is complete, sent or not."""
        self.unsent: deque[memoryview] = NOTHING
        """Data that waits for a window."""
        self.trailers = b""
        """The trailers, once it is finished."""
        self.stuck_since: float | None = None
        """Time at which `unsent` stopped shrinking; maintained by `is_stuck`."""

    def opened(self) -> None:
        """Called when the header section has arrived."""

    def headed(self, fields: dict[bytes, bytes], ends: bool) -> None:
        """Process the head of the answer to a stream that was dialled, or its trailers."""

    def received(self, data: memoryview) -> None:
        """Process a piece of the body, which is only valid until this returns."""

    def received_all(self) -> None:
        """Called when the body has ended."""

    def aborted(self) -> None:
        """Called when the client resets the stream, disconnects or violates the protocol. No other
        call follows."""

    def sent(self) -> None:
        """Called when some of `unsent` has been sent."""


class SendingHalf:
    """The sending half of `Http2Connection`."""

    def __init__(self, now: float) -> None:
        self._now = now
        self.out: list[Buffer] = []
        """Output, which the owner removes and writes."""
        self.streams: dict[int, Http2Stream] = {}
        self._ending: Http2Stream | None = None
        """The stream that is processing the last of its client's data."""
        self._early_ends: dict[int, None] = {}
        """Ids of streams that ended before their client had sent everything, the latest last."""
        self.patience = PATIENCE
        self.rtt = 0.0
        """Round-trip time of a short message in seconds, once measured: the shortest of the last
        few, because some messages wait behind data."""
        self._rtts: deque[float] = deque(maxlen=8)
        self._rtt_asked, self._rtt_asked_at = False, -inf
        self.initial_window = self.send_window = f.WINDOW
        self._max_frame, self._most_frame = f.FRAME_BYTES, MOST_FRAME
        self._table_prefix = b""
        """Prefix of the next header block."""
        self.blocked: deque[Http2Stream] = deque()
        """Streams with `unsent` data, in order of their turns."""
        self.clogged = False
        """Set by the owner while output would only wait in the socket's buffer."""
        self.last_id = 0
        """Id of the client's latest stream."""
        self.closing = False
        """Whether GOAWAY has been sent, after which new streams are not answered."""
        self._last_answered = 0
        """Id of the last stream that is still answered after GOAWAY."""

    def begin(self, stream: Http2Stream, head: bytes) -> None:
        """Send the header block of an answer; `send` and `finish` follow."""
        self._put_block(stream, head, f.END_HEADERS)

    def send(self, stream: Http2Stream, body: Sequence[Buffer], size: int) -> None:
        """Send `size` bytes of an answer. `pump` sends what does not fit now."""
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
        """End an answer with its trailers. If the answer has not begun, it consists of them
        alone."""
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
        """Send blocked data as windows allow, one frame per stream in turn. False: no more can be
        sent now."""
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
        """Whether an answer has been blocked for `seconds`; each `LEAST_RATE` bytes sent extend
        its time by a second. Call this regularly. `waited`: how much of the time between two
        moments counts."""
        for stream in self.blocked:
            since = stream.stuck_since
            stream.stuck_since = now if since is None else min(since, now)
            if waited(stream.stuck_since, now) >= seconds:
                return True
        return False

    def _send_frame(self, stream: Http2Stream) -> int:
        """Send one frame. Returns its bytes of data."""
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
        """Send the end of an answer."""
        self._put_block(stream, stream.trailers, f.END_HEADERS | f.END_STREAM)
        if not stream.ended and stream is not self._ending:
            # The answer is complete: the client need not send the rest.
            self.out.append(f.reset(stream.id, ErrorCode.NO_ERROR))
            self._note_early_end(stream.id)
        del self.streams[stream.id]

    def _note_early_end(self, id: int) -> None:
        """Remember a stream that ended before its client had sent everything."""
        if len(self._early_ends) >= _MOST_LEFT:
            del self._early_ends[next(iter(self._early_ends))]
        self._early_ends[id] = None

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream without an answer, or in the middle of one."""
        del self.streams[stream.id]
        self.out.append(f.reset(stream.id, code))
        self._note_early_end(stream.id)
        self._drop(stream)

    def _drop(self, stream: Http2Stream) -> None:
        """Stop a stream: nothing more is received or sent."""
        if stream.unsent:
            self.blocked.remove(stream)
            stream.unsent = NOTHING
        stream.finished = True
        stream.aborted()

    def ping(self) -> None:
        """Probe whether the client is still there."""
        self.out.append(f.frame(f.PING, 0, 0, b"slackt?!"))

    def measure_rtt(self, now: float) -> None:
        """Start measuring `rtt`, unless a measurement is running or less than a second old."""
        wait = RTT_LOST_S if self._rtt_asked else RTT_EVERY_S
        if not self.closing and now - self._rtt_asked_at >= wait:
            self._rtt_asked, self._rtt_asked_at = True, now
            self.out.append(f.frame(f.PING, 0, 0, RTT_PING))

    def go_away(self) -> None:
        """Tell the client that no new request will be answered."""
        if not self.closing:
            self.closing = True
            self._last_answered = self.last_id
            self.out.append(f.goaway(self.last_id, ErrorCode.NO_ERROR))
