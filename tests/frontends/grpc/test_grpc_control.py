"""Every method that is not inference, with the stock client."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import tritonclient.grpc.aio as triton
from tests.frontends.grpc.grpc_client import channel_to, serving
from tritonclient.utils import InferenceServerException


async def test_settings_are_answered_as_unsupported():
    async with (
        serving() as server,
        triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
    ):
        for question in (
            lambda: client.get_trace_settings(),
            lambda: client.update_trace_settings(settings={"trace_rate": "1"}),
            lambda: client.get_log_settings(),
            lambda: client.update_log_settings({"log_info": True}),
        ):
            with pytest.raises(InferenceServerException) as caught:
                await question()
            assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


async def test_a_message_of_another_kind_is_refused():
    async with serving() as server, channel_to(server) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"\xff\xff")
        error = caught.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "message: not a ModelReadyRequest"


async def test_unknown_methods_are_unimplemented():
    async with serving() as server, channel_to(server) as channel:
        method = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_synchronous_stock_client_asks_too():
    import tritonclient.grpc as synchronous

    def questions(port: int):
        with synchronous.InferenceServerClient(f"127.0.0.1:{port}") as client:
            return client.is_server_ready(), client.get_model_metadata("m").name

    async with serving() as server:
        assert (await asyncio.to_thread(questions, server.port)) == (True, "m")
