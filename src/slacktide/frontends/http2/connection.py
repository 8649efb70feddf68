"""`Http2Connection`: the server's side of an HTTP/2 connection (RFC 9113), without a socket.

Bytes and `now` go in (`receive`), bytes come out (`out`). The parts of a request go to its
`Http2Stream`, whose subclass processes them and answers (`sending.py`).

Limits on a peer. A call of `receive` does a bounded amount of `work`; the remaining bytes wait for
a later turn. Frames that advance no request (PING, SETTINGS, resets, updates, empty data) use up
`patience`, which grows with time and with every answer; without it the connection ends. Windows
are extended as data is processed, so the owner of a stream must bound what it keeps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode, Http2Error, expect
from slacktide.frontends.http2.heads import Head, HeadReader
from slacktide.frontends.http2.reading import Buffer, Http2Reader
from slacktide.frontends.http2.sending import (
    NOTHING,
    PATIENCE,
    PATIENCE_PER_S,
    RTT_PING,
    STREAM_WINDOW,
    Http2Stream,
    SendingHalf,
)

CONNECTION_WINDOW: Final = 1 << 24
"""Bytes that a client may send, over all bodies, before the window is extended."""
WORK_AT_ONCE: Final = 512
"""Work of one call of `receive`, about a millisecond or two. A frame costs 1."""
HEAD_WORK: Final = 16
"""Cost of a request, in addition to its header block (`heads.py`)."""
SETTINGS_PER_WORK: Final = 10
STREAMS_PER_WORK: Final = 16
"""Settings that are processed, and streams whose windows are changed, for one unit of work."""
_MOST_SKIPPED: Final = 16
_BAD_UPDATE: Final = "WINDOW_UPDATE: zero, or beyond the largest window"
FEW_BYTES: Final = 64
"""Shorter data frames that do not end a body use up patience."""


class Http2Connection(SendingHalf):
    """The server's side of a connection. `open_stream` makes the stream of a request."""

    def __init__(
        self,
        open_stream: Callable[[int, Head], Http2Stream],
        *,
        max_streams: int,
        max_list: int,
        now: float,
    ) -> None:
        """`max_streams`: concurrent streams; `max_list`: maximum bytes of a request's fields."""
        super().__init__(now)
        self._open_stream = open_stream
        self._max_streams = max_streams
        self._heads = HeadReader(max_list)
        self.frames = Http2Reader()
        self._refilled = now
        self.work = 0
        """Remaining work of this call of `receive`, or of a stream's turn."""
        self.can_resume = False
        """Whether another call of `receive` would process pending bytes."""
        self.unfinished_since: float | None = now
        """Time at which the unfinished preface, frame or header block began."""
        self._skipped: deque[range] = deque(maxlen=_MOST_SKIPPED)
        """Stream ids that the client skipped, the latest last. They can no longer begin."""
        self._data_stream: Http2Stream | None = None
        """The stream whose data is arriving."""
        self._credit = f.WINDOW
        self.closed = False
        """Whether the connection has ended: further bytes are ignored."""
        self.orphans: list[Http2Stream] = []
        """Streams of a lost client that `drop` still has to abort."""
        values = (
            (f.MAX_STREAMS, max_streams),
            (f.INITIAL_WINDOW, STREAM_WINDOW),
            (f.MAX_HEADERS, max_list),
        )
        self.out.append(f.settings(values))
        self._grant_connection()

    # ---------------------------------------------------------------- bytes in

    def receive(self, data: Buffer, now: float) -> None:
        """Process the next bytes, after the pending ones. A violation of the protocol ends the
        connection: it is `closed`, with GOAWAY in `out`."""
        if self.closed:
            return
        self._now = now
        self.work = WORK_AT_ONCE
        frames, progress = self.frames, False
        frames.feed(data)
        try:
            while self.work > 0 and frames.next():
                self.work -= 1
                progress = True
                kind = frames.kind
                if kind == f.DATA:
                    self._take_data(frames)
                elif kind == f.HEADERS:
                    ends = bool(frames.flags & f.END_STREAM)
                    self._take_head(frames.id, bytes(frames.payload), ends)
                else:
                    self._take_frame(kind, frames.flags, frames.id, frames.payload)
        except Http2Error as error:
            self.end(error.code, error.message)
        frames.hold()
        self.can_resume = self.work <= 0 and bool(frames.pending) and not self.closed
        if self.can_resume or not frames.unfinished:
            self.unfinished_since = None
        elif progress or self.unfinished_since is None:
            self.unfinished_since = now

    def hold(self, data: Buffer) -> None:
        """Keep bytes for the next `receive`."""
        self.frames.pending += data
        self.can_resume = True

    # ---------------------------------------------------------------- bodies in

    def _take_data(self, frames: Http2Reader) -> None:
        """Process a frame of data, or a piece of one."""
        if frames.is_first:
            self._data_stream = self._begin_data(frames.id, frames.length)
            if frames.size < FEW_BYTES and not frames.flags & f.END_STREAM:
                self._spend_patience(1.0)
        stream, count = self._data_stream, len(frames.payload)
        if stream is None:
            return
        last = bool(frames.is_last and frames.flags & f.END_STREAM)
        if stream.missing is not None:
            stream.missing -= count
            if stream.missing < 0 or (stream.missing and last):
                self._data_stream = None
                self._break(stream, ErrorCode.PROTOCOL_ERROR)
                return
        if count and not stream.finished:
            self._ending = stream if last else None
            stream.received(frames.payload)
            self._ending = None
        if last:
            self._finish_body(stream)
        elif frames.is_last and stream.owed >= STREAM_WINDOW // 2 and not stream.holds:
            self.grant(stream)

    def _begin_data(self, id: int, length: int) -> Http2Stream | None:
        """Begin a frame of data. Returns its stream; None if the stream has ended."""
        stream = self.streams.get(id)
        self._credit -= length
        if self._credit < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "data beyond the connection's window")
        if self._credit < CONNECTION_WINDOW // 2:
            self._grant_connection()
        if stream is None:
            self._expect_early_end(id, "data for no stream")
            return None
        stream.credit -= length
        stream.owed += length
        if stream.ended or stream.credit < 0:
            self._break(
                stream, ErrorCode.STREAM_CLOSED if stream.ended else ErrorCode.FLOW_CONTROL_ERROR
            )
            return None
        return stream

    def _finish_body(self, stream: Http2Stream) -> None:
        """Handle the end of a request's body."""
        stream.ended = True
        if not stream.finished:
            stream.received_all()

    def grant(self, stream: Http2Stream) -> None:
        """Extend the stream's window by what has been processed."""
        if stream.owed and not (stream.ended or stream.finished or self.closed):
            self.out.append(f.window_update(stream.id, stream.owed))
            stream.credit += stream.owed
            stream.owed = 0

    def widen(self, stream: Http2Stream) -> None:
        """Send and accept messages of up to a megabyte in one frame, without waiting for a window.
        For a connection with one long stream, since other streams would wait behind it."""
        self._most_frame = self.frames.longest_data = STREAM_WINDOW
        self.out.append(f.settings(((f.MAX_FRAME, STREAM_WINDOW),)))
        self.out.append(f.window_update(stream.id, STREAM_WINDOW))
        stream.credit += STREAM_WINDOW

    def _grant_connection(self) -> None:
        self.out.append(f.window_update(0, CONNECTION_WINDOW - self._credit))
        self._credit = CONNECTION_WINDOW

    # ---------------------------------------------------------------- other frames in

    def _take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        self._spend_patience(1.0)
        if kind == f.WINDOW_UPDATE:
            self._take_window(id, payload)
        elif kind == f.RST_STREAM:
            _expect_length(payload, 4)
            self._expect_used(id)
            stream = self.streams.pop(id, None)
            if stream is not None:
                self._drop(stream)
        elif kind == f.SETTINGS:
            expect(not id, "SETTINGS on a stream")
            self._take_settings(bool(flags & f.ACK), payload)
        elif kind == f.PING:
            expect(not id, "PING on a stream")
            _expect_length(payload, 8)
            if not flags & f.ACK:
                self.out.append(f.frame(f.PING, f.ACK, 0, bytes(payload)))
            elif self._rtt_asked and bytes(payload) == RTT_PING:
                self._rtt_asked = False
                self._rtts.append(max(0.0, self._now - self._rtt_asked_at))
                self.rtt = min(self._rtts)
        elif kind == f.PUSH_PROMISE:
            expect(False, "a client cannot push")
        elif kind == f.PRIORITY:
            expect(id, "PRIORITY on no stream")
            _expect_length(payload, 5)
        elif kind == f.GOAWAY:
            expect(not id, "GOAWAY on a stream")

    def _take_head(self, id: int, block: bytes, ends: bool) -> None:
        expect(id & 1, "HEADERS on a stream that is not a client's")
        head = self._heads.read(block)
        self.work -= HEAD_WORK + self._heads.work
        if id <= self.last_id:
            self._take_trailers(id, head, ends)
            return
        skipped = range(id - 2, self.last_id, -2)
        if skipped:
            self._skipped.append(skipped)
        self.last_id = id
        if self.closing:
            self._spend_patience(1.0)
        elif len(self.streams) >= self._max_streams:
            self._refuse(id, ErrorCode.REFUSED_STREAM)
        elif head.fault or not head.can_begin or (ends and head.length):
            self._refuse(id, ErrorCode.PROTOCOL_ERROR)
        else:
            stream = self.streams[id] = self._open_stream(id, head)
            stream.ended = ends
            stream.opened()
            if ends:
                self._finish_body(stream)

    def _take_trailers(self, id: int, head: Head, ends: bool) -> None:
        stream = self.streams.get(id)
        if stream is None:
            self._expect_early_end(id, "HEADERS on a stream that has ended")
        elif stream.ended:
            self._break(stream, ErrorCode.STREAM_CLOSED)
        elif not ends or head.fault or not head.can_trail or stream.missing:
            self._break(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._finish_body(stream)

    def _take_window(self, id: int, payload: memoryview) -> None:
        _expect_length(payload, 4)
        increment = int.from_bytes(payload) & 0x7FFFFFFF
        fault = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
        if not id:
            self.send_window += increment
            expect(increment and self.send_window <= f.LARGEST_WINDOW, _BAD_UPDATE, fault)
            return
        self._expect_used(id)
        stream = self.streams.get(id)
        if stream is not None:
            stream.send_window += increment
            if not increment or stream.send_window > f.LARGEST_WINDOW:
                self._break(stream, fault)

    def _take_settings(self, acknowledges: bool, payload: memoryview) -> None:
        if len(payload) % f.SETTING.size or (acknowledges and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of invalid length")
        if acknowledges:
            return
        cost, window = len(payload) // (SETTINGS_PER_WORK * f.SETTING.size), self.initial_window
        self.work -= cost
        self._spend_patience(cost)
        for name, value in f.SETTING.iter_unpack(payload):
            if name == f.INITIAL_WINDOW:
                if value > f.LARGEST_WINDOW:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS: window too large")
                window = value
            elif name == f.MAX_FRAME:
                expect(f.FRAME_BYTES <= value <= f.LARGEST_FRAME, "SETTINGS: invalid frame size")
                self._max_frame = min(value, self._most_frame)
            elif name == f.ENABLE_PUSH:
                expect(value <= 1, "SETTINGS: ENABLE_PUSH is not 0 or 1")
            elif name == f.TABLE_SIZE:
                self._table_prefix = f.SHRINK_TABLE
        if window != self.initial_window:
            self._move_windows(window)
        self.out.append(f.frame(f.SETTINGS, f.ACK, 0))

    def _move_windows(self, window: int) -> None:
        """Change the window of all streams: once per frame, however often the frame sets it."""
        growth, self.initial_window = window - self.initial_window, window
        cost = len(self.streams) // STREAMS_PER_WORK
        self.work -= cost
        self._spend_patience(cost)
        for stream in self.streams.values():
            stream.send_window += growth
            if stream.send_window > f.LARGEST_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS: a window grows too large")

    def _expect_used(self, id: int) -> None:
        expect(id & 1 and id <= self.last_id, "a frame for no stream")

    def _expect_early_end(self, id: int, message: str) -> None:
        """Accept a frame for an ended stream only if the client may have sent it before it learned
        of the end."""
        expect(id & 1 and id <= self.last_id, message)
        expect(not any(id in skipped for skipped in self._skipped), "a stream that was skipped")
        crossed = id in self._early_ends or (self.closing and id > self._last_answered)
        expect(crossed, message, ErrorCode.STREAM_CLOSED)
        self._spend_patience(0.1)

    def _spend_patience(self, cost: float) -> None:
        """Charge patience for a frame that advances no request."""
        self.patience = min(PATIENCE, self.patience) - cost
        if self.patience < 0:
            passed, self._refilled = self._now - self._refilled, self._now
            self.patience = min(PATIENCE, passed * PATIENCE_PER_S) - cost
            if self.patience < 0:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without a request")

    # ---------------------------------------------------------------- ends

    def _refuse(self, id: int, code: ErrorCode) -> None:
        """Refuse a request before it begins."""
        self.out.append(f.reset(id, code))
        self._note_early_end(id)
        self._spend_patience(1.0)

    def _break(self, stream: Http2Stream, code: ErrorCode) -> None:
        """Reset a stream on which the client violated the protocol."""
        self.reset(stream, code)
        self._spend_patience(1.0)

    def end(self, code: ErrorCode, message: str) -> None:
        """End the connection with GOAWAY."""
        if not self.closed:
            last = self._last_answered if self.closing else self.last_id
            self.out.append(f.goaway(last, code, message))
        self.lose()

    def lose(self) -> None:
        """Close the connection without telling the client. `drop` aborts its streams."""
        self.closed = self.closing = True
        # Break reference cycles: these refer back to this connection or its owner.
        self._open_stream, self._data_stream = _open_none, None
        self.can_resume = False
        self.blocked.clear()
        for stream in self.streams.values():
            stream.finished = True
            stream.unsent = NOTHING
        self.orphans += self.streams.values()
        self.streams = {}

    def drop(self, most: int) -> None:
        """Abort at most `most` streams of a client that is gone."""
        for _ in range(min(most, len(self.orphans))):
            self.orphans.pop().aborted()


def _open_none(id: int, head: Head) -> Http2Stream:
    raise Http2Error(ErrorCode.REFUSED_STREAM, "the connection is closed")


def _expect_length(payload: memoryview, length: int) -> None:
    expect(len(payload) == length, "a frame of invalid length", ErrorCode.FRAME_SIZE_ERROR)
