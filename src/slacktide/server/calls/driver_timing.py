"""When a driver wakes: its one timer, and reading sockets less often while models run.

`DriverTimer` is set after every turn, so setting it must be cheap. Its time mostly moves to a later
time (the next batch's limit, the next request's expiry). So a timer that fires early enough is left
alone, and the engine is asked for the next time when it fires.

`ReadCoalescing` is for a core shared with the models. There, every arrival displaces a running
model and finds its own code and data evicted from the caches: a request costs 250 µs instead of
70 µs (docs/decisions/0012). While every lane is busy, nothing can start anyway. So if requests
come close together, the loop pauses briefly and then reads them in one go, as network cards
moderate their interrupts. A report from a replica ends the pause. Requests read after a pause count
as having arrived at its start, so deadlines err on the early side by at most `LONGEST`.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Sequence
from typing import Final

LONGEST: Final = 0.002
"""Length of the longest pause, seconds."""
PART: Final = 0.25
"""Share of the shortest running batch that a pause may take."""
SHORTEST: Final = 0.0003
"""Length of the shortest pause, seconds: shorter pauses save nothing."""
WEIGHT: Final = 0.05
"""Weight of the newest gap between arrivals in the average."""


class ReadCoalescing:
    """Decides when to pause, and which arrival time requests get. One for each loop."""

    def __init__(self, cores: int) -> None:
        """`cores`: number of cores that the loop may run on."""
        self._cores = cores
        self.shares_core = False
        """Whether lanes use all cores that the loop may run on."""
        self.expected = 0.0
        """Expected seconds of the batch that was started last."""
        self._gap = 1.0
        self._last = 0.0
        self._paused_at: float | None = None

    def lanes_have(self, cores: int) -> None:
        """Set the number of cores of all lanes together."""
        self.shares_core = cores >= self._cores

    @property
    def may_pause(self) -> bool:
        """Whether `pause_for` can be above 0, judged by the newest batch alone."""
        longest = min(LONGEST, PART * self.expected)
        return self.shares_core and longest >= max(SHORTEST, self._gap)

    def arrived(self, at: float) -> None:
        """Count a request that arrived at this time."""
        gap = min(1.0, at - self._last)
        self._last = at
        self._gap += WEIGHT * (gap - self._gap)

    def pause_for(self, *, now: float, soonest_end: float, shortest_batch: float) -> float:
        """Return the seconds to pause while every lane is busy; 0: not at all. `soonest_end`: when
        the first running batch should end; `shortest_batch`: seconds of the shortest running
        batch."""
        if not self.shares_core:
            return 0.0
        pause = min(LONGEST, PART * shortest_batch, soonest_end - now)
        return pause if pause >= max(SHORTEST, self._gap) else 0.0

    def pause(self, seconds: float, reports: Sequence[int], *, now: float) -> None:
        """Block for `seconds`, or until one of the descriptors `reports` is readable."""
        self._paused_at = now
        select.select(reports, (), (), seconds)

    def resume(self) -> None:
        """End the pause: everything that arrived during it has been read."""
        self._paused_at = None

    def arrival_clock(self) -> float:
        """Arrival time of the data being read, in monotonic seconds."""
        return time.monotonic() if self._paused_at is None else self._paused_at


class DriverTimer:
    """Calls `fire` at the time set or earlier, never much later. Times are monotonic seconds."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], fire: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._fire = fire
        self._timer: asyncio.TimerHandle | None = None
        self._earliest = 0.0
        """Earliest time asked for since the timer was started."""
        self._fires = 0.0

    def set(self, at: float, *, patience: float = 0.0) -> None:
        """Have `fire` called by `at` + `patience`."""
        if self._timer is not None:
            if self._fires <= at + patience:
                self._earliest = min(self._earliest, at)
                return
            self._timer.cancel()
        self._earliest = at
        self._fires = at + patience
        self._timer = self._loop.call_later(max(0.0, self._fires - self._clock()), self._rings)

    def take_due(self, *, now: float) -> bool:
        """Return whether the time has come, and clear the timer if so."""
        if self._timer is None or now < self._earliest:
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
