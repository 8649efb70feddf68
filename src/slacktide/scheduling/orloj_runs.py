"""Where the score of requests that are sorted by deadline is sorted too.

Requests of one kind share a curve (orloj_score.py) that rises and falls a few times. Between two
turns of the curve the later deadline has the higher score, or the earlier one has: a *run*. Its
best stands at one end, the next best beside it. So the k best of ten thousand requests take a few
bisections and k steps, where the paper needs a convex hull that follows the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from slacktide.scheduling.orloj_score import Score
from slacktide.scheduling.queue import Entry


class Run:
    """Requests of one kind, in the order of a score that only falls along the way."""

    __slots__ = ("_end", "_scale", "_score", "_step", "at", "part")

    def __init__(
        self, score: Score, scale: float, part: list[Entry], first: int, end: int, rising: bool
    ) -> None:
        self._score = score
        self._scale = scale
        self.part = part
        self.at = end - 1 if rising else first
        self._end = first - 1 if rising else end
        self._step = -1 if rising else 1

    def key(self, now: float) -> tuple[float, float, int]:
        """(-score, deadline, id) of the request that it has come to."""
        deadline, id, _ = self.part[self.at]
        return -self._scale * self._score.at(deadline - now), deadline, id

    def advance(self) -> bool:
        """Go on to the next; False if there is none."""
        self.at += self._step
        return self.at != self._end


def runs_of(score: Score, scale: float, part: list[Entry], first: int, now: float) -> Iterator[Run]:
    """The runs of `part`, from `first` on, in which the score rises or falls throughout."""
    for turn, rising in zip(score.turns, score.directions, strict=False):
        end = bisect_left(part, (now + turn,), first)
        if end > first:
            yield Run(score, scale, part, first, end, rising)
            first = end
    if first < len(part):
        yield Run(score, scale, part, first, len(part), score.directions[-1])
