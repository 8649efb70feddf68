"""`HeadReader`: a connection's header blocks, and what they say (RFC 9113 §8).

Most clients send the same block again and again, once their fields are in the table, so blocks
that leave the table as it is are kept with what they said, for as long as it stays so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from slacktide.frontends.http2.header_blocks import FIELD_BYTES, BlockDecoder

LEAST_LIST: Final = 32 * 1024
"""Bytes of fields (RFC 7541 §4.1) up to which a list is read to its end: what is too long for a
request ends the request, what is longer than this as well the connection, whose table is lost."""
BYTES_PER_WORK: Final = 8
"""Bytes of a block that cost as much as a field, as they may be in Huffman's code."""
MOST_KEPT: Final = 16
MOST_KEPT_BYTES: Final = 1024
"""Blocks kept for a connection, and the length of one."""

_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_BAD_VALUE = re.compile(rb"[\0\r\n]|^[ \t]|[ \t]$")
_NEEDED = (b":method", b":scheme", b":path")
_PSEUDO = frozenset((*_NEEDED, b":authority"))
_SINGLE = frozenset((b"content-length", b"host"))
"""Fields whose values must agree where a head repeats them."""
_OF_CONNECTIONS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


class Head:
    """What a header block says. Shared by all requests with the same block: not to be changed."""

    __slots__ = ("begins", "fault", "headers", "length", "meaning", "size", "trails")

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.headers: dict[bytes, bytes] = {}
        """By name, pseudo-headers too; of a name that comes twice, the last value."""
        self.size = 0
        """As RFC 7541 §4.1 counts it."""
        self.length: int | None = None
        """Content-Length."""
        self.meaning: object = None
        """What the code that opens streams makes of it; kept with the head."""
        self.fault = self._read(pairs)
        """What is wrong with one of its fields; empty: nothing."""
        headers = self.headers
        self.begins = all(headers.get(name) for name in _NEEDED)
        """It has what every request has, and may begin one."""
        self.trails = _PSEUDO.isdisjoint(headers)
        """It may end a request."""

    def _read(self, pairs: Sequence[tuple[bytes, bytes]]) -> str:
        fault, headers = "", self.headers
        for name, value in pairs:
            self.size += len(name) + len(value) + FIELD_BYTES
            if name[:1] == b":":
                if name not in _PSEUDO or name in headers:
                    fault = "pseudo-headers: expected those of requests, each once"
                elif any(header[:1] != b":" for header in headers):
                    fault = "pseudo-headers: expected before all others"
            elif not _NAME.fullmatch(name):
                fault = "header names: expected lower-case tokens"
            elif name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
                fault = "headers: one of them belongs to HTTP/1.1 connections"
            elif name in _SINGLE and headers.get(name, value) != value:
                fault = f"{name.decode()}: expected one value"
            if _BAD_VALUE.search(value):
                fault = "header values: a control character or outer blank"
            headers[name] = value
        authority = headers.get(b":authority", b"").lower()
        if b"@" in authority or (
            authority and headers.get(b"host", authority).lower() != authority
        ):
            fault = ":authority: expected the host alone, as in the host header"
        length = headers.get(b"content-length")
        if length is not None:
            if not (length.isdigit() and len(length) <= 18):
                fault = "content-length: expected a number of bytes"
            else:
                self.length = int(length)
        return fault


class HeadReader:
    """The header blocks of one connection, in order."""

    __slots__ = ("_decoder", "_kept", "work")

    def __init__(self, max_list: int) -> None:
        """`max_list`: bytes of fields that a request may have."""
        self._decoder = BlockDecoder(max(LEAST_LIST, 2 * max_list))
        self._kept: dict[bytes, Head] = {}
        self.work = 0
        """Cost of the latest block; 0: it was known."""

    @property
    def kept(self) -> int:
        """How many blocks are remembered."""
        return len(self._kept)

    def read(self, block: bytes) -> Head:
        """What a whole block says. Raises Http2Error: the connection cannot go on."""
        head = self._kept.get(block)
        if head is not None:
            self.work = 0
            return head
        before = self._decoder.changes
        fields = self._decoder.decode(block)
        self.work = len(fields) + len(block) // BYTES_PER_WORK
        head = Head(fields)
        if self._decoder.changes != before:
            self._kept.clear()
        elif len(block) <= MOST_KEPT_BYTES:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[block] = head
        return head
