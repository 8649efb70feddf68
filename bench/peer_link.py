"""What it costs to forward a request to another server: µs of CPU on both sides, and p50.

Two processes, each on a core of its own, linked over the loopback interface. The peer receives each
call into one slot and answers 8 bytes at once, so that nothing but the link is measured. The same
messages go over a bidirectional stream of grpc.aio, whose server parses them with protobuf. Rows
are measured in turn; the median counts.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from statistics import median
from typing import Any, cast

import grpc.aio
import uvloop

from bench.machine import ROOT, cores, pin, pinned
from bench.measurement import Figure, Options, Result, at_most
from slacktide.domain import Outcome, Reason
from slacktide.domain.tensors import Datatype
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.grpc.peers import CONNECT, PeerConnection
from slacktide.frontends.listener import Callbacks
from slacktide.frontends.ports import ControlPlane, DataPlane, InferenceCall, PeerLink
from slacktide.peers.messages import LoadReport, PeerHello
from slacktide.wire import peer_messages as pm
from slacktide.wire.calls import (
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    OutputValue,
    Parameter,
)
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.proto import messages as m

SIZES = {"12 KB": 12_288, "98 KB": 98_304, "600 KB": 614_400}
CONTEXT = CallContext(0.0, "", "grpc")
ANSWER = InferReply(
    Outcome(Reason.ON_TIME, 0.0),
    "m",
    "1",
    "",
    [OutputValue("y", Datatype.FP32, (1, 2), bytes(8))],
)


class SlotCall:
    """A call into the only slot, answered at once."""

    slot = memoryview(bytearray(1 << 20))

    def announce(
        self,
        length: int,
        parameters: Mapping[str, Parameter],
        given_up: Callable[[InferReply], None] | None = None,
    ) -> memoryview | InferReply:
        return self.slot[:length]

    def submit(self, call: InferCall, reply: Callable[[InferReply], None]) -> None:
        asyncio.get_running_loop().call_soon(reply, ANSWER)

    def refuse(self, reason: Reason, message: str) -> None:
        raise AssertionError(message)

    def cancel(self, reason: Reason) -> None:
        pass


class BareHost:
    """A host of one link."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.link: asyncio.Future[PeerLink] = asyncio.get_running_loop().create_future()

    def hello(self) -> PeerHello:
        return PeerHello(1, "bench", self.machine, {})

    def joined(self, link: PeerLink, hello: PeerHello) -> None:
        self.link.set_result(link)

    def reported(self, link: PeerLink, report: LoadReport) -> None:
        pass

    def call(
        self, link: PeerLink, model: str, version: str | None, context: CallContext
    ) -> InferenceCall:
        return SlotCall()

    def left(self, link: PeerLink, why: str) -> None:
        pass


def bare_server(host: BareHost) -> GrpcServer:
    return GrpcServer(cast(DataPlane, None), cast(ControlPlane, _NoControl()), peers=host)


class _NoControl:
    """Is not asked."""

    def __getattr__(self, name: str) -> Any:
        return None


async def serve() -> None:
    """The peer: prints the ports of our server and of grpc.aio's, then its CPU time when asked."""
    server = bare_server(BareHost("b"))
    await server.start("127.0.0.1", 0)
    codec = GrpcCodec()

    async def connect(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for raw in requests:
            call = m.PeerMessage.FromString(raw).call
            if call.request.raw_input_contents[0]:
                yield b"".join(pm.reply_pieces(call.id, ANSWER, codec.reply_pieces(ANSWER)))

    stock = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(connect)
    service = grpc.method_handlers_generic_handler(m.PEER_SERVICE, {"Connect": handler})
    stock.add_generic_rpc_handlers((service,))
    port = stock.add_insecure_port("127.0.0.1:0")
    await stock.start()
    print(server.port, port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(time.process_time(), flush=True)


Ask = Callable[[InferCall], Awaitable[object]]


async def measure(ask: Ask, call: InferCall, count: int, outstanding: int) -> float:
    """Ask `count` times. Returns the median latency in seconds."""
    seconds = []

    async def some() -> None:
        for _ in range(count // outstanding):
            began = time.perf_counter()
            await ask(call)
            seconds.append(time.perf_counter() - began)

    await asyncio.gather(*(some() for _ in range(outstanding)))
    return median(seconds)


async def rounds(options: Options, peer: subprocess.Popen[str]) -> Result:
    assert peer.stdin is not None
    assert peer.stdout is not None
    ports = [int(port) for port in peer.stdout.readline().split()]
    host = BareHost("a")
    server = bare_server(host)
    await server.start("127.0.0.1", 0)
    target = f"127.0.0.1:{ports[0]}"
    connection = PeerConnection(server.state, host, target, None)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: Callbacks(connection), "127.0.0.1", ports[0])
    link = await host.link
    most = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{ports[1]}", most)
    stream = channel.stream_stream(CONNECT)()

    codec = GrpcCodec()

    def ours(call: InferCall) -> Awaitable[object]:
        future: asyncio.Future[object] = loop.create_future()
        link.forward(call, CONTEXT, 1.0, future.set_result)
        return future

    async def stock(call: InferCall) -> object:
        await stream.write(b"".join(pm.forwarded_pieces(1, codec.call_pieces(call), CONTEXT, 1.0)))
        return pm.read_answer(await stream.read(), now=0.0)

    def peer_cpu() -> float:
        print(file=peer.stdin, flush=True)
        assert peer.stdout is not None
        return float(peer.stdout.readline())

    result = Result("peer_link")
    count = 400 if options.quick else 2000
    for size, nbytes in SIZES.items():
        call = InferCall(
            "m", None, "", [InputTensor("x", Datatype.UINT8, (nbytes,), bytes(nbytes))]
        )
        cpu: dict[str, list[float]] = {"link": [], "grpc.aio": []}
        p50: dict[str, list[float]] = {"link": [], "grpc.aio": []}
        asks: list[tuple[str, Ask]] = [("link", ours), ("grpc.aio", stock)]
        for _ in range(3):
            for name, ask in asks:
                before = time.process_time(), peer_cpu()
                p50[name].append(await measure(ask, call, count, 1))
                spent = time.process_time() - before[0] + peer_cpu() - before[1]
                cpu[name].append(spent / count)
        goal = at_most(200.0) if size == "98 KB" else None
        for name in cpu:
            microseconds = tuple(1e6 * seconds for seconds in cpu[name])
            figure = f"{size}, {name}: CPU of both sides"
            limit = goal if name == "link" else None
            result.figures.append(
                Figure(figure, median(microseconds), "µs", limit, samples=microseconds)
            )
            result.figures.append(
                Figure(f"{size}, {name}: p50 alone", 1e6 * median(p50[name]), "µs")
            )
        ratio = median(cpu["link"]) / median(cpu["grpc.aio"])
        result.figures.append(Figure(f"{size}: CPU ÷ grpc.aio's", ratio, "", at_most(0.5)))
    stream.cancel()
    await channel.close()
    await server.close()
    return result


def run(options: Options) -> Result:
    """Run the benchmark."""
    chosen = cores()
    pin(chosen.client)
    command = pinned(chosen.server, [sys.executable, "-m", "bench.peer_link"])
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        try:
            return uvloop.run(rounds(options, peer))
        finally:
            peer.kill()


if __name__ == "__main__":
    uvloop.run(serve())
