"""`ArrivalCounts`: how many rows came over longer spans, from a count that only rises.

What the planners of replicas look back on: `ModelView.arrived`, noted at every plan.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from itertools import pairwise

_STEP = 0.5
"""Seconds between two entries that are kept."""


class ArrivalCounts:
    """(when, rows so far), kept for `span` seconds."""

    __slots__ = ("_at", "_rows", "_span")

    def __init__(self, span: float) -> None:
        self._span = span
        self._at: deque[float] = deque()
        self._rows: deque[int] = deque()

    def note(self, rows: int, *, now: float) -> None:
        """`rows` have come so far. `now` never falls."""
        if len(self._at) > 1 and now - self._at[-2] < _STEP:
            self._at.pop()
            self._rows.pop()
        self._at.append(now)
        self._rows.append(rows)
        while len(self._at) > 1 and self._at[1] <= now - self._span:
            self._at.popleft()
            self._rows.popleft()

    def rows(self, since: float, until: float) -> float:
        """Rows that came from `since` to `until`, absolute seconds; evenly between two entries."""
        return max(0.0, self._count(until) - self._count(since))

    def rate(self, window: float, *, now: float) -> float:
        """Rows per second over the last `window` seconds, or those known of if they are fewer.

        0 until two moments are known.
        """
        seconds = min(window, now - self._at[0]) if self._at else 0.0
        return self.rows(now - seconds, now) / seconds if seconds > 0.0 else 0.0

    def rates(self, window: float, count: int, *, now: float) -> list[float]:
        """Rows per second in each of the last `count` windows that are known whole, in order."""
        if not self._at:
            return []
        known = min(count, math.floor((now - self._at[0]) / window + 1e-9))
        edges = [now - window * i for i in range(known, -1, -1)]
        return [self.rows(a, b) / window for a, b in pairwise(edges)]

    def _count(self, at: float) -> float:
        after = bisect_right(self._at, at)
        if after == 0:
            return float(self._rows[0]) if self._rows else 0.0
        if after == len(self._at):
            return float(self._rows[-1])
        begin, end = self._at[after - 1], self._at[after]
        share = (at - begin) / (end - begin)
        return self._rows[after - 1] + share * (self._rows[after] - self._rows[after - 1])
