"""`Surface`: one latency statistic over (batch size, cores), monotone everywhere.

Measurements are noisy, so a batch of 4 may seem faster than a batch of 2. A scheduler that searches
for "the largest batch that fits" needs times that never fall with the batch. As in Jellyfish (which
makes profiles monotone in one pass over input size and batch), every value is raised to the largest
one that bounds it:

    value[b][c] = max over b' ≤ b and c' ≥ c of measured[b'][c']

This is a running maximum along growing batches, then a running maximum along shrinking cores. The
result is the smallest table that is monotone in both directions and nowhere below the measurements:
never optimistic. Isotonic regression would fit closer but may predict less than was measured.

Measured values stay as they are. Between two batch sizes time is linear, between two core counts
linear in 1 / cores, both through the measured values on either side. Beyond them it follows
`AmdahlModel`.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from slacktide.profiles.amdahl import REACH, AmdahlModel, fit_grid
from slacktide.profiles.reading import ProfileError

Grid = tuple[tuple[float, ...], ...]
"""Seconds, shape (n_batches, n_cores)."""


_Side = tuple[int, float, tuple[float, ...]]
"""For a core count beyond the measured ones: (the count at which the model is evaluated instead,
time of the largest batch there ÷ its time at the nearest measured count, times of all batch
sizes)."""


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, … and `max_batch` itself, ascending. Raises ProfileError below 1."""
    if max_batch < 1:
        raise ProfileError(f"max_batch must be at least 1, got {max_batch}")
    powers = (1 << i for i in range(max_batch.bit_length()))
    return (*(size for size in powers if size < max_batch), max_batch)


def monotone(values: Sequence[Sequence[float]]) -> Grid:
    """The smallest grid ≥ `values` that rises with batch and falls with cores (see above)."""
    rows: list[tuple[float, ...]] = []
    row: list[float] = []
    for measured in values:
        row = list(map(max, measured, row)) if row else list(measured)
        for column in range(len(row) - 2, -1, -1):
            row[column] = max(row[column], row[column + 1])
        rows.append(tuple(row))
    return tuple(rows)


class Span(NamedTuple):
    """The place of a number of rows among the batch sizes."""

    low: int
    high: int
    """Indices of the sizes around it; equal at a measured size and beyond either end."""
    weight: float
    """Share of `high`; `low` has the rest."""


def span(batches: Sequence[int], rows: int) -> Span:
    """The place of `rows` among ascending `batches`. Raises ProfileError below 1."""
    if rows < 1:
        raise ProfileError(f"rows must be at least 1, got {rows}")
    high = bisect_left(batches, rows)
    if high == len(batches):
        return Span(high - 1, high - 1, 0.0)
    if high == 0 or batches[high] == rows:
        return Span(high, high, 0.0)
    below, over = batches[high - 1], batches[high]
    return Span(high - 1, high, (rows - below) / (over - below))


def core_share(fewer: int, cores: int, more: int) -> float:
    """Position of `cores` between `fewer` and `more`, linear in 1 / cores; 0 to 1."""
    return (1.0 / fewer - 1.0 / cores) / (1.0 / fewer - 1.0 / more)


def between(start: float, end: float, share: float) -> float:
    """Interpolate linearly; never outside the ends by rounding."""
    value = start * (1.0 - share) + end * share
    return min(max(value, min(start, end)), max(start, end))


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds by (rows, cores): non-decreasing in rows, non-increasing in cores (to rounding).

    Below the smallest batch size, time is constant. Beyond the largest, each further row costs as
    much as between the last two measured sizes, or as in the fitted model if that is more. Beyond
    `REACH` times the largest size, a batch takes as long as several batches of that size, one after
    another.

    On more or fewer cores than measured, by a factor of up to `REACH`, time changes in proportion
    to the model's. With even more cores it is constant, and with even fewer it grows as if cores
    were used perfectly, which no model exceeds. With one measured core count, these last two rules
    apply from that count on.
    """

    batches: tuple[int, ...]
    cores: tuple[int, ...]
    values: Grid
    slopes: tuple[float, ...]
    """Seconds per row beyond the largest batch, by column."""
    floor: Surface | None = None
    """A surface on the same grid that this one never falls below."""
    _fitted: AmdahlModel | None = field(default=None, init=False, repr=False, compare=False)
    _sides: dict[int, _Side] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def over(
        cls,
        batches: tuple[int, ...],
        cores: tuple[int, ...],
        values: Sequence[Sequence[float]],
        *,
        above: Surface | None = None,
    ) -> Surface:
        """Make `values` (n_batches, n_cores) monotone.

        `above`: a surface on the same grid that this one must never cross; `values` must not be
        below its values (a p99 above a p50). With a single batch size the marginal cost is the
        whole cost: rows ÷ size batches, one after the other.
        """
        grid = monotone(values)
        last = grid[-1]
        if len(batches) > 1:
            step = batches[-1] - batches[-2]
            slopes = [(a - b) / step for a, b in zip(last, grid[-2], strict=True)]
        else:
            slopes = [seconds / batches[-1] for seconds in last]
        # If marginal costs rose with the cores, two columns could cross further out.
        for column in range(len(slopes) - 2, -1, -1):
            slopes[column] = max(slopes[column], slopes[column + 1])
        return cls(batches, cores, grid, tuple(slopes), above)

    @property
    def model(self) -> AmdahlModel:
        """The model fitted to the values, on first use."""
        if self._fitted is None:
            model = fit_grid(self.batches, self.cores, self.values).model
            object.__setattr__(self, "_fitted", model)
            return model
        return self._fitted

    def at(self, rows: int, cores: int) -> float:
        """Seconds. Raises ProfileError unless rows and cores are at least 1."""
        if rows < 1 or cores < 1:
            raise ProfileError(f"rows and cores must be at least 1, got {rows} and {cores}")
        counts = self.cores
        column = bisect_left(counts, cores)
        if column < len(counts) and counts[column] == cores:
            return self._measured(rows, column)
        if 0 < column < len(counts):
            share = core_share(counts[column - 1], cores, counts[column])
            return between(self._measured(rows, column - 1), self._measured(rows, column), share)
        return self._outside(rows, cores, 0 if column == 0 else len(counts) - 1)

    def _measured(self, rows: int, column: int) -> float:
        low, high, weight = span(self.batches, rows)
        seconds = between(self.values[low][column], self.values[high][column], weight)
        if rows > self.batches[-1]:
            slope = max(self.slopes[column], self.model.per_row(self.cores[column]))
            seconds = _continued(seconds, slope, self.batches[-1], rows)
            if self.floor is not None:
                seconds = max(seconds, self.floor._measured(rows, column))
        return seconds

    def _outside(self, rows: int, cores: int, edge: int) -> float:
        """Seconds on more or fewer cores than measured; `edge` is the nearest column."""
        model_cores, ratio, column = self._sides.get(cores) or self._side(cores, edge)
        low, high, weight = span(self.batches, rows)
        seconds = between(column[low], column[high], weight)
        if rows > self.batches[-1]:
            slope = max(self.slopes[edge] * ratio, self.model.per_row(model_cores))
            seconds = _continued(seconds, slope, self.batches[-1], rows)
        seconds *= max(1.0, model_cores / cores)
        return seconds if self.floor is None else max(seconds, self.floor.at(rows, cores))

    def _side(self, cores: int, edge: int) -> _Side:
        nearest = self.cores[edge]
        reach = nearest
        if len(self.cores) > 1:
            reach = min(max(cores, math.ceil(nearest / REACH)), math.floor(nearest * REACH))
        ratios = [1.0] * len(self.batches)
        if reach != nearest:
            times = self.model.seconds
            ratios = [times(size, reach) / times(size, nearest) for size in self.batches]
        column = [row[edge] * ratio for row, ratio in zip(self.values, ratios, strict=True)]
        side = self._sides[cores] = (reach, ratios[-1], tuple(itertools.accumulate(column, max)))
        return side


def _continued(seconds: float, slope: float, most: int, rows: int) -> float:
    """Time of `rows` rows, more than the largest batch `most`, which takes `seconds`."""
    reached_rows = min(rows, math.floor(REACH * most))
    seconds += slope * (reached_rows - most)
    return seconds + max(slope, seconds / reached_rows) * (rows - reached_rows)
