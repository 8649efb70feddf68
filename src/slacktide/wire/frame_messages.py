"""Hand-written parsing and encoding of frame stream messages (`proto/frames.proto`).

A frame is a ModelInferRequest after a few bytes, which say which frame it is and where the request
begins. Read early, they let a frame be received in place and parsed like any other request. The
protobuf runtime reads messages with another order of fields, at the price of a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from struct import Struct, error
from typing import NamedTuple

from google.protobuf.message import DecodeError

from slacktide.domain import Reason
from slacktide.wire.bulk_fields import encode_varint, read_varint
from slacktide.wire.calls import Buffer, SessionTerms, SizeAdvice
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.proto.messages import Advice, Answer, ClientMessage, Hello

MAX_NAME = 128
"""Characters of a model's or a client's name in a hello."""
MOST_RATE, MOST_SLO_MS = 1_000.0, 600_000.0
"""Maximum frames per second, and maximum SLO in milliseconds: no camera is faster, and no client
waits longer."""
HEAD_BYTES = 64
"""Maximum bytes of a frame's message before its request."""

_FRAME, _ANSWER = 3 << 3 | 2, 3 << 3 | 2  # ClientMessage.frame, ServerMessage.answer
_ID, _RATE, _REQUEST = 1 << 3, 2 << 3 | 1, 15 << 3 | 2  # of Frame
_RESPONSE_TAG = bytes((4 << 3 | 2,))  # Answer.response
_DOUBLE = Struct("<d")


class FrameHead(NamedTuple):
    """The fields before a frame's request."""

    id: int
    bytes_per_s: float
    """Rate of the link as the client measures it; 0 if missing or implausible."""
    start: int
    """Offset of the ModelInferRequest in the message."""


def frame_head(beginning: Buffer, length: int) -> FrameHead | None:
    """Parse the `beginning` of a ClientMessage of `length` bytes. None if it is too short, or the
    message is not a frame that ends with its request."""
    view = memoryview(beginning)[:HEAD_BYTES]
    id, rate = 0, 0.0
    try:
        if view[0] != _FRAME:
            return None
        size, at = read_varint(view, 1)
        if at + size != length:
            return None
        while (tag := view[at]) != _REQUEST:
            if tag == _ID:
                id, at = read_varint(view, at + 1)
            elif tag == _RATE:
                rate = _DOUBLE.unpack_from(view, at + 1)[0]
                at += 1 + _DOUBLE.size
            else:
                return None
        size, at = read_varint(view, at + 1)
    except (IndexError, WireError, error):
        return None
    return FrameHead(id, rate if 0.0 < rate < inf else 0.0, at) if at + size == length else None


def read_client_message(message: Buffer) -> ClientMessage:
    """Parse a ClientMessage. Raises WireError."""
    try:
        return ClientMessage.FromString(bytes(message))
    except DecodeError:
        raise WireError(Reason.BAD_INPUT, "message: not a ClientMessage") from None


def terms_of(hello: Hello) -> SessionTerms:
    """The terms in a hello. Raises BadField."""
    for field in ("model", "version", "name"):
        text = getattr(hello, field)
        if len(text) > MAX_NAME or not text.isprintable():
            raise BadField(field, f"at most {MAX_NAME} printable characters", text)
    if not hello.model:
        raise BadField("model", "the name of a model", "")
    return SessionTerms(
        hello.model,
        hello.version or None,
        _number(hello, "rate", MOST_RATE, above=0.0),
        _number(hello, "slo_ms", MOST_SLO_MS, above=0.0) / 1e3,
        _number(hello, "accuracy_floor", 1.0),
        _number(hello, "weight", 1e6) or 1.0,
        hello.name,
        _number(hello, "bytes_per_s", 1e12),
    )


def _number(hello: Hello, field: str, most: float, above: float | None = None) -> float:
    value = float(getattr(hello, field))
    if not (0.0 <= value <= most) or value == above:
        least = "at least 0" if above is None else f"more than {above:g}"
        raise BadField(field, f"{least} and at most {most:g}", value)
    return value


def advice_message(advice: SizeAdvice) -> Advice:
    """Convert advice to its message."""
    return Advice(
        size=advice.size,
        variant=advice.variant,
        mapped=advice.mapped,
        bytes_per_s=advice.bytes_per_s,
    )


def answer_pieces(answer: Answer, response: Sequence[Buffer] = ()) -> list[Buffer]:
    """A ServerMessage with `answer` and the pieces of its ModelInferResponse."""
    pieces: list[Buffer] = [answer.SerializeToString(), *response]
    if response:
        pieces.insert(1, _RESPONSE_TAG + encode_varint(sum(map(len, response))))
    return [bytes((_ANSWER,)) + encode_varint(sum(map(len, pieces))), *pieces]
