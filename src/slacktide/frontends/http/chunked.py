"""`ChunkedBody`: the chunked transfer coding (RFC 9112 §7.1), strictly, with every byte counted.

The parser (httptools) reports the data of a chunk, but not its size beforehand, nor the length of
an extension or trailer. Here a size is checked as soon as its line is read, and everything but data
counts against the limit on headers.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from slacktide.domain import Reason

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")
_END = re.compile(rb"\r\n")
_TRAILER = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*)?\r\n")
_BEGINNINGS = {
    _SIZE: re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n\0]*)?\r?"),
    _END: re.compile(rb"\r"),
    _TRAILER: re.compile(rb"[^\n\0]*"),
}
"""Valid beginnings of a line, by kind."""
_EXPECTED = {
    _SIZE: "a chunk size of at most 16 hexadecimal digits",
    _END: "a line end after a chunk's data",
    _TRAILER: "a trailer field",
}
_JUDGED: Final = 64
"""Bytes of an unfinished line to check. Only a few: the check repeats whenever the line grows."""


class HttpRefusal(NamedTuple):
    """The last answer of a connection that cannot continue."""

    status: int
    reason: Reason
    message: str


class ChunkedBody:
    """Decodes one body. `data` collects the decoded pieces; the caller empties it."""

    def __init__(self, *, max_framing: int, max_chunks: int) -> None:
        """`max_framing`: maximum bytes of extensions and trailers together."""
        self._limits = max_framing, max_chunks
        self._kind = _SIZE
        """The kind of the next line."""
        self._missing = 0
        """Missing bytes of the current chunk."""
        self._framing = self._chunks = 0
        self.line = bytearray()
        """Beginning of an unfinished line."""
        self.data: list[bytes] = []
        self.filled = 0
        """Bytes of data decoded so far."""
        self.done = False
        self.refusal: HttpRefusal | None = None

    def take(self, raw: bytes, at: int, *, limit: int, lines: int) -> tuple[int, int]:
        """Decode `raw` from `at` on, at most `lines` lines. Returns where it stopped (also at the
        end of the body or at a `refusal`) and how many more lines it may decode. `limit`: maximum
        bytes of data."""
        end = len(raw)
        while at < end and not self.done and self.refusal is None:
            if self._missing:
                piece = raw[at : at + self._missing]
                self.data.append(piece)
                self.filled += len(piece)
                self._missing -= len(piece)
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
                        beginning = bytes(self.line[:_JUDGED])
                        self._judge(_BEGINNINGS[self._kind], beginning, len(self.line))
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
        self._missing = int(match[1], 16)
        self._kind = _END if self._missing else _TRAILER
        self._chunks += 1
        if self.filled + self._missing > limit:
            self._refuse(413, Reason.TOO_LARGE, f"the body is longer than {limit} bytes")
        elif self._chunks > self._limits[1]:
            self._refuse(413, Reason.TOO_LARGE, "the body has too many chunks")

    def _judge(self, pattern: re.Pattern[bytes], line: bytes, size: int) -> re.Match[bytes] | None:
        """Match a line with `size` bytes of framing; None: the body is refused."""
        match = pattern.fullmatch(line)
        if match is None:
            expected = f"malformed chunked body: expected {_EXPECTED[self._kind]}"
            self._refuse(400, Reason.BAD_INPUT, expected)
        elif self._framing + size > self._limits[0]:
            self._refuse(431, Reason.BAD_INPUT, "the trailers and chunk extensions are too long")
        return None if self.refusal else match

    def _refuse(self, status: int, reason: Reason, message: str) -> None:
        self._missing = 0
        self.refusal = HttpRefusal(status, reason, message)
