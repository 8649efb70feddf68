"""An HTTP server on doubles, and clients that send raw bytes to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from tests.frontends.doubles import FakeControlPlane, FakeDataPlane

from slacktide.frontends.http import HttpServer, inference_routes
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker


class Harness:
    """A running server on fakes."""

    def __init__(self, server: HttpServer, data: FakeDataPlane, control: FakeControlPlane, log):
        self.server = server
        self.data = data
        self.control = control
        self.log = log
        self.clients: list[Client] = []
        """To close at the end."""

    async def connect(self, source: str = "127.0.0.1") -> Client:
        """`source`: the address to come from."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.server.port, local_addr=(source, 0)
        )
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something inside the server that tells nobody."""
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)

    @property
    def context(self):
        return self.server._context

    def check(self) -> None:
        """Do what the server does on each tick."""
        for connection in list(self.context.connections):
            connection.check(self.context.clock())

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
        """Read until the server closes."""
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
async def serve(settings: HttpSettings | None = None, **kwargs: Any) -> AsyncIterator[Harness]:
    data, control, log = FakeDataPlane(), FakeControlPlane(), []
    unpacker = Unpacker()
    routes = inference_routes(data, control, settings or HttpSettings(), unpacker)
    server = HttpServer(routes, settings, access_log=log.append, unpacker=unpacker, **kwargs)
    await server.start("127.0.0.1", 0)
    harness = Harness(server, data, control, log)
    try:
        yield harness
    finally:
        for client in harness.clients:
            client.close()
        await server.close()


def post(
    body: bytes = b"",
    *headers: str,
    path: str = "/v2/models/m/infer",
    length: int | None = None,
) -> bytes:
    size = len(body) if length is None else length
    lines = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {size}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def binary(data: bytes, request_id: str = "r") -> tuple[bytes, str]:
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
