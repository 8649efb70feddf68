"""Messages about early exits. `protocol` documents them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from slacktide.domain import ExitMode, ExitPolicy, PoolId
from slacktide.executors.hand_over.protocol import (
    FrameKind,
    ProtocolError,
    frame,
    read_runs,
    run_words,
    to_bytes,
    to_words,
)
from slacktide.executors.ports import Arranged, FeaturesSeen, OutputRun

_WORD = 8
_FLOAT = 4


class ReleasedMessage(NamedTuple):
    """A worker's report of members that a ramp has answered."""

    batch: int
    ramp: int
    """Position of the ramp."""
    file_bytes: int
    members: list[int]
    """Places in the batch."""
    outputs: list[list[OutputRun]]
    """For each output, the place of its parts in the worker's output file; empty if ramps do not
    make this output."""


def encode_released(message: ReleasedMessage) -> bytes:
    batch, ramp, file_bytes, members, outputs = message
    words = [batch, ramp, file_bytes, len(members), len(outputs), *members]
    return frame(FrameKind.RELEASED, to_bytes([*words, *run_words(outputs)]))


def decode_released(body: bytes, members: int) -> ReleasedMessage:
    """Decode RELEASED of a batch with this many members. Raises ProtocolError."""
    words = to_words(body)
    try:
        batch, ramp, file_bytes, count, outputs = words[:5]
        places = words[5 : 5 + count] if 0 <= count <= members else []
        if len({*places}) != count or not all(0 <= place < members for place in places):
            raise ProtocolError(f"{count} members released of {members}")
        runs, at = read_runs(words, 5 + count, count, outputs)
    except (IndexError, ValueError):
        raise ProtocolError("a truncated message of released members") from None
    if at != len(words):
        raise ProtocolError("released members with a wrong count")
    return ReleasedMessage(batch, ramp, file_bytes, places, runs)


def encode_exits(policy: ExitPolicy) -> bytes:
    # The engine has marked the members that may not leave (`Batch.held`).
    document = {**asdict(policy), "mode": policy.mode.value, "applications": None}
    return frame(FrameKind.EXITS, json.dumps(document).encode())


def decode_exits(body: bytes) -> ExitPolicy:
    try:
        document = json.loads(body)
        names = ("ramps", "thresholds", "costs", "whole_model_only")
        lists = {name: tuple(document[name]) for name in names}
        pool, mode = PoolId(*document["pool"]), ExitMode(document["mode"])
        return ExitPolicy(**{**document, **lists, "pool": pool, "mode": mode})
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ProtocolError("an unreadable policy of early exits") from None


def encode_arranged(arranged: Arranged) -> bytes:
    return frame(FrameKind.ARRANGED, json.dumps(asdict(arranged)).encode())


def decode_arranged(body: bytes) -> Arranged:
    try:
        document = json.loads(body)
        return Arranged(
            int(document["revision"]),
            tuple(int(ramp) for ramp in document["ramps"]),
            str(document["detail"]),
            tuple(int(rows) for rows in document["rows"]),
            tuple(float(seconds) for seconds in document["whole_s"]),
            tuple(tuple(float(seconds) for seconds in size) for size in document["stage_s"]),
            str(document["untimed"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise ProtocolError("unreadable stages") from None


def encode_features(features: FeaturesSeen) -> bytes:
    parts = [*features.features, features.logits, features.memory]
    text = json.dumps([features.tensors, features.costs, features.outputs]).encode()
    widths = [len(part) // _FLOAT // features.rows for part in parts]
    words = to_bytes([features.rows, len(features.features), len(text), *widths])
    return frame(FrameKind.FEATURES, b"".join([words, text, *parts]))


def decode_features(body: bytes) -> FeaturesSeen:
    try:
        rows, positions, size = to_words(body[: 3 * _WORD])
        if not (0 < rows <= len(body) and 0 <= positions <= len(body) and 0 <= size <= len(body)):
            raise ProtocolError(f"features of {rows} rows at {positions} positions")
        at = (5 + positions) * _WORD
        widths = to_words(body[3 * _WORD : at])
        tensors, costs, outputs = json.loads(body[at : at + size])
        tensors = tuple(str(tensor) for tensor in tensors)
        outputs = tuple(str(output) for output in outputs)
        costs = tuple(float(cost) for cost in costs)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise ProtocolError("unreadable features") from None
    at += size
    parts = []
    for width in widths:
        if not 0 <= width <= len(body):
            raise ProtocolError(f"features with a width of {width}")
        parts.append(body[at : at + rows * width * _FLOAT])
        at += rows * width * _FLOAT
    if at != len(body) or not len(tensors) == len(costs) == positions == len(parts) - 2:
        raise ProtocolError("features with a wrong count")
    *features, logits, memory = parts
    return FeaturesSeen(rows, tensors, costs, tuple(features), logits, outputs, memory=memory)


def encode_remembered(number: int, contents: Mapping[int, bytes]) -> bytes:
    """Encode REMEMBERED. `number`: the batch, or whether it refreshes what is remembered."""
    words = [number, len(contents)]
    for place, content in contents.items():
        words += (place, len(content))
    return frame(FrameKind.REMEMBERED, b"".join([to_bytes(words), *contents.values()]))


def decode_remembered(body: bytes) -> tuple[int, dict[int, bytes]]:
    """Decode REMEMBERED. Raises ProtocolError."""
    number, count = (*to_words(body[: 2 * _WORD]), 0, 0)[:2]
    at = (2 + 2 * count) * _WORD
    if not 0 <= count <= len(body) or len(body) < at:
        raise ProtocolError(f"{count} remembered rows in {len(body)} bytes")
    words, contents = to_words(body[2 * _WORD : at]), {}
    for place, nbytes in zip(words[::2], words[1::2], strict=True):
        if nbytes < 0 or place < 0:
            raise ProtocolError(f"a remembered row of {nbytes} bytes at {place}")
        contents[place], at = body[at : at + nbytes], at + nbytes
    if at != len(body):
        raise ProtocolError("remembered rows with a wrong length")
    return number, contents
