"""gRPC messages ↔ protocol-neutral calls and answers.

    server   read_request  → RequestMessage → .call(…)   encode_reply, …
    client   encode_call

Reading takes two steps so that a server knows which model an invalid request was meant for. Tensors
are not copied on the way in: they are views into the message. On the way out, a message is
assembled once. Answers always carry `raw_output_contents`, one entry per output, because stock
clients read nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from slacktide.domain import Reason
from slacktide.wire.bulk_fields import encode_varint, fields_before, put_bulk, take_bulk
from slacktide.wire.calls import Buffer, InferCall, InferReply, InputTensor, OutputValue, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.oip_json import (
    CLASSES,
    MAX_ID,
    MAX_TENSORS,
    SHARED_MEMORY,
    class_count,
    no_shared_memory,
    take_name,
)
from slacktide.wire.proto.messages import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelRepositoryParameter,
    ModelStreamInferResponse,
)
from slacktide.wire.raw_tensors import check_raw, check_shape, datatype_of, raw_contents

MODEL_NAME = 1
MODEL_VERSION = 2
ID = 3
RAW_INPUT_CONTENTS = 7
RAW_OUTPUT_CONTENTS = 6
"""Numbers of fields handled apart from the rest; `id` has the same in requests and responses."""

FINAL_RESPONSE = "triton_final_response"
"""Parameter of every answer on a stream: true on the last one to a request (there is only one)."""
REASON = "reason"
"""Parameter of a refusal on a stream: its reason."""

_INFER_RESPONSE_TAG = bytes((2 << 3 | 2,))  # ModelStreamInferResponse.infer_response
_INT64_MAX = 2**63 - 1


@dataclass(slots=True)
class RequestMessage:
    """A ModelInferRequest that is parsed but not yet checked."""

    head: ModelInferRequest
    """The message without its raw tensors."""
    raw: list[memoryview]
    """The entries of `raw_input_contents`."""

    @property
    def model(self) -> str:
        return self.head.model_name

    @property
    def version(self) -> str | None:
        return self.head.model_version or None

    @property
    def id(self) -> str:
        return self.head.id

    def call(self, from_metadata: Mapping[str, Parameter]) -> InferCall:
        """Check the message and convert it to a call. Its own parameters win over the metadata's.
        Raises BadField."""
        head = self.head
        if len(head.id) > MAX_ID:
            raise BadField("id", f"a string of at most {MAX_ID} characters", head.id)
        parameters = dict(from_metadata)
        if head.parameters:
            parameters.update(read_parameters(head.parameters))
        return InferCall(
            model=head.model_name,
            version=head.model_version or None,
            id=head.id,
            inputs=_inputs(head, self.raw),
            outputs=_outputs(head),
            parameters=parameters,
            classification=_classification(head),
        )


def read_request(message: Buffer) -> RequestMessage:
    """Parse a serialized ModelInferRequest. Raises WireError."""
    return parse_head(*take_bulk(message, RAW_INPUT_CONTENTS)[:2])


def typed_bytes(message: Buffer) -> int:
    """Size of a serialized ModelInferRequest without its raw tensors. Raises WireError."""
    return len(take_bulk(message, RAW_INPUT_CONTENTS)[0])


def model_of(message: Buffer) -> str:
    """The model that a ModelInferRequest names, even if the rest is invalid; "" if none."""
    try:
        names = take_bulk(message, MODEL_NAME)[1]
        return str(names[-1], "utf-8") if names else ""
    except (WireError, UnicodeDecodeError):
        return ""


def target_before_tensors(beginning: Buffer) -> tuple[str, str | None] | None:
    """The model and version in the beginning of a ModelInferRequest, if raw tensors follow; None if
    only the complete message shows them."""
    fields = fields_before(beginning, RAW_INPUT_CONTENTS)
    if fields is None or MODEL_NAME not in fields:
        return None
    try:
        version = str(fields.get(MODEL_VERSION, b""), "utf-8")
        return str(fields[MODEL_NAME], "utf-8"), version or None
    except UnicodeDecodeError:
        return None


def parse_head(head: bytes, raw: list[memoryview]) -> RequestMessage:
    """Parse a ModelInferRequest whose raw tensors have been removed. Raises WireError."""
    try:
        return RequestMessage(ModelInferRequest.FromString(head), raw)
    except DecodeError:
        raise WireError(Reason.BAD_INPUT, "message: not a ModelInferRequest") from None


def encode_reply(reply: InferReply, requested: Sequence[str] = ()) -> list[Buffer]:
    """A reply with outputs, in the order of `requested`, as a serialized ModelInferResponse, in
    pieces. Tensors are not copied."""
    outputs = reply.in_order(requested)
    tensors = [output.data for output in outputs]
    return put_bulk(reply_head(reply, outputs), RAW_OUTPUT_CONTENTS, tensors)


def reply_head(reply: InferReply, outputs: Sequence[OutputValue]) -> bytes:
    """A serialized ModelInferResponse without its tensors."""
    response = ModelInferResponse(model_name=reply.model, model_version=reply.version, id=reply.id)
    write_parameters(reply.parameters, response.parameters)
    for output in outputs:
        response.outputs.add(
            name=output.name, datatype=output.datatype.wire_name, shape=output.shape
        )
    return response.SerializeToString()


def in_stream(pieces: Sequence[Buffer]) -> list[Buffer]:
    """Wrap the pieces of a ModelInferResponse into a ModelStreamInferResponse."""
    return [_INFER_RESPONSE_TAG + encode_varint(sum(map(len, pieces))), *pieces]


def encode_stream_error(
    message: str, *, model: str, version: str | None, id: str, parameters: Mapping[str, Parameter]
) -> bytes:
    """A serialized ModelStreamInferResponse with the reason for a missing result. `id` lets a
    client with many requests in flight see which one failed."""
    response = ModelInferResponse(model_name=model, model_version=version or "", id=id)
    write_parameters({**parameters, FINAL_RESPONSE: True}, response.parameters)
    # Clients take an empty error_message as success.
    answer = ModelStreamInferResponse(
        error_message=message or "request failed", infer_response=response
    )
    return answer.SerializeToString()


def encode_call(call: InferCall) -> bytes:
    """A call as a serialized ModelInferRequest, for clients."""
    return b"".join(call_pieces(call))


def call_pieces(call: InferCall) -> list[Buffer]:
    """A call as a serialized ModelInferRequest, in pieces. Tensors are not copied."""
    request = ModelInferRequest(model_name=call.model, model_version=call.version or "", id=call.id)
    write_parameters(call.parameters, request.parameters)
    for tensor in call.inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype.wire_name, shape=tensor.shape)
    for name in call.outputs:
        request.outputs.add(name=name)
    if call.classification:
        for output in request.outputs:
            output.parameters[CLASSES].int64_param = call.classification.get(output.name, 0)
    tensors = [tensor.data for tensor in call.inputs]
    return put_bulk(request.SerializeToString(), RAW_INPUT_CONTENTS, tensors)


def read_parameters(
    parameters: Mapping[str, InferParameter | ModelRepositoryParameter],
) -> dict[str, Parameter]:
    """The values of a parameter map. A parameter with no known member set is left out."""
    values: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        member = parameter.WhichOneof("parameter_choice")
        if member is not None:
            values[name] = getattr(parameter, member)
    return values


def write_parameters(
    parameters: Mapping[str, Parameter], into: MutableMapping[str, InferParameter]
) -> None:
    """Write a parameter map. Integers become int64 if they fit, else uint64."""
    for name, value in parameters.items():
        parameter = into[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int):
            if value > _INT64_MAX:
                parameter.uint64_param = value
            else:
                parameter.int64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = value


def _inputs(head: ModelInferRequest, raw: list[memoryview]) -> list[InputTensor]:
    count = len(head.inputs)
    if count > MAX_TENSORS:
        raise BadField("inputs", f"at most {MAX_TENSORS} tensors", count)
    if raw and len(raw) != count:
        raise BadField("raw_input_contents", f"one entry for each of {count} inputs", len(raw))
    inputs: list[InputTensor] = []
    names: set[str] = set()
    for index, tensor in enumerate(head.inputs):
        where = f"inputs[{index}]"
        name = take_name(tensor.name, where, names)
        if tensor.parameters and SHARED_MEMORY in tensor.parameters:
            raise no_shared_memory(where)
        datatype = datatype_of(tensor.datatype, f"{where}.datatype")
        shape = check_shape(list(tensor.shape), f"{where}.shape")
        typed = tensor.contents.ListFields() if tensor.HasField("contents") else []
        data: Buffer
        if not raw:
            data = raw_contents(tensor.contents, datatype, shape, where)
        elif typed:
            raise BadField(f"{where}.contents", "only raw_input_contents", "values")
        else:
            data = raw[index]
            check_raw(data, datatype, shape, f"raw_input_contents[{index}]")
        inputs.append(InputTensor(name, datatype, shape, data))
    return inputs


def _outputs(head: ModelInferRequest) -> list[str]:
    if len(head.outputs) > MAX_TENSORS:
        raise BadField("outputs", f"at most {MAX_TENSORS} outputs", len(head.outputs))
    requested: list[str] = []
    names: set[str] = set()
    for index, tensor in enumerate(head.outputs):
        where = f"outputs[{index}]"
        requested.append(take_name(tensor.name, where, names))
        if tensor.parameters and SHARED_MEMORY in tensor.parameters:
            raise no_shared_memory(where)
    return requested


def _classification(head: ModelInferRequest) -> dict[str, int] | None:
    """The requested numbers of classes, by output; None if there are none. Raises BadField."""
    counts = {
        tensor.name: count
        for index, tensor in enumerate(head.outputs)
        if tensor.parameters
        if (count := class_count(read_parameters(tensor.parameters), f"outputs[{index}]"))
    }
    return counts or None
