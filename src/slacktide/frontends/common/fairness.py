"""Fair shares of the event loop and of its helper threads: clients take turns.

A turn of the loop reads every connection that has bytes. One client (with pipelined requests,
chunks of a byte each, a thousand connections) could make a turn arbitrarily long while all others
wait. So `FairLoop` adds up the time that each address costs, and keeps the bytes of an address
that has used its share for later turns. Work that cannot be cut into short pieces runs beside the
loop, one piece at a time (`FairThread`). Both serve addresses in turn, and each address in order of
arrival (`FairQueue`).

Shares are in time, not counts, because time is what other clients lose.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from slacktide.domain.fair_queue import FairQueue

T = TypeVar("T")

SHARE_S = 0.008
"""Seconds of one turn for one address: some sixty ordinary requests. Work that has begun is
finished; each piece of work is itself bounded to a millisecond or two."""
WAITING_S = 0.002
"""Seconds of one turn for all waiting connections together. While a connection of an address waits,
nothing else of that address runs."""


class FairLoop:
    """Shares the turns of the loop between the clients of a port."""

    __slots__ = ("_armed", "_costs", "_queue", "clock")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` measures the cost of work, in seconds."""
        self.clock = clock
        self._costs: dict[str, float] = {}
        """Seconds used in this turn, by address."""
        self._queue: FairQueue[Callable[[], None]] = FairQueue()
        self._armed = False

    @property
    def waiting(self) -> int:
        """Number of connections that wait for a turn."""
        return len(self._queue)

    def open_to(self, client: str) -> bool:
        """Whether the client has some of its share left and nothing waiting."""
        return self._costs.get(client, 0.0) < SHARE_S and client not in self._queue.queues

    def charge(self, client: str, since: float) -> None:
        """Charge the time from `since` to now to a client."""
        self._costs[client] = self._costs.get(client, 0.0) + self.clock() - since
        if not self._armed:
            self._arm()

    def wait(self, client: str, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn. It does one piece of work, and waits again if there is
        more."""
        self._queue.push(client, go_on)
        if not self._armed:
            self._arm()

    def _arm(self) -> None:
        self._armed = True
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Run a turn: serve the next connection of each address, while there is time."""
        self._armed = False
        self._costs.clear()
        began = self.clock()
        while self._queue and self.clock() - began < WAITING_S:
            client, go_on = self._queue.pop()
            since = self.clock()
            try:
                go_on()
            finally:
                self.charge(client, since)
        if self._queue and not self._armed:
            self._arm()


class FairThread:
    """Runs work in a thread off the event loop, one piece at a time, clients in turn."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._queue: FairQueue[
            tuple[Callable[[], Any], AbstractContextManager[None], asyncio.Future[Any]]
        ] = FairQueue()
        self._worker: asyncio.Task[None] | None = None

    def ask(
        self,
        client: str,
        work: Callable[[], T],
        during: AbstractContextManager[None] = nullcontext(),  # noqa: B008  (it holds nothing)
    ) -> asyncio.Future[T]:
        """Queue `work`; the future gets what it returns or raises. If the future is cancelled
        before its turn, the work is not started. `during` is entered on the loop before the work
        starts and left when the work is over, even if the future was cancelled meanwhile."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.push(client, (work, during, future))
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._run())
        return future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        thread = self._pool = self._pool or ThreadPoolExecutor(1, self._name)
        while self._queue:
            _, (work, during, future) = self._queue.pop()
            if future.done():
                continue
            try:
                with during:
                    result = await loop.run_in_executor(thread, work)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)
            # An exception has this frame in its traceback: a cycle that would keep the bodies
            # alive until the garbage collector runs.
            del work, during, future
        self._worker = None

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Start no more work except `last`, in the thread. Safe to repeat."""
        thread, self._pool = self._pool, None
        if thread is not None:
            thread.submit(last)
            thread.shutdown(wait=False)
