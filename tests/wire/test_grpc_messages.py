"""ModelInferRequest and ModelInferResponse to and from calls and replies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frontends.doubles import decode_response

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.wire.bulk_fields import encode_varint, put_bulk, take_bulk
from slacktide.wire.calls import InferCall, InferReply, InputTensor, OutputValue
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.grpc_messages import (
    encode_call,
    encode_reply,
    encode_stream_error,
    read_parameters,
    read_request,
    write_parameters,
)
from slacktide.wire.proto.messages import (
    InferParameter,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from slacktide.wire.raw_tensors import CONTENTS_FIELD

NUMERIC = [datatype for datatype in Datatype if datatype is not Datatype.BYTES]

names = st.text(min_size=1, max_size=8)
parameters = st.dictionaries(
    names,
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20),
    max_size=4,
)


@st.composite
def tensors(draw) -> list[tuple[str, Datatype, tuple[int, ...], bytes]]:
    specs = []
    for name in draw(st.lists(names, unique=True, max_size=4)):
        datatype = draw(st.sampled_from(NUMERIC))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        size = int(np.prod(shape, dtype=int)) * datatype.itemsize
        specs.append((name, datatype, shape, draw(st.binary(min_size=size, max_size=size))))
    return specs


@st.composite
def calls(draw) -> InferCall:
    return InferCall(
        model=draw(names),
        version=draw(st.none() | st.just("3")),
        id=draw(st.text(max_size=10)),
        inputs=[InputTensor(*tensor) for tensor in draw(tensors())],
        outputs=draw(st.lists(names, unique=True, max_size=3)),
        parameters=draw(parameters),
    )


def tuples(items) -> list[tuple[str, Datatype, tuple[int, ...], bytes]]:
    return [(item.name, item.datatype, item.shape, bytes(item.data)) for item in items]


@given(calls())
def test_a_call_survives_the_wire(call):
    call_read = read_request(encode_call(call)).call({})
    assert (call_read.model, call_read.version, call_read.id) == (call.model, call.version, call.id)
    assert call_read.outputs == call.outputs
    assert call_read.parameters == call.parameters
    assert tuples(call_read.inputs) == tuples(call.inputs)


@given(calls())
def test_the_runtime_reads_our_messages_the_same(call):
    request = ModelInferRequest.FromString(encode_call(call))
    assert request.model_name == call.model
    assert list(request.raw_input_contents) == [tensor.data for tensor in call.inputs]
    # Our own layout and the runtime's are read alike.
    again = read_request(request.SerializeToString()).call({})
    assert tuples(again.inputs) == tuples(call.inputs)


@given(tensors(), parameters, st.text(max_size=10))
def test_a_reply_survives_the_wire(outputs, extra, id):
    values = [OutputValue(*output) for output in outputs]
    reply = InferReply(Outcome(Reason.ON_TIME, 0.0), "m", "1", id, values, parameters=extra)
    head, raw = decode_response(b"".join(encode_reply(reply)))
    assert (head.model_name, head.model_version, head.id) == ("m", "1", id)
    assert read_parameters(head.parameters) == extra
    assert [bytes(entry) for entry in raw] == [value.data for value in values]
    plain = ModelInferResponse.FromString(b"".join(encode_reply(reply)))
    assert [output.name for output in plain.outputs] == [value.name for value in values]
    assert list(plain.raw_output_contents) == [value.data for value in values]
    stream = ModelStreamInferResponse.FromString(b"".join(GrpcCodec().stream_reply_pieces(reply)))
    assert stream.error_message == ""
    assert stream.infer_response.parameters.pop("triton_final_response").bool_param
    assert stream.infer_response == plain


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_the_runtime_reads_them_or_refused(data):
    try:
        ours = read_request(data)
    except WireError:
        return
    theirs = ModelInferRequest.FromString(data)  # raises where we have taken what it refuses
    assert [bytes(entry) for entry in ours.raw] == list(theirs.raw_input_contents)
    assert ours.model == theirs.model_name


@given(calls(), st.data())
def test_damaged_messages_make_a_call_or_a_wire_error(call, data):
    message = bytearray(encode_call(call))
    for _ in range(data.draw(st.integers(1, 4))):
        if message:
            at = data.draw(st.integers(0, len(message) - 1))
            message[at] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))])
    try:
        call_read = read_request(cut).call({})
    except WireError:
        return
    for tensor in call_read.inputs:
        if tensor.datatype is not Datatype.BYTES:
            elements = int(np.prod(tensor.shape, dtype=int))
            assert len(tensor.data) == elements * tensor.datatype.itemsize


def test_raw_tensors_are_views_into_the_message():
    message = bytearray(
        encode_call(InferCall("m", None, "", [InputTensor("x", Datatype.UINT8, (3,), b"abc")]))
    )
    (tensor,) = read_request(message).call({}).inputs
    message[-3:] = b"xyz"
    assert bytes(tensor.data) == b"xyz"


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 2**20))
def test_bulk_comes_out_as_it_went_in(entries, field):
    head = b"\x08\x05"  # field 1, varint 5
    if field == 1:
        field = 2
    message = b"".join(put_bulk(head, field, entries))
    got_head, entries_read, _ = take_bulk(message, field)
    assert got_head == head
    assert [bytes(entry) for entry in entries_read] == entries


def test_bulk_between_other_fields_is_found():
    message = b"\x0a\x01a" + b"\x3a\x02xy" + b"\x15abcd" + b"\x3a\x00" + b"\x19abcdefgh"
    head, entries, _ = take_bulk(message, 7)
    assert head == b"\x0a\x01a" + b"\x15abcd" + b"\x19abcdefgh"
    assert [bytes(entry) for entry in entries] == [b"xy", b""]


@pytest.mark.parametrize(
    "message",
    [
        b"\x3a",  # no length
        b"\x3a\x02x",  # shorter than its length
        b"\x3a\xff\xff\xff\xff\x0f",  # much shorter
        b"\x0b",  # a group
        b"\x0f",  # no such wire type
        b"\x08\xff",  # varint cut
        b"\x08" + b"\xff" * 12,  # varint too long
        b"\x09abc",  # eight bytes announced
    ],
)
def test_a_malformed_top_level_is_refused(message):
    with pytest.raises(WireError, match="malformed"):
        take_bulk(message, 7)


def test_an_illegal_field_number_is_left_to_the_runtime():
    assert take_bulk(b"\x02\x01a", 7) == (b"\x02\x01a", [], None)
    with pytest.raises(WireError, match="not a ModelInferRequest"):
        read_request(b"\x02\x01a")


@given(st.integers(0, 2**63))
def test_varints_are_the_runtimes(value):
    parameter = InferParameter(uint64_param=value)
    assert parameter.SerializeToString() == b"\x28" + encode_varint(value)


# ---- parameters


def test_a_parameter_without_a_known_member_is_absent():
    request = ModelInferRequest(model_name="m")
    request.parameters["unset"].SetInParent()
    request.parameters["timeout"].int64_param = 5
    assert read_parameters(request.parameters) == {"timeout": 5}


def test_the_message_wins_over_the_metadata():
    request = ModelInferRequest(model_name="m")
    request.parameters["late"].string_param = "deliver"
    call = read_request(request.SerializeToString()).call({"late": "discard", "work_hint": 1.0})
    assert call.parameters == {"late": "deliver", "work_hint": 1.0}


@pytest.mark.parametrize(
    ("value", "member"),
    [
        (True, "bool_param"),
        (0, "int64_param"),
        (2**63 - 1, "int64_param"),
        (2**63, "uint64_param"),
        (-(2**63), "int64_param"),
        (0.5, "double_param"),
        ("a", "string_param"),
    ],
)
def test_each_value_has_its_member(value, member):
    request = ModelInferRequest()
    write_parameters({"p": value}, request.parameters)
    assert request.parameters["p"].WhichOneof("parameter_choice") == member
    assert read_parameters(request.parameters) == {"p": value}


def test_a_stream_error_says_whose_it_is():
    raw = encode_stream_error("full", model="m", version=None, id="7", parameters={"reason": "x"})
    answer = ModelStreamInferResponse.FromString(raw)
    assert answer.error_message == "full"
    assert (answer.infer_response.model_name, answer.infer_response.id) == ("m", "7")
    assert read_parameters(answer.infer_response.parameters) == {
        "reason": "x",
        "triton_final_response": True,
    }
    empty = encode_stream_error("", model="", version=None, id="", parameters={})
    assert ModelStreamInferResponse.FromString(empty).error_message


# ---- typed contents


def typed(datatype: str, shape: list[int], **contents) -> bytes:
    request = ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="x", datatype=datatype, shape=shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return request.SerializeToString()


EXTREMES = {
    "BOOL": [True, False],
    "INT8": [-128, 127],
    "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**63), 2**63 - 1],
    "UINT8": [0, 255],
    "UINT16": [0, 2**16 - 1],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1],
    "FP32": [0.5, float("inf")],
    "FP64": [1e300, -0.1],
}


@pytest.mark.parametrize("name", sorted(EXTREMES))
def test_typed_contents_become_raw_bytes(name):
    datatype = Datatype[name]
    field = CONTENTS_FIELD[datatype]
    (tensor,) = read_request(typed(name, [2, 1], **{field: EXTREMES[name]})).call({}).inputs
    assert np.frombuffer(tensor.data, datatype.dtype).tolist() == EXTREMES[name]
    assert tensor.shape == (2, 1)


def test_typed_strings_get_their_lengths():
    message = typed("BYTES", [2], bytes_contents=[b"", b"abc"])
    (tensor,) = read_request(message).call({}).inputs
    assert tensor.data == b"\x00\x00\x00\x00" + b"\x03\x00\x00\x00abc"


def test_a_tensor_without_elements_needs_no_contents():
    (tensor,) = read_request(typed("FP32", [0, 4])).call({}).inputs
    assert (tensor.shape, tensor.data) == ((0, 4), b"")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            typed("INT8", [1], int_contents=[128]),
            "expected integers from -128 to 127 for INT8, got 128",
        ),
        (
            typed("UINT16", [1], uint_contents=[65536]),
            "expected integers from 0 to 65535 for UINT16",
        ),
        (typed("FP32", [2], fp32_contents=[1.0]), "fp32_contents: expected 2 values, got 1"),
        (typed("FP32", [1], fp64_contents=[1.0]), "expected fp32_contents for FP32"),
        (typed("FP16", [1], fp32_contents=[1.0]), "raw_input_contents for FP16"),
        (typed("BF16", [1]), "raw_input_contents for BF16"),
        (typed("FP32", [-1], fp32_contents=[1.0]), "inputs[0].shape"),
        (typed("FLOAT", [1], fp32_contents=[1.0]), "inputs[0].datatype"),
        (typed("FP32", [1] * 40, fp32_contents=[1.0]), "inputs[0].shape"),
    ],
)
def test_wrong_typed_contents_are_refused(message, words):
    with pytest.raises(BadField) as caught:
        read_request(message).call({})
    assert words in caught.value.message


def changed(change) -> bytes:
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="UINT8", shape=[1])
    request.outputs.add(name="y")
    request.raw_input_contents.append(b"1")
    change(request)
    return request.SerializeToString()


def twice(request: ModelInferRequest) -> None:
    request.inputs.add(name="x", datatype="UINT8", shape=[1])
    request.raw_input_contents.append(b"1")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda r: r.inputs[0].contents.uint_contents.append(1),
            "only raw_input_contents",
        ),
        (lambda r: r.raw_input_contents.append(b""), "one entry for each of 1 inputs, got 2"),
        (lambda r: setattr(r.inputs[0], "name", ""), "inputs[0].name"),
        (twice, "inputs[1].name: expected a unique name"),
        (lambda r: r.outputs.add(name="y"), "outputs[1].name"),
        (lambda r: setattr(r, "id", "x" * 2000), "id"),
        (
            lambda r: r.inputs[0].parameters["shared_memory_region"].SetInParent(),
            "inputs[0].parameters.shared_memory_region",
        ),
        (
            lambda r: r.outputs[0].parameters["shared_memory_region"].SetInParent(),
            "outputs[0].parameters.shared_memory_region",
        ),
        (
            lambda r: setattr(r.outputs[0].parameters["classification"], "string_param", "3"),
            "outputs[0].parameters.classification",
        ),
    ],
)
def test_contradictions_are_refused(change, words):
    with pytest.raises(BadField) as caught:
        read_request(changed(change)).call({})
    assert words in caught.value.message


def test_harmless_parameters_of_tensors_are_ignored():
    def change(request: ModelInferRequest) -> None:
        request.inputs[0].parameters["binary_data_size"].int64_param = 9
        request.outputs[0].parameters["binary_data"].bool_param = True
        request.outputs[0].parameters["classification"].int64_param = 0

    assert read_request(changed(change)).call({}).outputs == ["y"]


def test_classes_are_requested_by_output_and_remembered():
    def change(request: ModelInferRequest) -> None:
        request.outputs[0].parameters["classification"].int64_param = 3

    message = changed(change)
    assert read_request(message).call({}).classification == {"y": 3}
    codec = GrpcCodec()
    for _ in range(2):
        assert codec.read(message).call({}).classification == {"y": 3}
