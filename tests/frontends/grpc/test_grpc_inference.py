"""ModelInfer over real sockets: conversion, statuses, deadlines, cancellation, announcements."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
from tests.frontends.doubles import FakeDataPlane
from tests.frontends.grpc.grpc_client import channel_to, infer_method, serving

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.bulk_fields import MAX_FIELDS
from slacktide.wire.calls import InferCall, InputTensor
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto.messages import InferParameter, ModelInferRequest
from slacktide.wire.status import STATUS


def call(id: str = "7", model: str = "m", **parameters: bool | float | str) -> InferCall:
    data = np.arange(4, dtype=np.float32).tobytes()
    tensor = InputTensor("x", Datatype.FP32, (1, 4), data)
    return InferCall(model, None, id, [tensor], ["x"], dict(parameters))


async def failure(awaitable) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value


@pytest.mark.parametrize(
    ("timeout", "headers", "lowest", "highest"),
    [
        (9.2e8, (), None, None),
        (20.0, (), 0.0, 21.0),
        (20.0, (("x-request-timeout-seconds", "5"),), 5.0, 5.0),
        (20.0, (("x-envoy-expected-rq-timeout-ms", "60000"),), 0.0, 21.0),
    ],
)
async def test_the_budget_is_the_smallest_that_the_transport_names(
    timeout, headers, lowest, highest
):
    data = FakeDataPlane()
    async with serving(data) as server, channel_to(server) as channel:
        await infer_method(channel)(encode_call(call()), timeout=timeout, metadata=headers)
        budget = data.calls[0].context.transport_budget_s
    if lowest is None:
        assert budget is None
    else:
        assert lowest <= budget <= highest


def bad(**changes) -> bytes:
    request = ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    for name, value in changes.items():
        if name == "raw":
            request.raw_input_contents.extend(value)
        elif name == "parameters":
            for key, parameter in value.items():
                request.inputs[0].parameters[key].CopyFrom(parameter)
        else:
            setattr(request.inputs[0], name, value)
    return request.SerializeToString()


async def test_a_message_of_countless_fields_is_refused_before_they_are_walked():
    data = FakeDataPlane()
    async with serving(data) as server, channel_to(server) as channel:
        message = b"\x0a\x01m" + b"\x10\x00" * 1_000_000
        error = await failure(infer_method(channel)(message))
    assert error.code() is grpc.StatusCode[STATUS[Reason.TOO_LARGE].grpc]
    assert f"at most {MAX_FIELDS} fields" in error.details()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xff\xff\xff", "malformed"),
        (b"\x0a\x02\xff\xff", "not a ModelInferRequest"),
        (bad(raw=[b"1234"]), "raw_input_contents[0]: expected 16 bytes"),
        (bad(raw=[bytes(16), b""]), "raw_input_contents: expected one entry for each of 1"),
        (bad(), "inputs[0].contents.fp32_contents: expected 4 values, got 0"),
        (bad(datatype="FP31", raw=[b""]), "inputs[0].datatype: expected one of"),
        (
            bad(parameters={"shared_memory_region": InferParameter(string_param="r")}),
            "shared memory is not supported",
        ),
    ],
)
async def test_bad_messages_are_refused_with_the_field_named(message, words):
    data = FakeDataPlane()
    async with serving(data) as server, channel_to(server) as channel:
        error = await failure(infer_method(channel)(message))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.details()
    assert "/" not in error.details()
    assert data.calls == []
    # What could be parsed is counted against its model.
    assert [row[:2] for row in data.refused] == (
        [("m", Reason.BAD_INPUT)] if b"\x01m" in message else []
    )


async def test_a_call_without_a_message_is_refused():
    async with serving() as server, channel_to(server) as channel:
        method = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
        error = await failure(method(iter(())))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "no message" in error.details()


async def test_a_message_that_does_not_come_is_given_up():
    settings = GrpcSettings(body_timeout_s=0.05)
    async with serving(settings=settings) as server, channel_to(server) as channel:
        stream = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")()
        code, details = await stream.code(), await stream.details()
    assert code is grpc.StatusCode.CANCELLED
    assert details == "the message did not arrive in time"


async def test_a_call_past_its_grpc_deadline_is_cancelled_too():
    data = FakeDataPlane(holds=True)
    async with serving(data) as server, channel_to(server) as channel:
        method = infer_method(channel)
        error = await failure(method(encode_call(call()), timeout=0.2))
        await data.until(lambda: bool(data.cancelled))
        code, cancelled = error.code(), data.cancelled
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    (cancellation,) = cancelled  # whose clock is first
    assert cancellation in {("7", Reason.CLIENT_CANCELLED), ("7", Reason.EXPIRED)}


# ---- announced calls


def announcement(message: bytes, **changes: str) -> tuple[tuple[str, str], ...]:
    metadata = {"slacktide-bytes": str(len(message)), "slacktide-model": "m"}
    metadata.update({name.replace("_", "-"): value for name, value in changes.items()})
    return tuple(metadata.items())


@pytest.mark.parametrize(
    ("changes", "announced", "words"),
    [
        ({"slacktide_bytes": "8"}, True, "slacktide-bytes"),
        ({"slacktide_model": "other"}, True, "slacktide-model"),
        ({"slacktide_model_version": "3"}, True, "slacktide-model"),
        ({"slacktide_bytes": "-1"}, False, "slacktide-bytes"),
        ({"slacktide_bytes": "99999999999"}, False, "slacktide-bytes: expected at most"),
    ],
)
async def test_announcements_that_lie_are_refused(changes, announced, words):
    data = FakeDataPlane()
    message = encode_call(call())
    async with serving(data) as server, channel_to(server) as channel:
        method = infer_method(channel)
        error = await failure(method(message, metadata=announcement(message, **changes)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in error.details()
    steps = [call.steps for call in data.announced]
    assert steps == ([["announce", "refuse bad_input"]] if announced else [])
    assert data.calls == []
    assert len(data.refused) == 1


# ---- stock clients


def triton_inputs():
    tensor = triton.InferInput("x", [2, 4], "FP32")
    tensor.set_data_from_numpy(np.arange(8, dtype=np.float32).reshape(2, 4))
    return [tensor]


@pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])
async def test_the_stock_synchronous_client_infers(algorithm):
    def ask(port: int) -> list[list[float]]:
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            result = client.infer("m", triton_inputs(), compression_algorithm=algorithm)
            return result.as_numpy("x").tolist()

    async with serving() as server:
        assert (await asyncio.to_thread(ask, server.port)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
