"""Arrival processes whose rate changes with time: bursts, recorded rates, day and night, and counts
per window, as in public traces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slacktide.lab.workloads.arrivals import (
    CHUNK,
    Arrivals,
    OneRate,
    check_size,
    integral,
    modulated,
)
from slacktide.lab.workloads.values import (
    Times,
    WorkloadError,
    column,
    not_negative,
    positive,
    rising,
    set_fields,
)

_STEPS = 360
"""Number of rate steps per period; constant, so that draws do not depend on the duration."""


@dataclass(frozen=True, slots=True)
class OnOff(Arrivals):
    """Bursts: Poisson at `rate_on` or `rate_off`, switching after exponentially distributed times,
    with means `mean_on` and `mean_off` in seconds. This is a Markov-modulated Poisson process with
    two states that starts in equilibrium."""

    rate_on: float
    rate_off: float
    mean_on: float
    mean_off: float

    def __post_init__(self) -> None:
        not_negative(rate_off=self.rate_off)
        positive(rate_on=self.rate_on, mean_on=self.mean_on, mean_off=self.mean_off)

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, max(self.rate_on, self.rate_off))
        check_size(duration, 2.0 / (self.mean_on + self.mean_off))
        stays, clicks = rng.spawn(2)
        on_first = bool(stays.uniform() * (self.mean_on + self.mean_off) < self.mean_on)
        means = (self.mean_on, self.mean_off) if on_first else (self.mean_off, self.mean_on)
        rates = (self.rate_on, self.rate_off) if on_first else (self.rate_off, self.rate_on)
        parts: list[Times] = []
        total = 0.0
        while total < duration:
            pairs = stays.exponential(means, (CHUNK, 2))
            parts.append(pairs.reshape(-1))
            total += float(pairs.sum())
        lengths = np.concatenate(parts)
        starts = np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
        yield from modulated(starts, np.tile(rates, lengths.size // 2), duration, clicks)

    def mean_rate(self, duration: float) -> float:
        weighted = self.rate_on * self.mean_on + self.rate_off * self.mean_off
        return weighted / (self.mean_on + self.mean_off)

    def describe(self) -> str:
        return f"onoff:{self.rate_on:g}:{self.rate_off:g}:{self.mean_on:g}s:{self.mean_off:g}s"


@dataclass(frozen=True, slots=True, eq=False)
class RateTrace(Arrivals):
    """Poisson at `rates[i]` from `starts[i]` until the next start; the last rate lasts for ever.
    Both have shape (n,); starts rise strictly. No request comes before the first start."""

    starts: Times
    rates: Times
    source: str = ""

    def __init__(self, starts: ArrayLike, rates: ArrayLike, source: str = "") -> None:
        times, levels = rising(starts, rates, "rate_rps")
        set_fields(self, starts=times, rates=levels, source=source)

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        positive(duration=duration)
        check_size(duration, self.mean_rate(duration))
        yield from modulated(self.starts, self.rates, duration, rng)

    def mean_rate(self, duration: float) -> float:
        _, total = integral(self.starts, self.rates, duration)
        return float(total[-1]) / duration

    def describe(self) -> str:
        return f"trace:{self.source or 'rates'}"


@dataclass(frozen=True, slots=True)
class Diurnal(Arrivals):
    """Day and night: Poisson at a rate that rises from `low` (at 0) to `high` (after half a period)
    and falls again: λ(t) = low + (high − low) · (1 − cos(2πt / period)) / 2, replaced by its mean
    over each of the 360 steps of a period."""

    low: float
    high: float
    period: float

    def __post_init__(self) -> None:
        not_negative(low=self.low)
        positive(high=self.high, period=self.period)
        if self.low > self.high:
            raise WorkloadError("high", f"must be at least low = {self.low:g}, got {self.high:g}")

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.high)
        check_size(duration, _STEPS / self.period)
        yield from modulated(*self._steps(duration), duration, rng)

    def mean_rate(self, duration: float) -> float:
        _, total = integral(*self._steps(duration), duration)
        return float(total[-1]) / duration

    def describe(self) -> str:
        return f"diurnal:{self.low:g}:{self.high:g}:{self.period:g}s"

    def _steps(self, duration: float) -> tuple[Times, Times]:
        """Return (starts, rates) of the steps that begin within [0, duration)."""
        count = int(np.ceil(duration / self.period * _STEPS)) + 1
        turns = np.arange(count + 1) / _STEPS
        sines = np.sin(2.0 * np.pi * turns)
        mean_cosine = np.diff(sines) / (2.0 * np.pi / _STEPS)
        rates = self.low + (self.high - self.low) * (1.0 - mean_cosine) / 2.0
        return turns[:-1] * self.period, np.maximum(rates, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class WindowCounts(Arrivals):
    """`counts[i]` requests at uniformly random times of the i-th window of `window` seconds. Counts
    are whole numbers, shape (n,). No request comes after the last window."""

    counts: NDArray[np.int64]
    window: float
    source: str = ""

    def __init__(self, counts: ArrayLike, window: float, source: str = "") -> None:
        positive(window=window)
        checked = column("counts", counts)
        if np.any(checked != np.floor(checked)):
            raise WorkloadError("counts", "must be whole numbers")
        whole = checked.astype(np.int64)
        whole.setflags(write=False)
        set_fields(self, counts=whole, window=window, source=source)

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.mean_rate(duration))
        yield from _spread(self.counts, self.window, duration, rng)

    def mean_rate(self, duration: float) -> float:
        inside = np.clip(duration / self.window - np.arange(self.counts.size), 0.0, 1.0)
        return float(np.add.reduce(self.counts * inside)) / duration

    def describe(self) -> str:
        return f"trace:{self.source or 'counts'}"


@dataclass(frozen=True, slots=True)
class GammaWindows(OneRate):
    """Windows of `window` seconds, each with its own rate around `rate`. A window's count is
    Poisson with mean rate × window × Gamma(mean 1, coefficient of variation `cv`). This models the
    counts per window of the Azure Functions traces, with `cv` as their burstiness."""

    window: float
    cv: float

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.rate)
        check_size(duration, 1.0 / self.window)
        levels, counts, places = rng.spawn(3)
        count = int(np.ceil(duration / self.window))
        means = self.rate * self.window * levels.gamma(self.cv**-2, self.cv**2, count)
        yield from _spread(counts.poisson(means), self.window, duration, places)

    def describe(self) -> str:
        return f"windows:{self.rate:g}:{self.window:g}s:cv={self.cv:g}"


def _spread(
    counts: NDArray[np.int64], window: float, duration: float, rng: np.random.Generator
) -> Iterator[Times]:
    """Yield sorted times in [0, duration), uniform within windows, several windows at a time."""
    begun = counts[: int(np.ceil(duration / window))]
    first, latest = 0, 0.0
    while first < begun.size:
        until = np.cumsum(begun[first : first + CHUNK])
        last = first + max(1, int(np.searchsorted(until, CHUNK, side="right")))
        starts = np.repeat(np.arange(first, last) * window, begun[first:last])
        times = np.sort(starts + rng.random(starts.size) * window)
        # Rounding may put the last time of a window after the first time of the next.
        times = np.maximum(times[: np.searchsorted(times, duration, side="left")], latest)
        yield times
        first, latest = last, float(times[-1]) if times.size else latest
