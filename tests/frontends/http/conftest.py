"""A fake data plane and control plane, and raw clients, for tests of the HTTP front end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import uvloop

from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.frontends.http import HttpServer, HttpSettings, inference_routes
from slacktide.frontends.ports import ModelDescription
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.calls import InferCall, InferReply, OutputValue
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.parameters import parse_parameters


class FakeTicket:
    def __init__(self, data: FakeDataPlane) -> None:
        self._data = data

    def cancel(self, reason: Reason) -> None:
        self._data.cancelled.append(reason)
        self._data.changed.set()


class FakeUpload:
    def __init__(self, data: FakeDataPlane, length: int, context) -> None:
        self._data = data
        self._context = context
        self.memory = bytearray(length)
        self.ended: list[str] = []

    def body(self) -> memoryview:
        return memoryview(self.memory)

    def complete(self, call, reply):
        if self._data.bug is not None:
            raise self._data.bug
        self.ended.append("complete")
        return self._data.infer(call, self._context, reply)

    def refuse(self, reason, message):
        self.ended.append("refuse")
        self._data.refused.append((reason, message))

    def cancel(self, reason):
        self.ended.append("cancel")
        self._data.cancelled.append(reason)
        self._data.changed.set()


class FakeDataPlane:
    """Echoes every input as an output, at once, or when `release` is called if it `holds`."""

    def __init__(self) -> None:
        self.holds = False
        self.bug: Exception | None = None
        """What completing an upload raises."""
        self.held: list[Callable[[], None]] = []
        self.calls: list[tuple[InferCall, Any]] = []
        self.tensors: list[list[bytes]] = []
        self.announced: list[tuple[Any, ...]] = []
        self.uploads: list[FakeUpload] = []
        self.refused: list[tuple[Reason, str]] = []
        self.refused_from: list[Any] = []
        self.cancelled: list[Reason] = []
        self.refusal: InferReply | None = None
        self.answer: Callable[[InferCall], InferReply] = echo
        self.changed = asyncio.Event()

    def infer(self, call, context, reply):
        answering = self.answer
        try:
            parse_parameters(call.parameters)
        except WireError as error:  # a data plane checks what it takes, and counts it
            self.refused.append((error.reason, error.message))
            answering = refusing(error.reason, error.message)
        else:
            self.calls.append((call, context))
            self.tensors.append([bytes(tensor.data) for tensor in call.inputs])
        self.changed.set()

        def answer() -> None:
            reply(answering(call))

        if self.holds:
            self.held.append(answer)
        else:
            asyncio.get_running_loop().call_soon(answer)
        return FakeTicket(self)

    def announce(self, model, version, length, parameters, context):
        self.announced.append((model, version, length, dict(parameters), context))
        self.changed.set()
        if self.refusal is not None:
            return self.refusal
        self.uploads.append(FakeUpload(self, length, context))
        return self.uploads[-1]

    def body_refused(self, model, version, reason, message, context):
        self.refused.append((reason, message))
        self.refused_from.append(context)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def echo(call: InferCall) -> InferReply:
    outputs = [OutputValue(t.name, t.datatype, t.shape, bytes(t.data)) for t in call.inputs]
    outcome = Outcome(Reason.ON_TIME, at=0.0)
    return InferReply(outcome, call.model, call.version or "1", call.id, outputs)


def refusing(reason: Reason, message: str = "no", retry_after_s: float | None = None):
    def answer(call: InferCall) -> InferReply:
        outcome = Outcome(reason, at=0.0)
        return InferReply(
            outcome, call.model, "1", call.id, None, message, retry_after_s=retry_after_s
        )

    return answer


class FakeControlPlane:
    """One model `m`, version 1."""

    def __init__(self) -> None:
        self.is_ready = True
        self.loaded: list[tuple[str, dict[str, Any]]] = []
        self.unloaded: list[str] = []
        self.forbids = False

    def live(self):
        return True

    def ready(self):
        return self.is_ready

    def model_ready(self, model, version):
        return model == "m" and version in (None, "1")

    def server_metadata(self):
        return {"name": "slacktide", "version": "0", "extensions": ["binary_tensor_data"]}

    def describe(self, model, version):
        self._known(model)
        spec = TensorSpec("x", Datatype.FP32, (-1, 4))
        return ModelDescription(
            "m", "1", ("1",), "onnxruntime_onnx", ModelInterface((spec,), (spec,), 8)
        )

    def config(self, model, version):
        self._known(model)
        return {"name": "m", "max_batch_size": 8}

    def statistics(self, model, version):
        if model is not None:
            self._known(model)
        return {"model_stats": [{"name": "m", "version": "1"}]}

    def repository_index(self, ready_only):
        return [{"name": "m", "version": "1", "state": "READY", "reason": str(ready_only)}]

    async def load(self, model, parameters):
        if self.forbids:
            raise ControlError("forbidden", "repository control is off")
        await asyncio.sleep(0)
        self.loaded.append((model, dict(parameters)))

    async def unload(self, model):
        self._known(model)
        self.unloaded.append(model)

    def _known(self, model):
        if model != "m":
            raise ControlError("not_found", f"unknown model {model!r}")


class Harness:
    """A running server on fakes."""

    def __init__(self, server: HttpServer, data: FakeDataPlane, control: FakeControlPlane, log):
        self.server = server
        self.data = data
        self.control = control
        self.log = log

    async def connect(self, source: str = "127.0.0.1") -> Client:
        """`source`: the address to come from."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.server.port, local_addr=(source, 0)
        )
        return Client(reader, writer)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something inside the server that tells nobody."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def hub(self):
        return self.server._hub

    def check(self) -> None:
        """What the server does on each tick."""
        for connection in list(self.hub.connections):
            connection.check(self.hub.clock())

    async def ask(self, raw: bytes) -> Answer:
        """One request on a connection of its own."""
        client = await self.connect()
        try:
            client.send(raw)
            return await client.answer()
        finally:
            client.close()


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Client:
    """Writes bytes as told and reads answers strictly by their Content-Length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def answer(self, *, head_only: bool = False) -> Answer:
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            status, *lines = head[:-4].split("\r\n")
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                assert name.lower() not in headers
                headers[name.lower()] = value
            length = 0 if head_only else int(headers.get("content-length", "0"))
            return Answer(int(status.split(" ")[1]), headers, await self.reader.readexactly(length))

    async def ended(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(20):
            return await self.reader.read()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close so that the server sees a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self.writer.transport.abort()


@asynccontextmanager
async def serving(settings: HttpSettings | None = None, **kwargs: Any) -> AsyncIterator[Harness]:
    data, control, log = FakeDataPlane(), FakeControlPlane(), []
    unpacker = Unpacker()
    routes = inference_routes(data, control, settings or HttpSettings(), unpacker)
    server = HttpServer(routes, settings, access_log=log.append, unpacker=unpacker, **kwargs)
    await server.start("127.0.0.1", 0)
    try:
        yield Harness(server, data, control, log)
    finally:
        await server.close()


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request) -> Callable[[Awaitable[None]], None]:
    """Runs a coroutine on a fresh loop, on each kind of loop in turn."""
    return uvloop.run if request.param == "uvloop" else asyncio.run


@pytest.fixture(scope="session")
def serve():
    return serving


@pytest.fixture(scope="session")
def refuse_with():
    return refusing


def infer_request(
    body: bytes = b"",
    *headers: str,
    path: str = "/v2/models/m/infer",
    length: int | None = None,
) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {size}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def binary_body(data: bytes, request_id: str = "r") -> tuple[bytes, str]:
    """A binary request for data as UINT8, and its Inference-Header-Content-Length line."""
    head = orjson.dumps(
        {
            "id": request_id,
            "parameters": {"binary_data_output": True},
            "inputs": [
                {
                    "name": "x",
                    "shape": [len(data)],
                    "datatype": "UINT8",
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
        }
    )
    return head + data, f"Inference-Header-Content-Length: {len(head)}"


@pytest.fixture(scope="session")
def post():
    return infer_request


@pytest.fixture(scope="session")
def binary():
    return binary_body
