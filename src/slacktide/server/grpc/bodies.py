"""Gives up calls whose message does not come.

A timer for each call would cost a tenth of what the call may cost in all, and nearly every one
would be cancelled at once. So there is one for all: calls are kept in the order they came, and a
look every quarter of the limit finds those that are overdue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LOOKS_PER_TIMEOUT = 4


class Bodies:
    """Tasks that wait for a message. `expect` and `came` are called by the task itself."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self._timeout_s = timeout_s
        self._clock = clock
        self._since: dict[asyncio.Task[object], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, task: asyncio.Task[object], now: float) -> None:
        """From now on, cancel `task` if it does not say `came` within the limit."""
        self._since[task] = now
        if self._timer is None:
            self._arm()

    def came(self, task: asyncio.Task[object]) -> bool:
        """The wait of `task` is over. False if it had been given up, and `task` cancelled."""
        return self._since.pop(task, None) is not None

    def _arm(self) -> None:
        delay = self._timeout_s / _LOOKS_PER_TIMEOUT
        self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        latest = self._clock() - self._timeout_s
        for task in [task for task, since in self._since.items() if since <= latest]:
            del self._since[task]
            task.cancel()
        if self._since:
            self._arm()
