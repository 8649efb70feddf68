"""`ChunkedBody`: the chunked transfer coding (RFC 9112 §7.1), strictly, with every byte counted.

The parser (httptools) tells a chunk's data but neither its size before the data has come nor how
much an extension or a trailer has taken. Here a size is judged at its own line, and whatever is no
data counts against the limit on headers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from slacktide.domain import Reason

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:[ \t]*;[^\r\n\0]*)?\r\n")
_SIZE_BEGUN = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(?:;[^\r\n\0]*)?\r?")
_JUDGED = 64
"""Bytes of an unfinished line that are looked at: it may grow by one byte at a time."""
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n")


class Refusal(NamedTuple):
    """Why a connection cannot go on; it ends with this answer."""

    status: int
    reason: Reason
    message: str


class ChunkedBody:
    """Decodes one body. `data` collects what has been decoded since it was last taken."""

    __slots__ = (
        "_after_data",
        "_chunks",
        "_framing",
        "_left",
        "_line",
        "_max_chunks",
        "_max_framing",
        "_trailers",
        "data",
        "done",
        "filled",
        "refusal",
    )

    def __init__(self, *, max_framing: int, max_chunks: int) -> None:
        """`max_framing`: most bytes of extensions and trailers together."""
        self._max_framing = max_framing
        self._max_chunks = max_chunks
        self._left = 0
        """Bytes of the current chunk that have not come."""
        self._after_data = False
        """Whether the line end behind a chunk's data comes next."""
        self._trailers = False
        self._line = bytearray()
        """The beginning of a line whose end has not come."""
        self._framing = 0
        self._chunks = 0
        self.data: list[bytes] = []
        self.filled = 0
        """Bytes of data so far."""
        self.done = False
        self.refusal: Refusal | None = None

    @property
    def held(self) -> int:
        """Bytes kept of a line that is not whole."""
        return len(self._line)

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
                continue
            if lines == 0:
                break
            lines -= 1
            stop = raw.find(b"\n", at) + 1
            if not stop:
                self._line += raw[at:]
                self._judge_beginning()
                at = end
                break
            line = bytes(self._line) + raw[at:stop] if self._line else raw[at:stop]
            self._line.clear()
            at = stop
            self._take_line(line, limit)
        return at, lines

    def _judge_beginning(self) -> None:
        """Refuse a line that cannot end well any more."""
        line = self._line
        if self._after_data:
            if not b"\r\n".startswith(line):
                self._malformed("expected a line end behind the data of a chunk")
        elif not self._trailers and not _SIZE_BEGUN.fullmatch(line[:_JUDGED]):
            self._malformed("expected a chunk size of at most 16 hexadecimal digits")
        elif self._framing + len(line) > self._max_framing:
            self._too_much()

    def _take_line(self, line: bytes, limit: int) -> None:
        if self._after_data:
            self._after_data = False
            if line != b"\r\n":
                self._malformed("expected a line end behind the data of a chunk")
        elif self._trailers:
            self._framing += len(line)
            if self._framing > self._max_framing:
                self._too_much()
            elif line == b"\r\n":
                self.done = True
            elif not _TRAILER.fullmatch(line):
                self._malformed("expected a header in the trailer")
        else:
            self._take_size(line, limit)

    def _take_size(self, line: bytes, limit: int) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            self._malformed("expected a chunk size of at most 16 hexadecimal digits")
            return
        self._left = int(match[1], 16)
        self._after_data = self._left > 0
        self._trailers = self._left == 0
        self._framing += len(line) - match.end(1) - 2
        self._chunks += 1
        if self._framing > self._max_framing:
            self._too_much()
        elif self.filled + self._left > limit:
            self._refuse(413, Reason.TOO_LARGE, f"the body has more than {limit} bytes")
        elif self._chunks > self._max_chunks:
            self._refuse(413, Reason.TOO_LARGE, "the body has too many chunks")

    def _malformed(self, message: str) -> None:
        self._refuse(400, Reason.BAD_INPUT, f"malformed chunked body: {message}")

    def _too_much(self) -> None:
        self._refuse(431, Reason.BAD_INPUT, "too many bytes of trailers and chunk extensions")

    def _refuse(self, status: int, reason: Reason, message: str) -> None:
        self._left = 0
        self.refusal = Refusal(status, reason, message)


__all__ = ["ChunkedBody", "Refusal"]
