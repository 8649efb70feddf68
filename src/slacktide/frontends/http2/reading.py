"""`Http2Reader`: bytes in, frames out (RFC 9113 §4 and §6).

Padding and priorities are removed, and a header block is delivered complete, as one HEADERS frame.
Data is delivered as it arrives, in pieces that are not copied.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from slacktide.frontends.http2 import frames as f
from slacktide.frontends.http2.frames import ErrorCode, Http2Error, expect

Buffer: TypeAlias = "bytes | bytearray | memoryview"

MOST_BLOCK = 2 * f.FRAME_BYTES
MOST_CONTINUATIONS: Final = 32
_NOTHING = memoryview(b"")
_unpack = f.FRAME_HEAD.unpack_from


class Http2Reader:
    """Cuts bytes into frames. Call `feed`, then `next` for each frame, then `hold` to keep the
    remaining bytes. The public attributes describe the current frame. Raises Http2Error if the
    peer violates the protocol."""

    __slots__ = (
        "_at", "_block", "_block_flags", "_block_id", "_continuations", "_first", "_missing",
        "_padding", "_prefaced", "_view", "flags", "id", "is_first", "is_last", "kind", "length",
        "longest_data", "payload", "pending", "size",
    )  # fmt: skip

    def __init__(self, *, prefaced: bool = False) -> None:
        """`prefaced`: whether no preface is expected, as from a server."""
        self.kind = self.flags = self.id = 0
        self.length = self.size = 0
        """Payload bytes with padding (which windows count) and without."""
        self.payload = _NOTHING
        """The payload; for data, the current piece of it."""
        self.is_first = self.is_last = True
        """Whether the piece is the first, and the last, of its frame."""
        self.pending = b""
        """Bytes kept for the next `feed`."""
        self.longest_data = f.FRAME_BYTES
        """Longest payload of data that is accepted."""
        self._view, self._at = _NOTHING, 0
        self._prefaced = prefaced
        self._first = True
        """Whether the next frame is the connection's first."""
        self._missing = self._padding = 0
        """Missing bytes of a data frame, and of the padding after it."""
        self._block: bytearray | None = None
        """Beginning of an unfinished header block."""
        self._block_id = self._block_flags = self._continuations = 0

    @property
    def is_new(self) -> bool:
        """Whether no frame has been read."""
        return self._first

    @property
    def unfinished(self) -> bool:
        """Whether the preface, or the end of a frame or header block, is missing."""
        return self._first or self._block is not None or bool(self.pending)

    def feed(self, data: Buffer) -> None:
        """Add the next bytes, after the pending ones."""
        self._view = memoryview(self.pending + data if self.pending else data)
        self._at = 0

    def hold(self) -> None:
        """Keep the bytes that `next` has not used."""
        self.pending = bytes(self._view[self._at :]) if self._at < len(self._view) else b""
        self.payload = self._view = _NOTHING

    def next(self) -> bool:
        """Read the next frame, or piece of a data frame. False if there is none."""
        view, at = self._view, self._at
        end = len(view)
        if not self._prefaced:
            beginning = bytes(view[: len(f.PREFACE)])
            expect(f.PREFACE.startswith(beginning), "this port speaks HTTP/2 (gRPC)")
            if len(beginning) < len(f.PREFACE):
                return False
            self._prefaced, at = True, len(beginning)
            self._at = at
        if self._missing or self._padding:
            self.is_first = False
            return at < end and self._take_piece(at)
        while end - at >= f.HEAD_BYTES:
            word, flags, id = _unpack(view, at)
            kind, length, id = word & 0xFF, word >> 8, id & 0x7FFFFFFF
            at += f.HEAD_BYTES
            if length > f.FRAME_BYTES and (kind != f.DATA or length > self.longest_data):
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
            if self._first:
                expect(kind == f.SETTINGS, "expected SETTINGS as the first frame")
            if kind == f.CONTINUATION or self._block is not None:
                expect(
                    kind == f.CONTINUATION and self._block is not None and id == self._block_id,
                    "a header block is cut",
                )
            available = end - at
            if available < length and (kind != f.DATA or (flags & f.PADDED and not available)):
                return False
            self.kind, self.flags, self.id = kind, flags, id
            self.length = self.size = length
            self.is_first = self.is_last = True
            if kind == f.DATA:
                if flags & f.PADDED:
                    expect(length and view[at] < length, "more padding than frame")
                    self._padding = view[at]
                    self.size -= 1 + self._padding
                    at += 1
                self._missing = self.size
                return self._take_piece(at)
            self._at, self._first = at + length, False
            self.payload = view[at : at + length]
            if kind == f.HEADERS and flags & (f.PADDED | f.HAS_PRIORITY):
                self.payload = _unpadded(self.payload, flags)
            if kind == f.CONTINUATION or (kind == f.HEADERS and not flags & f.END_HEADERS):
                at += length
                if not self._take_block(self.payload):
                    continue
            return True
        return False

    def _take_piece(self, at: int) -> bool:
        piece = self.payload = self._view[at : at + self._missing]
        at += len(piece)
        self._missing -= len(piece)
        if self._padding:
            skipped = min(self._padding, len(self._view) - at)
            self._padding -= skipped
            at += skipped
        self.is_last, self._at = not (self._missing or self._padding), at
        return True

    def _take_block(self, payload: memoryview) -> bool:
        """Add a piece of a header block. True if the block is complete."""
        block, last = self._block, self.flags & f.END_HEADERS
        if block is None:
            expect(self.id & 1, "HEADERS on a stream that is not a client's")
            block = self._block = bytearray()
            self._block_id, self._block_flags, self._continuations = self.id, self.flags, 0
        block += payload
        self._continuations += 1
        if len(block) > MOST_BLOCK or self._continuations > MOST_CONTINUATIONS:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if last:
            self.kind, self.flags, self.payload = f.HEADERS, self._block_flags, memoryview(block)
            self._block = None
        return bool(last)


def _unpadded(payload: memoryview, flags: int) -> memoryview:
    """The header block in a HEADERS frame with padding or a priority."""
    padded = flags & f.PADDED
    start = (1 if padded else 0) + (5 if flags & f.HAS_PRIORITY else 0)
    stop = len(payload) - (payload[0] if padded and payload else 0)
    expect(start <= stop, "more padding than frame")
    return payload[start:stop]
