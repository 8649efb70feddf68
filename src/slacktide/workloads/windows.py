"""Arrivals counted by the window, as public traces publish them; uniform inside each window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slacktide.workloads.arrivals import Arrivals
from slacktide.workloads.errors import WorkloadError, positive
from slacktide.workloads.point_process import CHUNK, Times, check_size, column


@dataclass(frozen=True, slots=True, eq=False)
class WindowCounts(Arrivals):
    """`counts[i]` requests in the i-th window of `window` seconds, spread evenly by chance.

    Shape (n,), whole numbers. Nothing comes after the last window.
    """

    counts: NDArray[np.int64]
    window: float
    source: str = ""

    def __init__(self, counts: ArrayLike, window: float, source: str = "") -> None:
        positive("window", window)
        checked = column("counts", counts)
        if np.any(checked != np.floor(checked)):
            raise WorkloadError("counts", "must be whole numbers")
        whole = checked.astype(np.int64)
        whole.setflags(write=False)
        object.__setattr__(self, "counts", whole)
        object.__setattr__(self, "window", window)
        object.__setattr__(self, "source", source)

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.mean_rate(duration))
        yield from _spread(self.counts, self.window, duration, rng)

    def mean_rate(self, duration: float) -> float:
        inside = np.clip(duration / self.window - np.arange(self.counts.size), 0.0, 1.0)
        return float(self.counts @ inside) / duration

    def describe(self) -> str:
        return f"trace:{self.source or 'counts'}"


@dataclass(frozen=True, slots=True)
class GammaWindows(Arrivals):
    """Windows of `window` seconds, each with a rate of its own around `rate`.

    A window's count is Poisson around rate × window × Gamma(mean 1, coefficient of variation `cv`):
    the counts per window of the Azure Functions traces, with their burstiness as one number.
    """

    rate: float
    window: float
    cv: float

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        positive("window", self.window)
        positive("cv", self.cv)

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.rate)
        check_size(duration, 1.0 / self.window)
        levels, counts, places = rng.spawn(3)
        count = int(np.ceil(duration / self.window))
        means = self.rate * self.window * levels.gamma(self.cv**-2, self.cv**2, count)
        yield from _spread(counts.poisson(means), self.window, duration, places)

    def mean_rate(self, duration: float) -> float:
        return self.rate

    def describe(self) -> str:
        return f"windows:{self.rate:g}:{self.window:g}s:cv={self.cv:g}"


def _spread(
    counts: NDArray[np.int64], window: float, duration: float, rng: np.random.Generator
) -> Iterator[Times]:
    """Sorted times in [0, duration), uniform within each window; whole windows at a time."""
    begun = counts[: int(np.ceil(duration / window))]
    first, latest = 0, 0.0
    while first < begun.size:
        until = np.cumsum(begun[first : first + CHUNK])
        last = first + max(1, int(np.searchsorted(until, CHUNK, side="right")))
        starts = np.repeat(np.arange(first, last) * window, begun[first:last])
        times = np.sort(starts + rng.random(starts.size) * window)
        # Rounding may put the last of one window behind the first of the next.
        times = np.maximum(times[: np.searchsorted(times, duration, side="left")], latest)
        yield times
        first, latest = last, float(times[-1]) if times.size else latest
