"""Links: bytes through the load generator's proxy, by the trace and beside the kernel's own tbf.

A client sends a payload that takes a second and more by the trace. What counts is when its last
byte is there, over when it should be: 1 is exact. The same payload then goes out of a network
namespace whose interface is shaped by tbf (rates are raised by what frames cost), where root and
tc(8) allow it. `steps` changes from 20 to 5 to 20 Mbit/s on the way; tbf is told while bytes move.

Last, 20 connections of 5 Mbit/s each: how late the proxy is with its pieces.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median

import uvloop

from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, at_most
from bench.namespaces import Namespace, reason_not
from slacktide.lab.netem import LinkProcess
from slacktide.lab.workloads import BandwidthTrace, TraceLink

MBIT = 1e6 / 8
SECONDS = 1.2
"""What a payload takes at the trace's mean."""
CONNECTIONS = 20
LATE = 5.0
"""Milliseconds at which `slacktide load` warns by default."""

_SENDER = """
import socket, sys, time
there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
sys.stdin.readline()
print(time.monotonic(), flush=True)
there.sendall(bytes(int(sys.argv[3])))
there.shutdown(socket.SHUT_WR)
there.recv(1)
"""


def run(options: Options) -> Result:
    """Medians of five rounds (two when quick)."""
    result = Result("links")
    rounds = 2 if options.quick else 5
    pin(cores().client)
    why_not = reason_not()
    if why_not:
        result.remarks.append(f"tbf left out: {why_not}")
    for name, trace in _traces().items():
        if not options.wants(name):
            continue
        ours = [uvloop.run(_through_proxy(trace)) for _ in range(rounds)]
        result.figures.append(
            Figure(f"{name}: proxy ÷ trace", median(ours), "", at_most(1.05), samples=tuple(ours))
        )
        if why_not:
            continue
        try:
            kernel = [uvloop.run(_through_tbf(trace)) for _ in range(rounds)]
        except OSError as error:
            why_not = str(error)
            result.remarks.append(f"tbf left out: {why_not}")
            continue
        result.figures += [
            Figure(f"{name}: tbf ÷ trace", median(kernel), samples=tuple(kernel)),
            Figure(f"{name}: proxy ÷ tbf", median(ours) / median(kernel), "", at_most(1.05)),
        ]
    if options.wants("connections"):
        late = [uvloop.run(_many()) * 1e3 for _ in range(rounds)]
        name = f"{CONNECTIONS} connections of 5 Mbit/s: lateness p99"
        result.figures.append(Figure(name, median(late), "ms", at_most(LATE), samples=tuple(late)))
    return result


def _traces() -> dict[str, BandwidthTrace]:
    flat = {f"{rate} Mbit/s": BandwidthTrace([0.0], [rate * MBIT], 60.0) for rate in (2, 10, 50)}
    steps = BandwidthTrace([0.0, 0.4, 0.8], [20 * MBIT, 5 * MBIT, 20 * MBIT], 60.0)
    return {**flat, "steps": steps}


def _size(trace: BandwidthTrace) -> int:
    return int(trace.moved(SECONDS))


class _Sink:
    """Reads everything, and notes when each connection has ended."""

    async def __aenter__(self) -> _Sink:
        self.ended: list[float] = []
        self._server = await asyncio.start_server(self._read, "", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
            self.ended.append(time.monotonic())
        writer.close()

    async def wait(self, count: int) -> float:
        """When the last of so many connections ended."""
        async with asyncio.timeout(60.0):
            while len(self.ended) < count:
                await asyncio.sleep(0.005)
        return max(self.ended)


async def _through_proxy(trace: BandwidthTrace) -> float:
    size = _size(trace)
    async with _Sink() as sink, LinkProcess(TraceLink(trace), "127.0.0.1", sink.port) as link:
        _, writer = await asyncio.open_connection("127.0.0.1", link.port)
        begin = time.monotonic()
        link.begin(begin)
        writer.write(bytes(size))
        writer.write_eof()
        ended = await sink.wait(1)
        writer.close()
    return (ended - begin) / trace.finish(size, start=0.0)


async def _through_tbf(trace: BandwidthTrace) -> float:
    size, rates = _size(trace), trace.rates.tolist()
    pipe = asyncio.subprocess.PIPE
    async with _Sink() as sink:
        with Namespace(rates[0]) as space:
            words = (sys.executable, "-c", _SENDER, space.host, str(sink.port), str(size))
            sender = await asyncio.create_subprocess_exec(
                *space.command(*words), stdin=pipe, stdout=pipe
            )
            assert sender.stdin is not None
            assert sender.stdout is not None
            sender.stdin.write(b"go\n")
            begin = float(await sender.stdout.readline())
            await _follow(trace.starts.tolist()[1:], rates[1:], begin, space.change)
            ended = await sink.wait(1)
            await sender.wait()
    return (ended - begin) / trace.finish(size, start=0.0)


async def _follow(
    starts: Sequence[float], rates: Sequence[float], begin: float, change: Callable[[float], None]
) -> None:
    """Have the rates changed when it is time."""
    for start, rate in zip(starts, rates, strict=True):
        await asyncio.sleep(max(0.0, begin + start - time.monotonic()))
        await asyncio.to_thread(change, rate)


async def _many() -> float:
    """Seconds of lateness at p99."""
    trace = BandwidthTrace([0.0], [5 * MBIT])
    async with _Sink() as sink, LinkProcess(TraceLink(trace), "127.0.0.1", sink.port) as link:
        writers = [
            (await asyncio.open_connection("127.0.0.1", link.port))[1] for _ in range(CONNECTIONS)
        ]
        link.begin(time.monotonic())
        for writer in writers:
            writer.write(bytes(_size(trace)))
            writer.write_eof()
        await sink.wait(CONNECTIONS)
        for writer in writers:
            writer.close()
    if link.carried is None:
        raise RuntimeError(link.failure)
    return link.carried.lateness_p99
