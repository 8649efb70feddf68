"""A host of links that notes what it is told, and servers linked to each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.frontends.doubles import FakeCall, FakeControlPlane, FakeDataPlane

from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.grpc.peers import PeerConnection, PeerStream
from slacktide.frontends.listener import Callbacks
from slacktide.frontends.settings import GrpcSettings
from slacktide.peers import LoadReport, PeerHello
from slacktide.wire.calls import CallContext, InferCall, InferReply, InputTensor
from slacktide.wire.errors import WireError


@dataclass
class FakeHost:
    """Answers forwarded calls by its own data plane."""

    machine: str = "a"
    data: FakeDataPlane = field(default_factory=FakeDataPlane)
    links: list[PeerStream] = field(default_factory=list)
    hellos: list[PeerHello] = field(default_factory=list)
    reports: list[LoadReport] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    """Why links ended."""
    refuses: str = ""
    models: dict[str, str] = field(default_factory=lambda: {"m:1": "abc"})

    def hello(self) -> PeerHello:
        return PeerHello(1, "0.1", self.machine, self.models, f"i-{self.machine}")

    def joined(self, link: PeerStream, hello: PeerHello) -> None:
        if self.refuses:
            from slacktide.domain import Reason

            raise WireError(Reason.BAD_INPUT, self.refuses)
        if link not in self.links:
            self.links.append(link)
        self.hellos.append(hello)
        self.data.changed.set()

    def reported(self, link: PeerStream, report: LoadReport) -> None:
        self.reports.append(report)
        self.data.changed.set()

    def call(
        self, link: PeerStream, model: str, version: str | None, context: CallContext
    ) -> FakeCall:
        return self.data.call(model, version, context)

    def left(self, link: PeerStream, why: str) -> None:
        if link in self.links:
            self.links.remove(link)
        self.gone.append(why)
        self.data.changed.set()


@asynccontextmanager
async def hosting(
    host: FakeHost, settings: GrpcSettings | None = None, **options: Any
) -> AsyncIterator[GrpcServer]:
    """A server that serves links to `host`."""
    server = GrpcServer(host.data, FakeControlPlane(), settings, peers=host, **options)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.close()


async def dial(
    server: GrpcServer, host: FakeHost, port: int, token: str | None = None
) -> list[str]:
    """Dial a link for `host`. Returns the list that gets the sentence with which it ends."""
    connection = PeerConnection(server.state, host, f"127.0.0.1:{port}", token)
    await asyncio.get_running_loop().create_connection(
        lambda: Callbacks(connection), "127.0.0.1", port
    )
    return host.gone


@asynccontextmanager
async def linked(
    a: FakeHost, b: FakeHost, settings: GrpcSettings | None = None
) -> AsyncIterator[tuple[GrpcServer, GrpcServer, list[str]]]:
    """Two servers, of which that of `a` has dialled."""
    async with hosting(a, settings) as first, hosting(b, settings) as second:
        ends = await dial(first, a, second.port)
        await a.data.until(lambda: a.links)
        await b.data.until(lambda: b.links)
        yield first, second, ends


def call_of(nbytes: int = 16, id: str = "7", model: str = "m") -> InferCall:
    data = bytes(range(256)) * (nbytes // 256 + 1)
    tensor = InputTensor("x", Datatype.UINT8, (1, nbytes), data[:nbytes])
    return InferCall(model, None, id, [tensor])


async def forwarded(
    host: FakeHost, call: InferCall, budget_s: float | None = 1.0
) -> InferReply | None:
    """The reply to a call over the host's only link."""
    context = CallContext(0.0, "127.0.0.1", "grpc", request_id="r", traceparent="00-t")
    future: asyncio.Future[InferReply | None] = asyncio.get_running_loop().create_future()
    host.links[0].forward(call, context, budget_s, future.set_result)
    async with asyncio.timeout(20):
        return await future
