"""`Http2Connection`: the server's side of one HTTP/2 connection (RFC 9113), without a socket.

Bytes and `now` go in (`receive`), bytes come out (`out`). What a request is made of goes to its
`Http2Stream`, of which a subclass takes it and answers (`sending.py`).

How much a peer may ask for. A call of `receive` takes so many frames and no more; the rest is
`held` for a later turn. Frames that bring no request further (PING, SETTINGS, resets, updates,
empty data) use up `patience`, which answers and time give back; without patience the connection
ends. Windows are granted as data is taken, so what a stream keeps is for its owner to bound.
"""

from __future__ import annotations

from collections.abc import Callable

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode, Http2Error
from slacktide.frontends.http2.heads import Head, HeadReader
from slacktide.frontends.http2.sending import (
    MOST_FRAME,
    PATIENCE,
    PATIENCE_PER_S,
    STREAM_WINDOW,
    Buffer,
    Http2Stream,
    SendingHalf,
)

CONNECTION_WINDOW = 1 << 24
"""Bytes that a client may send of all bodies before it hears that some were taken."""
HEADS_AT_ONCE = 32
FRAMES_AT_ONCE = 512
"""Requests and frames that one call of `receive` takes: a millisecond or two."""
FEW_BYTES = 64
"""Data frames shorter than that, which do not end a body, are in excess."""
MOST_CONTINUATIONS = 32


class Http2Connection(SendingHalf):
    """One connection. `open_stream` makes the stream of a request."""

    def __init__(
        self,
        open_stream: Callable[[int, Head], Http2Stream],
        *,
        max_streams: int,
        max_list: int,
        now: float,
    ) -> None:
        """`max_streams` at a time; `max_list`: bytes of fields that a request may have."""
        super().__init__(now)
        self._open_stream = open_stream
        self._max_streams = max_streams
        self._heads = HeadReader(max_list)
        self._refilled = now
        self.held = b""
        """What waits for the next call of `receive`: the beginning of a frame, or more."""
        self.more = False
        """`held` has whole frames, too."""
        self.unfinished_since: float | None = now
        """Since when a preface or header block has been on its way."""
        self._preface = True
        self._first = True
        """No frame has come."""
        self._data_left = self._padding_left = 0
        """Of the data frame that is coming."""
        self._data_ends = False
        self._data_stream: Http2Stream | None = None
        self._block: bytearray | None = None
        """A header block whose end has not come."""
        self._block_id = self._block_ends = self._continuations = 0
        self._credit = f.WINDOW
        self.closed = False
        """Nothing more is taken."""
        self.out.append(
            f.settings(
                (
                    (f.MAX_STREAMS, max_streams),
                    (f.INITIAL_WINDOW, STREAM_WINDOW),
                    (f.MAX_HEADERS, max_list),
                )
            )
        )
        self._grant_connection()

    # ---------------------------------------------------------------- bytes in

    def receive(self, data: Buffer, now: float) -> None:
        """Take the next bytes, behind those that are held. What breaks a rule of connections ends
        this one: `closed`, with GOAWAY in `out`."""
        self._now = now
        try:
            self._receive(data)
        except Http2Error as error:
            self.end(error.code, error.message)

    def hold(self, data: Buffer) -> None:
        """Keep bytes for the next call of `receive`."""
        self.held += data
        self.more = True

    def _receive(self, data: Buffer) -> None:
        view = memoryview(self.held + data) if self.held else memoryview(data)
        at, end = 0, len(view)
        self.held, self.more = b"", False
        if self._preface:
            begun = bytes(view[: len(f.PREFACE)])
            if not f.PREFACE.startswith(begun):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC)")
            if len(begun) < len(f.PREFACE):
                self.held = begun
                return
            self._preface, at = False, len(begun)
        heads, left, began = HEADS_AT_ONCE, FRAMES_AT_ONCE, at
        unpack = f.FRAME_HEAD.unpack_from
        while at < end and not self.closed:
            if self._data_left or self._padding_left:
                at = self._take_data(view, at, end)
                continue
            if end - at < f.HEAD_BYTES:
                break
            word, flags, id = unpack(view, at)
            kind, length, id = word & 0xFF, word >> 8, id & 0x7FFFFFFF
            if length > f.FRAME_BYTES:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
            body = at + f.HEAD_BYTES
            if self._first and kind != f.SETTINGS:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "expected SETTINGS first")
            if (self._block is None) is (kind == f.CONTINUATION):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block is cut")
            if left == 0 or heads == 0:
                self.more = True
                break
            if kind == f.DATA:
                padded = flags & f.PADDED
                if padded and end == body:
                    break
                self._begin_data(id, length, flags, view[body] if padded else None)
                at = body + (1 if padded else 0)
                if not self._data_left:
                    self._took(view[at:at])
            elif end - body < length:
                break
            else:
                at = body + length
                self._take_frame(kind, flags, id, view[body:at])
                heads -= kind == f.HEADERS
            left -= 1
        if at < end and not self.closed:
            self.held = bytes(view[at:])
        if (self.more or not self.held) and not self._first and self._block is None:
            self.unfinished_since = None
        elif self.unfinished_since is None or (at > began and self._block is None):
            self.unfinished_since = self._now

    # ---------------------------------------------------------------- bodies in

    def _begin_data(self, id: int, length: int, flags: int, padding: int | None) -> None:
        stream = self.streams.get(id)
        if stream is None and (id > self.last or not id & 1):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "data for no stream")
        self._credit -= length
        if self._credit < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "data beyond the connection's window")
        if self._credit < CONNECTION_WINDOW // 2:
            self._grant_connection()
        pad = 0
        if padding is not None:
            pad = padding
            length -= 1
            if pad > length:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        self._data_left, self._padding_left = length - pad, pad
        self._data_ends = bool(flags & f.END_STREAM)
        if length - pad < FEW_BYTES and not self._data_ends:
            self._bear(1.0)
        if stream is not None:
            taken = length if padding is None else length + 1
            stream.credit -= taken
            if stream.ended:
                self.reset(stream, ErrorCode.STREAM_CLOSED)
                stream = None
            elif stream.credit < 0:
                self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
                stream = None
            else:
                stream.owed += taken
        elif self._data_ends is False:
            self._bear(0.1)
        self._data_stream = stream

    def _take_data(self, view: memoryview, at: int, end: int) -> int:
        """What is here of a data frame. Returns where that ends."""
        count = min(self._data_left, end - at)
        if count:
            self._took(view[at : at + count])
            at += count
        skip = min(self._padding_left, end - at)
        self._padding_left -= skip
        return at + skip

    def _took(self, data: memoryview) -> None:
        """A piece of a data frame."""
        count = len(data)
        self._data_left -= count
        stream = self._data_stream
        if stream is None:
            return
        if stream.missing is not None:
            stream.missing -= count
            if stream.missing < 0 or (stream.missing and self._data_ends and not self._data_left):
                self._data_stream = None
                self.reset(stream, ErrorCode.PROTOCOL_ERROR)
                return
        if count and not stream.finished:
            stream.received(data)
        if not self._data_left:
            self._data_stream = None
            if self._data_ends:
                self._took_all(stream)
            elif stream.owed >= STREAM_WINDOW // 2 and not (stream.holds or stream.finished):
                self.grant(stream)

    def _took_all(self, stream: Http2Stream) -> None:
        stream.ended = True
        if not stream.finished:
            stream.received_all()

    def grant(self, stream: Http2Stream) -> None:
        """Tell the client how much of the stream has been taken."""
        if stream.owed and not stream.ended and not self.closed:
            self.out.append(f.window_update(stream.id, stream.owed))
            stream.credit += stream.owed
            stream.owed = 0

    def _grant_connection(self) -> None:
        self.out.append(f.window_update(0, CONNECTION_WINDOW - self._credit))
        self._credit = CONNECTION_WINDOW

    # ---------------------------------------------------------------- other frames in

    def _take_frame(self, kind: int, flags: int, id: int, payload: memoryview) -> None:
        if kind == f.HEADERS:
            self._take_headers(flags, id, payload)
        elif kind == f.CONTINUATION:
            self._take_continuation(flags, id, payload)
        elif kind == f.WINDOW_UPDATE:
            self._take_window(id, payload)
        elif kind == f.RST_STREAM:
            self._take_reset(id, payload)
        elif kind == f.SETTINGS:
            self._take_settings(flags, id, payload)
        elif kind == f.PING:
            self._expect(not id, "PING on a stream")
            self._expect_length(payload, 8)
            if not flags & f.ACK:
                self._bear(1.0)
                self.out.append(f.frame(f.PING, f.ACK, 0, bytes(payload)))
        elif kind == f.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
        elif kind == f.PRIORITY:
            self._expect(id, "PRIORITY on no stream")
            self._bear(1.0)
            if len(payload) != 5:
                self._fail(id, ErrorCode.FRAME_SIZE_ERROR)
        elif kind == f.GOAWAY:
            self._expect(not id, "GOAWAY on a stream")
            self._bear(1.0)
        else:  # of a kind that we do not know
            self._bear(1.0)

    def _take_headers(self, flags: int, id: int, payload: memoryview) -> None:
        if flags & (f.PADDED | f.HAS_PRIORITY):
            start = (1 if flags & f.PADDED else 0) + (5 if flags & f.HAS_PRIORITY else 0)
            stop = len(payload) - (payload[0] if flags & f.PADDED and payload else 0)
            self._expect(start <= stop, "more padding than frame")
            payload = payload[start:stop]
        self._expect(id & 1, "HEADERS on a stream that is no client's")
        if flags & f.END_HEADERS:
            self._take_head(id, bytes(payload), bool(flags & f.END_STREAM))
        else:
            self._block, self._block_id = bytearray(payload), id
            self._block_ends, self._continuations = flags & f.END_STREAM, 0

    def _take_continuation(self, flags: int, id: int, payload: memoryview) -> None:
        block = self._block
        self._expect(block is not None and id == self._block_id, "a header block is cut")
        assert block is not None
        block += payload
        self._continuations += 1
        if len(block) > 2 * f.FRAME_BYTES or self._continuations > MOST_CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & f.END_HEADERS:
            self._block = None
            self._take_head(id, bytes(block), bool(self._block_ends))

    def _take_head(self, id: int, block: bytes, ends: bool) -> None:
        head = self._heads.read(block)
        if id <= self.last:
            self._take_trailers(id, head, ends)
            return
        self.last = id
        if self.closing:
            return
        if len(self.streams) >= self._max_streams:
            self._fail(id, ErrorCode.REFUSED_STREAM)
        elif head.fault or (ends and head.length):
            self._fail(id, ErrorCode.PROTOCOL_ERROR)
        else:
            stream = self.streams[id] = self._open_stream(id, head)
            stream.ended = ends
            stream.opened()
            if ends:
                self._took_all(stream)

    def _take_trailers(self, id: int, head: Head, ends: bool) -> None:
        stream = self.streams.get(id)
        if stream is None:
            if id not in self._left:
                raise Http2Error(ErrorCode.STREAM_CLOSED, "HEADERS on a stream that has ended")
            self._bear(1.0)
        elif stream.ended:
            self.reset(stream, ErrorCode.STREAM_CLOSED)
        elif not ends or not head.trailing or stream.missing:
            self.reset(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._took_all(stream)

    def _take_window(self, id: int, payload: memoryview) -> None:
        self._expect_length(payload, 4)
        more = int.from_bytes(payload) & 0x7FFFFFFF
        self._bear(1.0)
        if not id:
            self.send_window += more
            if not more or self.send_window > f.LARGEST_WINDOW:
                code = ErrorCode.FLOW_CONTROL_ERROR if more else ErrorCode.PROTOCOL_ERROR
                raise Http2Error(code, "a window that cannot be")
            return
        stream = self.streams.get(id)
        if stream is None:
            self._expect_used(id)
        elif not more:
            self.reset(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            stream.send_window += more
            if stream.send_window > f.LARGEST_WINDOW:
                self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR)

    def _take_reset(self, id: int, payload: memoryview) -> None:
        self._expect_length(payload, 4)
        self._expect_used(id)
        self._bear(1.0)
        stream = self.streams.pop(id, None)
        if stream is not None:
            self._drop(stream)

    def _take_settings(self, flags: int, id: int, payload: memoryview) -> None:
        self._expect(not id, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & f.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        self._first = False
        if flags & f.ACK:
            return
        self._bear(1.0 + len(payload) // 60)
        for name, value in f.SETTING.iter_unpack(payload):
            if name == f.INITIAL_WINDOW:
                self._move_windows(value)
            elif name == f.MAX_FRAME:
                self._expect(f.FRAME_BYTES <= value <= f.LARGEST_FRAME, "SETTINGS: frame size")
                self._max_frame = min(value, MOST_FRAME)
            elif name == f.ENABLE_PUSH:
                self._expect(value <= 1, "SETTINGS: push")
            elif name == f.TABLE_SIZE:
                self._table_prefix = f.SHRINK_TABLE
        self.out.append(f.frame(f.SETTINGS, f.ACK, 0))

    def _move_windows(self, window: int) -> None:
        more, self.initial_window = window - self.initial_window, window
        highest = max((s.send_window for s in self.streams.values()), default=0)
        if max(window, highest + more) > f.LARGEST_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS: a window that cannot be")
        if more:
            for stream in self.streams.values():
                stream.send_window += more

    def _expect(self, condition: object, message: str) -> None:
        if not condition:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, message)

    def _expect_length(self, payload: memoryview, length: int) -> None:
        if len(payload) != length:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame of a wrong length")

    def _expect_used(self, id: int) -> None:
        self._expect(id & 1 and id <= self.last, "a frame for no stream")

    def _bear(self, cost: float) -> None:
        """A frame that brings no request further."""
        self.patience -= cost
        if self.patience < 0:
            passed, self._refilled = self._now - self._refilled, self._now
            self.patience = min(PATIENCE, passed * PATIENCE_PER_S) - cost
            if self.patience < 0:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames without a request")

    # ---------------------------------------------------------------- ends

    def reset(self, stream: Http2Stream, code: ErrorCode) -> None:
        """End a stream without an answer."""
        self.streams.pop(stream.id, None)
        self._fail(stream.id, code)
        self._drop(stream)

    def _fail(self, id: int, code: ErrorCode) -> None:
        self._bear(1.0)
        self.out.append(f.reset(id, code))
        self._left.append(id)

    def end(self, code: ErrorCode, message: str) -> None:
        """Nothing more goes in or out but this."""
        if not self.closed:
            last = self._served if self.closing else self.last
            self.out.append(f.goaway(last, code, message))
        self.lose()

    def lose(self) -> None:
        """The client is gone."""
        self.closed = self.closing = True
        self.held, self.more, self._block = b"", False, None
        streams, self.streams = self.streams, {}
        for stream in streams.values():
            self._drop(stream)
