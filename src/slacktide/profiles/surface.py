"""`Surface`: one latency statistic over (batch size, cores), monotone everywhere.

Measurements are noisy, so a batch of 4 may come out faster than a batch of 2. A scheduler that
searches for "the largest batch that fits" needs that never to happen. As in Jellyfish (its
profiles are made monotone in one pass over input size and batch), every value is raised to the
largest that it must not be below:

    value[b][c] = max over b' ≤ b and c' ≥ c of measured[b'][c']

That is a running maximum along growing batches followed by one along shrinking cores. The result
is the smallest table that is monotone in both directions and nowhere below what was measured:
never optimistic. Isotonic regression would fit closer but may predict less than was seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slacktide.profiles.errors import ProfileError

Grid = tuple[tuple[float, ...], ...]
"""Seconds, shape (n_batches, n_cores)."""


def batch_sizes(max_batch: int) -> tuple[int, ...]:
    """1, 2, 4, … and `max_batch` itself, ascending. Raises ProfileError below 1."""
    if max_batch < 1:
        raise ProfileError(f"max_batch must be at least 1, got {max_batch}")
    sizes = [1]
    while sizes[-1] * 2 <= max_batch:
        sizes.append(sizes[-1] * 2)
    if sizes[-1] != max_batch:
        sizes.append(max_batch)
    return tuple(sizes)


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


class Place(NamedTuple):
    """Where (rows, cores) lies on the grid: between two batch sizes, in one column of cores."""

    low: int
    high: int
    """Indices of the batch sizes around `rows`; equal at a measured size and off either end."""
    weight: float
    """Share of `high`; `low` has the rest."""
    column: int


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds by (rows, cores): non-decreasing in rows, non-increasing in cores (to rounding).

    Between measured batch sizes it is linear; below the smallest it is the smallest's; beyond the
    largest it goes on with the last marginal cost. Between measured core counts the next lower
    one counts. Below the lowest, time grows as if cores were used perfectly, which no model does:
    pessimistic again.
    """

    batches: tuple[int, ...]
    cores: tuple[int, ...]
    values: Grid
    slopes: tuple[float, ...]
    """Seconds for each row beyond the largest batch, by column."""

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

        `above` is a surface on the same grid that this one must never cross; `values` must not
        be below its values (a p99 above a p50). With a single batch size the marginal cost is
        taken to be the whole cost: rows ÷ size batches, one after the other.
        """
        grid = monotone(values)
        last = grid[-1]
        if len(batches) > 1:
            step = batches[-1] - batches[-2]
            slopes = [(a - b) / step for a, b in zip(last, grid[-2], strict=True)]
        else:
            slopes = [seconds / batches[-1] for seconds in last]
        if above is not None:
            slopes = [max(pair) for pair in zip(slopes, above.slopes, strict=True)]
        # A marginal cost that rose with the cores would let two columns cross further out.
        for column in range(len(slopes) - 2, -1, -1):
            slopes[column] = max(slopes[column], slopes[column + 1])
        return cls(batches, cores, grid, tuple(slopes))

    def place(self, rows: int, cores: int) -> Place:
        """Raises ProfileError unless rows and cores are at least 1."""
        if rows < 1 or cores < 1:
            raise ProfileError(f"rows and cores must be at least 1, got {rows} and {cores}")
        column = max(bisect_right(self.cores, cores) - 1, 0)
        high = bisect_left(self.batches, rows)
        if high == len(self.batches):
            return Place(high - 1, high - 1, 0.0, column)
        if high == 0 or self.batches[high] == rows:
            return Place(high, high, 0.0, column)
        below, over = self.batches[high - 1], self.batches[high]
        return Place(high - 1, high, (rows - below) / (over - below), column)

    def at(self, rows: int, cores: int) -> float:
        """Seconds. Raises ProfileError unless rows and cores are at least 1."""
        low, high, weight, column = self.place(rows, cores)
        seconds = self.values[low][column]
        if low != high:
            upper = self.values[high][column]
            between = seconds * (1.0 - weight) + upper * weight
            seconds = min(max(between, seconds), upper)
        beyond = rows - self.batches[-1]
        if beyond > 0:
            seconds += self.slopes[column] * beyond
        if cores < self.cores[0]:
            seconds *= self.cores[0] / cores
        return seconds
