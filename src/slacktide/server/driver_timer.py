"""`DriverTimer`: the one timer of a driver. It is set after every turn, so it must cost little.

What the engine waits for mostly moves away (the next batch's limit, the next request's expiry). A
timer that fires soon enough is therefore left alone: when it fires, the engine is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DriverTimer:
    """Calls `fire` at the time set, or earlier; never much later. Times are monotonic seconds."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        fire: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._fire = fire
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """What the timer is for: the earliest time asked for since it was started."""
        self._fires = 0.0

    def set(self, at: float, *, patience: float = 0.0) -> None:
        """See that `fire` is called by `at` + `patience`."""
        if self._timer is not None:
            if self._fires <= at + patience:
                self._due = min(self._due, at)
                return
            self._timer.cancel()
        self._due = at
        self._fires = at + patience
        self._timer = self._loop.call_later(max(0.0, self._fires - self._clock()), self._rings)

    def take_due(self, *, now: float) -> bool:
        """Whether its time has come; then it is cleared, for the caller does what is due."""
        if self._timer is None or now < self._due:
            return False
        self.clear()
        return True

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rings(self) -> None:
        self._timer = None
        self._fire()
