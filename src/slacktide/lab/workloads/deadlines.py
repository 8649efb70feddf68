"""Deadlines: the allowance of each request, in seconds from its intended send.

An allowance is relative, like `timeout` on the wire, and counts from when the request was due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.workloads.values import WorkloadError, positive


class Deadlines(Protocol):
    """Source of the allowances of one stream."""

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return allowances in seconds, shape (count,), all positive."""

    def describe(self) -> str:
        """Return the text from which `parse_deadlines` makes these deadlines."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """An allowance that is equal for all requests."""

    seconds: float

    def __post_init__(self) -> None:
        positive(deadline=self.seconds)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return np.full(count, self.seconds)

    def describe(self) -> str:
        return f"fixed:{_ms(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Mix:
    """Each request draws one of `choices` in proportion to `weights`; empty: equal chances."""

    choices: tuple[float, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.choices:
            raise WorkloadError("deadline", "a mix needs at least one choice")
        for choice in self.choices:
            positive(deadline=choice)
        if self.weights and len(self.weights) != len(self.choices):
            expected = f"{len(self.choices)} weights expected"
            raise WorkloadError("weights", f"{expected}, got {len(self.weights)}")
        for weight in self.weights:
            positive(weights=weight)

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        weights = np.array(self.weights or (1.0,) * len(self.choices))
        return rng.choice(np.array(self.choices), size=count, p=weights / weights.sum())

    def describe(self) -> str:
        if not self.weights:
            return "mix:" + ",".join(map(_ms, self.choices))
        pairs = zip(self.choices, self.weights, strict=True)
        return "mix:" + ",".join(f"{_ms(choice)}@{weight:g}" for choice, weight in pairs)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each request draws an allowance uniformly from [low, high]."""

    low: float
    high: float

    def __post_init__(self) -> None:
        positive(low=self.low, high=self.high)
        if self.low > self.high:
            raise WorkloadError("high", f"must be at least low = {self.low:g} s, got {self.high:g}")

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.uniform(self.low, self.high, count)

    def describe(self) -> str:
        return f"uniform:{_ms(self.low)}:{_ms(self.high)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:g}ms"
