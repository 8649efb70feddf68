"""`Turns`: shares the event loop among clients, turn by turn.

A turn of the loop reads every connection that has bytes. One client's bytes (requests in a
pipeline, chunks of a byte each, JSON, a thousand connections) could make it as long as they liked,
and everybody behind them would wait. So the time that each address costs is added up, and what
comes from one that has had its share of this turn is kept for later turns: those take turns by
address, and an address's connections by connection.

Time is what is shared because it is what others lose; counts would have to guess it.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

SHARE_S = 0.004
"""Seconds of one turn for one address; and of one turn for all that wait, together. What is begun
is finished: a piece of work is bounded by those who do it (a millisecond or two)."""


class Waiting(Protocol):
    """A connection that has bytes left to be worked on."""

    client: str
    """Its address."""

    def go_on(self) -> None:
        """Do a piece of work; ask to wait again if there is more."""
        ...


class Turns:
    """One for each port."""

    __slots__ = ("_due", "_queues", "_spent", "clock")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock`: seconds; what passes on it is what work has cost."""
        self.clock = clock
        self._spent: dict[str, float] = {}
        """Seconds of this turn, by address."""
        self._queues: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self._due = False

    @property
    def waiting(self) -> int:
        """Connections that wait for a turn."""
        return sum(map(len, self._queues.values()))

    def open_to(self, client: str) -> bool:
        """Whether there is something left of its share, and nothing of it waits already."""
        return self._spent.get(client, 0.0) < SHARE_S and client not in self._queues

    def spent(self, client: str, since: float) -> None:
        """Count the time from `since` to now."""
        self._spent[client] = self._spent.get(client, 0.0) + self.clock() - since
        if not self._due:
            self._arm()

    def wait(self, connection: Waiting) -> None:
        """Have `go_on` of a connection, which does not wait yet, called in a turn to come."""
        self._queues.setdefault(connection.client, deque()).append(connection)
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
        while self._queues and self.clock() - began < SHARE_S:
            client, queue = self._queues.popitem(last=False)
            connection = queue.popleft()
            if queue:
                self._queues[client] = queue
            since = self.clock()
            try:
                connection.go_on()
            finally:
                self.spent(client, since)
        if self._queues and not self._due:
            self._arm()


__all__ = ["SHARE_S", "Turns", "Waiting"]
