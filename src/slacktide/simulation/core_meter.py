"""`CoreMeter`: how many cores lanes have had, and when: what a run is charged for."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise


class CoreMeter:
    """Allocated cores over time, the confirmed sizes of all lanes together: busy or not.

    Remembers only changes.
    """

    def __init__(self) -> None:
        self._since: list[float] = []
        self._cores: list[int] = []

    def see(self, cores: int, *, now: float) -> None:
        """So many from `now` on; `now` never falls."""
        if not self._cores or cores != self._cores[-1]:
            self._since.append(now)
            self._cores.append(cores)

    def seconds(self, start: float, end: float) -> float:
        """Core seconds from `start` to `end`, which may lie after the last change."""
        first = max(bisect_right(self._since, start) - 1, 0)
        last = bisect_left(self._since, end)
        edges = [max(start, since) for since in self._since[first:last]]
        spans = pairwise((*edges, end))
        cores = self._cores[first:last]
        return math.fsum(
            count * (to - since) for count, (since, to) in zip(cores, spans, strict=True)
        )

    def means(self, edges: Sequence[float]) -> tuple[float, ...]:
        """Mean cores between every two of n ascending `edges`: n − 1 numbers."""
        return tuple(self.seconds(a, b) / (b - a) for a, b in pairwise(edges))
