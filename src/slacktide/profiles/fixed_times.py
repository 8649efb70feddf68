"""`FixedTimes`: constant batch times that follow from run classes.

The time of a batch is c0 + c1 · k · (longest member); the distribution of the longest member is the
product of its members' CDFs. Unknown members are drawn from all arrivals. The simulator uses it
directly; `ClassedTimes` makes a new one for each revision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slacktide.domain import Request
from slacktide.profiles.batch_times import BatchTimes
from slacktide.profiles.distribution import (
    FLOOR,
    Floats,
    expected_max,
    quantile,
    share_within,
    weighted_sum,
)
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.run_classes import RunClasses

_MOST_KEPT = 4096
"""Limit on cached forecasts; queues ask for the same few mixtures again and again."""


class LongestMemberTime:
    """The time of a batch whose longest member has the CDF `cdf`, in seconds."""

    __slots__ = ("_cdf", "_fixed", "_per_length", "_spread", "_step", "expected", "p01", "p99")

    def __init__(self, classes: RunClasses, cdf: Floats, rows: int) -> None:
        latency = classes.latency
        self._cdf = cdf
        self._step = classes.step
        self._fixed = latency.c0
        self._per_length = latency.c1 * latency.paid(rows)
        self.expected = self._fixed + self._per_length * expected_max(cdf, classes.step)
        """Mean."""
        self.p99 = max(self.quantile(0.99), self.expected)
        self.p01 = self.quantile(0.01)
        self._spread: float | None = None

    @property
    def spread(self) -> float:
        """Half the log distance from the 16th to the 84th percentile, at least 1 %."""
        if self._spread is None:
            ratio = self.quantile(0.84) / max(self.quantile(0.16), 1e-12)
            self._spread = max(0.5 * math.log(ratio), 0.01)
        return self._spread

    def quantile(self, level: float) -> float:
        """Time that a share `level` (0 to 1) of such batches stays within."""
        return self._fixed + self._per_length * quantile(self._cdf, level, self._step)

    def on_time(self, budget: float) -> float:
        """P(time ≤ `budget`)."""
        if budget == math.inf:
            return 1.0
        return share_within(self._cdf, (budget - self._fixed) / self._per_length, self._step)


class FixedTimes(BatchTimes):
    """Times from one `RunClasses`, the same for any number of cores. `expected` is the mean. Raises
    ProfileError for rows below 1 and levels outside 0 to 1."""

    def __init__(self, classes: RunClasses) -> None:
        self._classes = classes
        self._mix: Floats = weighted_sum(np.asarray(classes.shares), classes.cdfs)
        self._mix_log: Floats = np.log(np.maximum(self._mix, FLOOR))
        self._forecasts: dict[tuple[int, ...], LongestMemberTime] = {}
        """By rows and, for named members, number of members per class."""

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> LongestMemberTime:
        """The time of a batch with these members; without any, of `rows` requests of one row, drawn
        from all arrivals."""
        classes = self._classes
        counts = classes.counts(members) if members else ()
        time = self._forecasts.get((rows, *counts))
        if time is None:
            if rows < 1:
                raise ProfileError(f"rows must be at least 1, got {rows}")
            logs = (
                weighted_sum(np.asarray(counts, dtype=np.float64), classes.logs)
                if members
                else None
            )
            cdf: Floats = np.exp(rows * self._mix_log if logs is None else logs)
            time = LongestMemberTime(classes, cdf, rows)
            if len(self._forecasts) >= _MOST_KEPT:
                self._forecasts.clear()
            self._forecasts[(rows, *counts)] = time
        return time

    def classes(self, cores: int) -> RunClasses:
        """The classes that it was made from."""
        return self._classes
