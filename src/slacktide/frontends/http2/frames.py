"""HTTP/2 frames and header blocks as bytes (RFC 9113 §4 and §6, RFC 7541 §6).

The header blocks that we write use only the static table. They mean the same on every connection
at any time, so most of them are constants.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = Struct(">IBI")
"""Length and type in four bytes, flags, stream."""
HEAD_BYTES = FRAME_HEAD.size
FRAME_BYTES: Final = 16_384
"""Longest payload that every peer accepts, and that we accept."""
LARGEST_FRAME: Final = 2**24 - 1
WINDOW: Final = 65_535
"""Initial size of a window."""
LARGEST_WINDOW: Final = 2**31 - 1

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9
END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20
TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_STREAMS: Final = 3
INITIAL_WINDOW: Final = 4
MAX_FRAME: Final = 5
MAX_HEADERS: Final = 6
"""Numbers of the settings."""

LONG = Struct(">I")
SETTING = Struct(">HI")
_pack = FRAME_HEAD.pack


class ErrorCode(IntEnum):
    """The error codes of RFC 9113 §7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """An error that ends the connection. The message goes to the client as debug data."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def expect(condition: object, message: str, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> None:
    """Raise Http2Error unless the condition holds."""
    if not condition:
        raise Http2Error(code, message)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _pack(len(payload) << 8 | kind, flags, stream) + payload


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    return _pack(length << 8 | kind, flags, stream)


def settings(values: Iterable[tuple[int, int]]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*pair) for pair in values))


def reset(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, LONG.pack(code))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, LONG.pack(more))


def goaway(last: int, code: ErrorCode, message: str = "") -> bytes:
    text = message.encode()[:256]
    return frame(GOAWAY, 0, 0, LONG.pack(last) + LONG.pack(code) + text)


SHRINK_TABLE = b"\x20"
"""At the start of a block: sets the size of the dynamic table to zero."""
_STATUS_INDEX = {200: 8, 204: 9, 206: 10, 304: 11, 400: 12, 404: 13, 500: 14}


def header_block(status: int | None, fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode `:status` (None for trailers) and fields, without using the dynamic table."""
    pieces = []
    if status is not None:
        index = _STATUS_INDEX.get(status)
        pieces.append(bytes((0x80 | index,)) if index else b"\x08\x03%d" % status)
    for name, value in fields:
        pieces += b"\0", _length(name), name, _length(value), value
    return b"".join(pieces)


def _length(text: bytes) -> bytes:
    """The length of a string (RFC 7541 §5.1, seven bits), without the Huffman flag."""
    remaining = len(text) - 127
    if remaining < 0:
        return bytes((len(text),))
    octets = [127]
    while remaining >= 128:
        octets.append(remaining & 127 | 128)
        remaining >>= 7
    return bytes((*octets, remaining))
