"""Triton's own Python clients, unmodified: HTTP, gRPC, and both under asyncio. And h2load.

All of them speak to the server itself, and to it through HAProxy and nghttpx where these are
installed (`make proxies`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import queue
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from slacktide._version import BUILD
from slacktide.server.calls.call import ServerCall
from slacktide.wire.calls import CallContext

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@dataclass(frozen=True)
class Way:
    """Addresses at which the common server is reached."""

    http: str
    grpc: str


HAPROXY = """
defaults
  mode http
  timeout connect 10s
  timeout client 60s
  timeout server 60s
listen http
  bind {way.http}
  server slacktide {house.http}
listen grpc
  bind {way.grpc} proto h2
  server slacktide {house.grpc} proto h2
"""


def haproxy(house: Any, way: Way, folder: Path) -> list[list[str]]:
    file = folder / "haproxy.cfg"
    file.write_text(HAPROXY.format(way=way, house=house))
    return [["haproxy", "-db", "-f", str(file)]]


def nghttpx(house: Any, way: Way, folder: Path) -> list[list[str]]:
    (folder / "empty.conf").touch()
    common = ["nghttpx", f"--conf={folder / 'empty.conf'}", "--workers=1"]
    return [
        [*common, f"--frontend={front.replace(':', ',')};no-tls",
         f"--backend={back.replace(':', ',')};;proto={protocol}"]
        for front, back, protocol in (
            (way.http, house.http, "http/1.1"),
            (way.grpc, house.grpc, "h2"),
        )
    ]  # fmt: skip


PROXIES = {"haproxy": haproxy, "nghttpx": nghttpx}


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module", params=["direct", *PROXIES])
def way(
    request: pytest.FixtureRequest, common: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Way]:
    """To the common server, straight or through a proxy."""
    name = request.param
    if name == "direct":
        yield Way(common.http, common.grpc)
        return
    if shutil.which(name) is None:
        pytest.skip(f"needs {name}: make proxies")
    folder = tmp_path_factory.mktemp(name)
    way = Way(free_address(), free_address())
    with contextlib.ExitStack() as stack:
        for number, command in enumerate(PROXIES[name](common, way, folder)):
            log = stack.enter_context((folder / f"log{number}").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        until = time.monotonic() + common.PATIENCE
        for address in (way.http, way.grpc):
            while not answers(address):
                logs = [file.read_text() for file in folder.glob("log*")]
                assert time.monotonic() < until, logs
                time.sleep(0.05)
        yield way


def answers(address: str) -> bool:
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), 1.0):
            return True
    except OSError:
        return False


@pytest.fixture(params=["http", "grpc"])
def stock(request: pytest.FixtureRequest, house: Any, way: Way) -> Iterator[Any]:
    """A module of Triton's and a client of it."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[request.param]
    with module.InferenceServerClient(getattr(way, request.param)) as client:
        yield module, client


def tensor(module: Any, name: str, array: Any, datatype: str, **how: Any) -> Any:
    given = module.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, **how)
    return given


def test_health_and_metadata(stock: Any) -> None:
    module, client = stock
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("matmul")
    assert client.is_model_ready("matmul", "1")
    assert not client.is_model_ready("nobody")
    as_json = {} if module is tritonclient.http else {"as_json": True}
    about = client.get_server_metadata(**as_json)
    assert about["name"] == "slacktide"
    assert about["version"].endswith("+compiled") is (BUILD == "compiled")
    assert "binary_tensor_data" in about["extensions"]
    assert not any("shared_memory" in name for name in about["extensions"])
    model = client.get_model_metadata("pair", **as_json)
    assert [given["name"] for given in model["inputs"]] == ["a", "b"]
    assert [int(n) for n in model["inputs"][0]["shape"]] == [-1, 2]
    assert [given["name"] for given in model["outputs"]] == ["sum", "difference"]


def test_configuration_and_statistics(stock: Any) -> None:
    module, client = stock
    as_json = {} if module is tritonclient.http else {"as_json": True}
    config = client.get_model_config("matmul", **as_json)
    config = config.get("config", config)
    assert config["max_batch_size"] == 32
    assert [int(n) for n in config["input"][0]["dims"]] == [4]

    def rows() -> int:
        statistics = client.get_inference_statistics("matmul", **as_json)["model_stats"][0]
        assert statistics["version"] == "1"
        return int(statistics.get("inference_count", 0))

    before = rows()
    client.infer("matmul", [tensor(module, "x", ROWS, "FP32")])
    assert rows() == before + 2
    names = {model["name"] for model in client.get_inference_statistics(**as_json)["model_stats"]}
    assert {"matmul", "total", "text"} <= names


def test_repository_index(stock: Any) -> None:
    module, client = stock
    index = client.get_model_repository_index()
    if module is tritonclient.grpc:
        states = {model.name: (model.version, model.state) for model in index.models}
    else:
        states = {model["name"]: (model["version"], model["state"]) for model in index}
    assert states["matmul"] == ("1", "READY")


def test_several_rows(stock: Any, house: Any) -> None:
    module, client = stock
    result = client.infer("matmul", [tensor(module, "x", ROWS, "FP32")], request_id="seven")
    np.testing.assert_allclose(result.as_numpy("y"), ROWS @ house.WEIGHT, rtol=1e-5)
    response = result.get_response()
    assert (response["id"] if module is tritonclient.http else response.id) == "seven"


def test_requested_outputs(stock: Any) -> None:
    module, client = stock
    a, b = np.full((1, 2), 5, np.float32), np.full((1, 2), 3, np.float32)
    inputs = [tensor(module, "b", b, "FP32"), tensor(module, "a", a, "FP32")]  # any order
    result = client.infer("pair", inputs, outputs=[module.InferRequestedOutput("difference")])
    np.testing.assert_array_equal(result.as_numpy("difference"), [[2, 2]])
    assert result.as_numpy("sum") is None


def test_strings(stock: Any) -> None:
    module, client = stock
    words = np.array([["tide"], [""], ["Ebbe und Flut"]], dtype=object)
    result = client.infer("text", [tensor(module, "x", words, "BYTES")])
    strings = [word.decode() for word in result.as_numpy("y").ravel()]
    assert strings == ["tide", "", "Ebbe und Flut"]


@pytest.mark.parametrize("count", [2, 0])
def test_outputs_without_elements(stock: Any, count: int) -> None:
    module, client = stock
    forms = ["raw", "json"] if module is tritonclient.http else ["raw"]
    for form in forms:
        how = {"binary_data": form == "raw"} if module is tritonclient.http else {}
        result = client.infer(
            "kept",
            [
                tensor(module, "word", np.array(["ebb", "flow"][:count], object), "BYTES", **how),
                tensor(module, "number", np.arange(count, dtype=np.float32), "FP32", **how),
                tensor(module, "keep", np.zeros(count, np.bool_), "BOOL", **how),
            ],
            outputs=[module.InferRequestedOutput(name, **how) for name in ("words", "numbers")],
        )
        assert result.as_numpy("words").tolist() == []
        assert result.as_numpy("numbers").shape == (0,)


def test_a_model_without_a_batch_axis(stock: Any) -> None:
    module, client = stock
    for length in (1, 5):
        numbers = np.arange(length, dtype=np.float32)
        result = client.infer("total", [tensor(module, "x", numbers, "FP32")])
        assert result.as_numpy("y") == pytest.approx(numbers.sum())


def test_json_tensors_over_http(house: Any, way: Way) -> None:
    with tritonclient.http.InferenceServerClient(way.http) as client:
        result = client.infer(
            "matmul",
            [tensor(tritonclient.http, "x", ROWS, "FP32", binary_data=False)],
            outputs=[tritonclient.http.InferRequestedOutput("y", binary_data=False)],
        )
        np.testing.assert_allclose(result.as_numpy("y"), ROWS @ house.WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_both_ways_over_http(house: Any, way: Way, algorithm: str) -> None:
    with tritonclient.http.InferenceServerClient(way.http) as client:
        result = client.infer(
            "matmul",
            [tensor(tritonclient.http, "x", ROWS, "FP32")],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        np.testing.assert_allclose(result.as_numpy("y"), ROWS @ house.WEIGHT, rtol=1e-5)


def test_asynchronous_calls_of_the_plain_clients(house: Any, way: Way) -> None:
    with tritonclient.http.InferenceServerClient(way.http, concurrency=4) as client:
        given = [tensor(tritonclient.http, "x", ROWS, "FP32")]
        waiting = [client.async_infer("matmul", given) for _ in range(8)]
        assert all(pending.get_result().as_numpy("y").shape == (2, 3) for pending in waiting)
    done: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(way.grpc) as client:
        given = [tensor(tritonclient.grpc, "x", ROWS, "FP32")]
        for _ in range(8):
            client.async_infer(
                "matmul", given, callback=lambda result, error: done.put((result, error))
            )
        answers = [done.get(timeout=house.PATIENCE) for _ in range(8)]
    assert [error for _, error in answers] == [None] * 8


def test_streaming(house: Any, way: Way) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(way.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(6):
            row = np.full((1, 4), number, np.float32)
            given = [tensor(tritonclient.grpc, "x", row, "FP32")]
            client.async_stream_infer("matmul", given, request_id=str(number))
        wrong = [tensor(tritonclient.grpc, "z", ROWS, "FP32")]
        client.async_stream_infer("matmul", wrong, request_id="wrong")
        replies = [answers.get(timeout=house.PATIENCE) for _ in range(7)]
        client.stop_stream()
    good = {r.get_response().id: r.as_numpy("y") for r, error in replies if error is None}
    assert sorted(good) == list("012345")
    np.testing.assert_allclose(good["3"][0], house.WEIGHT.sum(0) * 3, rtol=1e-5)
    (error,) = [error for _, error in replies if error is not None]
    assert "'z'" in str(error)


def test_the_clients_under_asyncio(house: Any, way: Way) -> None:
    async def over(module: Any, address: str) -> list[Any]:
        async with module.InferenceServerClient(address) as client:
            assert await client.is_server_ready()
            base = tritonclient.grpc if module is tritonclient.grpc.aio else tritonclient.http
            given = [tensor(base, "x", ROWS, "FP32")]
            answers = await asyncio.gather(*[client.infer("matmul", given) for _ in range(8)])
            with pytest.raises(InferenceServerException, match="unknown model"):
                await client.infer("nobody", given)
            return [answer.as_numpy("y") for answer in answers]

    async def both() -> list[Any]:
        return [
            *await over(tritonclient.http.aio, way.http),
            *await over(tritonclient.grpc.aio, way.grpc),
        ]

    for array in asyncio.run(both()):
        np.testing.assert_allclose(array, ROWS @ house.WEIGHT, rtol=1e-5)


def test_shared_memory_is_refused_as_triton_refuses_it(stock: Any) -> None:
    """Dropping and listing regions works, there being none; registering does not."""
    _, client = stock
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    assert not getattr(client.get_system_shared_memory_status(), "regions", [])
    assert not getattr(client.get_cuda_shared_memory_status(), "regions", [])
    with pytest.raises(InferenceServerException, match="not supported") as refused:
        client.register_system_shared_memory("region", "/key", 64)
    assert refused.value.status() in ("501", "StatusCode.UNIMPLEMENTED")
    with pytest.raises(InferenceServerException) as refused:
        client.register_cuda_shared_memory("region", b"aGFuZGxl", 0, 64)
    assert refused.value.status() in ("501", "StatusCode.UNIMPLEMENTED")


def test_an_input_in_shared_memory_is_refused(stock: Any) -> None:
    module, client = stock
    given = module.InferInput("x", [2, 4], "FP32")
    given.set_shared_memory("region", 32)
    with pytest.raises(InferenceServerException, match="shared") as refused:
        client.infer("matmul", [given])
    assert refused.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


def test_trace_and_log_settings_can_be_read_over_http(house: Any, way: Way) -> None:
    with tritonclient.http.InferenceServerClient(way.http) as client:
        assert "trace_level" in client.get_trace_settings()
        assert "log_info" in client.get_log_settings()


def test_control_is_off_unless_asked_for(stock: Any) -> None:
    _, client = stock
    for attempt in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="--allow-control") as refused:
            attempt("matmul")
        assert refused.value.status() in ("403", "StatusCode.PERMISSION_DENIED")
    assert client.is_model_ready("matmul")


def test_a_finished_call_leaves_nothing_to_the_garbage_collector(stock: Any) -> None:
    """What refers to itself would stay, with its body, until the collector comes round."""
    module, client = stock

    def of_calls() -> list[Any]:
        return [
            candidate
            for candidate in gc.get_objects()
            if isinstance(candidate, ServerCall | CallContext)
        ]

    def left() -> list[Any]:
        return [call for call in of_calls() if id(call) not in others]

    gc.collect()
    kept_by_others = of_calls()  # held here, so that none of their ids is given again
    others = set(map(id, kept_by_others))
    gc.disable()
    try:
        for _ in range(5):
            client.infer("matmul", [tensor(module, "x", ROWS, "FP32")])
        until = time.monotonic() + 10.0
        while left() and time.monotonic() < until:
            time.sleep(0.01)
        assert left() == []
    finally:
        gc.enable()


@pytest.mark.skipif(shutil.which("h2load") is None, reason="needs h2load (nghttp2-client)")
@pytest.mark.parametrize(("protocol", "streams"), [("http", 1), ("grpc", 1), ("grpc", 8)])
def test_h2load(house: Any, way: Way, protocol: str, streams: int, tmp_path: Path) -> None:
    if protocol == "http":
        given = {"name": "x", "shape": ROWS.shape, "datatype": "FP32", "data": ROWS.tolist()}
        body = json.dumps({"inputs": [given]}).encode()
        words = ["--h1", f"http://{way.http}/v2/models/matmul/infer"]
    else:
        request = tritonclient.grpc.service_pb2.ModelInferRequest(
            model_name="matmul",
            inputs=[tensor(tritonclient.grpc, "x", ROWS, "FP32")._get_tensor()],
            raw_input_contents=[ROWS.tobytes()],
        )
        message = request.SerializeToString()
        body = b"\0" + len(message).to_bytes(4, "big") + message
        url = f"http://{way.grpc}/inference.GRPCInferenceService/ModelInfer"
        words = ["-H", "content-type: application/grpc", "-H", "te: trailers", url]
    (tmp_path / "body").write_bytes(body)
    shape = ("-n", "200", "-c", "4", "-m", str(streams), "-t", "1", "-d", tmp_path / "body")
    done = subprocess.run(["h2load", *shape, *words], capture_output=True, text=True, check=True)
    assert "200 succeeded, 0 failed, 0 errored, 0 timeout" in done.stdout, done.stdout
    assert "status codes: 200 2xx, 0 3xx, 0 4xx, 0 5xx" in done.stdout
