"""What `slack` must know of a batch time, by rows: where a batch may start and P(on time).

All of it is worked out when first asked for: see tables.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slacktide.engine.ports import BatchTimes
from slacktide.profiles import TimeDistribution
from slacktide.scheduling.tables import Cached, Lazy, TimeByRows, size_grid

STEPS = 32
"""Intervals of the tabulated distribution; P(on time) is linear within each."""

TAIL = 0.001
"""Probability left out at either end of the table."""


class BatchTime:
    """The time of a batch of so many rows, in seconds."""

    __slots__ = ("_cdf", "_on_time", "expected", "high", "low", "needs", "scale")

    def __init__(
        self,
        *,
        expected: float,
        needs: tuple[float, ...],
        low: float,
        high: float,
        on_time: Callable[[float], float],
    ) -> None:
        self.expected = expected
        self.needs = needs
        """Start points: a candidate passes over members with less time left; ascending."""
        self.low = low
        """Below it, P(on time) is taken as 0."""
        self.high = high
        """From it on, P(on time) is taken as 1."""
        step = (high - low) / STEPS
        self.scale = 1.0 / step if step > 0.0 else 0.0
        """Intervals of `cdf` per second; 0 if the time does not vary."""
        self._on_time = on_time
        self._cdf: tuple[float, ...] | None = None

    @property
    def cdf(self) -> tuple[float, ...]:
        """P(on time) at `low`, at `high` and evenly in between, STEPS + 1 values; then one more 1.

        Made when first asked for, that is when a request may be late.
        """
        if self._cdf is None:
            step = (self.high - self.low) / STEPS
            inner = [self._on_time(self.low + i * step) for i in range(STEPS)]
            self._cdf = (*inner, 1.0, 1.0)
        return self._cdf


PAYS = 0.02
"""A larger batch that saves less per row than this only blocks the lane for longer (0005)."""

Needs = Callable[[TimeDistribution], tuple[float, ...]]
"""Start points of a batch that takes so long, in seconds."""


@dataclass(frozen=True, slots=True)
class PrefixSizes:
    """The sizes to try where every request has one row, and what they take."""

    sizes: tuple[int, ...]
    """Ascending, not empty."""
    times: tuple[float, ...]
    """Expected seconds of each."""
    certain: float
    """Seconds. A request with this much left is at or behind every start point, and certainly on
    time, in a batch of any of the sizes."""


class SlackTable:
    """Batch times by rows for one number of cores."""

    __slots__ = (
        "_cores",
        "_needs",
        "_paying",
        "_prefixes",
        "_rows",
        "_times",
        "_untried",
        "best_effort",
        "expected",
        "grid",
    )

    def __init__(self, times: BatchTimes, needs: Needs, cores: int, max_batch: int) -> None:
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
        """Kept for best_effort.py: size of a batch by number of requests that it may take."""
        self._paying = [1]
        """Sizes of the grid that save PAYS of the time per row against the one before."""
        self._untried = iter(self.grid[1:])

    def prefixes(self, most: int) -> PrefixSizes:
        """The paying sizes below `most` and `most` itself, unless it is larger than all of them."""
        found = self._prefixes.get(most)
        if found is None:
            sizes = up_to(most, self._paying_until(most))
            found = self._prefixes[most] = PrefixSizes(
                sizes=sizes,
                times=tuple([self.expected[size] for size in sizes]),
                certain=self._certain(sizes[-1]),
            )
        return found

    def _paying_until(self, most: int) -> list[int]:
        """The paying sizes: all of them, or at least up to the first that is not below `most`."""
        paying = self._paying
        while paying[-1] < most and (size := next(self._untried, None)) is not None:
            if self.expected[size] / size <= (1.0 - PAYS) * (
                self.expected[paying[-1]] / paying[-1]
            ):
                paying.append(size)
        return paying

    def _certain(self, rows: int) -> float:
        """See `PrefixSizes`. Times do not fall with rows, so the largest size speaks for all."""
        time = self[rows]
        return max(time.high, time.needs[-1])

    def __getitem__(self, rows: int) -> BatchTime:
        """The time of a batch of `rows` ≥ 1 rows."""
        found = self._rows.get(rows)
        if found is None:
            found = self._rows[rows] = self._batch_time(rows)
        return found

    def _batch_time(self, rows: int) -> BatchTime:
        time = self._times.of(rows, self._cores)
        low = time.quantile(TAIL)
        return BatchTime(
            expected=self.expected[rows],
            needs=self._needs(time),
            low=low,
            high=max(low, time.quantile(1.0 - TAIL)),
            on_time=time.on_time,
        )


def up_to(rows: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The `sizes` up to `rows`, and `rows` itself unless it is larger than all of them."""
    fitting = tuple(sizes[: bisect_left(sizes, rows)])
    return fitting if len(fitting) == len(sizes) else (*fitting, rows)


def slack_tables(times: BatchTimes, needs: Needs, max_batch: int) -> Cached[SlackTable]:
    """Tables by number of cores, thrown away when the predictions change."""
    return Cached(times, lambda cores: SlackTable(times, needs, cores, max_batch))
