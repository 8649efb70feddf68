"""Fair shares of the event loop, and of what works beside it: clients take turns.

A turn of the loop reads every connection that has bytes. One client's bytes (requests in a
pipeline, chunks of a byte each, a thousand connections) could make it as long as they liked, and
all other clients would wait. So the time that each address costs is added up (`FairLoop`), and
what comes from one that has had its share of this turn is kept for later turns. Work that cannot be
cut into short pieces is done beside the loop, one piece at a time (`FairThread`). In both,
addresses come in turn, and each address's own in the order they came (`FairQueue`).

Time is what is shared because it is what others lose; counts would have to guess it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

T = TypeVar("T")

SHARE_S = 0.008
"""Seconds of one turn for one address: some sixty ordinary requests. What is begun is finished: a
piece of work is bounded where it is done (to a millisecond or two)."""
WAITING_S = 0.002
"""Seconds of one turn for all that wait, together: while one of an address waits, nothing else of
it goes before."""


class FairQueue(Generic[T]):
    """A queue in which clients come in turn."""

    def __init__(self) -> None:
        self.queues: OrderedDict[str, deque[T]] = OrderedDict()
        """By client; none of them is empty."""

    def __len__(self) -> int:
        return sum(map(len, self.queues.values()))

    def __bool__(self) -> bool:
        return bool(self.queues)

    def push(self, client: str, item: T) -> None:
        self.queues.setdefault(client, deque()).append(item)

    def pop(self) -> tuple[str, T]:
        """The next client and its first item. Raises KeyError if there is none."""
        client, queue = self.queues.popitem(last=False)
        item = queue.popleft()
        if queue:
            self.queues[client] = queue
        return client, item


class FairLoop:
    """One for each port."""

    __slots__ = ("_due", "_queue", "_spent", "clock")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: seconds; what passes on it is what work has cost."""
        self.clock = clock
        self._spent: dict[str, float] = {}
        """Seconds of this turn, by address."""
        self._queue: FairQueue[Callable[[], None]] = FairQueue()
        self._due = False

    @property
    def waiting(self) -> int:
        """Connections that wait for a turn."""
        return len(self._queue)

    def open_to(self, client: str) -> bool:
        """Whether there is something left of its share, and nothing of it waits already."""
        return self._spent.get(client, 0.0) < SHARE_S and client not in self._queue.queues

    def spent(self, client: str, since: float) -> None:
        """Count the time from `since` to now."""
        self._spent[client] = self._spent.get(client, 0.0) + self.clock() - since
        if not self._due:
            self._arm()

    def wait(self, client: str, go_on: Callable[[], None]) -> None:
        """Have a connection go on in a turn to come: it does a piece of work, and waits again if
        there is more."""
        self._queue.push(client, go_on)
        if not self._due:
            self._arm()

    def _arm(self) -> None:
        self._due = True
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """A turn: for each address in turn the next of its connections, while there is time."""
        self._due = False
        self._spent.clear()
        began = self.clock()
        while self._queue and self.clock() - began < WAITING_S:
            client, go_on = self._queue.pop()
            since = self.clock()
            try:
                go_on()
            finally:
                self.spent(client, since)
        if self._queue and not self._due:
            self._arm()


class FairThread:
    """Work in a thread beside the loop, one piece at a time, clients in turn."""

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
        """What `work` gives or raises, once it is its turn; not begun if cancelled before that.
        `during` is entered before it begins, on the loop, and left when it is over, whether or not
        it was cancelled meanwhile."""
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
            # What it raised has this frame in its traceback: a circle, and the bodies in it, until
            # the collector comes.
            del work, during, future
        self._worker = None

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Begin nothing more but `last`, in the thread. Safe to repeat."""
        thread, self._pool = self._pool, None
        if thread is not None:
            thread.submit(last)
            thread.shutdown(wait=False)
