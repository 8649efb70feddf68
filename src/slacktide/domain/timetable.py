"""`Timetable`: recurring time windows in which a model has priority on a lane.

Every *window* of the *period* belongs to one model. In OctopInf (§III-C) a timetable is called an
inference stream, its period a duty cycle and a window a portion. Pure arithmetic; engine/windows.py
applies it. Periods count from time 0 of the driver's clock, so equal periods on different lanes
begin together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

_SAME = 1e-6
"""Tolerance in seconds, above the rounding error of a clock that has run for days."""


@dataclass(frozen=True, slots=True)
class ModelWindow:
    """A part of the period in which `model` has priority, in seconds from the period's start."""

    model: str
    start: float
    end: float

    def __str__(self) -> str:
        return f"{self.model} {self.start * 1e3:g} to {self.end * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class Timetable:
    """Windows of one lane, ascending; between them no model has priority. Raises ValueError if they
    overlap or exceed the period, or if the period is too short."""

    period: float
    """Seconds."""
    windows: tuple[ModelWindow, ...]

    def __post_init__(self) -> None:
        if not 1e-3 <= self.period < math.inf:
            raise ValueError(f"the period must be at least 1 ms, got {self.period * 1e3:g} ms")
        for window in self.windows:
            if not 0.0 <= window.start < window.end:
                raise ValueError(f"a window must end after it starts: {window}")
            if window.end > self.period:
                raise ValueError(f"a window ends after the period of {self.period:g} s: {window}")
        for before, after in pairwise(self.windows):
            if after.start < before.end:
                raise ValueError(f"windows overlap or are not ascending: {before}, {after}")

    @property
    def models(self) -> frozenset[str]:
        """Models with a window."""
        return frozenset(window.model for window in self.windows)

    def at(self, now: float) -> ModelWindow | None:
        """The open window; None if none is open."""
        into = now - self._begin(now)
        for window in self.windows:
            if window.start - _SAME <= into < window.end - _SAME:
                return window
        return None

    def next_start(self, window: ModelWindow, now: float) -> float:
        """When `window` next opens after `now`; absolute seconds."""
        start = self._begin(now) + window.start
        return start if start > now + _SAME else start + self.period

    def last(self, window: ModelWindow, now: float) -> tuple[float, float]:
        """(opening, closing) of the last closed occurrence of `window`; absolute seconds."""
        begin = self._begin(now)
        if begin + window.end > now + _SAME:
            begin -= self.period
        return begin + window.start, begin + window.end

    def unchanged_until(self, now: float) -> float:
        """Time until which `last` returns the same for every window; absolute seconds."""
        closed = [self.last(window, now)[1] for window in self.windows]
        return min(closed, default=math.inf) + self.period - 2.0 * _SAME

    def _begin(self, now: float) -> float:
        """Start of the period that contains `now`."""
        return math.floor((now + _SAME) / self.period) * self.period
