"""Extracts tensors from a protobuf message, and inserts them, without copying.

The protobuf runtime copies every `bytes` field twice: when it parses the message, and when Python
reads the field. Tensors are nearly all of an inference message, and they are in one repeated
top-level field. So we walk the top level ourselves, locate the entries of that field, and leave
only the small rest (the *head*) to the runtime. Likewise, we write a message as its head followed
by the entries: protobuf allows fields in any order.

The walk follows protobuf.dev/programming-guides/encoding. It checks lengths but no content, which
it leaves to the runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slacktide.domain import Reason
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import WireError

_VARINT: Final = 0
_FIXED64: Final = 1
_DELIMITED: Final = 2
_FIXED32: Final = 5
_MAX_VARINT_SHIFT: Final = 63
_UINT64: Final = 2**64 - 1
MAX_FIELDS: Final = 4096
"""Maximum top-level fields, which are walked one by one in Python. Real messages have far fewer."""
_FEW_FIELDS: Final = 16
"""Maximum kinds of fields before the tensors."""


def take_bulk(
    message: Buffer, field: int, aside: int | None = None
) -> tuple[bytes, list[memoryview], memoryview | None]:
    """Split a message into (head, entries, value): the message without its top-level `field`, views
    of that field's entries, and the last value of the `bytes` or `string` field `aside`, which is
    removed too, or None. Raises WireError (BAD_INPUT) if the top level is malformed."""
    bulk_tag = field << 3 | _DELIMITED
    set_aside = None if aside is None else aside << 3 | _DELIMITED
    last: memoryview | None = None
    whole: memoryview | None = None
    view = memoryview(message)
    end = len(view)
    entries: list[memoryview] = []
    head: list[memoryview] = []
    run_start = at = 0  # the head's current run is view[run_start:at]
    fields = 0
    try:
        while at < end:
            fields += 1
            if fields > MAX_FIELDS:
                raise WireError(Reason.TOO_LARGE, f"message: expected at most {MAX_FIELDS} fields")
            start = at
            tag = view[at]
            at += 1
            if tag >= 0x80:
                tag, at = read_varint(view, start)
            kind = tag & 7
            if kind == _DELIMITED:
                length = view[at]
                at += 1
                if length >= 0x80:
                    length, at = read_varint(view, at - 1)
                body = at
                at += length
                if tag in (bulk_tag, set_aside) and at <= end:
                    if tag == bulk_tag:
                        entries.append(view[body:at])
                    else:
                        if whole is not None:  # an earlier value, which the runtime checks
                            head.append(whole)
                        last, whole = view[body:at], view[start:at]
                    if run_start < start:
                        head.append(view[run_start:start])
                    run_start = at
            elif kind == _VARINT:
                at = read_varint(view, at)[1]
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            else:
                raise _malformed()
    except IndexError:
        raise _malformed() from None
    if at > end:
        raise _malformed()
    if run_start < end:
        head.append(view[run_start:end])
    return b"".join(head), entries, last


def fields_before(beginning: Buffer, field: int) -> dict[int, memoryview] | None:
    """The last value of each `bytes`, `string` and message field before the first entry of `field`,
    given the beginning of a message; None if that entry has not begun."""
    view = memoryview(beginning)
    end_tag = field << 3 | _DELIMITED
    values: dict[int, memoryview] = {}
    at = 0
    try:
        while len(values) < _FEW_FIELDS:
            tag, at = read_varint(view, at)
            if tag == end_tag:
                return values
            if tag & 7 != _DELIMITED:
                return None
            length, at = read_varint(view, at)
            values[tag >> 3] = view[at : at + length]
            at += length
    except (IndexError, WireError):
        return None
    return None


def put_bulk(head: bytes, field: int, entries: Sequence[Buffer]) -> list[Buffer]:
    """The pieces of a message: `head`, then the entries of the repeated `field`."""
    tag = encode_varint(field << 3 | _DELIMITED)
    pieces: list[Buffer] = [head]
    for entry in entries:
        pieces.append(tag + encode_varint(len(entry)))
        pieces.append(entry)
    return pieces


def encode_varint(value: int) -> bytes:
    """Encode `value` ≥ 0 in base 128, least significant group first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Decode a 64-bit value. Returns it and the position after it. Raises IndexError at the end,
    WireError if it is malformed."""
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UINT64, at
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise _malformed()


def _malformed() -> WireError:
    return WireError(Reason.BAD_INPUT, "message: malformed protobuf")
