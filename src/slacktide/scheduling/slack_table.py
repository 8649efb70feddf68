"""`SlackTable`: batch times by rows for `slack`, and `clear_prefix`, a short cut.

Everything is computed on first use: see tables.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, ulp

from slacktide.profiles import BatchTimes, TimeDistribution
from slacktide.scheduling.queue import Entry
from slacktide.scheduling.tables import Lazy, TimeByRows, size_grid

STEPS = 32
"""Intervals of the tabulated distribution; P(on time) is linear in each."""

TAIL = 0.001
"""Probability cut off at either end of the table."""


class BatchTime:
    """The distribution of the time of a batch of a given number of rows, in seconds."""

    __slots__ = ("_cdf", "_on_time", "expected", "high", "low", "needs", "scale")

    def __init__(self, time: TimeDistribution, needs: tuple[float, ...]) -> None:
        self.expected = time.expected
        self.needs = needs
        """Start points, ascending: a candidate skips requests with less time left."""
        self.low = time.quantile(TAIL)
        """Time below which P(on time) counts as 0."""
        self.high = max(self.low, time.quantile(1.0 - TAIL))
        """Time from which P(on time) counts as 1."""
        step = (self.high - self.low) / STEPS
        self.scale = 1.0 / step if step > 0.0 else 0.0
        """Intervals of `cdf` per second; 0 if the time does not vary."""
        self._on_time = time.on_time
        self._cdf: tuple[float, ...] | None = None

    @property
    def cdf(self) -> tuple[float, ...]:
        """P(on time) at `low`, at `high` and evenly in between, STEPS + 1 values; then another 1.
        Made on first use, i.e. when a request may be late."""
        if self._cdf is None:
            step = (self.high - self.low) / STEPS
            inner = [self._on_time(self.low + i * step) for i in range(STEPS)]
            self._cdf = (*inner, 1.0, 1.0)
        return self._cdf


PAYS = 0.02
"""Minimum share of the time per row that a larger batch must save; otherwise it only blocks the
lane for longer (decision 0005)."""

Needs = Callable[[TimeDistribution], tuple[float, ...]]
"""Start points of a batch with this distribution, in seconds."""


@dataclass(frozen=True, slots=True)
class PrefixSizes:
    """The sizes to try for requests of one row each, with their times."""

    sizes: tuple[int, ...]
    """Ascending, not empty."""
    times: tuple[float, ...]
    """Expected seconds of each size."""
    certain: float
    """A request with at least this many seconds left passes every start point and is certainly on
    time, whatever the size of its batch."""


class SlackTable:
    """Batch times by rows, for one number of cores."""

    def __init__(
        self, times: BatchTimes, needs: Needs, cores: int, max_batch: int, pays: float | None = None
    ) -> None:
        """`pays` replaces `PAYS`; then even a batch of all waiting requests must save as much."""
        self._pays = PAYS if pays is None else pays
        self._strict = pays is not None
        self._times = times
        self._needs = needs
        self._cores = cores
        self._rows: dict[int, BatchTime] = {}
        self._prefixes: dict[int, PrefixSizes] = {}
        self.expected: TimeByRows = Lazy(lambda rows: times.of(rows, cores).expected)
        """Median seconds by rows."""
        self.grid = size_grid(max_batch)
        """Every size worth trying."""
        self.best_effort: dict[int, int] = {}
        """Cache of best_effort.py: size of a batch by number of requests available."""
        self._per_row = 0.0
        self._paying = [1]
        """Sizes of the grid; each saves PAYS of the time per row against the size before it."""
        self._untried = iter(self.grid[1:])

    @property
    def per_row(self) -> float:
        """The least time per row at any size of the grid."""
        if not self._per_row:
            self._per_row = min(self.expected[size] / size for size in self.grid)
        return self._per_row

    def prefixes(self, most: int) -> PrefixSizes:
        """The paying sizes below `most`, and `most` itself unless it is larger than all sizes."""
        prefixes = self._prefixes.get(most)
        if prefixes is None:
            sizes = up_to(most, self._paying_until(most))
            if self._strict and len(sizes) > 1 and not self._saves(sizes[-1], sizes[-2]):
                sizes = sizes[:-1]
            expected = tuple([self.expected[size] for size in sizes])
            longest = self[sizes[-1]]  # bounds all others, since times do not decrease with rows
            certain = max(longest.high, longest.needs[-1])
            prefixes = self._prefixes[most] = PrefixSizes(sizes, expected, certain)
        return prefixes

    def _paying_until(self, most: int) -> list[int]:
        """The paying sizes: all, or at least up to the first that is not below `most`."""
        paying = self._paying
        while paying[-1] < most and (size := next(self._untried, None)) is not None:
            if self._saves(size, paying[-1]):
                paying.append(size)
        return paying

    def _saves(self, size: int, smaller: int) -> bool:
        per_row = self.expected[smaller] / smaller
        return self.expected[size] / size <= (1.0 - self._pays) * per_row

    def __getitem__(self, rows: int) -> BatchTime:
        """The time of a batch of `rows` ≥ 1 rows."""
        batch_time = self._rows.get(rows)
        if batch_time is None:
            time = self._times.of(rows, self._cores)
            batch_time = self._rows[rows] = BatchTime(time, self._needs(time))
        return batch_time


def up_to(rows: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The `sizes` up to `rows`, and `rows` itself unless it is larger than all sizes."""
    fitting = tuple(sizes[: bisect_left(sizes, rows)])
    return fitting if len(fitting) == len(sizes) else (*fitting, rows)


ROUNDING = 1e-9
"""Relative difference of two scores that rounding cannot explain; for times, see `_margin`."""


def clear_prefix(
    entries: Sequence[Entry],
    prefixes: PrefixSizes,
    *,
    now: float,
    kappa: float,
    tau: float,
    alone: float,
) -> int | None:
    """Size of the best batch if it consists of the first entries; None if a search is needed.

    If all requests have one row and one penalty, and the first of them would certainly be on time
    in the largest batch, every start point is the head of the queue and P(on time) is 1. The
    candidates are then the first k requests, and with the formula of slack.py, without the common
    penalty,

        score(k) = Σ over i ≤ k of (1 − κ + κ e^((now + T(k) + alone − deadline(i)) / τ)) / T(k)
                 = ((1 − κ) k + κ e^((T(k) − T(m)) / τ) · E(k)) / T(k),
        E(k) = Σ over i ≤ k of e^((now + T(m) + alone − deadline(i)) / τ)

    where T(m) is the time of the largest batch. It takes one exponential per request and one per
    size; the full search takes one per request *and* size, and bisects for start points. Nearly all
    decisions of a server without overload are of this kind, and for a model that takes 25 µs the
    search would take longer than the batch.

    The two formulas round differently, so if the best two scores are too close, this returns None:
    the search decides, and the choice is always that of the search.

    `entries` are sorted, all of one row and one penalty, and at least as many as the largest of
    `prefixes.sizes`. `alone` and `tau` in seconds, as in slack_uniform.py.
    """
    sizes, times = prefixes.sizes, prefixes.times
    longest = times[-1]
    patient = now + longest + alone  # a request due later has spare time whichever batch runs
    first = entries[0][0]
    if first < patient or first < now + prefixes.certain:
        return None
    if len(sizes) == 1:
        return sizes[0]
    sums = list(
        accumulate([exp((patient - entry[0]) / tau) for entry in entries[: sizes[-1]]], initial=0.0)
    )
    base_worth = 1.0 - kappa
    best = second = 0.0
    chosen = sizes[0]
    for size, time in zip(sizes, times, strict=True):
        score = (base_worth * size + kappa * exp((time - longest) / tau) * sums[size]) / time
        if score > best:
            best, second, chosen = score, best, size
        elif score > second:
            second = score
    return chosen if second < best * (1.0 - _margin(patient, tau)) else None


def _margin(at: float, tau: float) -> float:
    """Relative error of a score whose exponents have the error of a few sums of times near `at`. On
    a clock that has run for days a time is exact to 1e-10 s, which matters next to the `tau` of a
    model that takes 25 µs."""
    return ROUNDING + 16.0 * ulp(at) / tau
