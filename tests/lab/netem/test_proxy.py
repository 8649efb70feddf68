"""Real bytes over real sockets, held to a trace: never faster, in order, all of them, as they are.

What is checked of time are bounds that a slow machine cannot break: a proxy that is late is late,
but no byte may be there before the link could have carried it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import pytest
import uvloop

from slacktide.lab.netem.proxy import LinkProxy
from slacktide.lab.workloads import BandwidthTrace, TraceLink

HOST = "127.0.0.1"
BOTH_LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


@dataclass
class Sink:
    """A server that notes what comes when, and sends it back if it is an echo."""

    echo: bool = False
    arrived: list[tuple[float, int]] = field(default_factory=list)
    """(instant, bytes of all connections so far)"""
    bodies: list[bytearray] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def __aenter__(self) -> Sink:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self._tasks: set[asyncio.Task[None]] = set()
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
    def total(self) -> int:
        return sum(map(len, self.bodies))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        body = bytearray()
        self.bodies.append(body)
        try:
            while data := await reader.read(1 << 16):
                body += data
                self.arrived.append((time.monotonic(), self.total))
                if self.echo:
                    writer.write(data)
                    await writer.drain()
            self.ended.append("end")
        except ConnectionError:
            self.ended.append("reset")
        finally:
            writer.close()


def link(rates: list[float], seconds: float, *, rtt: float = 0.0, offset: float = 0.0) -> TraceLink:
    """Each rate (bytes per second) for so long."""
    return TraceLink(BandwidthTrace(np.arange(len(rates)) * seconds, rates), rtt, offset)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30.0):
        while not true():
            await asyncio.sleep(0.001)


def never_faster(sink: Sink, way: TraceLink, origin: float) -> None:
    """No byte was there before the link could have carried it."""
    for at, count in sink.arrived:
        until = max(0.0, at - origin - way.rtt / 2)
        moved = way.trace.moved(until + way.offset) - way.trace.moved(way.offset)
        assert count <= moved + 1.0


NOISE = np.random.default_rng(0).bytes(60_000)


@BOTH_LOOPS
@pytest.mark.parametrize("rtt", [0.0, 0.02])
@pytest.mark.usefixtures("run")
async def test_bytes_arrive_at_the_rate_of_the_trace_and_come_back_as_they_are(
    rtt: float,
) -> None:
    way = link([200_000.0, 0.0, 800_000.0], 0.1, rtt=rtt, offset=0.05)

    async with Sink(echo=True) as sink, LinkProxy(way, HOST, sink.port) as proxy:
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        origin = time.monotonic()
        proxy.begin(origin)
        writer.write(NOISE)
        writer.write_eof()
        came_back = await reader.read(-1)
        ended = time.monotonic()
        writer.close()
        await until(lambda: sink.ended == ["end"])
    assert bytes(sink.bodies[0]) == NOISE == came_back
    never_faster(sink, way, origin)
    assert ended - origin >= way.deliver(len(NOISE), sent=0.0).complete_at + way.way_back
    assert len(sink.arrived) > 10  # it trickled
    done = proxy.carried()
    assert (done.connections, done.unreachable) == (1, 0)
    assert done.bytes_there == done.bytes_back == len(NOISE)
    assert done.lateness_p99 >= 0.0


async def test_in_an_outage_nothing_arrives_not_even_the_end() -> None:
    way = link([0.0, 4e6], 0.15)

    async with Sink() as sink, LinkProxy(way, HOST, sink.port) as proxy:
        origin = time.monotonic()
        proxy.begin(origin)
        _, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(NOISE)
        writer.close()
        await until(lambda: bool(sink.ended))
    assert bytes(sink.bodies[0]) == NOISE
    assert all(at - origin >= 0.15 for at, _ in sink.arrived)
    never_faster(sink, way, origin)


def test_connections_have_links_of_their_own_or_share_one() -> None:
    async def main(shared: bool) -> tuple[Sink, LinkProxy, float, float]:
        way = link([1e6], 1.0)
        async with Sink() as sink, LinkProxy(way, HOST, sink.port, shared=shared) as proxy:
            writers = [(await asyncio.open_connection(HOST, proxy.port))[1] for _ in range(4)]
            origin = time.monotonic()
            proxy.begin(origin)
            for number, writer in enumerate(writers):
                writer.write(bytes([number]) * 20_000)
                writer.write_eof()
            await until(lambda: len(sink.ended) == 4)
            ended = time.monotonic()
            for writer in writers:
                writer.close()
            return sink, proxy, origin, ended

    sink, proxy, origin, ended = asyncio.run(main(True))
    never_faster(sink, link([1e6], 1.0), origin)
    assert ended - origin >= 0.08
    # First come, whole: each body is complete before the next begins.
    assert sorted(bytes(body) for body in sink.bodies) == [bytes([n]) * 20_000 for n in range(4)]
    sink, proxy, origin, ended = asyncio.run(main(False))
    assert ended - origin >= 0.02
    assert proxy.carried().bytes_there == 80_000


async def test_a_server_that_sends_without_end_is_not_read_faster_than_its_client_reads() -> None:
    """Memory of the proxy stays bounded both ways."""
    way = link([1e9], 1.0)
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                written += 1 << 16
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with LinkProxy(way, HOST, port) as proxy:
        proxy.begin(time.monotonic())
        reader, writer = await asyncio.open_connection(HOST, proxy.port, limit=1 << 16)
        before = -1
        while written != before and written < 64 << 20:  # until everything is full
            before = written
            await asyncio.sleep(0.05)
        stalled = written
        await reader.readexactly(stalled)
        assert written > 0
        writer.transport.abort()
    server.close()
    await asyncio.sleep(0)
    assert written < 64 << 20


async def test_a_client_that_leaves_is_seen_to_leave_and_a_server_that_leaves_too() -> None:
    async with Sink() as sink, LinkProxy(link([1e6], 1.0), HOST, sink.port) as proxy:
        proxy.begin(time.monotonic())
        _, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"half a requ")
        await until(lambda: sink.total == 11)
        writer.transport.abort()
        await until(lambda: len(sink.ended) == 1)
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"x")
        await until(lambda: sink.total == 12)
        for task in sink._tasks:
            task.cancel()
        assert await reader.read(-1) == b""
        writer.close()


async def test_a_server_that_is_not_there_breaks_the_connection() -> None:
    async with Sink() as sink:
        port = sink.port
    async with LinkProxy(link([1e6], 1.0), HOST, port) as proxy:
        proxy.begin(time.monotonic())
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"anybody?")
        with suppress(ConnectionError):
            assert await reader.read(-1) == b""
        writer.close()
        assert proxy.carried().unreachable == 1


@BOTH_LOOPS
@pytest.mark.usefixtures("run")
async def test_nothing_moves_before_the_beginning_and_closing_breaks_what_is_on_its_way() -> None:
    never = TraceLink(BandwidthTrace([0], [0]))
    for way, begins in ((link([1e6], 1.0), False), (never, True)):
        async with Sink() as sink:
            async with LinkProxy(way, HOST, sink.port) as proxy:
                if begins:
                    proxy.begin(time.monotonic())
                reader, writer = await asyncio.open_connection(HOST, proxy.port)
                writer.write(NOISE)
                await until(lambda: len(sink.bodies) == 1)
                await asyncio.sleep(0.02)
                assert sink.total == 0
            with suppress(ConnectionError):
                assert await reader.read(-1) == b""
            writer.close()


@BOTH_LOOPS
@pytest.mark.usefixtures("run")
async def test_a_cut_link_carries_nothing_and_goes_on_where_it_stopped() -> None:
    way = link([1e9], 1.0)
    async with Sink(echo=True) as sink, LinkProxy(way, HOST, sink.port) as proxy:
        proxy.begin(time.monotonic())
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.cut()
        writer.write(b"during")
        late_reader, late_writer = await asyncio.open_connection(HOST, proxy.port)
        late_writer.write(b"new")
        # Bytes that leave after a mend arrive; so these have not left before it.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        assert sink.total == 6
        assert len(sink.bodies) == 1
        proxy.mend()
        assert await reader.readexactly(6) == b"during"
        assert await late_reader.readexactly(3) == b"new"
        for end in (writer, late_writer):
            end.close()


@BOTH_LOOPS
@pytest.mark.usefixtures("run")
async def test_the_end_of_a_server_behind_a_cut_link_is_unknown_until_it_is_mended() -> None:
    way = link([1e9], 1.0)
    sink = Sink(echo=True)
    async with sink, LinkProxy(way, HOST, sink.port) as proxy:
        proxy.begin(time.monotonic())
        reader, writer = await asyncio.open_connection(HOST, proxy.port)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.cut()
        for task in sink._tasks:
            task.cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        proxy.mend()
        async with asyncio.timeout(30.0):
            assert await reader.read(1) == b""
        writer.close()
