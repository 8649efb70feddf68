"""Inference calls and replies in JSON with binary tensors.

`parse_infer` reads a request's body. Binary tensors are views into the body, so a body received
into shared memory is never copied. `format_reply` writes an answer's JSON and lists the buffers
that follow it. Any invalid input raises WireError and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import orjson

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.wire.calls import Buffer, InferCall, InferReply, InputTensor, OutputValue, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.raw_tensors import check_raw, check_shape, datatype_of, from_json, to_json

MAX_ID: Final = 1024
"""Maximum characters of a request id, which is logged and returned in the answer."""
MAX_TENSORS: Final = 1024
CLASSES: Final = "classification"
"""Parameter of an output: the number of classes to return."""
MAX_NAME: Final = 1024
LONG_VALUES: Final = 16 * 1024
"""Number of values written as JSON in one step, which takes about a millisecond."""
LONG_STRINGS: Final = 256 * 1024
"""Bytes of strings written as JSON in one step."""
_STRING_COST: Final = 128
"""Overhead of a string, in bytes."""
MAX_REST: Final = 64 * 1024
"""Maximum bytes of a long JSON text besides tensor data."""

_NAN_OR_INFINITY = re.compile(r"(nan|inf(inity)?)\b", re.IGNORECASE)
_NAN_ADVICE = (
    "use null for NaN, or send the values as binary data (binary_data_size; in tritonclient, "
    "binary_data=True)"
)
SHARED_MEMORY = "shared_memory_region"
_SCALARS = (bool, int, float, str)
_NO_PARAMETERS: Mapping[str, Any] = {}


@dataclass(slots=True)
class AnswerFormat:
    """The requested format of the outputs, which only the front end needs."""

    binary_default: bool = False
    binary: dict[str, bool] = field(default_factory=dict)
    """Outputs for which the request overrides `binary_default`."""
    written: dict[str, bytes] = field(default_factory=dict)
    """Data of outputs already written as JSON, by name."""
    classification: dict[str, int] = field(default_factory=dict)
    """Outputs whose best classes are requested, with their number."""
    order: list[str] = field(default_factory=list)
    """Requested names in order; empty means all, in the model's order."""


ALL_BINARY = AnswerFormat(binary_default=True)
ALL_JSON = AnswerFormat()


def parse_infer(
    model: str,
    version: str | None,
    body: Buffer,
    json_length: int | None,
    header_parameters: Mapping[str, Parameter] = _NO_PARAMETERS,
) -> tuple[InferCall, AnswerFormat]:
    """Parse the call in `body`, and the format of its answer.

    `json_length` is the Inference-Header-Content-Length: None if not sent (the body is all JSON), 0
    for a raw binary request. The only tensor of a raw request gets the name '' (UINT8, shape (),
    and the whole body as data); the data plane, which knows the model, replaces these. Parameters
    in the body win over `header_parameters` of the same name. Raises WireError.
    """
    if json_length == 0:
        raw = InputTensor("", Datatype.UINT8, (), body)
        return InferCall(model, version, "", [raw], [], dict(header_parameters)), ALL_BINARY
    if json_length is None:
        head, tail = body, None
    elif json_length > len(body):
        expected = f"at most the {len(body)} bytes of the body"
        raise BadField("Inference-Header-Content-Length", expected, json_length)
    else:
        view = memoryview(body)
        head, tail = view[:json_length], view[json_length:]
    document = load_object(head)
    get = document.get

    request_id = get("id")
    if request_id is None:
        request_id = ""
    if type(request_id) is not str or len(request_id) > MAX_ID:
        raise BadField("id", f"a string of at most {MAX_ID} characters", request_id)
    fields = get("parameters")
    parameters = _parameters(fields, "parameters") if fields else _empty(fields, "parameters")
    default = parameters.get("binary_data_output", False)
    if type(default) is not bool:
        raise BadField("parameters.binary_data_output", "true or false", default)
    if header_parameters:
        parameters = {**header_parameters, **parameters}
    inputs = _inputs(get("inputs"), tail)
    answer = _outputs(get("outputs"), default)
    call = InferCall(model, version, request_id, inputs, list(answer.order), parameters)
    call.classification = answer.classification or None
    return call, answer


def binary_form(body: Buffer, json_length: int | None) -> tuple[bytes, int]:
    """Convert `body` to an equivalent one with all tensors in binary, which `parse_infer` reads
    quickly. Returns it and the length of its JSON. Raises WireError like `parse_infer`."""
    call, answer = parse_infer("", None, body, json_length)
    default = answer.binary_default
    document: dict[str, Any] = {
        "id": call.id,
        "parameters": call.parameters,
        "inputs": [
            {
                "name": tensor.name,
                "datatype": tensor.datatype.wire_name,
                "shape": tensor.shape,
                "parameters": {"binary_data_size": len(tensor.data)},
            }
            for tensor in call.inputs
        ],
        "outputs": [
            {
                "name": name,
                "parameters": {
                    "binary_data": answer.binary.get(name, default),
                    "classification": answer.classification.get(name, 0),
                },
            }
            for name in answer.order
        ],
    }
    head = orjson.dumps(document)
    if len(head) > MAX_REST:
        expected = f"at most {MAX_REST} bytes of JSON without the data"
        raise BadField("body", expected, len(head), Reason.TOO_LARGE)
    return b"".join((head, *[tensor.data for tensor in call.inputs])), len(head)


def load_object(data: Buffer, part: str = "body") -> dict[str, Any]:
    """Parse a JSON object. orjson limits the nesting (1,024). Raises WireError."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        # orjson's message ends in a position and quotes nothing of the document.
        text = f"invalid JSON at position {error.pos}: {str(error).split(': line', 1)[0]}"
        if _NAN_OR_INFINITY.match(error.doc, error.pos):
            text = f"NaN and Infinity are not JSON, got one at position {error.pos}; {_NAN_ADVICE}"
        raise WireError(Reason.BAD_INPUT, f"{part}: {text}") from None
    if type(document) is not dict:
        raise BadField(part, "a JSON object", document)
    return document


def format_reply(reply: InferReply, answer: AnswerFormat) -> tuple[bytes, list[Buffer]]:
    """The JSON of a reply with outputs, and the binary tensors that follow it (none if no output is
    binary). Strings that are not UTF-8 are sent as binary even if JSON was requested, because JSON
    cannot express them."""
    reply_outputs = reply.outputs or []
    if len(reply_outputs) == 1 and not (reply.id or reply.parameters):
        only = reply_outputs[0]
        if answer.binary.get(only.name, answer.binary_default):
            wire_name, size = only.datatype.wire_name, len(only.data)
            text = _only(reply.model, reply.version, only.name, wire_name, only.shape, size)
            return text, [only.data]
    buffers: list[Buffer] = []
    outputs = [_describe(output, answer, buffers) for output in reply.in_order(answer.order)]
    fields = b',"id":%b' % orjson.dumps(reply.id) if reply.id else b""
    if reply.parameters:
        fields += b',"parameters":%b' % orjson.dumps(reply.parameters)
    opening = _opening(reply.model, reply.version)
    return b'%b%b,"outputs":[%b]}' % (opening, fields, b",".join(outputs)), buffers


# Answers differ little, so the common parts of their JSON are cached.


@lru_cache(maxsize=1024)
def _opening(model: str, version: str) -> bytes:
    return orjson.dumps({"model_name": model, "model_version": version})[:-1]


@lru_cache(maxsize=1024)
def _only(
    model: str, version: str, name: str, datatype: str, shape: tuple[int, ...], size: int
) -> bytes:
    """The JSON of an answer with a single binary output and nothing else, the usual case."""
    output = _described(name, datatype, shape, size)
    return b'%b,"outputs":[%b]}' % (_opening(model, version), output)


@lru_cache(maxsize=1024)
def _described(name: str, datatype: str, shape: tuple[int, ...], size: int) -> bytes:
    """The JSON of an output whose `size` bytes follow."""
    # `parameters` may hold only binary_data_size: stock clients fail on anything else.
    extra = {"binary_data_size": size}
    return orjson.dumps({"name": name, "datatype": datatype, "shape": shape, "parameters": extra})


@lru_cache(maxsize=1024)
def _heading(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """The JSON of an output up to its data."""
    return orjson.dumps({"name": name, "datatype": datatype, "shape": shape})[:-1] + b',"data":'


def _describe(output: OutputValue, answer: AnswerFormat, buffers: list[Buffer]) -> bytes:
    name, datatype, data = output.name, output.datatype, output.data
    if not answer.binary.get(name, answer.binary_default):
        written = answer.written.get(name)
        if written is None:
            values = to_json(data, datatype, output.shape)
            if values is not None:
                written = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
        if written is not None:
            return b"%b%b}" % (_heading(name, datatype.wire_name, output.shape), written)
    buffers.append(data)
    return _described(name, datatype.wire_name, output.shape, len(data))


def long_outputs(reply: InferReply, answer: AnswerFormat) -> list[OutputValue]:
    """Outputs in JSON that are too long to be written in one step."""
    outputs = reply.outputs
    if outputs is None or (len(outputs) == 1 and len(outputs[0].data) <= LONG_VALUES):
        return []
    return [
        output
        for output in outputs
        if len(output.data) > LONG_VALUES * max(1, output.datatype.itemsize)
        and not answer.binary.get(output.name, answer.binary_default)
    ]


def write_values(output: OutputValue) -> Iterator[bytes]:
    """Write the values of a long output as JSON, without brackets, in pieces of bounded length.
    Raises UnicodeDecodeError for strings that are not UTF-8."""
    if output.datatype is Datatype.BYTES:
        yield from _write_strings(output.data)
        return
    step = LONG_VALUES * output.datatype.itemsize
    for start in range(0, len(output.data), step):
        values = to_json(output.data[start : start + step], output.datatype, ())
        yield orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def _write_strings(data: Buffer) -> Iterator[bytes]:
    start, strings, length = 0, [], 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        strings.append(str(data[start + 4 : end], "utf-8"))
        length += end - start + _STRING_COST
        start = end
        if length >= LONG_STRINGS:
            yield orjson.dumps(strings)[1:-1]
            strings, length = [], 0
    if strings:
        yield orjson.dumps(strings)[1:-1]


def _inputs(items: object, tail: memoryview | None) -> list[InputTensor]:
    if type(items) is not list or len(items) > MAX_TENSORS:
        raise BadField("inputs", f"a list of at most {MAX_TENSORS} tensors", items)
    tensors: list[InputTensor] = []
    names: set[str] = set()
    offset = 0
    for index, item in enumerate(items):
        where = f"inputs[{index}]"
        if type(item) is not dict:
            raise BadField(where, "an object", item)
        name = take_name(item.get("name"), where, names)
        datatype = datatype_of(item.get("datatype"), f"{where}.datatype")
        shape = check_shape(item.get("shape"), f"{where}.shape")
        size = _binary_size(item, where)
        data: Buffer
        if size is None:
            if "data" not in item:
                raise BadField(f"{where}.data", "data or parameters.binary_data_size", None)
            data = from_json(item["data"], datatype, shape, f"{where}.data")
        else:
            place = f"{where}.parameters.binary_data_size"
            if item.get("data") is not None:
                raise BadField(f"{where}.data", "no data together with binary_data_size", "both")
            if tail is None and size:
                raise BadField(place, "the header Inference-Header-Content-Length", None)
            binary = tail or memoryview(b"")  # clients omit the header if no bytes follow
            if size > len(binary) - offset:
                raise BadField(place, f"at most the remaining {len(binary) - offset} bytes", size)
            data = binary[offset : offset + size]
            offset += size
            check_raw(data, datatype, shape, place)
        tensors.append(InputTensor(name, datatype, shape, data))
    if tail is not None and offset != len(tail):
        raise BadField(
            "body", f"{offset} bytes of binary data, the sum of binary_data_size", len(tail)
        )
    return tensors


def _outputs(items: object, binary_default: bool) -> AnswerFormat:
    answer = AnswerFormat(binary_default)
    if items is None:
        return answer
    if type(items) is not list or len(items) > MAX_TENSORS:
        raise BadField("outputs", f"a list of at most {MAX_TENSORS} outputs", items)
    names: set[str] = set()
    for index, item in enumerate(items):
        where = f"outputs[{index}]"
        if type(item) is not dict:
            raise BadField(where, "an object", item)
        name = take_name(item.get("name"), where, names)
        answer.order.append(name)
        parameters = _tensor_parameters(item, where)
        if not parameters:
            continue
        if count := class_count(parameters, where):
            answer.classification[name] = count
        binary = parameters.get("binary_data", binary_default)
        if type(binary) is not bool:
            raise BadField(f"{where}.parameters.binary_data", "true or false", binary)
        answer.binary[name] = binary
    return answer


def take_name(name: object, where: str, names: set[str]) -> str:
    """Check the name of the tensor at `where` and add it to `names`. Raises BadField."""
    if type(name) is not str or not 0 < len(name) <= MAX_NAME:
        raise BadField(f"{where}.name", f"a name of at most {MAX_NAME} characters", name)
    if name in names:
        raise BadField(f"{where}.name", "a unique name", name)
    names.add(name)
    return name


def _tensor_parameters(item: dict[str, Any], where: str) -> dict[str, Any]:
    """The parameters of a tensor, without nulls. Raises BadField."""
    parameters = item.get("parameters")
    if not parameters:
        return _empty(parameters, f"{where}.parameters")
    if type(parameters) is not dict:
        raise BadField(f"{where}.parameters", "an object", parameters)
    parameters = without_nulls(parameters)
    if SHARED_MEMORY in parameters:
        raise no_shared_memory(where)
    return parameters


def _binary_size(item: dict[str, Any], where: str) -> int | None:
    size = _tensor_parameters(item, where).get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise BadField(f"{where}.parameters.binary_data_size", "a number of bytes", size)
    return size


def no_shared_memory(where: str) -> WireError:
    """The error for a tensor that names a region of shared memory."""
    place = f"{where}.parameters.{SHARED_MEMORY}"
    return BadField(place, "data in the message (shared memory is not supported)", "a region")


def class_count(parameters: Mapping[str, Any], where: str) -> int:
    """The requested number of classes of the output at `where`; 0 if its values are requested.
    Raises BadField."""
    count = parameters.get(CLASSES)
    if count is None:
        return 0
    if type(count) is not int or count < 0:
        raise BadField(f"{where}.parameters.classification", "a number of classes", count)
    return count


def _parameters(parameters: object, where: str) -> dict[str, Parameter]:
    if type(parameters) is not dict:
        raise BadField(where, "an object", parameters)
    parameters = without_nulls(parameters)
    for name, value in parameters.items():
        if type(value) not in _SCALARS:
            raise BadField(f"{where}.{name}", "a boolean, number or string", value)
    return parameters


def without_nulls(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that are not null, which means "not given"."""
    if None not in parameters.values():
        return parameters
    return {name: value for name, value in parameters.items() if value is not None}


def _empty(parameters: object, where: str) -> dict[str, Parameter]:
    """An empty dict for a missing or empty object. Raises BadField for 0, "" and []."""
    if parameters is None or parameters == {}:
        return {}
    raise BadField(where, "an object", parameters)
