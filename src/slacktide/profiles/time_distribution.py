"""`TimeDistribution`: the predicted time of one batch, and two kinds of it.

`PointTime` is certain. `SplitLogLogistic` interpolates and extrapolates a p50 and a p99. (A third
kind, for batches whose longest member decides, is in fixed_times.py.) Two percentiles do not
determine a distribution, so its form is an assumption. With h(level) = ln(level / (1 − level)) /
ln 99, which is 0 at the median and 1 at the 99th percentile,

    level ≤ 0.5          time = p50 · e^(lower · h)
    0.5 < level ≤ 0.99   time = p50 · (p99 / p50)^h
    level > 0.99         time = p99 · e^(tail · (h − 1))

which is a log-logistic distribution with separate lower side, middle and tail. The reasons:

- Run times scatter by factors, and far more upwards (interference) than downwards (a model's work
  is constant), so the distribution is split at the median, in log space.
- Log-logistic, not log-normal: its tail is heavier, like that of real hiccups. `quantile` and
  `on_time` each take one exponential or logarithm, so they are exact inverses.
- `lower` and `tail` belong to the whole pool, not to a batch size. Then every quantile, not only
  the two measured ones, is non-decreasing in rows wherever p50 and p99 are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from slacktide.profiles.reading import ProfileError

_LN_99 = math.log(99.0)
_NEVER = -700.0
"""e^700 is near the largest float; levels this far down count as 0."""
_CLOSE = 1e-4


def inverse(on_time: Callable[[float], float], level: float, low: float, high: float) -> float:
    """Seconds between `low` and `high` at which `on_time` reaches `level`, by bisection."""
    while high < math.inf and high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        if on_time(middle) < level:
            low = middle
        else:
            high = middle
    return high


def position(level: float) -> float:
    """h(level) of the module docstring, for 0 < level < 1."""
    return math.log(level / (1.0 - level)) / _LN_99


class TimeDistribution(Protocol):
    """The predicted time of one batch, in seconds. `expected` and `p99` refer to its lane time,
    `quantile` and `on_time` to its members' answers. The two only differ with early exits
    (exit_times.py)."""

    @property
    def expected(self) -> float:
        """Typical time: the median, or the mean if there are classes."""

    @property
    def p99(self) -> float:
        """99th percentile; never below `expected`."""

    def quantile(self, level: float) -> float:
        """Time within which a share `level` (0 to 1) of answers comes."""

    def on_time(self, budget: float) -> float:
        """P(answer within `budget`), the inverse of `quantile`; 0 to 1."""


@dataclass(frozen=True, slots=True)
class PointTime:
    """A certain time: all quantiles are equal."""

    expected: float

    @property
    def p99(self) -> float:
        return self.expected

    def quantile(self, level: float) -> float:
        return self.expected

    def on_time(self, budget: float) -> float:
        return 1.0 if self.expected <= budget else 0.0


@dataclass(frozen=True, slots=True)
class SplitLogLogistic:
    """Seconds. `expected`, `lower` and `tail` must be positive, `p99` above `expected`."""

    expected: float
    """The median."""
    p99: float
    lower: float
    """Log distance from the median down to the 1st percentile."""
    tail: float
    """Log distance over which the odds of being late fall by a factor of 99; 1 : 99 at the p99."""
    _middle: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0.0 < self.expected < self.p99 and self.lower > 0.0 and self.tail > 0.0):
            raise ProfileError(f"expected 0 < expected < p99, lower > 0 and tail > 0, got {self}")
        object.__setattr__(self, "_middle", math.log(self.p99 / self.expected))

    def quantile(self, level: float) -> float:
        """Seconds that a share `level` of batches stays within; 0 at 0, infinite at 1."""
        if not 0.0 <= level <= 1.0:
            raise ProfileError(f"level must be within 0 and 1, got {level}")
        if level == 0.0:
            return 0.0
        if level == 1.0:
            return math.inf
        h = position(level)
        if h <= 0.0:
            return self.expected * math.exp(self.lower * h)
        if h <= 1.0:
            return self.expected * math.exp(self._middle * h)
        return self.p99 * math.exp(min(self.tail * (h - 1.0), -_NEVER))

    def on_time(self, budget: float) -> float:
        """P(time ≤ `budget` seconds): the inverse of `quantile`."""
        if budget <= 0.0:
            return 0.0
        if budget == math.inf:
            return 1.0
        distance = math.log(budget / self.expected)
        if distance <= 0.0:
            h = distance / self.lower
        elif distance <= self._middle:
            h = distance / self._middle
        else:
            h = 1.0 + (distance - self._middle) / self.tail
        odds = h * _LN_99
        return 1.0 / (1.0 + math.exp(-odds)) if odds > _NEVER else 0.0


@dataclass(frozen=True)
class MixedTime:
    """The time of a batch that is of one of several kinds, in seconds. Its p99 is cached, since
    every arriving request needs it."""

    parts: tuple[TimeDistribution, ...]
    """Times of each kind of batch; at least one."""
    weights: tuple[float, ...]
    """Frequency of each kind, in any unit; above 0."""

    @cached_property
    def expected(self) -> float:
        """Weighted mean of the kinds' expected times."""
        times = zip(self.weights, self.parts, strict=True)
        return sum(weight * part.expected for weight, part in times) / sum(self.weights, 0.0)

    @cached_property
    def p99(self) -> float:
        return max(self.quantile(0.99), self.expected)

    def quantile(self, level: float) -> float:
        """Seconds within which a share `level` of batches ends, found by bisection."""
        times = [part.quantile(level) for part in self.parts]
        return inverse(self.on_time, level, min(times), max(times))

    def on_time(self, budget: float) -> float:
        """P(time ≤ `budget`)."""
        chances = zip(self.weights, self.parts, strict=True)
        chance = sum(weight * part.on_time(budget) for weight, part in chances)
        return chance / sum(self.weights, 0.0)
