"""`FanOut`: how many rows one edge of a pipeline hands on for each row before it, as learnt."""

from __future__ import annotations

import math

WINDOW = 100
"""Answers of the upstream over which it is learnt; the older, the less they count."""


class FanOut:
    """Of one edge. Until something was seen, one row for each."""

    __slots__ = ("_mean", "_seen", "_square", "handed_on", "rows")

    def __init__(self) -> None:
        self.rows = 0
        """Of the upstream, seen so far."""
        self.handed_on = 0
        """What these have handed on."""
        self._seen = 0
        self._mean = 1.0
        self._square = 1.0

    def forget(self) -> None:
        """What was learnt does not hold any more."""
        self._seen, self._mean, self._square = 0, 1.0, 1.0

    def observe(self, rows: int, handed_on: int) -> None:
        """So many `rows` of the upstream have handed on so many."""
        self.rows += rows
        self.handed_on += handed_on
        self._seen = min(self._seen + 1, WINDOW)
        ratio = handed_on / rows
        self._mean += (ratio - self._mean) / self._seen
        self._square += (ratio * ratio - self._square) / self._seen

    @property
    def mean(self) -> float:
        """Rows for each row of the upstream."""
        return self._mean

    @property
    def deviation(self) -> float:
        """Standard deviation of the same."""
        return math.sqrt(max(0.0, self._square - self._mean * self._mean))

    @property
    def burstiness(self) -> float:
        """Coefficient of variation; 0 where nothing is ever handed on."""
        return self.deviation / self._mean if self._mean > 0.0 else 0.0

    def likely(self, rows: int) -> int:
        """Rows to reckon with after `rows` of the upstream: the mean and a deviation, 1 at least.
        Rows of one frame are taken to be alike."""
        return max(1, math.ceil(rows * (self._mean + self.deviation) - 1e-9))
