"""Parsing and encoding of the messages between two servers (`proto/peers.proto`).

The message of a call begins with a few bytes that identify the call and say where its
ModelInferRequest begins. If these bytes are read early, the tensors are received straight into
their slot, as for frames (`frame_messages.py`). Tensors of answers are views into the message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Final

from google.protobuf.message import DecodeError

from slacktide.domain import Outcome, Reason
from slacktide.peers.messages import LoadReport, ModelLoad, PeerHello
from slacktide.wire.bulk_fields import encode_varint, read_varint, take_bulk
from slacktide.wire.calls import Buffer, CallContext, InferReply, OutputValue
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import RAW_OUTPUT_CONTENTS, read_parameters
from slacktide.wire.oip_json import MAX_TENSORS
from slacktide.wire.proto import messages as m
from slacktide.wire.raw_tensors import check_raw, check_shape, datatype_of
from slacktide.wire.status import microseconds

MAX_MODELS: Final = 1024
"""Maximum models in a hello or in a report. A server with more models offers the first ones."""
MAX_PEER_NAME: Final = 128
"""Maximum characters of a machine's name, its release and a model's digest."""
MAX_MODEL_NAME: Final = 512
MAX_ADDRESS: Final = 300
"""Maximum characters of an address for clients."""
MAX_SENTENCE: Final = 1024
"""Maximum characters of a sentence, and of a call's ids."""
CALL_HEAD_BYTES: Final = 4 * (2 * MAX_SENTENCE) + 64
"""Maximum bytes of a call's message before its request."""

_CALL, _ANSWER = 5 << 3 | 2, 6 << 3 | 2  # of PeerMessage
_REQUEST = 15 << 3 | 2  # CallOfPeer.request
_RESPONSE = 16  # AnswerOfPeer.response
_RESPONSE_TAG = encode_varint(_RESPONSE << 3 | 2)
ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9][\w.-]*)):([0-9]{1,5})", re.A)
"""`host:port` or `[v6]:port`."""
_REASONS = {reason.label: reason for reason in Reason}


def read_peer_message(message: Buffer) -> m.PeerMessage:
    """Parse any message. Raises WireError."""
    try:
        return m.PeerMessage.FromString(bytes(message))
    except DecodeError:
        raise WireError(Reason.BAD_INPUT, "message: not a PeerMessage") from None


# -------------------------------------------------------------------- hello and loads


def hello_message(hello: PeerHello, max_bytes: int) -> bytes:
    """The first message of a server that takes messages of at most `max_bytes`."""
    greeting = m.HelloPeer(
        protocol=hello.protocol,
        release=hello.release,
        machine=hello.machine,
        instance=hello.instance,
        max_bytes=max_bytes,
        models=dict(sorted(hello.models.items())[:MAX_MODELS]),
        http_address=hello.http_address,
        grpc_address=hello.grpc_address,
        tls=hello.tls,
    )
    return m.PeerMessage(hello=greeting).SerializeToString()


def hello_of(greeting: m.HelloPeer) -> tuple[PeerHello, int]:
    """The hello, and the longest message that the peer takes. Raises BadField."""
    for field in ("release", "machine", "instance"):
        _check_text(getattr(greeting, field), field, MAX_PEER_NAME)
    if not greeting.machine:
        raise BadField("machine", "the name of a machine", "")
    if len(greeting.models) > MAX_MODELS:
        raise BadField("models", f"at most {MAX_MODELS} models", len(greeting.models))
    models = dict(greeting.models)
    for model, digest in models.items():
        _check_text(model, "models", MAX_MODEL_NAME)
        _check_text(digest, "models", MAX_PEER_NAME)
    for field in ("http_address", "grpc_address"):
        address = getattr(greeting, field)
        if address and not is_address(address):
            raise BadField(field, "an address such as 10.0.0.2:8000", address[:MAX_ADDRESS])
    hello = PeerHello(
        greeting.protocol,
        greeting.release,
        greeting.machine,
        models,
        greeting.instance,
        greeting.http_address,
        greeting.grpc_address,
        greeting.tls,
    )
    return hello, greeting.max_bytes


def is_address(text: str) -> bool:
    """Whether a text is `host:port` or `[v6]:port`."""
    match = ADDRESS.fullmatch(text) if len(text) <= MAX_ADDRESS else None
    return match is not None and 0 < int(match[3]) < 65_536


def loads_message(report: LoadReport) -> m.LoadsOfPeer:
    """Convert a report to its message."""
    loads = [
        m.LoadOfModel(model=load.model, wait_s=load.wait_s, alone_s=load.alone_s, row_s=load.row_s)
        for load in report.loads[:MAX_MODELS]
    ]
    return m.LoadsOfPeer(loads=loads, received=report.received)


def report_of(message: m.LoadsOfPeer) -> LoadReport:
    """The report in a message. Raises BadField."""
    if len(message.loads) > MAX_MODELS:
        raise BadField("loads", f"at most {MAX_MODELS} models", len(message.loads))
    loads = []
    for load in message.loads:
        _check_text(load.model, "loads.model", MAX_MODEL_NAME)
        if not (load.wait_s >= 0.0 and 0.0 <= load.alone_s < inf and 0.0 <= load.row_s < inf):
            times = load.wait_s, load.alone_s, load.row_s
            raise BadField(f"loads of {load.model!r}", "seconds of 0 or more", times)
        loads.append(ModelLoad(load.model, load.wait_s, load.alone_s, load.row_s))
    return LoadReport(tuple(loads), message.received)


# -------------------------------------------------------------------- calls


def forwarded_pieces(
    id: int, request: Sequence[Buffer], context: CallContext, budget_s: float | None
) -> list[Buffer]:
    """The message of a call, in pieces. `request`: the call as a ModelInferRequest."""
    call = m.CallOfPeer(
        id=id,
        budget_us=None if budget_s is None else max(0, microseconds(budget_s)),
        request_id=context.request_id[:MAX_SENTENCE],
        traceparent=(context.traceparent or "")[:MAX_SENTENCE],
    )
    length = sum(map(len, request))
    head = call.SerializeToString() + bytes((_REQUEST,)) + encode_varint(length)
    return [bytes((_CALL,)) + encode_varint(len(head) + length) + head, *request]


def forwarded_head(beginning: Buffer, length: int) -> tuple[m.CallOfPeer, int] | None:
    """Parse the `beginning` of a message of `length` bytes. Returns a call without its request,
    whose offset follows; None if the beginning is too short, or the message is not a call that ends
    with its request."""
    view = memoryview(beginning)[:CALL_HEAD_BYTES]
    try:
        if view[0] != _CALL:
            return None
        size, start = read_varint(view, 1)
        at, end = start, start + size
        while (tag := view[at]) != _REQUEST:
            number, at = read_varint(view, at + 1)
            at += number if tag & 7 == 2 else 0
        call = m.CallOfPeer.FromString(bytes(view[start:at]))
        size, at = read_varint(view, at + 1)
    except (IndexError, WireError, DecodeError):
        return None
    return (call, at) if at + size == end == length else None


# -------------------------------------------------------------------- answers


def reply_pieces(
    id: int, reply: InferReply, response: Sequence[Buffer], report: LoadReport | None = None
) -> list[Buffer]:
    """The message of an answer, in pieces. `response`: the reply as a ModelInferResponse."""
    outcome = reply.outcome
    answer = m.AnswerOfPeer(
        id=id,
        reason=outcome.reason.label,
        refused=reply.outputs is None,
        queue_s=outcome.queue_s,
        compute_s=outcome.compute_s,
        batch_rows=outcome.batch_rows,
        budget_s=outcome.budget_s,
        needed_s=outcome.needed_s,
        wait_s=outcome.wait_s,
        ramp=outcome.ramp,
        detail=outcome.detail[:MAX_SENTENCE],
        message=reply.message[:MAX_SENTENCE],
        retry_after_s=reply.retry_after_s,
        variant=reply.variant[:MAX_PEER_NAME],
        loads=None if report is None else loads_message(report),
    )
    head = answer.SerializeToString() + _RESPONSE_TAG + encode_varint(sum(map(len, response)))
    size = len(head) + sum(map(len, response))
    return [bytes((_ANSWER,)) + encode_varint(size) + head, *response]


def is_answer(message: Buffer) -> bool:
    """Whether a message begins as an answer does."""
    return len(message) > 0 and memoryview(message)[0] == _ANSWER


def read_answer(message: Buffer, *, now: float) -> tuple[int, InferReply, LoadReport | None]:
    """Parse the message of an answer that came at `now`. Returns the id of its call, the reply (its
    tensors are views into the message), and its load report, if any. Raises WireError."""
    try:
        answers = take_bulk(message, _ANSWER >> 3)[1]
        head, responses, _ = take_bulk(answers[-1], _RESPONSE)
        answer = m.AnswerOfPeer.FromString(head)
        head, raw, _ = take_bulk(responses[-1] if responses else b"", RAW_OUTPUT_CONTENTS)
        response = m.ModelInferResponse.FromString(head)
    except (DecodeError, IndexError):
        raise WireError(Reason.BAD_INPUT, "message: not an answer") from None
    reason = _REASONS.get(answer.reason)
    if reason is None:
        raise BadField("reason", "a known reason", answer.reason)
    outcome = Outcome(
        reason,
        now,
        _seconds(answer, "queue_s") or 0.0,
        _seconds(answer, "compute_s") or 0.0,
        answer.batch_rows,
        _seconds(answer, "budget_s"),
        answer.detail[:MAX_SENTENCE],
        _seconds(answer, "needed_s"),
        _seconds(answer, "wait_s"),
        answer.ramp if answer.HasField("ramp") else None,
    )
    reply = InferReply(
        outcome,
        response.model_name,
        response.model_version,
        response.id,
        None if answer.refused else _outputs(response, raw),
        answer.message[:MAX_SENTENCE],
        read_parameters(response.parameters),
        _seconds(answer, "retry_after_s"),
        answer.variant[:MAX_PEER_NAME],
    )
    report = report_of(answer.loads) if answer.HasField("loads") else None
    return answer.id, reply, report


def _outputs(response: m.ModelInferResponse, raw: Sequence[memoryview]) -> list[OutputValue]:
    count = len(response.outputs)
    if count > MAX_TENSORS or len(raw) != count:
        expected = f"one entry for each of {count} outputs, at most {MAX_TENSORS}"
        raise BadField("raw_output_contents", expected, len(raw))
    outputs = []
    for index, (tensor, data) in enumerate(zip(response.outputs, raw, strict=True)):
        where = f"outputs[{index}]"
        datatype = datatype_of(tensor.datatype, f"{where}.datatype")
        shape = check_shape(list(tensor.shape), f"{where}.shape")
        check_raw(data, datatype, shape, f"raw_output_contents[{index}]")
        outputs.append(OutputValue(tensor.name, datatype, shape, data))
    return outputs


def _seconds(answer: m.AnswerOfPeer, field: str) -> float | None:
    """The number in a field; None if it is missing. Raises BadField if it is not a number."""
    if field not in ("queue_s", "compute_s") and not answer.HasField(field):
        return None
    seconds = float(getattr(answer, field))
    if seconds != seconds:
        raise BadField(field, "seconds", seconds)
    return seconds


def _check_text(text: str, field: str, most: int) -> None:
    if len(text) > most or not text.isprintable():
        raise BadField(field, f"at most {most} printable characters", text)
