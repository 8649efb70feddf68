"""Bandwidth over time: a piecewise constant trace that repeats when it has ended.

A link needs three functions of it: when bytes begin to move, how many bytes have moved by a given
time, and when a given number of bytes has moved. A bandwidth of 0 is an outage: nothing moves.

Drawn traces (`draw_4g`, `draw_5g`) are for tests, and for use without a recorded trace. They share
statistics with the public traces, not data: correlation from one second to the next, spread, and
frequency of outages.
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
"""Bytes, and share of the bytes of a period. A remainder of a payload below both is a rounding
error, and does not wait for the next step (which might be an outage)."""


@dataclass(frozen=True, slots=True, eq=False)
class BandwidthTrace:
    """`rates[i]` bytes per second from `starts[i]` on; both of shape (n,), n ≥ 1.

    `starts` are rising seconds, shifted so that the first is 0. `period` is the length of the trace
    in seconds; by default, the last step is as long as the one before (a single step: 1 s). Raises
    WorkloadError naming `time_s`, `bandwidth` or `period`.
    """

    starts: Times
    rates: NDArray[np.float64]
    period: float
    source: str
    """Name of the trace's source, for display."""
    _starts: list[float]
    """`starts` and then `period`, as a list, from which single numbers are read faster."""
    _rates: list[float]
    _moved: list[float]
    """Bytes that have moved by each of `_starts`."""

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
        """Mean bytes per second over the period."""
        return self._moved[-1] / self.period

    def rate(self, at: float) -> float:
        """Return bytes per second at `at` (any finite number of seconds)."""
        _, step, _ = self._place(at)
        return self._rates[step]

    def moving_from(self, at: float) -> float:
        """Return the first instant from `at` on at which bytes move: `at` itself, or the end of the
        outage at `at`; infinite if bytes never move."""
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
        """Return the bytes that a busy link moves from 0 to `until` (seconds ≥ 0)."""
        turns, inside = np.divmod(until, self.period)
        bytes_moved = turns * self._moved[-1] + np.interp(inside, self._starts, self._moved)
        return bytes_moved if isinstance(until, np.ndarray) else float(bytes_moved)

    def finish(self, count: float, *, start: float) -> float:
        """Return when `count` ≥ 0 bytes that wait from `start` on have moved; inf if never."""
        begin = self.moving_from(start)
        if count <= 0.0 or begin == NEVER:
            return begin
        whole = self._moved[-1]
        turn, step, inside = self._place(begin)
        crumb = min(_CRUMB, _CRUMB_SHARE * whole)
        goal = self._moved[step] + (inside - self._starts[step]) * self._rates[step] + count
        more, goal = divmod(goal, whole)
        if goal <= crumb:  # whole periods: finish in the last, not after an outage in the next
            more, goal = more - 1.0, goal + whole
        step = min(bisect_left(self._moved, goal - crumb), len(self._rates)) - 1
        seconds = (goal - self._moved[step]) / self._rates[step]
        end = min(self._starts[step] + seconds, self._starts[step + 1])
        return max(begin, (turn + more) * self.period + end)

    def _place(self, at: float) -> tuple[float, int, float]:
        """Return (whole periods before, step, seconds into this period)."""
        turn, inside = divmod(at, self.period)
        step = bisect_right(self._starts, inside) - 1
        return turn, min(step, len(self._rates) - 1), inside


STEP = 1.0
"""Seconds for which a drawn bandwidth holds."""
MOST_STEPS = 1_000_000

_MEDIAN_4G, _SWING_4G, _MEMORY_4G = 25.0, 0.45, 0.8
"""Mbit/s; σ of the logarithm; correlation from second to second. The Ghent bus trace has 26.7, 0.43
and 0.74, and a correlation of 0.14 over ten seconds."""
_LEAST_4G, _MOST_4G = 2.0, 60.0

_NEAR, _FAR = (180.0, 0.4), (9.0, 0.8)
"""Mbit/s and σ of the logarithm: near a 5G cell, and where LTE replaces 5G."""
_STAYS = (20.0, 40.0)
"""Mean seconds of a stay near, and far."""
_GAP, _BETWEEN_GAPS = 2.0, 60.0
"""Mean seconds of an outage, and between outages. In the Irish runs, 2 to 4 % of seconds are 0."""


def draw_4g(duration: float, rng: np.random.Generator) -> BandwidthTrace:
    """Draw 4G bandwidth on the move: lognormal, correlated from second to second (an AR(1) process
    of logarithms), without outages. `duration`: seconds, rounded up. Raises WorkloadError."""
    count = _count(duration)
    swing = _walk(rng.standard_normal(count), _MEMORY_4G)
    levels = np.clip(_MEDIAN_4G * np.exp(_SWING_4G * swing), _LEAST_4G, _MOST_4G)
    return _trace(levels, "4g")


def draw_5g(duration: float, rng: np.random.Generator) -> BandwidthTrace:
    """Draw 5G bandwidth on the move: high near a cell, low where LTE replaces 5G, and outages.
    Stays are geometric. Correlation, `duration` and errors are as for `draw_4g`."""
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
    """Return standard normals, each with correlation `memory` to the one before."""
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
