"""Sources of *lengths*: the work of each request, from which a profile computes run times.

A length is the part of the work that differs between requests, in the unit of the model's profile:
tokens, frames, or milliseconds of marginal run time (l_B = c0 + c1 · k · max(l), Orloj §4.2). Each
draw also states the *mode* of each length. A mode may name the application of its requests, so that
a mixture can be one stream of several tenants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slacktide.lab.workloads.values import WorkloadError, column, not_negative, positive, set_fields

SMALLEST = 0.01
"""Minimum length drawn from a mode, as a share of the mode's mean: work is never negative."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Drawn lengths and their modes, both of shape (n,)."""

    lengths: NDArray[np.float64]
    modes: NDArray[np.int64]
    """Index into `names` of the source."""


class Lengths(Protocol):
    """Source of the lengths of one stream."""

    def drawer(self, rng: np.random.Generator) -> Callable[[int], Drawn]:
        """Return a function that draws n lengths ≥ 0; each call continues where the last ended."""

    def draw(self, count: int, rng: np.random.Generator) -> Drawn:
        """Draw `count` lengths. A longer draw begins with the lengths of a shorter one."""
        return self.drawer(rng)(count)

    @property
    def names(self) -> tuple[str, ...]:
        """Application of each mode; an empty text if the mode names none."""

    @property
    def mean(self) -> float:
        """Expected length."""

    def quantile(self, level: float) -> float:
        """Return the length that a share `level` (0 < level < 1) of requests does not exceed."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One peak of a mixture: normal around `mean`, drawn in proportion to `weight`."""

    mean: float
    sigma: float = 0.0
    weight: float = 1.0
    application: str = ""

    def __post_init__(self) -> None:
        not_negative(sigma=self.sigma)
        positive(mean=self.mean, weight=self.weight)

    @property
    def smallest(self) -> float:
        """Smallest length; smaller draws are raised to it."""
        return SMALLEST * self.mean


@dataclass(frozen=True, slots=True)
class Modes(Lengths):
    """A mixture of normal peaks; lengths below `Mode.smallest` are raised to it. Orloj's synthetic
    run times (§6.3) are such mixtures: one to eight modes, equal or unequal peaks, a σ for each."""

    modes: tuple[Mode, ...]

    def __post_init__(self) -> None:
        if not self.modes:
            raise WorkloadError("modes", "a mixture needs at least one mode")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(mode.application for mode in self.modes)

    @property
    def mean(self) -> float:
        return float(sum(map(mul, self._shares(), map(_mean_of, self.modes))))

    def drawer(self, rng: np.random.Generator) -> Callable[[int], Drawn]:
        choice, noise = rng.spawn(2)
        edges = np.cumsum(self._shares())[:-1]
        means, sigmas, smallest = (
            np.array([getattr(mode, name) for mode in self.modes])
            for name in ("mean", "sigma", "smallest")
        )

        def draw(count: int) -> Drawn:
            modes = np.searchsorted(edges, choice.random(count), side="right")
            lengths = means[modes] + sigmas[modes] * noise.standard_normal(count)
            return Drawn(np.maximum(lengths, smallest[modes]), modes.astype(np.int64))

        return draw

    def quantile(self, level: float) -> float:
        _check_level(level)
        low = 0.0
        high = max(mode.mean + 10.0 * mode.sigma for mode in self.modes)
        for _ in range(100):
            middle = (low + high) / 2.0
            within = (_share_of(mode, middle) for mode in self.modes)
            if sum(map(mul, self._shares(), within)) < level:
                low = middle
            else:
                high = middle
        return high

    def _shares(self) -> list[float]:
        total = sum(mode.weight for mode in self.modes)
        return [mode.weight / total for mode in self.modes]


def constant(length: float) -> Modes:
    """Return equal lengths: one mode without spread."""
    return Modes((Mode(length),))


@dataclass(frozen=True, slots=True)
class Exponential(Lengths):
    """Exponential lengths with mean `mean`: many short ones, no typical one."""

    mean: float

    def __post_init__(self) -> None:
        positive(mean=self.mean)

    @property
    def names(self) -> tuple[str, ...]:
        return ("",)

    def drawer(self, rng: np.random.Generator) -> Callable[[int], Drawn]:
        return lambda n: Drawn(rng.exponential(self.mean, n), np.zeros(n, dtype=np.int64))

    def quantile(self, level: float) -> float:
        _check_level(level)
        return -self.mean * math.log1p(-level)


@dataclass(frozen=True, slots=True, eq=False)
class Empirical(Lengths):
    """Measured lengths: drawn at random, or used in order. `values` has shape (m,), none negative;
    `applications` names the application of each, or is empty. With `in_order`, each belongs to the
    arrival recorded with it, and the sequence repeats after the last."""

    values: NDArray[np.float64]
    applications: tuple[str, ...] = ()
    in_order: bool = False

    def __init__(
        self, values: ArrayLike, applications: Sequence[str] = (), *, in_order: bool = False
    ) -> None:
        lengths = column("length", values)
        if applications and len(applications) != lengths.size:
            raise WorkloadError("application", f"{len(applications)} for {lengths.size} lengths")
        set_fields(self, values=lengths, applications=tuple(applications), in_order=in_order)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.applications)) or ("",)

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    def drawer(self, rng: np.random.Generator) -> Callable[[int], Drawn]:
        size, first = self.values.size, 0
        number = {name: index for index, name in enumerate(self.names)}
        named = [number[name] for name in self.applications] or [0] * size
        modes = np.array(named, dtype=np.int64)

        def draw(count: int) -> Drawn:
            nonlocal first
            order = np.arange(first, first + count) % size
            first += count
            picks = order if self.in_order else rng.integers(size, size=count)
            return Drawn(self.values[picks], modes[picks])

        return draw

    def quantile(self, level: float) -> float:
        _check_level(level)
        return float(np.quantile(self.values, level, method="inverted_cdf"))


def _mean_of(mode: Mode) -> float:
    """Return the mean of max(smallest, normal)."""
    if mode.sigma == 0.0:
        return mode.mean
    z = (mode.mean - mode.smallest) / mode.sigma
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return mode.smallest + mode.sigma * (density + z * _normal(z))


def _share_of(mode: Mode, length: float) -> float:
    """Return P(a length of this mode is at most `length`)."""
    if length < mode.smallest:
        return 0.0
    if mode.sigma == 0.0:
        return float(length >= mode.mean)
    return _normal((length - mode.mean) / mode.sigma)


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise WorkloadError("level", f"must be between 0 and 1, got {level!r}")
