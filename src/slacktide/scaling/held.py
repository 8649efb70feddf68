"""`Held`: what was wanted most of late, so that sizes rise at once and fall after a while."""

from __future__ import annotations

from collections import deque


class Held:
    """The largest of what was wanted within the last `seconds`."""

    __slots__ = ("_seconds", "_wanted")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wanted: deque[tuple[float, int]] = deque()
        """(when, how much) of those that no later one surpassed, so falling."""

    def most(self, wanted: int, *, now: float) -> int:
        """The largest since `seconds` ago, `wanted` included. `now` never falls."""
        held = self._wanted
        while held and held[-1][1] <= wanted:
            held.pop()
        held.append((now, wanted))
        while held[0][0] < now - self._seconds:
            held.popleft()
        return held[0][1]
