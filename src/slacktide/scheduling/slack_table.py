"""What `slack` must know of a batch time, by rows: where a batch may start and P(on time)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slacktide.engine.ports import BatchTimes
from slacktide.scheduling.tables import Cached

STEPS = 32
"""Intervals of the tabulated distribution; P(on time) is linear within each."""

TAIL = 0.001
"""Probability left out at either end of the table."""


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The time of a batch of so many rows, in seconds."""

    expected: float
    needs: tuple[float, ...]
    """Start points: a candidate passes over members with less time left than this; ascending."""
    low: float
    """Below it, P(on time) is taken as 0."""
    high: float
    """From it on, P(on time) is taken as 1."""
    scale: float
    """Intervals of `cdf` per second; 0 if the time does not vary."""
    cdf: tuple[float, ...]
    """P(on time) at `low`, at `high` and evenly in between, STEPS + 1 values; then one more 1."""


PAYS = 0.02
"""A larger batch that saves less per row than this only blocks the lane for longer (0005)."""

Needs = Callable[[BatchTimes, int, int], tuple[float, ...]]
"""(times, rows, cores) -> start points of a batch of so many rows, in seconds."""


def size_grid(max_batch: int) -> tuple[int, ...]:
    """Batch sizes worth trying: 1, 2, 3, 4, 6, 8, 12, … and `max_batch`, ascending."""
    powers = [1 << i for i in range(max_batch.bit_length())]
    halves = [power + power // 2 for power in powers[1:]]
    return (*sorted(size for size in powers + halves if size < max_batch), max_batch)


class SlackTable:
    """Batch times by rows for one number of cores, each tabulated when first asked for."""

    __slots__ = ("_cores", "_needs", "_rows", "_times", "grid", "paying")

    def __init__(self, times: BatchTimes, needs: Needs, cores: int, max_batch: int) -> None:
        self._times = times
        self._needs = needs
        self._cores = cores
        self._rows: dict[int, BatchTime] = {}
        self.grid = size_grid(max_batch)
        """Every size worth trying."""
        self.paying = self._paying()
        """Those of them that save PAYS of the time per row against the next smaller one."""

    def _paying(self) -> tuple[int, ...]:
        kept = [1]
        cost = self._times.expected(1, self._cores)
        for size in self.grid[1:]:
            per_row = self._times.expected(size, self._cores) / size
            if per_row <= (1.0 - PAYS) * cost:
                kept.append(size)
                cost = per_row
        return tuple(kept)

    def __getitem__(self, rows: int) -> BatchTime:
        """The time of a batch of `rows` ≥ 1 rows."""
        found = self._rows.get(rows)
        if found is None:
            found = self._rows[rows] = self._tabulate(rows)
        return found

    def _tabulate(self, rows: int) -> BatchTime:
        times, cores = self._times, self._cores
        low = times.quantile(TAIL, rows, cores)
        high = max(low, times.quantile(1.0 - TAIL, rows, cores))
        step = (high - low) / STEPS
        inner = [times.on_time(low + i * step, rows, cores) for i in range(STEPS)]
        return BatchTime(
            expected=times.expected(rows, cores),
            needs=self._needs(times, rows, cores),
            low=low,
            high=high,
            scale=1.0 / step if step > 0.0 else 0.0,
            cdf=(*inner, 1.0, 1.0),
        )


def slack_tables(times: BatchTimes, needs: Needs, max_batch: int) -> Cached[SlackTable]:
    """Tables by number of cores, thrown away when the predictions change."""
    return Cached(times, lambda cores: SlackTable(times, needs, cores, max_batch))
