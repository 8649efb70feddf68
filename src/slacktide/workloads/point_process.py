"""What the arrival processes are drawn with: renewals, and Poisson arrivals of a varying rate.

A varying rate λ(t) is drawn by the change of clock of Çinlar (Introduction to Stochastic
Processes, 1975, §4.7): if u is a unit Poisson process then Λ⁻¹(u) is Poisson with rate λ, where Λ
is the integral of λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slacktide.workloads.values import WorkloadError, positive

Times: TypeAlias = NDArray[np.float64]
"""Sorted seconds from the start of the run, shape (n,)."""

MAX_ARRIVALS = 50_000_000
"""Most arrivals one process may be asked for (expected): beyond it is a slip of the pen."""

CHUNK = 1024
"""Gaps drawn at once. Fixed, so that the draws do not depend on the duration."""


def renewal(first: float, draw: Callable[[int], Times], duration: float) -> Iterator[Times]:
    """Times of a renewal process whose first arrival is at `first` and whose gaps are drawn."""
    times = np.array([first])
    while times[-1] < duration:
        yield times
        times = times[-1] + np.cumsum(draw(CHUNK))
    yield times[: np.searchsorted(times, duration, side="left")]


def integral(starts: Times, rates: Times, duration: float) -> tuple[Times, Times]:
    """Λ as corner points (time, expected arrivals until then) over [0, duration]."""
    inside = starts < duration
    edges = np.concatenate((starts[inside], [duration]))
    total = np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates[inside])))
    return edges, total


def modulated(
    starts: Times, rates: Times, duration: float, rng: np.random.Generator
) -> Iterator[Times]:
    """Poisson arrivals with a piecewise constant rate, by the change of clock."""
    edges, total = integral(starts, rates, duration)
    expected = float(total[-1])
    if expected <= 0.0:
        return
    for unit in renewal(rng.exponential(), lambda n: rng.exponential(1.0, n), expected):
        times = np.interp(unit, total, edges)
        yield times[times < duration]  # rounding may put the last one on the edge


def column(field: str, values: ArrayLike) -> Times:
    """A read-only float64 copy, checked: one axis, not empty, finite, not negative."""
    made = np.array(values, dtype=np.float64)
    if made.ndim != 1 or made.size == 0:
        raise WorkloadError(field, f"must be a non-empty list of numbers, got {made.shape}")
    if not np.all(np.isfinite(made)) or np.any(made < 0.0):
        raise WorkloadError(field, "must be finite and not negative")
    made.setflags(write=False)
    return made


def rising(starts: ArrayLike, values: ArrayLike, field: str) -> tuple[Times, Times]:
    """Both as columns of one length, checked too: `starts` rise strictly."""
    times, levels = column("time_s", starts), column(field, values)
    if times.size != levels.size:
        raise WorkloadError(field, f"{levels.size} values for {times.size} times")
    if np.any(np.diff(times) <= 0.0):
        raise WorkloadError("time_s", "must rise from row to row")
    return times, levels


def check_size(duration: float, rate: float) -> None:
    """Raise WorkloadError if `duration` is not positive, or holds too many expected arrivals."""
    positive(duration=duration)
    if duration * rate > MAX_ARRIVALS:
        raise WorkloadError("rate", f"{duration * rate:.3g} arrivals; the limit is {MAX_ARRIVALS}")
