"""Triton's own clients, which have the same methods for both protocols."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tests.frontends.contract.speaker import Speaker
from tests.frontends.doubles import CONFIG, echo, refusing
from tritonclient.utils import InferenceServerException

from slacktide.domain import Reason
from slacktide.wire.errors import ControlError
from slacktide.wire.status import CONTROL_STATUS

pytestmark = pytest.mark.parametrize("protocol", ["http", "grpc"], indirect=True)


def tensor(speaker: Speaker):
    """Eight numbers, as the client takes them."""
    inputs = speaker.stock.InferInput("x", [2, 4], "FP32")
    inputs.set_data_from_numpy(np.arange(8, dtype=np.float32).reshape(2, 4))
    return inputs


def plain(document):
    """A document with its numbers as such: gRPC writes long ones as text."""
    if isinstance(document, dict):
        return {name: plain(entry) for name, entry in document.items()}
    if isinstance(document, list):
        return [plain(entry) for entry in document]
    return int(document) if str(document).lstrip("-").isdigit() else document


async def test_the_asyncio_client_infers(speak):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        result = await client.infer(
            "m",
            [tensor(speaker)],
            outputs=[speaker.stock_aio.InferRequestedOutput("StatusCode.UNIMPLEMENTED")],
            request_id="a",
            priority=2,
            timeout=5_000_000,
            parameters={"application": "camera", "work_hint": 3.5},
        )
        assert result.as_numpy("x").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        (call,) = speaker.data.calls
        assert call.infer.id == "a"
        call.infer.parameters.pop("binary_data_output", None)
        assert call.infer.parameters == {
            "priority": 2,
            "timeout": 5_000_000,
            "application": "camera",
            "work_hint": 3.5,
        }


async def test_strings_and_refusals_reach_the_client(speak):
    words = np.array([b"a", b"", b"\xff\x00", "ümlaut".encode()], dtype=object)

    def ask(speaker: Speaker) -> None:
        with speaker.stock.InferenceServerClient(speaker.url) as client:
            strings = speaker.stock.InferInput("x", [4], "BYTES")
            strings.set_data_from_numpy(words)
            assert client.infer("m", [strings]).as_numpy("x").tolist() == words.tolist()
            with pytest.raises(InferenceServerException) as caught:
                client.infer("none", [tensor(speaker)])
        assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")
        assert "unknown model: 'none'" in caught.value.message()

    async with speak() as speaker:
        unknown = refusing(Reason.NOT_FOUND, "unknown model: 'none'")
        speaker.data.answer = lambda call: (echo if call.model == "m" else unknown)(call)
        await asyncio.to_thread(ask, speaker)


# ------------------------------------------------------------------------------- control


async def test_health(speak):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        for ready in (True, False):
            speaker.control.is_ready = ready
            assert await client.is_server_ready() is ready
            assert await client.is_server_live()
            assert await client.is_model_ready("m")
            assert not await client.is_model_ready("m", "2")
            assert not await client.is_model_ready("other")


async def test_metadata_configuration_and_statistics(speak):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        how = {"as_json": True} if speaker.transport == "grpc" else {}
        assert await client.get_server_metadata(**how) == {
            "name": "slacktide",
            "version": "0.1",
            "extensions": ["statistics", "parameters"],
        }
        assert plain(await client.get_model_metadata("m", **how)) == {
            "name": "m",
            "versions": [1],
            "platform": "onnxruntime_onnx",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
        }
        config = plain(await client.get_model_config("m", **how))
        assert config.get("config", config) == CONFIG
        (model,) = plain(await client.get_inference_statistics(**how))["model_stats"]
        assert (model["name"], model["version"]) == ("m", 1)
        assert (model["inference_count"], model["execution_count"]) == (7, 3)
        assert model["last_inference"] == 1_700_000_000_000
        assert model["inference_stats"]["queue"]["count"] == 3
        assert model["inference_stats"]["cache_miss"]["ns"] == 4_000_000_000_000
        assert model["batch_stats"][0]["batch_size"] == 4


async def test_repository(speak):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        how = {"as_json": True} if speaker.transport == "grpc" else {}
        index = await client.get_model_repository_index(**how)
        rows = index["models"] if how else index
        assert [(row["name"], row.get("state")) for row in rows] == [
            ("m", "READY"),
            ("other", None),
        ]
        await client.load_model("m", config="{}", files={"file:1/model.onnx": b"onnx"})
        await client.unload_model("m", unload_dependents=True)
        await client.unload_model("m")
        assert speaker.control.loads == [("m", {"config": "{}", "file:1/model.onnx": b"onnx"})]
        assert speaker.control.unloads == [("m", True), ("m", False)]


@pytest.mark.parametrize("kind", sorted(CONTROL_STATUS))
async def test_every_kind_of_control_error_has_its_status(speak, kind):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        speaker.control.error = ControlError(kind, f"it is {kind}")
        for method in (
            client.get_model_metadata,
            client.get_model_config,
            client.get_inference_statistics,
            client.load_model,
            client.unload_model,
        ):
            with pytest.raises(InferenceServerException) as caught:
                await method("m")
            http, grpc = CONTROL_STATUS[kind]
            assert caught.value.status() in (str(http), f"StatusCode.{grpc}")
            assert caught.value.message() == f"it is {kind}"


async def test_unknown_models_are_not_found(speak):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        with pytest.raises(InferenceServerException) as caught:
            await client.get_model_metadata("other")
        assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")


async def test_shared_memory_is_answered_as_unsupported(speak):
    async with speak() as speaker, speaker.stock_aio.InferenceServerClient(speaker.url) as client:
        how = {"as_json": True} if speaker.transport == "grpc" else {}
        await client.unregister_system_shared_memory()
        await client.unregister_cuda_shared_memory()
        assert not await client.get_system_shared_memory_status(**how)
        assert not await client.get_cuda_shared_memory_status(**how)
        for register in (
            lambda: client.register_system_shared_memory("r", "/key", 8),
            lambda: client.register_cuda_shared_memory("r", b"AAAA", 0, 8),
        ):
            with pytest.raises(InferenceServerException, match="shared memory") as caught:
                await register()
            assert caught.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
