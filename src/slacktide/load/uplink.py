"""Bodies that follow their headers after a while, as over a slow uplink.

All wait equally long, so they leave in the order in which their headers did: one line, one sleeper.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from slacktide.load.alarm import Alarm


class Uplink:
    """`send(index, body)` is called `delay` seconds after `follow`. Needs a running loop; close it
    when done."""

    def __init__(self, delay: float, send: Callable[[int, Sequence[bytes]], None]) -> None:
        self._delay = delay
        self._send = send
        self._alarm = Alarm(asyncio.get_running_loop())
        self._line: deque[tuple[float, int, Sequence[bytes]]] = deque()
        """(instant of `time.monotonic()`, request, body)"""
        self._task: asyncio.Task[None] | None = None
        """There while anybody is in line."""

    def follow(self, index: int, body: Sequence[bytes]) -> None:
        """The headers of request `index` leave now."""
        self._line.append((time.monotonic() + self._delay, index, body))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tend())

    async def close(self) -> None:
        """Send nothing more."""
        self._line.clear()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):  # but no failure of ours
                await self._task
        self._alarm.close()

    async def _tend(self) -> None:
        line = self._line
        while line:
            await self._alarm.until(line[0][0])
            while line and line[0][0] <= time.monotonic():
                _, index, body = line.popleft()
                self._send(index, body)
        self._task = None
