"""Tables for `slack` about batches whose members differ in class (profiles/run_classes.py).

All are computed from one snapshot of the classes:

- *start points*: `need[m][k][v]`, the time within which a batch of k rows of class m finishes with
  probability (v + ½) / levels; it follows from P(all k lengths ≤ x) = F_m(x)^k;
- *leads*: the time within which a request alone finishes with probability `drop`; a request with
  less time left is dropped;
- *compositions*: P(longest ≤ x) of a batch with n_g members of class g is the product of F_g(x)^n_g
  (Orloj's Eq. 8 as a product of CDFs). Only a few compositions occur, so each is computed when
  first needed.

For admission, the tables also give the work ahead of a request. The policy prefers short requests:
a request of class g waits only for requests of class ≤ g, whatever the deadlines of longer
requests. Each counts with its least lane time, i.e. its share of c0 in the fullest batch plus the
time of its own length: in any batch of k, c0 + c1 · k · max(l) is at least the sum of c0 / k + c1 ·
l over the members.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from math import inf

import numpy as np
from numpy.typing import NDArray

from slacktide.profiles import BatchLatency, RunClasses
from slacktide.profiles.distribution import POINTS, expected_max, weighted_sum
from slacktide.scheduling.options import SlackOptions
from slacktide.scheduling.queue import DeadlineQueue
from slacktide.scheduling.tables import Lazy, RowTimes, TimeByRows, size_grid

P99 = 0.99

PART_FILLED = 2.3
"""A batch with empty places, for which it pays like for rows, is tried only if the fixed part of
its time is at least this many times the p90 time of its longest row (decision 0005)."""

P90 = 0.9

PAYS = 0.01
"""Minimum share of the time per row that a larger batch of one class must save to be tried
(decision 0005): such a batch blocks the lane for longer, and its longest member delays all
others."""

WIDTH = POINTS + 1
"""Columns of `Compositions.cdf`: the grid points, and the last one again for interpolation."""

MOST_COMPOSITIONS = 4096
"""Limit on compositions kept; 3 MiB. With four classes and sixteen rows there are 4,845 in all."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Compositions:
    """Distribution of the longest member by composition, i.e. number of members per class."""

    def __init__(self, classes: RunClasses, most: int) -> None:
        count = len(classes)
        self._radix = most + 1
        if self._radix**count > 2**63:
            raise ValueError(f"{count} classes are too many for batches of {most} rows")
        self._logs = classes.logs
        self.weights: Ints = np.array([self._radix**g for g in range(count)], dtype=np.int64)
        """Weight by class. The key of a composition is the sum of its members' weights."""
        self._slots: dict[int, int] = {}
        self.cdf: Floats = np.ones((64, WIDTH))
        """P(longest ≤ x_j) by slot, shape (≥ slots, WIDTH)."""
        self.mean_longest: Floats = np.zeros(64)
        """Expected longest length by slot, in grid steps."""
        self.p90_longest: Ints = np.zeros(64, dtype=np.int64)
        """The first grid point with P(longest ≤ x_j) ≥ 0.9, by slot."""

    def slots(self, keys: list[int]) -> list[int]:
        """The slots of the compositions with these keys; missing compositions are computed."""
        try:
            return [self._slots[key] for key in keys]
        except KeyError:
            self._add({key for key in keys if key not in self._slots}, keep=keys)
            return [self._slots[key] for key in keys]

    def _add(self, missing: set[int], *, keep: list[int]) -> None:
        if len(self._slots) + len(missing) > MOST_COMPOSITIONS:
            self._slots.clear()
            missing = set(keep)
        first = len(self._slots)
        end = first + len(missing)
        if end > len(self.mean_longest):
            rows = 2 * end
            self.cdf = np.vstack([self.cdf, np.ones((rows - len(self.cdf), WIDTH))])
            self.mean_longest = np.resize(self.mean_longest, rows)
            self.p90_longest = np.resize(self.p90_longest, rows)
        keys = np.array(sorted(missing), dtype=np.int64)
        members = keys[:, None] // self.weights % self._radix
        cdf = np.exp(weighted_sum(members.astype(np.float64), self._logs))
        self.cdf[first:end, :POINTS] = cdf
        self.cdf[first:end, POINTS] = cdf[:, -1]
        self.mean_longest[first:end] = (1.0 - cdf).sum(axis=1) - 0.5
        self.p90_longest[first:end] = (cdf >= P90).argmax(axis=1)
        self._slots.update(zip(keys.tolist(), range(first, end), strict=True))


class ClassTables:
    """Tables of one snapshot of classes, for batches of at most `limit` rows. Times in seconds."""

    def __init__(self, classes: RunClasses, *, limit: int, options: SlackOptions) -> None:
        latency = classes.latency
        self.classes = classes
        self.limit = limit
        self._options = options
        self.mean_alone = classes.typical()
        """Mean time of a request alone, over all arrivals (A in slack_classes.py)."""
        self.alone = tuple(classes.alone(of) for of in range(len(classes)))
        """Expected time of one row alone, by class."""
        self.worth = tuple(
            (alone / self.mean_alone) ** options.length_exponent for alone in self.alone
        )
        """Value of an answer by class, without its penalty."""
        self.batch_times: tuple[TimeByRows, ...] = tuple(
            Lazy(partial(_seconds, latency, mean)) for mean in classes.means
        )
        """Expected seconds of a batch by rows, if all rows are as long as its class's mean."""
        self.sizes = _sizes(classes, limit)
        """Batch sizes to try, ascending."""
        self.low = tuple(smaller + 1 for smaller in (0, *self.sizes[:-1]))
        """Minimum number of rows to try in a batch of each size."""
        paid = [0, *(latency.paid(rows) for rows in range(1, limit + 1))]
        self.paid: Floats = np.array(paid, dtype=np.float64)
        """Number of rows that a batch pays for, by its own number of rows."""
        self.need = self._need()
        """Start points by class and by size and level, flat. Shape (G, sizes · levels)."""
        levels = self.need.shape[1] // len(self.sizes)
        self.first_level = np.arange(self.need.shape[1]) % levels == 0
        """Whether each column of `need` is the first level of its size."""
        self.size_of_column: Ints = np.repeat(np.array(self.sizes), levels)
        self.low_of_column: Ints = np.repeat(np.array(self.low), levels)
        paying = [self._paying(of) for of in range(len(classes))]
        self.tried: Bools = np.repeat(np.array(paying), levels, axis=1)
        """Whether each column is worth trying, by longest class of the batch. Shape as `need`."""
        self.places: Ints = np.arange(limit)
        """Indices of the places in the largest batch."""
        self.within: Ints = (self.places < self.size_of_column[:, None]).astype(np.int64)
        """By column: 1 for the places of a batch of its size, else 0."""
        self.compositions = Compositions(classes, limit)
        per_step = latency.c1 * classes.step
        self.sparse_until = latency.c0 / (PART_FILLED * per_step) if latency.sizes else math.inf
        """Largest `p90_longest`, in grid steps, of a batch that may have empty places."""
        self.lead: TimeByRows = Lazy(self._lead)
        """A request with less time left than this is dropped; by (rows, class)."""

    def _lead(self, kind: tuple[int, int]) -> float:
        rows, of = kind
        options, classes = self._options, self.classes
        level = P99 if options.guarantee == "p99" else options.drop
        length = _quantile(classes.cdfs[of], level) * classes.step
        return classes.latency.seconds(rows, length)

    def _paying(self, of: int) -> list[bool]:
        """Whether each of `sizes` is worth trying for batches of class `of`. The smallest size is.
        A larger size is if it takes at least the share PAYS less time per row than the next smaller
        size that is worth trying."""
        classes = self.classes
        pays = []
        least = math.inf
        for size in self.sizes:
            longest = expected_max(classes.cdfs[of] ** size, classes.step)
            per_row = classes.latency.seconds(size, longest) / size
            pays.append(per_row <= (1.0 - PAYS) * least)
            if pays[-1]:
                least = per_row
        return pays

    def _need(self) -> Floats:
        classes, options = self.classes, self._options
        cdfs = classes.cdfs
        levels = [(v + 0.5) / options.levels for v in range(options.levels)]
        if options.guarantee == "p99":
            # Means ascend with the class, p99 need not; the guarantee must hold for all members.
            cdfs, levels = np.minimum.accumulate(cdfs, axis=0), [P99]
        needs = [
            [
                classes.latency.seconds(size, classes.step * _first(cdf, level ** (1.0 / size)))
                for size in self.sizes
                for level in levels
            ]
            for cdf in cdfs
        ]
        return np.array(needs)


def _seconds(latency: BatchLatency, longest: float, rows: int) -> float:
    return latency.seconds(rows, longest)


def _sizes(classes: RunClasses, limit: int) -> tuple[int, ...]:
    """The sizes that batches are padded to, and `limit`; without padding, the sizes of
    `size_grid`."""
    padded = classes.latency.sizes
    if not padded:
        return size_grid(limit)
    return tuple(sorted({limit, *(size for size in padded if size <= limit)}))


def _first(cdf: Floats, probability: float) -> int:
    """The first grid point with at least this probability."""
    return min(int(np.searchsorted(cdf, probability)), POINTS - 1)


def _quantile(cdf: Floats, probability: float) -> float:
    """The last point, in grid steps, where the interpolated CDF is at most `probability`."""
    after = min(int(np.searchsorted(cdf, probability, side="right")), POINTS - 1)
    if after == 0:
        return 0.0
    below, above = float(cdf[after - 1]), float(cdf[after])
    return after - 1 + (probability - below) / (above - below) if above > below else float(after)


def class_times(tables: ClassTables, of: int) -> RowTimes:
    """Times for the admission of class `of`. Batches are assumed to be of the longest class."""
    latency, longest = tables.classes.latency, tables.classes.means[-1]
    return RowTimes(
        lambda rows: latency.seconds(rows, longest),
        lambda rows: tables.lead[rows, of],
        tables.limit,
        per_row=least_share(tables, of),
    )


def least_share(tables: ClassTables, of: int) -> float:
    """Least lane time of a row of class `of`, in seconds."""
    latency = tables.classes.latency
    return latency.c0 / tables.limit + latency.c1 * tables.classes.means[of]


class ClassWorkAhead:
    """`AllWorkAhead` for class `of`: requests of its own and shorter classes in `queue`."""

    def __init__(self, of: int, queue: DeadlineQueue, shares: Sequence[float]) -> None:
        """`shares`: `least_share` of each class up to `of`."""
        self.of = of
        self._queue = queue
        self._weights = [share / shares[of] for share in shares]

    def rows_due(self, deadline: float, penalty: float) -> float:
        after = (deadline, inf)
        rows_due = 0.0
        for ((rows, of), cost), part in self._queue.kinds.parts.items():
            if of <= self.of and cost >= penalty:
                rows_due += self._weights[of] * rows * bisect_right(part, after)
        return rows_due
