"""Bandwidth over time: piecewise constant, and again from the beginning when it has ended.

Everything a link asks of it are three integrals: when bytes begin to move, how many have moved by
then, and when as many more will have. Zeros are an outage: time passes and nothing moves.

Drawn traces (`draw_4g`, `draw_5g`) are for tests, and where no recorded one is at hand. They have
the shape of the public traces, not their data: what a second's bandwidth is worth for guessing the
next, how far it swings, how often it is gone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slacktide.lab.workloads.values import (
    Times,
    WorkloadError,
    column,
    positive,
    rising,
    set_fields,
)

NEVER = float("inf")
MBIT = 1e6 / 8.0
"""Bytes in a megabit."""

_CRUMB, _CRUMB_SHARE = 1e-3, 1e-9
"""Bytes, and share of the whole: where less than both is left of a payload, rounding has left it,
and it waits for no next step (which might be an outage)."""


@dataclass(frozen=True, slots=True, eq=False)
class BandwidthTrace:
    """`rates[i]` bytes per second from `starts[i]` on; both of shape (n,), n ≥ 1.

    `starts` are seconds, rising, counted from the first. `period` is the length of the whole,
    seconds; by default the last step is as long as the one before it (1 s if it is the only one).
    Raises WorkloadError naming `time_s`, `bandwidth` or `period`.
    """

    starts: Times
    rates: NDArray[np.float64]
    period: float
    source: str
    """Name of its source, for people."""
    _starts: list[float]
    """Like `starts`, with the period behind them: single numbers are read faster from lists."""
    _rates: list[float]
    _moved: list[float]
    """Bytes moved until each of `_starts`."""

    def __init__(
        self, starts: ArrayLike, rates: ArrayLike, period: float | None = None, source: str = ""
    ) -> None:
        times, levels = rising(starts, rates, "bandwidth")
        times = column("time_s", times - times[0])
        if period is None:
            last = float(times[-1])
            period = 2.0 * last - float(times[-2]) if times.size > 1 else 1.0
        positive(period=period)
        if period <= times[-1]:
            raise WorkloadError("period", f"must be after the last step, got {period:g} s")
        edges = np.append(times, period)
        moved = np.concatenate(([0.0], np.cumsum(np.diff(edges) * levels)))
        set_fields(self, starts=times, rates=levels, period=float(period), source=source)
        set_fields(self, _starts=edges.tolist(), _rates=levels.tolist(), _moved=moved.tolist())

    @property
    def mean(self) -> float:
        """Bytes per second over the whole."""
        return self._moved[-1] / self.period

    def rate(self, at: float) -> float:
        """Bytes per second at `at` (seconds; any number, finite)."""
        _, step, _ = self._place(at)
        return self._rates[step]

    def moving_from(self, at: float) -> float:
        """The first instant from `at` on at which bytes move: `at` itself, or the end of the
        outage it lies in; infinite if none ever do."""
        if not self._moved[-1]:
            return NEVER
        turn, step, _ = self._place(at)
        if self._rates[step]:
            return at
        while not self._rates[step]:
            step += 1
            if step == len(self._rates):
                turn, step = turn + 1.0, 0
        return turn * self.period + self._starts[step]

    @overload
    def moved(self, until: float) -> float: ...
    @overload
    def moved(self, until: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def moved(self, until: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """Bytes that have moved from 0 to `until` (seconds ≥ 0), if there were always some."""
        turns, inside = np.divmod(until, self.period)
        bytes_moved = turns * self._moved[-1] + np.interp(inside, self._starts, self._moved)
        return bytes_moved if isinstance(until, np.ndarray) else float(bytes_moved)

    def finish(self, count: float, *, start: float) -> float:
        """Instant at which `count` ≥ 0 bytes that wait from `start` on have moved; may be inf."""
        begin = self.moving_from(start)
        if count <= 0.0 or begin == NEVER:
            return begin
        whole = self._moved[-1]
        turn, step, inside = self._place(begin)
        crumb = min(_CRUMB, _CRUMB_SHARE * whole)
        goal = self._moved[step] + (inside - self._starts[step]) * self._rates[step] + count
        more, goal = divmod(goal, whole)
        if goal <= crumb:  # whole turns: at the end of the last, not after the start of the next
            more, goal = more - 1.0, goal + whole
        step = min(bisect_left(self._moved, goal - crumb), len(self._rates)) - 1
        seconds = (goal - self._moved[step]) / self._rates[step]
        end = min(self._starts[step] + seconds, self._starts[step + 1])
        return max(begin, (turn + more) * self.period + end)

    def _place(self, at: float) -> tuple[float, int, float]:
        """(turns before, step, seconds into this turn)."""
        turn, inside = divmod(at, self.period)
        step = bisect_right(self._starts, inside) - 1
        return turn, min(step, len(self._rates) - 1), inside


STEP = 1.0
"""Seconds of one bandwidth."""
MOST_STEPS = 1_000_000

_MEDIAN_4G, _SWING_4G, _MEMORY_4G = 25.0, 0.45, 0.8
"""Mbit/s; σ of the logarithm; correlation from second to second. The Ghent bus has 26.7, 0.43 and
0.74, and 0.14 ten seconds on."""
_LEAST_4G, _MOST_4G = 2.0, 60.0

_NEAR, _FAR = (180.0, 0.4), (9.0, 0.8)
"""Mbit/s and σ of the logarithm, near a 5G cell and where LTE stands in."""
_STAYS = (20.0, 40.0)
"""Mean seconds near, and far."""
_GAP, _BETWEEN_GAPS = 2.0, 60.0
"""Mean seconds of an outage, and between two. In the Irish runs 2 to 4 % of all seconds are 0."""


def draw_4g(duration: float, rng: np.random.Generator) -> BandwidthTrace:
    """4G on the move: lognormal, each second like the one before (an AR(1) of logarithms), never
    gone. `duration` seconds, rounded up to whole ones. Raises WorkloadError."""
    count = _count(duration)
    swing = _walk(rng.standard_normal(count), _MEMORY_4G)
    levels = np.clip(_MEDIAN_4G * np.exp(_SWING_4G * swing), _LEAST_4G, _MOST_4G)
    return _trace(levels, "4g")


def draw_5g(duration: float, rng: np.random.Generator) -> BandwidthTrace:
    """5G on the move: much near a cell, little where LTE stands in, and outages between. As above.
    Every stay is geometric; within it, each second is like the one before."""
    count = _count(duration)
    chances, swings = rng.spawn(2)
    swing = _walk(swings.standard_normal(count), _MEMORY_4G)
    levels = np.empty(count)
    near, gap = True, False
    for second, (move, fall) in enumerate(chances.random((count, 2)).tolist()):
        near ^= move < STEP / _STAYS[not near]
        gap = fall >= STEP / _GAP if gap else fall < STEP / _BETWEEN_GAPS
        median, sigma = _NEAR if near else _FAR
        levels[second] = 0.0 if gap else median * np.exp(sigma * swing[second])
    return _trace(levels, "5g")


def _walk(draws: NDArray[np.float64], memory: float) -> NDArray[np.float64]:
    """Standard normals, each correlated by `memory` with the one before."""
    level, fresh = float(draws[0]), float(np.sqrt(1.0 - memory**2))
    levels = [level]
    for draw in draws[1:].tolist():
        level = memory * level + fresh * draw
        levels.append(level)
    return np.array(levels)


def _trace(megabits: NDArray[np.float64], source: str) -> BandwidthTrace:
    return BandwidthTrace(
        np.arange(megabits.size) * STEP, megabits * MBIT, megabits.size * STEP, source
    )


def _count(duration: float) -> int:
    positive(length=duration)
    count = int(np.ceil(duration / STEP))
    if count > MOST_STEPS:
        raise WorkloadError("length", f"expected at most {MOST_STEPS:,} s, got {duration:g}")
    return count
