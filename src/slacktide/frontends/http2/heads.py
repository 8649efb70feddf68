"""`HeadReader`: turns the header blocks of a connection into heads (RFC 9113 §8).

Most clients send the same block again and again once their fields are in the table. So the heads of
blocks that do not change the table are cached until the table changes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from slacktide.frontends.http2.header_blocks import FIELD_BYTES, BlockDecoder

LEAST_LIST: Final = 32 * 1024
"""Bytes of fields (RFC 7541 §4.1) up to which a list is always read to its end. A list that is too
long for a request ends the request. A list longer than `LEAST_LIST` ends the connection, because
the table is lost."""
BYTES_PER_WORK: Final = 8
"""Bytes of a block that cost as much work as a field: they may be Huffman-coded."""
MAX_CACHED: Final = 16
MAX_CACHED_BYTES: Final = 1024
"""Maximum cached blocks of a connection, and maximum length of each."""

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_BAD_VALUE = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_NEEDED = (b":method", b":scheme", b":path")
_PSEUDO = frozenset((*_NEEDED, b":authority"))
_SINGLE = frozenset((b"content-length", b"host"))
"""Fields whose values must agree if a head repeats them."""
_OF_CONNECTIONS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


class Head:
    """The decoded fields of a header block. Requests with the same block share it: do not change
    it."""

    __slots__ = ("can_begin", "can_trail", "fault", "headers", "length", "meaning", "size")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.headers: dict[bytes, bytes] = {}
        """Fields by name, including pseudo-headers; the last value of a repeated name."""
        self.size = 0
        """Size of the fields in bytes (RFC 7541 §4.1)."""
        self.length: int | None = None
        """Content-Length."""
        self.meaning: object = None
        """Cached by the code that opens streams: its interpretation of this head."""
        self.fault = self._read(pairs)
        """Error in one of its fields; empty if none."""
        headers = self.headers
        self.can_begin = all(headers.get(name) for name in _NEEDED)
        """Whether the head has all required fields and so may begin a request."""
        self.can_trail = _PSEUDO.isdisjoint(headers)
        """Whether the head may end a request, as trailers."""

    def _read(self, pairs: Sequence[tuple[bytes, bytes]]) -> str:
        fault, headers = "", self.headers
        for name, value in pairs:
            self.size += len(name) + len(value) + FIELD_BYTES
            if name[:1] == b":":
                if name not in _PSEUDO or name in headers:
                    fault = "pseudo-headers: expected only those of requests, each once"
                elif any(header[:1] != b":" for header in headers):
                    fault = "pseudo-headers: expected before all others"
            elif not _NAME.fullmatch(name):
                fault = "header names: expected lower-case tokens"
            elif name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
                fault = "headers: connection headers of HTTP/1.1 are not allowed"
            elif name in _SINGLE and headers.get(name, value) != value:
                fault = f"{name.decode()}: expected one value"
            if _BAD_VALUE.search(value):
                fault = "header values: expected no control characters or outer whitespace"
            headers[name] = value
        authority = headers.get(b":authority", b"").lower()
        if b"@" in authority or (
            authority and headers.get(b"host", authority).lower() != authority
        ):
            fault = ":authority: expected only the host, as in the host header"
        length = headers.get(b"content-length")
        if length is not None:
            if not (length.isdigit() and len(length) <= 18):
                fault = "content-length: expected a number of bytes"
            else:
                self.length = int(length)
        return fault


class HeadReader:
    """Reads the header blocks of a connection, in order."""

    __slots__ = ("_cache", "_decoder", "work")

    def __init__(self, max_list: int) -> None:
        """`max_list`: maximum bytes of a request's fields."""
        self._decoder = BlockDecoder(max(LEAST_LIST, 2 * max_list))
        self._cache: dict[bytes, Head] = {}
        self.work = 0
        """Cost of the latest block; 0 if it was cached."""

    def read(self, block: bytes) -> Head:
        """Read a complete block. Raises Http2Error, which ends the connection."""
        head = self._cache.get(block)
        if head is not None:
            self.work = 0
            return head
        before = self._decoder.changes
        fields = self._decoder.decode(block)
        self.work = len(fields) + len(block) // BYTES_PER_WORK
        head = Head(fields)
        if self._decoder.changes != before:
            self._cache.clear()
        elif len(block) <= MAX_CACHED_BYTES:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[block] = head
        return head
