"""Arrival processes, each a frozen value that draws times from a generator.

`times(duration, rng)` returns sorted float64 seconds in [0, duration); `chunks` yields the same
times in pieces, so that a run of any length needs little memory. Random processes start in
equilibrium, not at an arrival, or follow a stated rate exactly. The expected number of arrivals is
therefore exactly `mean_rate(duration) × duration` for every duration. With the same seed, a longer
run begins with the times of a shorter one.

Rates are requests per second, times are seconds. This module has the processes of constant rate and
recorded times; `varying.py` has processes whose rate changes.

A varying rate λ(t) is drawn by the change of clock of Çinlar (Introduction to Stochastic
Processes, 1975, §4.7): if u is a unit Poisson process then Λ⁻¹(u) is Poisson with rate λ, where Λ
is the integral of λ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from slacktide.lab.workloads.values import Times, WorkloadError, column, positive, set_fields

MAX_ARRIVALS = 50_000_000
"""Maximum expected arrivals of one process; a larger number is probably a typing error."""

CHUNK = 1024
"""Number of gaps drawn together. Fixed, so that draws do not depend on the duration."""


class Arrivals(Protocol):
    """Arrival process of one stream."""

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        """Yield sorted times in [0, duration) in consecutive pieces, some possibly empty. Raises
        WorkloadError at the first piece if `duration` is not positive."""

    def times(self, duration: float, rng: np.random.Generator) -> Times:
        """Return all times of `chunks` in one array."""
        return np.concatenate([np.empty(0), *self.chunks(duration, rng)])

    def mean_rate(self, duration: float) -> float:
        """Return the expected requests per second over [0, duration)."""

    def describe(self) -> str:
        """Return the text from which `parse_arrivals` makes this process, or a description."""


@dataclass(frozen=True, slots=True)
class OneRate(Arrivals):
    """A process with a constant mean rate. All fields must be positive."""

    rate: float

    def __post_init__(self) -> None:
        positive(**{attribute.name: getattr(self, attribute.name) for attribute in fields(self)})

    def mean_rate(self, duration: float) -> float:
        return self.rate


@dataclass(frozen=True, slots=True)
class Constant(OneRate):
    """One request every 1/rate seconds, the first at 0."""

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.rate)
        for first in count(step=CHUNK):
            every = np.arange(first, first + CHUNK) / self.rate
            yield every[every < duration]
            if every[-1] >= duration:
                return

    def describe(self) -> str:
        return f"constant:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Poisson(OneRate):
    """Independent arrivals: exponential gaps of mean 1/rate."""

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.rate)
        mean = 1.0 / self.rate
        return renewal(rng.exponential(mean), lambda n: rng.exponential(mean, n), duration)

    def describe(self) -> str:
        return f"poisson:{self.rate:g}"


@dataclass(frozen=True, slots=True)
class Gamma(OneRate):
    """Gamma gaps of mean 1/rate and coefficient of variation `cv`: bursty above 1, steady below 1.
    The first gap is drawn from the equilibrium: a uniform share of a length-biased gap, whose
    distribution is Gamma(k + 1, θ) if gaps are Gamma(k, θ)."""

    cv: float = 1.0

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        check_size(duration, self.rate)
        shape = self.cv**-2
        scale = self.cv**2 / self.rate
        first = rng.uniform() * rng.gamma(shape + 1.0, scale)
        return renewal(first, lambda n: rng.gamma(shape, scale, n), duration)

    def describe(self) -> str:
        return f"gamma:{self.rate:g}:cv={self.cv:g}"


@dataclass(frozen=True, slots=True, eq=False)
class Replay(Arrivals):
    """Recorded times (sorted seconds, shape (n,)); `source` names their origin."""

    instants: Times
    source: str = ""

    def __init__(self, instants: ArrayLike, source: str = "") -> None:
        times = column("time_s", instants)
        if np.any(np.diff(times) < 0.0):
            raise WorkloadError("time_s", "must not decrease")
        set_fields(self, instants=times, source=source)

    def chunks(self, duration: float, rng: np.random.Generator) -> Iterator[Times]:
        positive(duration=duration)
        last = int(np.searchsorted(self.instants, duration, side="left"))
        for first in range(0, last, CHUNK):
            yield self.instants[first : min(first + CHUNK, last)]

    def mean_rate(self, duration: float) -> float:
        return float(np.searchsorted(self.instants, duration, side="left")) / duration

    def describe(self) -> str:
        return f"trace:{self.source or 'times'}"


def renewal(first: float, draw: Callable[[int], Times], duration: float) -> Iterator[Times]:
    """Yield times of a renewal process with first arrival `first` and gaps from `draw(count)`."""
    times = np.array([first])
    while times[-1] < duration:
        yield times
        times = times[-1] + np.cumsum(draw(CHUNK))
    yield times[: np.searchsorted(times, duration, side="left")]


def integral(starts: Times, rates: Times, duration: float) -> tuple[Times, Times]:
    """Return the corners of Λ over [0, duration]: times, and expected arrivals up to each time."""
    inside = starts < duration
    edges = np.concatenate((starts[inside], [duration]))
    total = np.concatenate(([0.0], np.cumsum(np.diff(edges) * rates[inside])))
    return edges, total


def modulated(
    starts: Times, rates: Times, duration: float, rng: np.random.Generator
) -> Iterator[Times]:
    """Yield Poisson arrivals of piecewise constant rate, drawn by the change of clock."""
    edges, total = integral(starts, rates, duration)
    expected = float(total[-1])
    if expected <= 0.0:
        return
    for unit in renewal(rng.exponential(), lambda n: rng.exponential(1.0, n), expected):
        times = np.interp(unit, total, edges)
        yield times[times < duration]  # rounding may put the last one on the edge


def check_size(duration: float, rate: float) -> None:
    """Raise WorkloadError if `duration` is not positive, or holds too many expected arrivals."""
    positive(duration=duration)
    if duration * rate > MAX_ARRIVALS:
        expected = f"expected at most {MAX_ARRIVALS} arrivals"
        raise WorkloadError("rate", f"{expected}, got {duration * rate:.3g}")
