"""When requests come: arrival processes, each a frozen value that draws times from a generator.

`times(duration, rng)` returns sorted float64 seconds in [0, duration). All random processes are
stationary: they start in their equilibrium, not at an arrival, so that the expected number of
arrivals is exactly `mean_rate(duration) × duration` for every duration. They are also stable: from
the same seed a longer run begins with the times of a shorter one.

Rates are requests per second, times are seconds. A varying rate λ(t) is drawn by the change of
clock of Çinlar (Introduction to Stochastic Processes, 1975, §4.7): if u is a unit Poisson process
then Λ⁻¹(u) is Poisson with rate λ, where Λ is the integral of λ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slacktide.workloads.errors import WorkloadError, not_negative, positive

Times: TypeAlias = NDArray[np.float64]
"""Sorted seconds from the start of the run, shape (n,)."""

MAX_ARRIVALS = 50_000_000
"""Most arrivals one process may be asked for (expected): beyond it is a slip of the pen."""

_CHUNK = 1024
"""Gaps drawn at once. Fixed, so that the draws do not depend on the duration."""


class Arrivals(Protocol):
    """One stream's arrivals."""

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        """Sorted times in [0, duration). Raises WorkloadError if `duration` is not positive."""
        ...

    def mean_rate(self, duration: float) -> float:
        """Expected requests per second over [0, duration)."""
        ...

    def describe(self) -> str:
        """The spec that makes this process, or a short account of it if none does."""
        ...


@dataclass(frozen=True, slots=True)
class Constant:
    """One request every 1/rate seconds, the first at 0."""

    rate: float

    def __post_init__(self) -> None:
        positive("rate", self.rate)

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        _check_size(duration, self.rate)
        every = np.arange(np.ceil(duration * self.rate) + 1.0) / self.rate
        return every[every < duration]

    def mean_rate(self, duration: float) -> float:
        return self.rate

    def describe(self) -> str:
        return f"constant:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals: exponential gaps of mean 1/rate."""

    rate: float

    def __post_init__(self) -> None:
        positive("rate", self.rate)

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        _check_size(duration, self.rate)
        mean = 1.0 / self.rate
        return _renewal(rng.exponential(mean), lambda n: rng.exponential(mean, n), duration)

    def mean_rate(self, duration: float) -> float:
        return self.rate

    def describe(self) -> str:
        return f"poisson:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma gaps of mean 1/rate and coefficient of variation `cv`: above 1 bursty, below 1 even.

    The first gap is drawn from the equilibrium: a uniform share of a length-biased gap, which for
    Gamma(k, θ) is Gamma(k + 1, θ).
    """

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        positive("cv", self.cv)

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        _check_size(duration, self.rate)
        shape = self.cv**-2
        scale = self.cv**2 / self.rate
        first = rng.uniform() * rng.gamma(shape + 1.0, scale)
        return _renewal(first, lambda n: rng.gamma(shape, scale, n), duration)

    def mean_rate(self, duration: float) -> float:
        return self.rate

    def describe(self) -> str:
        return f"gamma:{self.rate:g}:cv={self.cv:g}"


@dataclass(frozen=True, slots=True)
class OnOff:
    """Bursts: Poisson at `rate_on` or `rate_off`, switching after exponential stays.

    `mean_on` and `mean_off` are the mean stays in seconds. A Markov-modulated Poisson process
    with two states, begun in its equilibrium.
    """

    rate_on: float
    rate_off: float
    mean_on: float
    mean_off: float

    def __post_init__(self) -> None:
        positive("rate_on", self.rate_on)
        not_negative("rate_off", self.rate_off)
        positive("mean_on", self.mean_on)
        positive("mean_off", self.mean_off)

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        _check_size(duration, max(self.rate_on, self.rate_off))
        _check_size(duration, 2.0 / (self.mean_on + self.mean_off))
        stays, clicks = rng.spawn(2)
        on_first = bool(stays.uniform() * (self.mean_on + self.mean_off) < self.mean_on)
        means = (self.mean_on, self.mean_off) if on_first else (self.mean_off, self.mean_on)
        rates = (self.rate_on, self.rate_off) if on_first else (self.rate_off, self.rate_on)
        chunks: list[Times] = []
        total = 0.0
        while total < duration:
            pairs = stays.exponential(means, (_CHUNK, 2))
            chunks.append(pairs.reshape(-1))
            total += float(pairs.sum())
        lengths = np.concatenate(chunks)
        starts = np.concatenate(([0.0], np.cumsum(lengths)[:-1]))
        return _modulated(starts, np.tile(rates, lengths.size // 2), duration, clicks)

    def mean_rate(self, duration: float) -> float:
        weighted = self.rate_on * self.mean_on + self.rate_off * self.mean_off
        return weighted / (self.mean_on + self.mean_off)

    def describe(self) -> str:
        return f"onoff:{self.rate_on:g}:{self.rate_off:g}:{self.mean_on:g}s:{self.mean_off:g}s"


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Exactly these times (sorted seconds, shape (n,)); `source` says where they come from."""

    instants: Times
    source: str = ""

    def __init__(self, instants: ArrayLike, source: str = "") -> None:
        times = _column("time_s", instants)
        if np.any(np.diff(times) < 0.0):
            raise WorkloadError("time_s", "must not decrease")
        object.__setattr__(self, "instants", times)
        object.__setattr__(self, "source", source)

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        positive("duration", duration)
        return self.instants[: np.searchsorted(self.instants, duration, side="left")].copy()

    def mean_rate(self, duration: float) -> float:
        return float(np.searchsorted(self.instants, duration, side="left")) / duration

    def describe(self) -> str:
        return f"trace:{self.source or 'times'}"


@dataclass(frozen=True, slots=True, eq=False)
class RateTrace:
    """Poisson at `rates[i]` from `starts[i]` on, until the next start; the last rate lasts.

    Both have shape (n,); starts rise strictly. Before the first start nothing comes.
    """

    starts: Times
    rates: Times
    source: str = ""

    def __init__(self, starts: ArrayLike, rates: ArrayLike, source: str = "") -> None:
        times, levels = _column("time_s", starts), _column("rate_rps", rates)
        if times.size != levels.size:
            raise WorkloadError("rate_rps", f"{levels.size} rates for {times.size} times")
        if np.any(np.diff(times) <= 0.0):
            raise WorkloadError("time_s", "must rise from row to row")
        object.__setattr__(self, "starts", times)
        object.__setattr__(self, "rates", levels)
        object.__setattr__(self, "source", source)

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        positive("duration", duration)
        _check_size(duration, self.mean_rate(duration))
        return _modulated(self.starts, self.rates, duration, rng)

    def mean_rate(self, duration: float) -> float:
        _, total = _integral(self.starts, self.rates, duration)
        return float(total[-1]) / duration

    def describe(self) -> str:
        return f"trace:{self.source or 'rates'}"


def _renewal(first: float, draw: Callable[[int], Times], duration: float) -> Times:
    """Times of a renewal process whose first arrival is at `first` and whose gaps are drawn."""
    chunks = [np.array([first])]
    last = first
    while last < duration:
        times = last + np.cumsum(draw(_CHUNK))
        chunks.append(times)
        last = float(times[-1])
    every = np.concatenate(chunks)
    return every[: np.searchsorted(every, duration, side="left")]


def _integral(starts: Times, rates: Times, duration: float) -> tuple[Times, Times]:
    """Λ as corner points (time, expected arrivals until then) over [0, duration]."""
    inside = starts < duration
    edges = np.concatenate((starts[inside], [duration]))
    total = np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates[inside])))
    return edges, total


def _modulated(starts: Times, rates: Times, duration: float, rng: np.random.Generator) -> Times:
    """Poisson arrivals with a piecewise constant rate, by the change of clock."""
    edges, total = _integral(starts, rates, duration)
    expected = float(total[-1])
    if expected <= 0.0:
        return np.empty(0)
    unit = _renewal(rng.exponential(), lambda n: rng.exponential(1.0, n), expected)
    times = np.interp(unit, total, edges)
    return times[times < duration]  # rounding may put the last one on the edge


def _column(field: str, values: ArrayLike) -> Times:
    """A read-only float64 copy, checked: one axis, not empty, finite, not negative."""
    column = np.array(values, dtype=np.float64)
    if column.ndim != 1 or column.size == 0:
        raise WorkloadError(field, f"must be a non-empty list of numbers, got {column.shape}")
    if not np.all(np.isfinite(column)) or np.any(column < 0.0):
        raise WorkloadError(field, "must be finite and not negative")
    column.setflags(write=False)
    return column


def _check_size(duration: float, rate: float) -> None:
    positive("duration", duration)
    if duration * rate > MAX_ARRIVALS:
        raise WorkloadError("rate", f"{duration * rate:.3g} arrivals; the limit is {MAX_ARRIVALS}")
