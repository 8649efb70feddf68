"""`GrpcCodec`: the conversions of `grpc_messages`, cached for messages that resemble earlier ones.

A client's requests to a model usually differ only in their id and tensor bytes. So we cache the
meaning of a request's *head* (everything else) under the head's bytes, and the head of an answer
under its model and shapes. A hit saves parsing, checking and building protobuf messages. That is
half the time of a small call; it matters because a server's caches are cold again when the next
call comes. A miss costs a dictionary entry.

The caches are bounded: longer heads are not cached, and a full table is cleared (as in `re`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.wire.bulk_fields import encode_varint, take_bulk
from slacktide.wire.calls import Buffer, InferCall, InferReply, InputTensor, Parameter
from slacktide.wire.errors import WireError
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
from slacktide.wire.oip_json import MAX_ID
from slacktide.wire.raw_tensors import check_raw

MAX_ENTRIES = 1024
MAX_HEAD = 2048
"""Longest cached head in bytes. With `MAX_ENTRIES`, this bounds the memory an attacker can take."""

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


class GrpcCodec:
    """Reads requests and writes answers, with caches. Each server has its own."""

    def __init__(self) -> None:
        self._meanings: dict[bytes, _Meaning] = {}
        self._reply_heads: dict[tuple[object, ...], tuple[bytes, tuple[bytes, ...]]] = {}
        self._call_heads: dict[tuple[object, ...], bytes] = {}

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
            if len(self._call_heads) >= MAX_ENTRIES:
                self._call_heads.clear()
            if len(head) <= MAX_HEAD:
                self._call_heads[tuple(key)] = head
        id = call.id.encode()
        pieces: list[Buffer] = [head, _ID_TAG, encode_varint(len(id)), id] if id else [head]
        for tensor in call.inputs:
            pieces += _RAW_INPUT_TAG + encode_varint(len(tensor.data)), tensor.data
        return pieces

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
            if len(self._meanings) >= MAX_ENTRIES:
                self._meanings.clear()
            self._meanings[head] = meaning

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
            if len(self._reply_heads) >= MAX_ENTRIES:
                self._reply_heads.clear()
            self._reply_heads[tuple(key)] = cached_head = head, tags
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


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise WireError(Reason.BAD_INPUT, "message: not a ModelInferRequest") from None
