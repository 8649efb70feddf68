"""The codec that remembers says the same as the conversions that do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.frontends.doubles import decode_response

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.wire import grpc_codec
from slacktide.wire.calls import InferCall, InferReply, InputTensor, OutputValue
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.grpc_messages import (
    encode_call,
    encode_reply,
    read_request,
)
from slacktide.wire.proto.messages import (
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)


def message(id: str = "", rows: int = 1, fill: int = 0, **parameters: int) -> bytes:
    data = bytes([fill]) * (4 * rows)
    tensor = InputTensor("x", Datatype.FP32, (rows, 1), data)
    return encode_call(InferCall("mlp", None, id, [tensor], ["y"], dict(parameters)))


def seen(call: InferCall) -> tuple[object, ...]:
    inputs = [(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    return (call.model, call.version, call.id, inputs, call.outputs, call.parameters)


few = st.builds(
    message,
    id=st.sampled_from(["", "a", "ü" * 3]),
    rows=st.integers(0, 2),
    fill=st.integers(0, 2),
    timeout=st.integers(0, 2),
)


@given(st.lists(few | st.binary(max_size=30), max_size=12), st.data())
def test_a_request_reads_the_same_after_any_others(messages, data):
    codec = GrpcCodec()
    for raw in messages:
        damaged = bytearray(raw)
        if damaged and data.draw(st.booleans()):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(
                st.integers(0, 7)
            )
        metadata = data.draw(st.sampled_from([{}, {"timeout": 9, "late": "discard"}]))
        results = []
        for read in (codec.read, read_request):
            try:
                results.append(seen(read(bytes(damaged)).call(metadata)))
            except WireError as error:
                results.append(error.reason)
        assert results[0] == results[1]


def test_a_known_head_shares_nothing_between_calls():
    codec = GrpcCodec()
    first = codec.read(message("1", timeout=5)).call({})
    first.outputs.append("z")
    first.parameters["late"] = "discard"
    second = codec.read(message("2", fill=1, timeout=5)).call({"work_hint": 2})
    assert second.id == "2"
    assert second.outputs == ["y"]
    assert second.parameters == {"work_hint": 2, "timeout": 5}
    assert bytes(second.inputs[0].data) == b"\x01" * 4


def test_a_known_head_does_not_excuse_wrong_bytes():
    codec = GrpcCodec()
    codec.read(message()).call({})
    request = ModelInferRequest.FromString(message())
    request.raw_input_contents[0] = b"12345"
    with pytest.raises(WireError, match=r"raw_input_contents\[0\]: expected 4 bytes"):
        codec.read(request.SerializeToString()).call({})
    request.raw_input_contents.append(b"")
    with pytest.raises(WireError, match="one entry for each of 1 inputs"):
        codec.read(request.SerializeToString()).call({})
    with pytest.raises(WireError, match="id"):
        codec.read(message("x" * 2000)).call({})


def test_strings_are_walked_each_time():
    def strings(data: bytes) -> bytes:
        tensor = InputTensor("x", Datatype.BYTES, (1,), data)
        return encode_call(InferCall("m", None, "", [tensor]))

    codec = GrpcCodec()
    assert codec.read(strings(b"\x01\x00\x00\x00a")).call({})
    assert codec.read(strings(b"\x02\x00\x00\x00ab")).call({})
    with pytest.raises(WireError):
        codec.read(strings(b"\x09\x00\x00\x00a")).call({})


def cached(codec: GrpcCodec) -> tuple[int, int]:
    return len(codec._meanings), len(codec._reply_heads)


def test_typed_contents_are_not_remembered():
    def typed(value: float) -> bytes:
        request = ModelInferRequest(model_name="m")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1])
        tensor.contents.fp32_contents.append(value)
        return request.SerializeToString()

    codec = GrpcCodec()
    for value in (1.0, 2.0, 1.0):
        (tensor,) = codec.read(typed(value)).call({}).inputs
        assert np.frombuffer(tensor.data, np.float32).tolist() == [value]
    assert cached(codec) == (0, 0)


def test_the_caches_are_bounded(monkeypatch):
    monkeypatch.setattr(grpc_codec, "MAX_ENTRIES", 8)
    codec = GrpcCodec()
    for number in range(50):
        assert codec.read(message(timeout=number)).call({}).parameters == {"timeout": number}
        reply = InferReply(Outcome(Reason.ON_TIME, 0.0), "m", str(number), "", [])
        assert decode_response(b"".join(codec.reply_pieces(reply)))[0].model_version == str(number)
        assert max(cached(codec)) <= 8
    before = cached(codec)
    codec.read(message(**{"long" * 1000: 1})).call({})
    assert cached(codec) == before


values = st.builds(
    lambda name, rows, fill: OutputValue(name, Datatype.UINT8, (rows,), bytes([fill]) * rows),
    st.sampled_from(["a", "b"]),
    st.integers(0, 200),
    st.integers(0, 2),
)
replies = st.builds(
    lambda model, id, outputs, parameters: InferReply(
        Outcome(Reason.ON_TIME, 0.0), model, "1", id, outputs, parameters=parameters
    ),
    st.sampled_from(["m", "n"]),
    st.sampled_from(["", "7", "é" * 80]),
    st.lists(values, max_size=2, unique_by=lambda value: value.name),
    st.sampled_from([{}, {"queue_us": 5}]),
)


@given(st.lists(st.tuples(replies, st.sampled_from([(), ("a",), ("b", "a")])), max_size=8))
def test_an_answer_says_the_same_after_any_others(pairs):
    codec = GrpcCodec()
    for reply, wanted in pairs:
        plain = ModelInferResponse.FromString(b"".join(encode_reply(reply, wanted)))
        assert ModelInferResponse.FromString(b"".join(codec.reply_pieces(reply, wanted))) == plain
        stream = ModelStreamInferResponse.FromString(
            b"".join(codec.stream_reply_pieces(reply, wanted))
        )
        assert stream.infer_response.parameters.pop("triton_final_response").bool_param
        assert stream.infer_response == plain


@pytest.mark.parametrize("parameters", [{}, {"queue_us": 5}])
def test_tensors_of_an_answer_are_not_copied(parameters):
    data = memoryview(bytes(100))
    outputs = [OutputValue("y", Datatype.UINT8, (100,), data)]
    reply = InferReply(Outcome(Reason.ON_TIME, 0.0), "m", "1", "", outputs, parameters=parameters)
    for pieces in (GrpcCodec().reply_pieces(reply), GrpcCodec().stream_reply_pieces(reply)):
        assert any(piece is data for piece in pieces)


def test_an_id_that_is_replaced_by_a_later_one_is_judged_all_the_same():
    good, bad = ModelInferRequest(model_name="m", id="later").SerializeToString(), b"\x1a\x01\xff"
    with pytest.raises(WireError, match="not a ModelInferRequest"):
        GrpcCodec().read(bad + good)
    assert GrpcCodec().read(b"\x1a\x01a" + good).id == "later"
