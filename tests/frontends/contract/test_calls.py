"""A call and its answer: tensors, parameters, metadata."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.frontends.contract.speaker import infer_call

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.common.security import Verdict
from slacktide.wire.calls import InferReply, InputTensor, OutputValue
from slacktide.wire.raw_tensors import encode_strings


async def test_a_call_comes_back_with_its_id_version_and_tensors(speak):
    async with speak() as speaker:
        sent = infer_call(version="3")
        sent.inputs.append(InputTensor("s", Datatype.BYTES, (2,), encode_strings([b"a", b"\xff"])))
        reply = await speaker.ask(sent)
    assert reply.is_ok
    assert (reply.id, reply.version) == ("7", "3")
    assert [(o.name, o.datatype, o.shape, o.data) for o in reply.outputs] == [
        (t.name, t.datatype, t.shape, t.data) for t in sent.inputs
    ]
    (call,) = speaker.data.calls
    assert (call.infer.model, call.infer.version) == ("m", "3")
    assert [tensor.datatype for tensor in call.infer.inputs] == [Datatype.FP32, Datatype.BYTES]


async def test_outputs_come_in_the_order_they_were_asked_for(speak):
    outputs = [OutputValue(name, Datatype.UINT8, (1,), name.encode()) for name in "abc"]
    async with speak() as speaker:
        speaker.data.answer = lambda call: InferReply(
            Outcome(Reason.ON_TIME, 0.0), "m", "1", "", outputs
        )
        reply = await speaker.ask(infer_call(outputs=["c", "a", "b"]))
    assert [(output.name, output.data) for output in reply.outputs] == [
        ("c", b"c"),
        ("a", b"a"),
        ("b", b"b"),
    ]


async def test_parameters_of_fields_and_body_reach_the_data_plane(speak):
    """A parameter in the body goes before the field of its name."""
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    fields = {
        "slacktide-application": "camera",
        "slacktide-work-hint": "12",
        "slacktide-late": "discard",
        "slacktide-network-us": "1500",
        "traceparent": traceparent,
        "x-request-id": "edge-1",
    }
    stated = {"work_hint": 3, "timeout": 5000, "triton_enable_empty_final_response": True}
    async with speak() as speaker:
        before = time.monotonic()
        await speaker.ask(infer_call("", parameters=stated), fields=fields)
        (call,) = speaker.data.calls
    call.infer.parameters.pop("binary_data_output", None)  # of HTTP alone
    assert call.infer.parameters == stated | {
        "application": "camera",
        "late": "discard",
        "network_us": 1500.0,
    }
    context = call.context
    assert (context.traceparent, context.request_id) == (traceparent, "edge-1")
    assert (context.client, context.transport) == ("127.0.0.1", speaker.transport)
    assert before <= context.first_byte <= time.monotonic()


@pytest.mark.parametrize(
    ("fields", "budget_s"),
    [
        ({}, None),
        ({"x-request-timeout-seconds": "5"}, 5.0),
        ({"x-envoy-expected-rq-timeout-ms": "60000"}, 60.0),
        ({"x-envoy-expected-rq-timeout-ms": "250", "x-request-timeout-seconds": "2"}, 0.25),
    ],
)
async def test_the_budget_is_the_smallest_that_the_fields_name(speak, fields, budget_s):
    async with speak() as speaker:
        await speaker.ask(infer_call(), fields=fields)
        assert speaker.data.calls[0].context.transport_budget_s == budget_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slacktide-network-us", "-1"),
        ("slacktide-late", "never"),
        ("slacktide-work-hint", "much"),
        ("x-request-timeout-seconds", "nan"),
    ],
)
async def test_a_bad_field_is_refused_by_name(speak, name, value):
    async with speak() as speaker:
        reply = await speaker.ask(infer_call(), fields={name: value})
    assert reply.status in (400, "INVALID_ARGUMENT")
    assert reply.message.startswith(name)
    assert speaker.data.calls == []


@pytest.mark.parametrize(
    "parameters", [{"timeout": -1}, {"timeout": "soon"}, {"priority": 9}], ids=str
)
async def test_a_bad_parameter_is_refused_and_counted_once(speak, parameters):
    async with speak() as speaker:
        reply = await speaker.ask(infer_call(parameters=parameters))
        assert reply.status in (400, "INVALID_ARGUMENT")
        assert [reason for _, reason, _ in speaker.data.refused] == [Reason.BAD_INPUT]
        assert speaker.data.calls == []
        assert (await speaker.ask(infer_call())).is_ok


async def test_tensors_of_twenty_megabytes_pass(speak):
    async with speak() as speaker:
        sent = infer_call(nbytes=20 << 20)
        reply = await speaker.ask(sent)
    assert reply.outputs[0].data == sent.inputs[0].data


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_packed_body_is_inflated(speak, encoding):
    async with speak() as speaker:
        sent = infer_call(nbytes=400_000)
        reply = await speaker.ask(sent, encoding=encoding)
    assert reply.outputs[0].data == sent.inputs[0].data


async def test_tensors_may_be_text(speak):
    async with speak() as speaker:
        reply = await speaker.ask(infer_call(), text=True)
    assert np.frombuffer(reply.outputs[0].data, np.float32).tolist() == [0, 1, 2, 3]


async def test_an_open_gate_lets_calls_pass(speak):
    async with speak(authorize=lambda group, fields: Verdict.PASS) as speaker:
        assert (await speaker.ask(infer_call())).is_ok


async def test_a_closed_gate_stands_before_the_body(speak):
    async with speak(authorize=lambda group, fields: Verdict.NO_TOKEN) as speaker:
        exchange = await speaker.begin(infer_call(nbytes=3_000_000))
        reply = await exchange.reply()
    assert reply.status in (401, "UNAUTHENTICATED")
    assert reply.message == Verdict.NO_TOKEN.value
    assert speaker.data.announced == speaker.data.calls == []
    if speaker.transport == "http":
        assert (reply.fields["www-authenticate"], reply.fields["connection"]) == ("Bearer", "close")
