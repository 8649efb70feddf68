"""`ReadCoalescing`: on a core shared with the models, read sockets less often while they run.

Where the loop has no core of its own, every arrival pushes a running model aside, and finds its own
code and data gone from the caches: 250 µs for a request that takes 70 µs among others (measured;
docs/decisions). While every lane is busy nothing can start anyway. So if requests come close
together, the loop then pauses for a moment and takes what has come meanwhile in one go, as network
cards moderate their interrupts. A replica that reports ends the pause at once.

What arrives during a pause is taken to have come at its beginning: deadlines err on the early side,
by at most `LONGEST`.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

LONGEST = 0.002
"""Seconds of a pause at most."""
PART = 0.25
"""Of the running batch's time, at most: a short batch has no long pauses."""
SHORTEST = 0.0003
"""Shorter pauses save nothing."""
WEIGHT = 0.05
"""Of the newest gap between arrivals in their average."""


class ReadCoalescing:
    """When to pause, and when what comes is taken to have come. One for each loop."""

    def __init__(self, cores: int) -> None:
        """`cores`: how many the loop may run on."""
        self._cores = cores
        self._gap = 1.0
        self._last = 0.0
        self._paused_at: float | None = None

    def arrived(self, count: int, *, now: float) -> None:
        """`count` ≥ 1 requests have come since the last call."""
        gap = min(1.0, (now - self._last) / count)
        self._last = now
        self._gap += WEIGHT * (gap - self._gap)

    def pause_for(
        self, *, now: float, soonest_end: float, shortest_batch: float, lane_cores: int
    ) -> float:
        """Seconds to pause while every lane is busy; 0: not at all.

        `soonest_end`: when the first running batch should end; `shortest_batch`: seconds that the
        shortest of them takes; `lane_cores`: cores of all lanes together.
        """
        if lane_cores < self._cores:
            return 0.0  # the loop has a core to itself
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
