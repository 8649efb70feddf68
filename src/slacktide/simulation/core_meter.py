"""`CoreMeter`: how many cores lanes have had, and when: what a run is charged for."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray


class CoreMeter:
    """Allocated cores over time, the confirmed sizes of all lanes together: busy or not.

    Remembers only changes.
    """

    def __init__(self) -> None:
        self._since: list[float] = []
        self._cores: list[int] = []
        self._before: list[float] = []
        """Core seconds up to each change."""

    def see(self, cores: int, *, now: float) -> None:
        """So many from `now` on; `now` never falls."""
        if not self._cores:
            self._since, self._cores, self._before = [now], [cores], [0.0]
        elif cores != self._cores[-1]:
            self._before.append(self.until(now))
            self._since.append(now)
            self._cores.append(cores)

    def until(self, at: float) -> float:
        """Core seconds up to `at`, which may lie after the last change."""
        number = bisect_right(self._since, at) - 1
        if number < 0:
            return 0.0
        return self._before[number] + (at - self._since[number]) * self._cores[number]

    def seconds(self, start: float, end: float) -> float:
        """Core seconds from `start` to `end`."""
        return self.until(end) - self.until(start)

    def means(self, edges: NDArray[np.float64]) -> NDArray[np.float64]:
        """Mean cores between every two of n ascending `edges`, shape (n − 1,)."""
        used = np.array([self.until(float(edge)) for edge in edges])
        means: NDArray[np.float64] = np.diff(used) / np.diff(edges)
        return means
