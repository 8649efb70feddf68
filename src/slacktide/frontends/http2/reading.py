"""`Http2Reader`: bytes in, frames out (RFC 9113 §4 and §6).

Padding and priorities are cut away, and a header block comes whole, as one HEADERS. A frame of data
comes as its bytes do, in pieces that are not copied.
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
    """`feed` it, call `next` while frames are wanted, then `hold` what is left. What `next` found
    is in its public attributes. It raises Http2Error for what no peer may send."""

    __slots__ = (
        "_at", "_block", "_block_flags", "_block_id", "_continuations", "_first", "_left",
        "_padding", "_prefaced", "_view", "begins", "ends", "flags", "held", "id", "kind", "length",
        "payload", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.kind = self.flags = self.id = 0
        self.length = self.size = 0
        """Of the payload, with its padding (what counts for windows) and without."""
        self.payload = _NOTHING
        """Of data the piece that is here."""
        self.begins = self.ends = True
        """It is the frame's first piece; its last."""
        self.held = b""
        """What waits for the next call of `feed`."""
        self._view, self._at = _NOTHING, 0
        self._prefaced = False
        self._first = True
        """No frame has come."""
        self._left = self._padding = 0
        """Still to come of a frame of data, and of padding behind it."""
        self._block: bytearray | None = None
        """A header block whose end has not come."""
        self._block_id = self._block_flags = self._continuations = 0

    @property
    def unfinished(self) -> bool:
        """Whether something is awaited that must come: the preface, or the end of a frame."""
        return self._first or self._block is not None or bool(self.held)

    def feed(self, data: Buffer) -> None:
        """The next bytes, behind those that are held."""
        self._view = memoryview(self.held + data if self.held else data)
        self._at = 0

    def hold(self) -> None:
        """Keep what `next` has not taken."""
        self.held = bytes(self._view[self._at :]) if self._at < len(self._view) else b""
        self.payload = self._view = _NOTHING

    def next(self) -> bool:
        """Take a frame, or a piece of data. False: none is here."""
        view, at = self._view, self._at
        end = len(view)
        if not self._prefaced:
            begun = bytes(view[: len(f.PREFACE)])
            expect(f.PREFACE.startswith(begun), "this port speaks HTTP/2 (gRPC)")
            if len(begun) < len(f.PREFACE):
                return False
            self._prefaced, at = True, len(begun)
            self._at = at
        if self._left or self._padding:
            self.begins = False
            return at < end and self._take_piece(at)
        while end - at >= f.HEAD_BYTES:
            word, flags, id = _unpack(view, at)
            kind, length, id = word & 0xFF, word >> 8, id & 0x7FFFFFFF
            at += f.HEAD_BYTES
            if length > f.FRAME_BYTES:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
            if self._first:
                expect(kind == f.SETTINGS, "expected SETTINGS first")
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
            self.begins = self.ends = True
            if kind == f.DATA:
                if flags & f.PADDED:
                    expect(length and view[at] < length, "more padding than frame")
                    self._padding = view[at]
                    self.size -= 1 + self._padding
                    at += 1
                self._left = self.size
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
        piece = self.payload = self._view[at : at + self._left]
        at += len(piece)
        self._left -= len(piece)
        if self._padding:
            skipped = min(self._padding, len(self._view) - at)
            self._padding -= skipped
            at += skipped
        self.ends, self._at = not (self._left or self._padding), at
        return True

    def _take_block(self, payload: memoryview) -> bool:
        """A piece of a header block. True: it is whole."""
        block, last = self._block, self.flags & f.END_HEADERS
        if block is None:
            expect(self.id & 1, "HEADERS on a stream that is no client's")
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
    """The header block in a HEADERS frame."""
    padded = flags & f.PADDED
    start = (1 if padded else 0) + (5 if flags & f.HAS_PRIORITY else 0)
    stop = len(payload) - (payload[0] if padded and payload else 0)
    expect(start <= stop, "more padding than frame")
    return payload[start:stop]
