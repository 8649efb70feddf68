"""Ten times what can be served: refusals come at once, memory and queue stay bounded, and every
request gets an answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest


class Clients:
    """As many connections as it takes: a request never waits for another's answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def infer(self, model: str, body: bytes, lines: str = "") -> int:
        """POST one inference request, with these header lines; its status."""
        ends = self._free.pop() if self._free else await self._connect()
        reader, writer = ends
        writer.write(
            f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Length: {len(body)}\r\n{lines}\r\n".encode()
        )
        writer.write(body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length: ")[1].split("\r\n")[0])
        await reader.readexactly(length)
        if "connection: close" in head:
            writer.close()
        else:
            self._free.append(ends)
        return int(head.split()[1])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        for _, writer in self._free:
            writer.close()
            await writer.wait_closed()


class Peaks:
    """The highest of what must be bounded, as seen on the server's loop."""

    def __init__(self) -> None:
        self.waiting = 0
        self.in_flight = 0
        self.nbytes = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: Any) -> None:
        self._task = asyncio.create_task(self._watch(app))

    async def stop(self, app: Any) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _watch(self, app: Any) -> None:
        while True:
            pools = app.engine.state.pools.values()
            self.waiting = max(self.waiting, *(len(pool.scheduler) for pool in pools))
            self.in_flight = max(self.in_flight, app.driver.in_flight)
            self.nbytes = max(self.nbytes, app.models._budget.bytes_in_use)
            await asyncio.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["slack", "edf"])
def test_ten_times_what_can_be_served(zoo: Any, serve: Any, scheduler: str) -> None:
    """Two seconds of arrivals on schedule, whatever becomes of them (an open loop)."""
    zoo.slow(settings=f"max_batch: 1\nexecutor: profiled\nscheduler: {scheduler}\n")
    with serve(zoo) as house:
        alone = house.alone("slow")
        gap = alone / 10
        count = min(1000, int(2.0 / gap))
        timeout = round(10e6 * alone)
        body = json.dumps(house.slow_call(timeout=timeout)).encode()
        peaks = Peaks()
        house.server.call(peaks.start)

        async def flood() -> Counter[int]:
            clients = Clients(house.server.http_port)
            loop = asyncio.get_running_loop()
            begin = loop.time()
            asked = []
            for i in range(count):
                await asyncio.sleep(max(0.0, begin + i * gap - loop.time()))
                asked.append(asyncio.create_task(clients.infer("slow", body)))
            statuses = Counter(await asyncio.gather(*asked))
            await clients.close()
            return statuses

        statuses = asyncio.run(asyncio.wait_for(flood(), house.PATIENCE))
        house.server.call(peaks.stop)
        assert statuses.total() == count
        # 504: let in, and then the machine stood still for a moment.
        assert set(statuses) <= {200, 429, 504}
        assert statuses[200] > 0
        assert statuses[429] > statuses[200]
        # Ten fit, then there are the spares that admission keeps, and the arrivals of one turn.
        assert peaks.waiting <= 50
        assert peaks.in_flight <= 100
        assert peaks.nbytes <= 100 * 4096
        # The rest of its time it is a server like any other.
        assert house.infer("slow", house.slow_call()).status == 200


def test_requests_without_deadlines_are_bounded_by_memory(zoo: Any, serve: Any) -> None:
    zoo.matmul()
    zoo.text()
    zoo.spin()
    limit = 1 << 20
    with serve(zoo, memory_limit=limit, client_memory_limit=limit) as house:
        words = [["tide" * 4000]]  # short enough to be read on the loop, which takes no memory
        body = json.dumps(house.call_of({"x": ("BYTES", [1, 1], words)})).encode()
        peaks = Peaks()
        house.server.call(peaks.start)

        async def crowd() -> Counter[int]:
            clients = Clients(house.server.http_port)
            with house.hold():
                asked = [asyncio.create_task(clients.infer("text", body)) for _ in range(150)]
                refused: set[asyncio.Task[int]] = set()
                while True:  # until everybody has been refused or has found a place
                    refused, _ = await asyncio.wait(asked, timeout=0.02)
                    inside = await asyncio.to_thread(house.look, lambda app: app.driver.in_flight)
                    if len(refused) + inside - 1 == len(asked):
                        break
                assert {task.result() for task in refused} == {429}
            statuses = Counter(await asyncio.gather(*asked))
            await clients.close()
            return statuses

        statuses = asyncio.run(asyncio.wait_for(crowd(), house.PATIENCE))
        house.server.call(peaks.stop)
        assert statuses.total() == 150
        assert set(statuses) == {200, 429}
        assert statuses[200] >= limit // (len(body) * 2)
        assert peaks.nbytes <= limit
        house.good()
