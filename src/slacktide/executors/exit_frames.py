"""The frames of early exits: `protocol` names them and says what is in them."""

from __future__ import annotations

import json
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
    """Members of the running batch that a ramp has answered, as the worker reports them."""

    batch: int
    ramp: int
    """Its position."""
    file_bytes: int
    members: list[int]
    """Their places in the batch."""
    outputs: list[list[OutputRun]]
    """Where in the worker's output file their parts of each output lie; those that ramps do not
    make are empty."""


def encode_released(message: ReleasedMessage) -> bytes:
    batch, ramp, file_bytes, members, outputs = message
    words = [batch, ramp, file_bytes, len(members), len(outputs), *members]
    return frame(FrameKind.RELEASED, to_bytes([*words, *run_words(outputs)]))


def decode_released(body: bytes, members: int) -> ReleasedMessage:
    """What `encode_released` was given; of a batch with so many members."""
    words = to_words(body)
    try:
        batch, ramp, file_bytes, count, outputs = words[:5]
        places = words[5 : 5 + count] if 0 <= count <= members else []
        if len({*places}) != count or not all(0 <= place < members for place in places):
            raise ProtocolError(f"{count} members released of {members}")
        runs, at = read_runs(words, 5 + count, count, outputs)
    except (IndexError, ValueError):
        raise ProtocolError("members released in a message that ends early") from None
    if at != len(words):
        raise ProtocolError("members released with a false count")
    return ReleasedMessage(batch, ramp, file_bytes, places, runs)


def encode_exits(policy: ExitPolicy) -> bytes:
    return frame(FrameKind.EXITS, json.dumps(asdict(policy), default=_value).encode())


def _value(mode: ExitMode) -> str:
    return mode.value


def decode_exits(body: bytes) -> ExitPolicy:
    try:
        told = json.loads(body)
        lists = {name: tuple(told[name]) for name in ("ramps", "thresholds", "costs")}
        pool, mode = PoolId(*told["pool"]), ExitMode(told["mode"])
        return ExitPolicy(**{**told, **lists, "pool": pool, "mode": mode})
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ProtocolError("a policy of early exits that cannot be read") from None


def encode_arranged(arranged: Arranged) -> bytes:
    return frame(FrameKind.ARRANGED, json.dumps(asdict(arranged)).encode())


def decode_arranged(body: bytes) -> Arranged:
    try:
        told = json.loads(body)
        return Arranged(
            int(told["revision"]),
            tuple(int(ramp) for ramp in told["ramps"]),
            str(told["detail"]),
            tuple(int(rows) for rows in told["rows"]),
            tuple(float(seconds) for seconds in told["whole_s"]),
            tuple(tuple(float(seconds) for seconds in size) for size in told["stage_s"]),
            str(told["untimed"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise ProtocolError("stages that cannot be read") from None


def encode_features(seen: FeaturesSeen) -> bytes:
    parts = [*seen.features, seen.logits]
    text = json.dumps([seen.tensors, seen.costs, seen.outputs]).encode()
    widths = [len(part) // _FLOAT // seen.rows for part in parts]
    words = to_bytes([seen.rows, len(seen.features), len(text), *widths])
    return frame(FrameKind.FEATURES, b"".join([words, text, *parts]))


def decode_features(body: bytes) -> FeaturesSeen:
    try:
        rows, positions, told = to_words(body[: 3 * _WORD])
        if not (0 < rows <= len(body) and 0 <= positions <= len(body) and 0 <= told <= len(body)):
            raise ProtocolError(f"features of {rows} rows at {positions} positions")
        at = (4 + positions) * _WORD
        widths = to_words(body[3 * _WORD : at])
        tensors, costs, outputs = json.loads(body[at : at + told])
        named = tuple(str(tensor) for tensor in tensors)
        made = tuple(str(output) for output in outputs)
        costly = tuple(float(cost) for cost in costs)
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise ProtocolError("features that cannot be read") from None
    at += told
    parts = []
    for width in widths:
        if not 0 <= width <= len(body):
            raise ProtocolError(f"features {width} wide")
        parts.append(body[at : at + rows * width * _FLOAT])
        at += rows * width * _FLOAT
    if at != len(body) or not len(named) == len(costly) == positions == len(parts) - 1:
        raise ProtocolError("features with a false count")
    return FeaturesSeen(rows, named, costly, tuple(parts[:-1]), parts[-1], made)
