"""Messages about frame arenas and crops. `protocol` documents them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace

from slacktide.domain.crops import Glue
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
_BOX = 16
_HEAD = 3 * _WORD


def encode_attach(number: int, glue: Glue) -> bytes:
    return encode_text(FrameKind.ATTACH, number, json.dumps(asdict(glue)))


def decode_attach(body: bytes) -> tuple[int, Glue]:
    number, text = decode_text(body)
    try:
        return number, Glue(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError("unreadable glue") from None


def encode_crops(members: Mapping[int, CropPayload]) -> bytes:
    """Encode CROPS. `members` are keyed by their place in the batch."""
    body = bytearray()
    for place, member in members.items():
        if len(member.boxes) not in (0, _BOX * member.rows):
            raise ValueError(f"{len(member.boxes)} bytes of boxes for {member.rows} rows")
        boxes = len(member.boxes) // _BOX
        body += to_bytes((place, member.arena_number, boxes)) + member.boxes
    return frame(FrameKind.CROPS, bytes(body))


def decode_crops(body: bytes) -> dict[int, tuple[int, bytes]]:
    """Decode CROPS: the arena's number and the boxes of each member, by place."""
    crops, at = {}, 0
    while at < len(body):
        head = to_words(body[at : at + _HEAD])
        if len(head) != 3 or not 0 <= head[2] <= len(body):
            raise ProtocolError("truncated crops")
        at += _HEAD + _BOX * head[2]
        crops[head[0]] = head[1], body[at - _BOX * head[2] : at]
    if at != len(body):
        raise ProtocolError("crops with a wrong count")
    return crops


def with_crops(order: BatchOrder, crops: Mapping[int, tuple[int, bytes]]) -> BatchOrder:
    """The order, with crops of frames as the members at these places."""
    members = list(order.members)
    for place, (number, boxes) in crops.items():
        member = members[place]
        members[place] = CropPayload(member.rows, member.tensors, number, boxes)
    return replace(order, members=members)
