"""`GrpcCodec`: the conversions of `grpc_messages`, cached for messages that resemble earlier ones.

A client's requests to a model usually differ only in their id and tensor bytes. So we cache the
meaning of a request's *head* (everything else) under the head's bytes, and the head of an answer
under its model and shapes. A hit saves parsing, checking and building protobuf messages: half the
time of a small call, which matters because a server's core is cold again when the next call comes.
A miss costs a dictionary entry.

The caches are bounded: longer heads are not cached, and a full table is cleared (as in `re`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.wire.bulk_fields import encode_varint, take_bulk
from slacktide.wire.calls import Buffer, InferCall, InferReply, InputTensor, OutputValue, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import (
    FINAL_RESPONSE,
    ID,
    RAW_INPUT_CONTENTS,
    RAW_OUTPUT_CONTENTS,
    RequestMessage,
    call_pieces,
    encode_reply,
    in_stream,
    parse_head,
    read_parameters,
    reply_head,
)
from slacktide.wire.oip_json import MAX_ID, MAX_TENSORS
from slacktide.wire.proto.messages import ModelInferResponse
from slacktide.wire.raw_tensors import check_raw, check_shape, datatype_of

MAX_ENTRIES = 1024
MAX_HEAD = 2048
"""Longest cached head in bytes. With `MAX_ENTRIES`, this bounds the memory an attacker can take."""

Key = TypeVar("Key")
Entry = TypeVar("Entry")

_ID_TAG = encode_varint(ID << 3 | 2)
_RAW_TAG = encode_varint(RAW_OUTPUT_CONTENTS << 3 | 2)
_RAW_INPUT_TAG = encode_varint(RAW_INPUT_CONTENTS << 3 | 2)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The meaning of a head. The last part of an input is its size, None for BYTES."""

    model: str
    version: str | None
    inputs: tuple[tuple[str, Datatype, tuple[int, ...], int | None], ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    classification: Mapping[str, int] | None


class ReplyParts(NamedTuple):
    """A ModelInferResponse."""

    model: str
    version: str
    id: str
    outputs: list[OutputValue]
    parameters: dict[str, Parameter]


class GrpcCodec:
    """Reads requests and writes answers, with caches. Each server has its own."""

    def __init__(self) -> None:
        self._meanings: dict[bytes, _Meaning] = {}
        self._reply_heads: dict[tuple[object, ...], tuple[bytes, tuple[bytes, ...]]] = {}
        self._call_heads: dict[tuple[object, ...], bytes] = {}
        self._replies: dict[bytes, ReplyParts] = {}
        """Replies without ids, whose outputs have no data, by head."""

    def read(self, message: Buffer) -> IncomingRequest:
        """Read a serialized ModelInferRequest. Raises WireError."""
        head, raw, id_bytes = take_bulk(message, RAW_INPUT_CONTENTS, ID)
        id = "" if id_bytes is None else _text(id_bytes)
        meaning = self._meanings.get(head)
        if meaning is not None:
            return IncomingRequest(meaning.model, meaning.version, id, raw, head, meaning, self)
        parsed = parse_head(head, raw)
        parsed.head.id = id
        return IncomingRequest(parsed.model, parsed.version, id, raw, head, parsed, self)

    def reply_pieces(self, reply: InferReply, requested: Sequence[str] = ()) -> list[Buffer]:
        """See grpc_messages.encode_reply."""
        return self._pieces(reply, requested, {})

    def stream_reply_pieces(self, reply: InferReply, requested: Sequence[str] = ()) -> list[Buffer]:
        """A reply as a serialized ModelStreamInferResponse, in pieces."""
        return in_stream(self._pieces(reply, requested, {FINAL_RESPONSE: True}))

    def call_pieces(self, call: InferCall) -> list[Buffer]:
        """See grpc_messages.call_pieces."""
        if call.parameters or call.classification:
            return call_pieces(call)
        key: list[object] = [call.model, call.version, tuple(call.outputs)]
        for tensor in call.inputs:
            key += tensor.name, tensor.datatype, tensor.shape
        head = self._call_heads.get(tuple(key))
        if head is None:
            head = bytes(call_pieces(replace(call, id=""))[0])
            if len(head) <= MAX_HEAD:
                _put(self._call_heads, tuple(key), head)
        pieces: list[Buffer] = [head]
        if call.id:
            id = call.id.encode()
            pieces[0] = b"".join((head, _ID_TAG, encode_varint(len(id)), id))
        for tensor in call.inputs:
            pieces += _RAW_INPUT_TAG + encode_varint(len(tensor.data)), tensor.data
        return pieces

    def read_reply(self, message: Buffer) -> ReplyParts:
        """Read a serialized ModelInferResponse. Its tensors are views into it. Raises WireError,
        and DecodeError."""
        head, raw, id_bytes = take_bulk(message, RAW_OUTPUT_CONTENTS, ID)
        parts = self._replies.get(head)
        if parts is None:
            parts = _reply_parts(head)
            if len(head) <= MAX_HEAD and not parts.parameters:  # timing differs each time
                _put(self._replies, head, parts)
        if len(raw) != len(parts.outputs):
            expected = f"one entry for each of {len(parts.outputs)} outputs"
            raise BadField("raw_output_contents", expected, len(raw))
        outputs = []
        for output, data in zip(parts.outputs, raw, strict=True):
            check_raw(data, output.datatype, output.shape, "raw_output_contents")
            outputs.append(OutputValue(output.name, output.datatype, output.shape, data))
        return parts._replace(id="" if id_bytes is None else _text(id_bytes), outputs=outputs)

    def learn(self, head: bytes, request: RequestMessage, call: InferCall) -> None:
        """Cache the meaning of `head`. Heads with typed contents are not cached, as all differ."""
        if len(head) <= MAX_HEAD and len(request.raw) == len(call.inputs):
            meaning = _Meaning(
                call.model,
                call.version,
                tuple(
                    (
                        tensor.name,
                        tensor.datatype,
                        tensor.shape,
                        None if tensor.datatype is Datatype.BYTES else len(tensor.data),
                    )
                    for tensor in call.inputs
                ),
                tuple(call.outputs),
                read_parameters(request.head.parameters),
                call.classification,
            )
            _put(self._meanings, head, meaning)

    def _pieces(
        self, reply: InferReply, requested: Sequence[str], parameters: dict[str, Parameter]
    ) -> list[Buffer]:
        if reply.parameters:  # timing, which differs each time
            whole = replace(reply, parameters={**reply.parameters, **parameters})
            return encode_reply(whole, requested)
        outputs = reply.in_order(requested)
        key: list[object] = [reply.model, reply.version, len(parameters)]
        for output in outputs:
            key += output.name, output.datatype.wire_name, output.shape, len(output.data)
        cached_head = self._reply_heads.get(tuple(key))
        if cached_head is None:
            head = reply_head(replace(reply, id="", parameters=parameters), outputs)
            tags = tuple(_RAW_TAG + encode_varint(len(output.data)) for output in outputs)
            cached_head = head, tags
            _put(self._reply_heads, tuple(key), cached_head)
        head, tags = cached_head
        pieces: list[Buffer] = [head]
        if reply.id:
            id = reply.id.encode()
            pieces += _ID_TAG, encode_varint(len(id)), id
        for tag, output in zip(tags, outputs, strict=True):
            pieces += tag, output.data
        return pieces


@dataclass(slots=True)
class IncomingRequest:
    """A request whose model and id have been read; `call` returns all of it."""

    model: str
    version: str | None
    id: str
    _raw: list[memoryview]
    _head: bytes
    _meaning: _Meaning | RequestMessage
    _codec: GrpcCodec

    def call(self, from_metadata: Mapping[str, Parameter]) -> InferCall:
        """See RequestMessage.call. Raises BadField."""
        meaning, raw = self._meaning, self._raw
        if isinstance(meaning, RequestMessage):
            call = meaning.call(from_metadata)
            self._codec.learn(self._head, meaning, call)
            return call
        if len(raw) != len(meaning.inputs) or len(self.id) > MAX_ID:
            parsed = parse_head(self._head, raw)
            parsed.head.id = self.id
            return parsed.call(from_metadata)  # raises the matching error
        inputs: list[InputTensor] = []
        for (name, datatype, shape, size), data in zip(meaning.inputs, raw, strict=True):
            if len(data) != size:
                check_raw(data, datatype, shape, f"raw_input_contents[{len(inputs)}]")
            inputs.append(InputTensor(name, datatype, shape, data))
        return InferCall(
            meaning.model,
            meaning.version,
            self.id,
            inputs,
            list(meaning.outputs),
            {**from_metadata, **meaning.parameters},
            meaning.classification,
        )


def _put(table: dict[Key, Entry], key: Key, entry: Entry) -> None:
    if len(table) >= MAX_ENTRIES:
        table.clear()
    table[key] = entry


def _reply_parts(head: bytes) -> ReplyParts:
    """Parse a ModelInferResponse without tensors."""
    response = ModelInferResponse.FromString(head)
    if len(response.outputs) > MAX_TENSORS:
        raise BadField("outputs", f"at most {MAX_TENSORS}", len(response.outputs))
    outputs = []
    for index, tensor in enumerate(response.outputs):
        where = f"outputs[{index}]"
        datatype = datatype_of(tensor.datatype, f"{where}.datatype")
        shape = check_shape(list(tensor.shape), f"{where}.shape")
        outputs.append(OutputValue(tensor.name, datatype, shape, b""))
    parameters = read_parameters(response.parameters)
    return ReplyParts(response.model_name, response.model_version, "", outputs, parameters)


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise WireError(Reason.BAD_INPUT, "message: not a ModelInferRequest") from None
