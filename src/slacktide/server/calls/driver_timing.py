"""When a driver wakes: its one timer, and reading sockets less often while models run.

`DriverTimer` is set after every turn, so it must cost little. What the engine waits for mostly
moves away (the next batch's limit, the next request's expiry). A timer that fires soon enough is
therefore left alone: when it fires, the engine is asked again.

`ReadCoalescing` is for a core shared with the models. Where the loop has no core of its own, every
arrival pushes a running model aside, and finds its own code and data gone from the caches: 250 µs
for a request that takes 70 µs among others (docs/decisions/0012). While every lane is busy nothing
can start anyway. So if requests come close together, the loop then pauses for a moment and takes
what has come meanwhile in one go, as network cards moderate their interrupts. A replica that
reports ends the pause at once. What arrives during a pause is taken to have come at its beginning:
deadlines err on the early side, by at most `LONGEST`.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Sequence
from typing import Final

LONGEST: Final = 0.002
"""Seconds of a pause at most."""
PART: Final = 0.25
"""Of the running batch's time, at most: a short batch has no long pauses."""
SHORTEST: Final = 0.0003
"""Shorter pauses save nothing."""
WEIGHT: Final = 0.05
"""Of the newest gap between arrivals in their average."""


class ReadCoalescing:
    """When to pause, and when what comes is taken to have come. One for each loop."""

    def __init__(self, cores: int) -> None:
        """`cores`: how many the loop may run on."""
        self._cores = cores
        self.shares_core = False
        """Whether lanes have all of them."""
        self.expected = 0.0
        """Seconds of the batch that was started last."""
        self._gap = 1.0
        self._last = 0.0
        self._paused_at: float | None = None

    def lanes_have(self, cores: int) -> None:
        """All lanes together have so many cores from now on."""
        self.shares_core = cores >= self._cores

    @property
    def may_pause(self) -> bool:
        """False if `pause_for` would say no. While every lane is busy the newest batch runs."""
        longest = min(LONGEST, PART * self.expected)
        return self.shares_core and longest >= max(SHORTEST, self._gap)

    def arrived(self, count: int, *, now: float) -> None:
        """`count` ≥ 1 requests have come since the last call."""
        gap = min(1.0, (now - self._last) / count)
        self._last = now
        self._gap += WEIGHT * (gap - self._gap)

    def pause_for(self, *, now: float, soonest_end: float, shortest_batch: float) -> float:
        """Seconds to pause while every lane is busy; 0: not at all. `soonest_end`: when the first
        running batch should end; `shortest_batch`: seconds that the shortest of them takes."""
        if not self.shares_core:
            return 0.0
        pause = min(LONGEST, PART * shortest_batch, soonest_end - now)
        return pause if pause >= max(SHORTEST, self._gap) else 0.0

    def pause(self, seconds: float, reports: Sequence[int], *, now: float) -> None:
        """Block for `seconds`, or until one of the descriptors `reports` is readable."""
        self._paused_at = now
        select.select(reports, (), (), seconds)

    def resume(self) -> None:
        """What came during the pause has been read."""
        self._paused_at = None

    def arrival_clock(self) -> float:
        """Monotonic seconds at which what is read now is taken to have come."""
        return time.monotonic() if self._paused_at is None else self._paused_at


class DriverTimer:
    """Calls `fire` at the time set, or earlier; never much later. Times are monotonic seconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], fire: Callable[[], None]
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
