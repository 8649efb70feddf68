"""ModelStreamInfer over real sockets."""

from __future__ import annotations

import asyncio
import queue

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tests.frontends.doubles import FakeCall, FakeDataPlane, echo, refusing
from tests.frontends.grpc.grpc_client import channel_to, serving, stream_method

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.settings import GrpcSettings
from slacktide.wire.calls import InferCall, InputTensor
from slacktide.wire.grpc_messages import encode_call
from slacktide.wire.proto.messages import ModelStreamInferResponse


def message(id: str, model: str = "m", datatype: Datatype = Datatype.FP32) -> bytes:
    tensor = InputTensor("x", datatype, (1, 4), bytes(16))
    return encode_call(InferCall(model, None, id, [tensor]))


def parse(raw: bytes) -> ModelStreamInferResponse:
    return ModelStreamInferResponse.FromString(raw)


async def read(stream) -> ModelStreamInferResponse | None:
    raw = await stream.read()
    return None if raw is grpc.aio.EOF else parse(raw)


async def test_answers_come_as_they_finish():
    data = FakeDataPlane(holds=True)
    async with serving(data) as server, channel_to(server) as channel:
        stream = stream_method(channel)()
        for id in "abc":
            await stream.write(message(id))
        await data.until(lambda: len(data.held) == 3)
        replies = []
        for id in "cab":
            data.release(id)
            replies.append(await read(stream))
        await stream.done_writing()
        end, code = await read(stream), await stream.code()
    assert [answer.infer_response.id for answer in replies] == ["c", "a", "b"]
    for answer in replies:
        assert answer.error_message == ""
        assert answer.infer_response.parameters["triton_final_response"].bool_param
        assert len(answer.infer_response.raw_output_contents[0]) == 16
    assert end is None
    assert code is grpc.StatusCode.OK


async def test_a_half_closed_stream_still_gets_its_answers():
    data = FakeDataPlane(holds=True)
    async with serving(data) as server, channel_to(server) as channel:
        stream = stream_method(channel)()
        await stream.write(message("a"))
        await stream.done_writing()
        await data.until(lambda: "a" in data.held_ids)
        data.release("a")
        answer, code = await read(stream), await stream.code()
    assert answer.infer_response.id == "a"
    assert code is grpc.StatusCode.OK


async def test_an_error_leaves_the_stream_open():
    data = FakeDataPlane()
    busy = refusing(Reason.QUEUE_FULL, "the queue is full")
    data.answer = lambda call: (busy if call.id == "busy" else echo)(call)
    async with serving(data) as server, channel_to(server) as channel:
        stream = stream_method(channel)()
        replies = []
        sent = (message("busy"), b"\xff", message("bad", datatype=Datatype.FP64), message("a"))
        for raw in sent:
            await stream.write(raw)
            replies.append(await read(stream))
        await stream.done_writing()
        (busy, broken, bad, good), code, refused = replies, await stream.code(), data.refused
    assert busy.error_message == "the queue is full"
    assert busy.infer_response.id == "busy"
    assert busy.infer_response.parameters["reason"].string_param == "queue_full"
    assert "malformed" in broken.error_message
    assert bad.error_message.startswith("raw_input_contents[0]")
    assert bad.infer_response.id == "bad"
    assert (good.error_message, good.infer_response.id) == ("", "a")
    assert code is grpc.StatusCode.OK
    assert [row[0] for row in refused] == ["m"]


async def test_with_triton_grpc_error_the_first_error_ends_the_stream():
    data = FakeDataPlane(holds=True, answer=refusing(Reason.QUEUE_FULL, "full"))
    async with serving(data) as server, channel_to(server) as channel:
        stream = stream_method(channel)(metadata=(("triton_grpc_error", "true"),))
        await stream.write(message("a"))
        await stream.write(message("b"))
        await data.until(lambda: len(data.held) == 2)
        data.release("a")
        code, details = await stream.code(), await stream.details()
        await data.until(lambda: bool(data.cancelled))
        cancelled = data.cancelled
    assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
    assert cancelled == [("b", Reason.CLIENT_CANCELLED)]


@pytest.mark.parametrize("how", ["cancel", "deadline", "disconnect"])
async def test_a_stream_that_closes_cancels_what_is_pending(how):
    data = FakeDataPlane(holds=True)
    async with serving(data) as server:
        async with channel_to(server) as channel:
            timeout = 0.3 if how == "deadline" else None
            stream = stream_method(channel)(timeout=timeout)
            await stream.write(message("a"))
            await stream.write(message("b"))
            await data.until(lambda: len(data.calls) == 2)
            if how == "cancel":
                stream.cancel()
            if how == "deadline":
                await data.until(lambda: len(data.cancelled) == 2)
        await data.until(lambda: len(data.cancelled) == 2)
    assert sorted(data.cancelled) == sorted((id, Reason.CLIENT_CANCELLED) for id in "ab")
    if how == "deadline":
        assert all(0 <= call.context.transport_budget_s < 0.5 for call in data.calls)


async def test_a_bug_ends_the_stream_at_once(caplog, monkeypatch):
    submit = FakeCall.submit

    def broken(self, call, reply):
        if call.id == "bad":
            raise RuntimeError("/secret/path")
        submit(self, call, reply)

    monkeypatch.setattr(FakeCall, "submit", broken)

    data = FakeDataPlane(holds=True)
    async with serving(data) as server, channel_to(server) as channel:
        stream = stream_method(channel)()
        await stream.write(message("good"))
        await stream.write(message("bad"))
        async with asyncio.timeout(20):
            code = await stream.code()
        await data.until(lambda: bool(data.cancelled))
        cancelled = data.cancelled
    assert code is grpc.StatusCode.INTERNAL
    assert cancelled == [("good", Reason.CLIENT_CANCELLED)]
    assert "/secret/path" in caplog.text


async def test_no_more_than_the_limit_is_taken_in_at_once():
    data = FakeDataPlane(holds=True)
    settings = GrpcSettings(stream_in_flight=2)
    async with serving(data, settings=settings) as server, channel_to(server) as ch:
        stream = stream_method(ch)()
        for number in range(5):
            await stream.write(message(str(number)))
        most = 0
        for number in range(5):
            await data.until(lambda number=number: str(number) in data.held_ids)
            most = max(most, len(data.held))
            data.release(str(number))
            await read(stream)
        await stream.done_writing()
        code = await stream.code()
    assert 1 <= most <= 2
    assert code is grpc.StatusCode.OK


async def test_draining_answers_what_is_in_flight_and_ends_streams():
    data = FakeDataPlane(holds=True)
    async with serving(data) as server, channel_to(server) as channel:
        busy = stream_method(channel)()
        await busy.write(message("a"))
        idle = stream_method(channel)()
        await idle.write(message("b"))
        await data.until(lambda: len(data.held) == 2)
        data.release("b")
        await read(idle)
        draining = asyncio.create_task(server.drain(20))
        idle_code = await idle.code()
        data.release("a")
        answer = await read(busy)
        busy_code = await busy.code()
        await draining
        id, cancelled = answer.infer_response.id, data.cancelled
    assert idle_code is busy_code is grpc.StatusCode.UNAVAILABLE
    assert id == "a"
    assert cancelled == []


async def test_the_stock_client_streams():
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))

    def ask(port: int):
        answers: queue.Queue = queue.Queue()
        with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for id in ("good", "busy", "good again"):
                client.async_stream_infer(
                    "m", [tensor], request_id=id, enable_empty_final_response=True
                )
            replies = [answers.get(timeout=20) for _ in range(3)]
            client.stop_stream()
        return replies

    data = FakeDataPlane()
    busy = refusing(Reason.QUEUE_FULL, "full")
    data.answer = lambda call: (busy if call.id == "busy" else echo)(call)
    async with serving(data) as server:
        replies = await asyncio.to_thread(ask, server.port)
    good = [result.get_response().id for result, error in replies if error is None]
    assert good == ["good", "good again"]
    assert [error.message() for result, error in replies if error is not None] == ["full"]


async def test_the_stock_asyncio_client_streams():
    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))

    async def requests():
        for number in range(20):
            yield {"model_name": "m", "inputs": [tensor], "request_id": str(number)}

    async with (
        serving() as server,
        triton_aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        stream = client.stream_infer(requests())
        assert [(result.get_response().id, error) async for result, error in stream] == [
            (str(number), None) for number in range(20)
        ]
