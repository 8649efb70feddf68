"""Messages about frame arenas and crops. `protocol` documents them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from slacktide.domain.crops import BOX_BYTES, QUAD_BYTES, Glue
from slacktide.executors.hand_over.protocol import (
    FrameKind,
    ProtocolError,
    decode_text,
    encode_text,
    frame,
    to_bytes,
    to_words,
)
from slacktide.executors.ports import BatchOrder, CropPayload

_WORD = 8
_HEAD = 4 * _WORD


def encode_attach(number: int, glue: Glue) -> bytes:
    return encode_text(FrameKind.ATTACH, number, json.dumps(asdict(glue)))


def decode_attach(body: bytes) -> tuple[int, Glue]:
    number, text = decode_text(body)
    try:
        fields = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("takes", "datatypes")}
        return number, Glue(**fields | lists)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ProtocolError("unreadable glue") from None


def encode_crops(members: Mapping[int, CropPayload]) -> bytes:
    """Encode CROPS. `members` are keyed by their place in the batch."""
    body = bytearray()
    for place, member in members.items():
        count = len(member.boxes)
        if count not in (0, BOX_BYTES * member.rows, QUAD_BYTES * member.rows):
            raise ValueError(f"{count} bytes of boxes for {member.rows} rows")
        sizes = [len(values) for values in member.values]
        body += to_bytes((place, member.arena_number, count, len(sizes), *sizes)) + member.boxes
        body += b"".join(member.values)
    return frame(FrameKind.CROPS, bytes(body))


Crops = tuple[int, bytes, tuple[bytes, ...]]
"""The arena's number, the boxes, and the values for the glue function of one member."""


def decode_crops(body: bytes) -> dict[int, Crops]:
    """Decode CROPS, by the member's place."""
    crops, at = {}, 0
    while at < len(body):
        head = to_words(body[at : at + _HEAD])
        if len(head) != 4 or not all(0 <= count <= len(body) for count in head[2:]):
            raise ProtocolError("truncated crops")
        at += _HEAD + _WORD * head[3]
        sizes = to_words(body[at - _WORD * head[3] : at])
        parts = []
        for size in (head[2], *sizes):
            parts.append(body[at : at + size])
            at += max(0, size)
        crops[head[0]] = head[1], parts[0], tuple(parts[1:])
    if at != len(body):
        raise ProtocolError("crops with a wrong count")
    return crops


def with_crops(order: BatchOrder, crops: Mapping[int, Crops]) -> BatchOrder:
    """The order, with crops of frames as the members at these places."""
    members = list(order.members)
    for place, (number, boxes, values) in crops.items():
        member = members[place]
        members[place] = CropPayload(member.rows, member.tensors, number, boxes, values)
    return replace(order, members=members)
