"""Calls at instants, many at a time, as sharply as one `Alarm` wakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush

from slacktide.load.alarm import Alarm


class Agenda:
    """Calls on the loop it was made on; instants are those of `time.monotonic()`. Close it when
    done. What a call raises, the next `at` or `close` raises."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop)
        self._entries: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sleeper: asyncio.Task[None] | None = None
        self._until = float("inf")
        """What the sleeper sleeps for; −∞ while it makes calls."""

    def at(self, instant: float, call: Callable[[], None]) -> None:
        """Have `call` called at `instant`; calls for one instant come in the order of asking."""
        if self._sleeper is not None and self._sleeper.done():
            self._sleeper.result()
        if instant == float("inf"):
            return
        heappush(self._entries, (instant, self._count, call))
        self._count += 1
        if self._sleeper is None or instant < self._until:
            if self._sleeper is not None:
                self._sleeper.cancel()
            self._until = instant
            self._sleeper = self._loop.create_task(self._tend())

    async def close(self) -> None:
        """Make no more calls."""
        self._entries.clear()
        if self._sleeper is not None:
            self._sleeper.cancel()
            with suppress(asyncio.CancelledError):  # but no failure of ours
                await self._sleeper
        self._alarm.close()

    async def _tend(self) -> None:
        entries = self._entries
        while entries:
            self._until = entries[0][0]
            await self._alarm.until(self._until)
            self._until = float("-inf")
            while entries and entries[0][0] <= time.monotonic():
                heappop(entries)[2]()
        self._sleeper = None
