"""A fake OIP server over HTTP that answers by a script, and builders for runs against it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import orjson
import pytest

from slacktide.lab.load.generate import carry_out, prepare
from slacktide.lab.load.request_log import RequestLog
from slacktide.lab.load.spec import LoadSpec, Stream, Target, Transport
from slacktide.lab.reports import Report
from slacktide.lab.workloads import Constant, Fixed

METADATA = {
    "name": "m",
    "versions": ["1"],
    "platform": "fake",
    "inputs": [
        {"name": "ids", "datatype": "INT64", "shape": [-1, -1]},
        {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
    ],
    "outputs": [],
}
CONFIG = {"name": "m", "max_batch_size": 8}


@dataclass
class Seen:
    """One request as it came in."""

    connection: int
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def document(self) -> dict[str, Any]:
        length = int(self.headers.get("inference-header-content-length", len(self.body)))
        document: dict[str, Any] = orjson.loads(self.body[:length])
        return document

    @property
    def timeout_us(self) -> int:
        return int(self.document["parameters"]["timeout"])


@dataclass
class Reply:
    """What to answer; `cut` breaks the connection instead, after `part` of the bytes."""

    status: int = 200
    body: bytes = b"{}"
    close: bool = False
    cut: bool = False
    part: bytes = b""


Gate = Callable[[int, dict[str, str]], Reply | None]
"""(running number of the inference, headers) → an answer before the body was read, or None."""

Script = Callable[[int, Seen], Awaitable[Reply]]
"""(running number of the inference, request) → answer."""


def wait_for_the_body(number: int, headers: dict[str, str]) -> Reply | None:
    return None


async def answer_at_once(number: int, call: Seen) -> Reply:
    return Reply()


def error(status: int, message: str) -> Reply:
    return Reply(status, orjson.dumps({"error": message}))


@dataclass
class FakeServer:
    """Bound to a free port of the loopback; `seen` holds every inference."""

    script: Script = answer_at_once
    gate: Gate = wait_for_the_body
    gated: int = 0
    """Inferences whose headers came."""
    left_over: list[bytes] = field(default_factory=list)
    """What clients still sent after an answer of the gate, one for each such connection."""
    metadata: dict[str, Any] = field(default_factory=lambda: METADATA)
    config: dict[str, Any] | None = field(default_factory=lambda: CONFIG)
    calls: list[Seen] = field(default_factory=list)
    connections: int = 0
    disconnects: int = 0
    """Connections that their client closed while the script was still thinking."""
    tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> FakeServer:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def target(self) -> Target:
        return Target(Transport.HTTP, "127.0.0.1", self.port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = True
        mine = 0
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            request, *lines = head.rstrip().split("\r\n")
            method, path, _ = request.split(" ")
            headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
            if method != "GET":
                self.gated += 1
                early = self.gate(self.gated - 1, headers)
                if early is not None:
                    await self._answer(writer, early)
                    self.left_over.append(await reader.read())
                    return
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if method == "GET":
                status, document = self._describe(path)
                reply = Reply(status, orjson.dumps(document))
            else:
                if first:
                    mine, self.connections, first = self.connections, self.connections + 1, False
                call = Seen(mine, path, headers, body, time.monotonic())
                self.calls.append(call)
                reply = await self._think(reader, self.script(len(self.calls) - 1, call))
            if reply.cut:
                writer.write(reply.part)
                await writer.drain()
                writer.close()
                await writer.wait_closed()
                return
            await self._answer(writer, reply)
            if reply.close:
                return

    async def _answer(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        keep = "close" if reply.close else "keep-alive"
        writer.write(
            f"HTTP/1.1 {reply.status} X\r\nContent-Length: {len(reply.body)}\r\n"
            f"Connection: {keep}\r\n\r\n".encode()
            + reply.body
        )
        await writer.drain()

    async def _think(self, reader: asyncio.StreamReader, script: Awaitable[Reply]) -> Reply:
        """Run the script, but notice a client that leaves meanwhile."""
        thinking = asyncio.ensure_future(script)
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((thinking, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not thinking.done():
                self.disconnects += 1
                raise ConnectionResetError
            return thinking.result()
        finally:
            thinking.cancel()
            leaving.cancel()
            await asyncio.gather(thinking, leaving, return_exceptions=True)

    def _describe(self, path: str) -> tuple[int, Any]:
        if path.endswith("/config"):
            return (200, self.config) if self.config else (404, {"error": "no configuration"})
        if path == "/v2":
            return 200, {"name": "fake", "version": "1", "extensions": []}
        if path.startswith(("/v2/models/m", "/v2/models/stats")):
            return 200, self.metadata
        return 404, {"error": f"unknown model in {path}"}


def make_spec(target: Target, **changes: Any) -> LoadSpec:
    """A tenth of a second of 100 requests/s for `m`, unless `changes` say otherwise; those that
    are fields of a stream go there."""
    stream = Stream("m", Constant(100.0), Fixed(5.0))
    names = set(Stream.__dataclass_fields__)
    stream = replace(stream, **{k: v for k, v in changes.items() if k in names})
    run_fields = {k: v for k, v in changes.items() if k not in names}
    return LoadSpec(**{"target": target, "streams": (stream,), "duration": 0.1, **run_fields})


async def run_with_ledger(spec: LoadSpec, **options: Any) -> tuple[Report, RequestLog]:
    """The report, and what became of every single request."""
    return await carry_out(await prepare(spec), **options)


@dataclass(frozen=True)
class Kit:
    """What the tests of this package share."""

    server: type[FakeServer] = FakeServer
    reply: type[Reply] = Reply
    error: Callable[[int, str], Reply] = staticmethod(error)
    spec: Callable[..., LoadSpec] = staticmethod(make_spec)
    run: Callable[..., Awaitable[tuple[Report, RequestLog]]] = staticmethod(run_with_ledger)


@pytest.fixture
def kit() -> Kit:
    return Kit()
