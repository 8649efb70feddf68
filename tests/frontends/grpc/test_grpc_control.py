"""Every method that is not inference, with the stock client."""

from __future__ import annotations

import asyncio

import grpc
import pytest
import tritonclient.grpc.aio as triton
import uvloop
from tritonclient.utils import InferenceServerException

from slacktide.wire.errors import ControlError
from slacktide.wire.status import CONTROL_STATUS


def ask(fakes, question, control=None):
    """What `question(client)` returns, or the exception it raises."""

    async def main():
        async with (
            fakes.serving(control=control) as server,
            triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client,
        ):
            try:
                return await question(client)
            except InferenceServerException as error:
                return error

    return uvloop.run(main())


def test_health(fakes):
    control = fakes.FakeControlPlane(is_ready=False)

    async def question(client):
        return (
            await client.is_server_live(),
            await client.is_server_ready(),
            await client.is_model_ready("m"),
            await client.is_model_ready("m", "2"),
            await client.is_model_ready("other"),
        )

    assert ask(fakes, question, control) == (True, False, True, False, False)


def test_metadata(fakes):
    server = ask(fakes, lambda client: client.get_server_metadata(as_json=True))
    assert server == {
        "name": "slacktide",
        "version": "0.1",
        "extensions": ["statistics", "parameters"],
    }
    model = ask(fakes, lambda client: client.get_model_metadata("m", as_json=True))
    assert model == {
        "name": "m",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": ["-1", "2"]}],
    }


def test_configuration(fakes):
    config = ask(fakes, lambda client: client.get_model_config("m")).config
    assert (config.name, config.platform, config.max_batch_size) == ("m", "onnxruntime_onnx", 8)
    assert config.input[0].data_type == 11  # TYPE_FP32
    assert list(config.input[0].dims) == [4]
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert config.instance_group[0].count == 1


def test_statistics(fakes):
    (stats,) = ask(fakes, lambda client: client.get_inference_statistics()).model_stats
    assert (stats.name, stats.version) == ("m", "1")
    assert (stats.inference_count, stats.execution_count) == (7, 3)
    assert stats.last_inference == 1_700_000_000_000
    assert stats.inference_stats.queue.count == 3
    assert stats.inference_stats.cache_miss.ns == 4_000_000_000_000
    assert stats.batch_stats[0].batch_size == 4


def test_repository(fakes):
    control = fakes.FakeControlPlane()

    async def question(client):
        index = await client.get_model_repository_index()
        await client.load_model("m", config="{}", files={"file:1/model.onnx": b"onnx"})
        await client.unload_model("m", unload_dependents=True)
        return index

    index = ask(fakes, question, control)
    assert [(row.name, row.version, row.state) for row in index.models] == [
        ("m", "1", "READY"),
        ("other", "", ""),
    ]
    assert control.loads == [("m", {"config": "{}", "file:1/model.onnx": b"onnx"})]
    assert control.unloads == [("m", True)]


@pytest.mark.parametrize("kind", sorted(CONTROL_STATUS))
@pytest.mark.parametrize(
    "question",
    [
        lambda client: client.get_model_metadata("m"),
        lambda client: client.get_model_config("m"),
        lambda client: client.get_inference_statistics("m"),
        lambda client: client.load_model("m"),
        lambda client: client.unload_model("m"),
    ],
)
def test_every_kind_of_control_error_has_its_status(fakes, kind, question):
    control = fakes.FakeControlPlane(error=ControlError(kind, f"it is {kind}"))
    error = ask(fakes, question, control)
    assert error.status() == f"StatusCode.{CONTROL_STATUS[kind].grpc}"
    assert error.message() == f"it is {kind}"


def test_unknown_models_are_not_found(fakes):
    error = ask(fakes, lambda client: client.get_model_metadata("other"))
    assert error.status() == "StatusCode.NOT_FOUND"


def test_shared_memory_is_answered_as_unsupported(fakes):
    async def question(client):
        await client.unregister_system_shared_memory()
        await client.unregister_cuda_shared_memory()
        return (
            await client.get_system_shared_memory_status(as_json=True),
            await client.get_cuda_shared_memory_status(as_json=True),
        )

    assert ask(fakes, question) == ({}, {})
    for register in (
        lambda client: client.register_system_shared_memory("r", "/key", 8),
        lambda client: client.register_cuda_shared_memory("r", b"AAAA", 0, 8),
    ):
        error = ask(fakes, register)
        assert error.status() == "StatusCode.UNIMPLEMENTED"
        assert "shared memory" in error.message()


def test_settings_are_answered_as_unsupported(fakes):
    for question in (
        lambda client: client.get_trace_settings(),
        lambda client: client.update_trace_settings(settings={"trace_rate": "1"}),
        lambda client: client.get_log_settings(),
        lambda client: client.update_log_settings({"log_info": True}),
    ):
        assert ask(fakes, question).status() == "StatusCode.UNIMPLEMENTED"


def test_a_message_of_another_kind_is_refused(fakes):
    async def main():
        async with fakes.serving() as server, fakes.channel(server) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"\xff\xff")
            return caught.value

    error = uvloop.run(main())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "message: not a ModelReadyRequest"


def test_unknown_methods_are_unimplemented(fakes):
    async def main():
        async with fakes.serving() as server, fakes.channel(server) as channel:
            method = channel.unary_unary("/inference.GRPCInferenceService/Nothing")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await method(b"")
            return caught.value.code()

    assert uvloop.run(main()) is grpc.StatusCode.UNIMPLEMENTED


def test_the_synchronous_stock_client_asks_too(fakes):
    import tritonclient.grpc as synchronous

    def questions(port: int):
        with synchronous.InferenceServerClient(f"127.0.0.1:{port}") as client:
            return client.is_server_ready(), client.get_model_metadata("m").name

    async def main():
        async with fakes.serving() as server:
            return await asyncio.to_thread(questions, server.port)

    assert uvloop.run(main()) == (True, "m")
