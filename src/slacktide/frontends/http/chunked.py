"""`ChunkedBody`: the chunked transfer coding (RFC 9112 §7.1), strictly, with every byte counted.

The parser (httptools) reports a chunk's data but neither its size before the data has come nor how
much an extension or a trailer has taken. Here a size is judged at its own line, and whatever is no
data counts against the limit on headers.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from slacktide.domain import Reason

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")
_END = re.compile(rb"\r\n")
_TRAILER = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)?\r\n")
_BEGUN = {
    _SIZE: re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n\0]*)?\r?"),
    _END: re.compile(rb"\r"),
    _TRAILER: re.compile(rb"[^\n\0]*"),
}
"""What a line of each kind may begin with."""
_EXPECTED = {
    _SIZE: "a chunk size of at most 16 hexadecimal digits",
    _END: "a line end behind the data of a chunk",
    _TRAILER: "a header in the trailer",
}
_JUDGED: Final = 64
"""Bytes of an unfinished line that are looked at: it may grow by one byte at a time."""


class HttpRefusal(NamedTuple):
    """Why a connection cannot go on; it ends with this answer."""

    status: int
    reason: Reason
    message: str


class ChunkedBody:
    """Decodes one body. `data` collects what has been decoded since it was last taken."""

    def __init__(self, *, max_framing: int, max_chunks: int) -> None:
        """`max_framing`: most bytes of extensions and trailers together."""
        self._limits = max_framing, max_chunks
        self._kind = _SIZE
        """What the next line is."""
        self._left = 0
        """Bytes of the current chunk that have not come."""
        self._framing = self._chunks = 0
        self.line = bytearray()
        """The beginning of a line whose end has not come."""
        self.data: list[bytes] = []
        self.filled = 0
        """Bytes of data so far."""
        self.done = False
        self.refusal: HttpRefusal | None = None

    def take(self, raw: bytes, at: int, *, limit: int, lines: int) -> tuple[int, int]:
        """Decode `raw` from `at` on. Returns where it stopped (at the end of `raw` or of the body,
        after so many `lines`, or at a `refusal`), and how many lines are left. `limit`: most bytes
        of data."""
        end = len(raw)
        while at < end and not self.done and self.refusal is None:
            if self._left:
                piece = raw[at : at + self._left]
                self.data.append(piece)
                self.filled += len(piece)
                self._left -= len(piece)
                at += len(piece)
            elif lines == 0:
                break
            else:
                lines -= 1
                stop = raw.find(b"\n", at) + 1 or end
                line = raw[at:stop]
                at = stop
                if self.line or not line.endswith(b"\n"):
                    self.line += line
                    if not line.endswith(b"\n"):
                        self._judge(_BEGUN[self._kind], bytes(self.line[:_JUDGED]), len(self.line))
                        break
                    line = bytes(self.line)
                    self.line.clear()
                self._take_line(line, limit)
        return at, lines

    def _take_line(self, line: bytes, limit: int) -> None:
        kind = self._kind
        if kind is _END:
            if self._judge(kind, line, 0):
                self._kind = _SIZE
            return
        match = self._judge(kind, line, len(line))
        if not match:
            return
        self._framing += len(line)
        if kind is _TRAILER:
            self.done = line == b"\r\n"
            return
        self._framing -= len(match[1]) + 2
        self._left = int(match[1], 16)
        self._kind = _END if self._left else _TRAILER
        self._chunks += 1
        if self.filled + self._left > limit:
            self._refuse(413, Reason.TOO_LARGE, f"the body has more than {limit} bytes")
        elif self._chunks > self._limits[1]:
            self._refuse(413, Reason.TOO_LARGE, "the body has too many chunks")

    def _judge(self, pattern: re.Pattern[bytes], line: bytes, more: int) -> re.Match[bytes] | None:
        """`line` as `pattern` has it, with so many `more` bytes that are no data; None: refused."""
        match = pattern.fullmatch(line)
        if match is None:
            expected = f"malformed chunked body: expected {_EXPECTED[self._kind]}"
            self._refuse(400, Reason.BAD_INPUT, expected)
        elif self._framing + more > self._limits[0]:
            self._refuse(431, Reason.BAD_INPUT, "too many bytes of trailers and chunk extensions")
        return None if self.refusal else match

    def _refuse(self, status: int, reason: Reason, message: str) -> None:
        self._left = 0
        self.refusal = HttpRefusal(status, reason, message)
