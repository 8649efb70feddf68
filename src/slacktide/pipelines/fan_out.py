"""`FanOut`: learns how many rows one edge of a pipeline passes on per row of its upstream."""

from __future__ import annotations

import math

WINDOW = 100
"""Number of upstream answers that the learnt averages cover; older answers fade."""


class FanOut:
    """The fan-out of one edge; 1 before the first answer."""

    __slots__ = ("_answers", "_mean", "_square", "handed_on", "rows")

    def __init__(self) -> None:
        self.rows = 0
        """Rows of the upstream so far."""
        self.handed_on = 0
        """Rows passed on so far."""
        self._answers = 0
        self._mean = 1.0
        self._square = 1.0

    def forget(self) -> None:
        """Forget the learnt fan-out."""
        self._answers, self._mean, self._square = 0, 1.0, 1.0

    def observe(self, rows: int, handed_on: int) -> None:
        """Learn that `rows` rows of the upstream passed on `handed_on` rows."""
        self.rows += rows
        self.handed_on += handed_on
        self._answers = min(self._answers + 1, WINDOW)
        ratio = handed_on / rows
        self._mean += (ratio - self._mean) / self._answers
        self._square += (ratio * ratio - self._square) / self._answers

    @property
    def mean(self) -> float:
        """Mean number of rows passed on per row of the upstream."""
        return self._mean

    @property
    def deviation(self) -> float:
        """Standard deviation of the number of rows passed on per row of the upstream."""
        return math.sqrt(max(0.0, self._square - self._mean * self._mean))

    @property
    def burstiness(self) -> float:
        """Coefficient of variation; 0 if no rows are ever passed on."""
        return self.deviation / self._mean if self._mean > 0.0 else 0.0

    def likely(self, rows: int) -> int:
        """Rows to expect after `rows` rows of the upstream: the mean plus a standard deviation, at
        least 1. All rows of a frame are assumed to deviate from the mean together."""
        return max(1, math.ceil(rows * (self._mean + self.deviation) - 1e-9))
