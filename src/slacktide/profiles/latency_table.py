"""`LatencyTable`: the p50 and p99 of batch times, by batch size and cores.

A p99 needs many samples: with a hundred, only one is expected to be above it. Below
`ENOUGH_SAMPLES` a point's own p99 would depend on a few runs, so it is *estimated*: its p50 times
the p99/p50 ratio of all points pooled (each sample divided by the median of its point).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slacktide.profiles import reading
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.surface import Grid, Surface, batch_sizes, monotone

ENOUGH_SAMPLES = 200
"""Number of samples from which a point's p99 is measured, not estimated."""
SCHEMA = 1
_KEYS = ("schema", "batches", "cores", "p50_s", "p99_s", "samples", "p99_estimated")


class Peak(NamedTuple):
    """The best throughput of a table, and the batch size that reaches it."""

    rows_per_s: float
    batch: int


@dataclass(frozen=True, slots=True)
class LatencyTable:
    """Immutable; grids have shape (n_batches, n_cores); seconds.

    Both statistics rise with the batch and fall with the cores; `Surface` makes measurements
    monotone, interpolates and extrapolates. The constructor raises ProfileError for grids that are
    not monotone; `from_grid` and `from_samples` make them so.
    """

    batches: tuple[int, ...]
    """Measured batch sizes, ascending."""
    cores: tuple[int, ...]
    """Measured core counts, ascending."""
    p50_s: Grid
    p99_s: Grid
    samples: tuple[tuple[int, ...], ...]
    """Runs behind each point; 0 if it was stated, not measured."""
    _median: Surface = field(init=False, repr=False, compare=False)
    _high: Surface = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, axis in (("batches", self.batches), ("cores", self.cores)):
            if not axis or axis[0] < 1 or any(a >= b for a, b in itertools.pairwise(axis)):
                raise ProfileError(f"{name}: expected ascending whole numbers from 1, got {axis}")
        shape = (len(self.batches), len(self.cores))
        for name, grid in (("p50_s", self.p50_s), ("p99_s", self.p99_s), ("samples", self.samples)):
            if len(grid) != shape[0] or any(len(row) != shape[1] for row in grid):
                raise ProfileError(f"{name}: expected {shape[0]} rows of {shape[1]} values")
        for name, seconds in (("p50_s", self.p50_s), ("p99_s", self.p99_s)):
            if not all(0.0 < value < math.inf for row in seconds for value in row):
                raise ProfileError(f"{name}: expected positive, finite times")
            if monotone(seconds) != seconds:
                raise ProfileError(
                    f"{name}: expected times that rise with the batch and fall with cores"
                )
        pairs = zip(itertools.chain(*self.p50_s), itertools.chain(*self.p99_s), strict=True)
        if any(high < median for median, high in pairs):
            raise ProfileError("p99_s: expected at least p50_s")
        if min(itertools.chain(*self.samples)) < 0:
            raise ProfileError("samples: expected 0 or more")
        median = Surface.over(self.batches, self.cores, self.p50_s)
        object.__setattr__(self, "_median", median)
        high = Surface.over(self.batches, self.cores, self.p99_s, above=median)
        object.__setattr__(self, "_high", high)

    # Constructors

    @classmethod
    def from_grid(
        cls,
        batches: Sequence[int],
        cores: Sequence[int],
        p50: Sequence[Sequence[float]],
        p99: Sequence[Sequence[float]],
        samples: Sequence[Sequence[int]] | None = None,
    ) -> LatencyTable:
        """Make grids (n_batches, n_cores) monotone. Without `samples`, times count as stated."""
        if samples is None:
            samples = [[0] * len(cores) for _ in batches]
        return cls(
            tuple(batches),
            tuple(cores),
            monotone(p50),
            monotone(p99),
            tuple(tuple(row) for row in samples),
        )

    @classmethod
    def from_samples(cls, samples: Mapping[tuple[int, int], npt.ArrayLike]) -> LatencyTable:
        """Make a table from raw run times: {(batch, cores): seconds, shape (n,)}, a full grid of
        points. Points with fewer than `ENOUGH_SAMPLES` get an estimated p99. Raises ProfileError if
        a point is missing or empty, or a time is not positive."""
        batches = sorted({batch for batch, _ in samples})
        cores = sorted({count for _, count in samples})
        times: dict[tuple[int, int], npt.NDArray[np.float64]] = {}
        for batch in batches:
            for count in cores:
                seconds = np.asarray(samples.get((batch, count), ()), dtype=np.float64)
                if not seconds.size:
                    raise ProfileError(f"no samples for batch {batch} on {count} cores")
                if not (np.isfinite(seconds).all() and seconds.min() > 0.0):
                    raise ProfileError(f"batch {batch} on {count} cores: expected positive times")
                times[batch, count] = seconds
        if not times:
            raise ProfileError("no samples")
        medians = {point: float(np.median(seconds)) for point, seconds in times.items()}
        pooled = np.concatenate([times[point] / medians[point] for point in times])
        ratio = max(1.0, float(np.percentile(pooled, 99)))
        high = {
            point: max(medians[point], float(np.percentile(seconds, 99)))
            if seconds.size >= ENOUGH_SAMPLES
            else medians[point] * ratio
            for point, seconds in times.items()
        }
        return cls.from_grid(
            batches,
            cores,
            [[medians[batch, count] for count in cores] for batch in batches],
            [[high[batch, count] for count in cores] for batch in batches],
            [[times[batch, count].size for count in cores] for batch in batches],
        )

    @classmethod
    def linear(
        cls,
        fixed: float,
        per_row: float,
        max_batch: int,
        *,
        cores: Sequence[int] = (1,),
        spread: float = 1.0,
    ) -> LatencyTable:
        """A stated table: p50 = (fixed + per_row · batch) / cores seconds, p99 = spread · p50."""
        sizes = batch_sizes(max_batch)
        p50 = [[(fixed + per_row * size) / count for count in cores] for size in sizes]
        p99 = [[seconds * spread for seconds in row] for row in p50]
        return cls.from_grid(sizes, cores, p50, p99)

    @classmethod
    def flat(cls, seconds: float, max_batch: int) -> LatencyTable:
        """A stated table: every batch up to `max_batch` takes `seconds`, on any cores."""
        return cls.linear(seconds, 0.0, max_batch)

    # Queries

    def expected(self, rows: int, cores: int) -> float:
        """Median seconds of a batch. Raises ProfileError unless rows and cores are ≥ 1."""
        return self._median.at(rows, cores)

    def p99(self, rows: int, cores: int) -> float:
        """99th percentile of the seconds of a batch; never below `expected`."""
        return self._high.at(rows, cores)

    @property
    def estimated(self) -> tuple[tuple[bool, ...], ...]:
        """Whether each p99 is p50 × the pooled ratio (fewer than 200 samples)."""
        return tuple(tuple(count < ENOUGH_SAMPLES for count in row) for row in self.samples)

    @property
    def max_batch(self) -> int:
        """The largest measured batch size."""
        return self.batches[-1]

    def capacity(self, cores: int) -> float:
        """Rows/s of a closed loop with batches of one row on `cores` cores."""
        return 1.0 / self.expected(1, cores)

    def peak(self, cores: int) -> Peak:
        """Rows/s at the best measured batch size; the smallest such size on ties."""
        best = max(self.batches, key=lambda batch: (batch / self.expected(batch, cores), -batch))
        return Peak(best / self.expected(best, cores), best)

    # To and from plain data

    def to_dict(self) -> dict[str, object]:
        """JSON-ready (docs/internals/profile-files.md)."""
        return {
            "schema": SCHEMA,
            "batches": list(self.batches),
            "cores": list(self.cores),
            "p50_s": [list(row) for row in self.p50_s],
            "p99_s": [list(row) for row in self.p99_s],
            "samples": [list(row) for row in self.samples],
            "p99_estimated": [list(row) for row in self.estimated],
        }

    @classmethod
    def from_dict(cls, data: object) -> LatencyTable:
        """Read what `to_dict` wrote. Raises ProfileError, naming the field, for anything else."""
        fields = reading.mapping(data, "table", _KEYS)
        reading.schema(fields["schema"], SCHEMA, "table.schema")
        table = cls(
            reading.whole_numbers(fields["batches"], "batches"),
            reading.whole_numbers(fields["cores"], "cores"),
            reading.rows(fields["p50_s"], "p50_s", reading.number),
            reading.rows(fields["p99_s"], "p99_s", reading.number),
            reading.rows(fields["samples"], "samples", reading.whole_number),
        )
        if fields["p99_estimated"] != [list(row) for row in table.estimated]:
            raise ProfileError(
                f"p99_estimated: expected true for fewer than {ENOUGH_SAMPLES} samples, else false"
            )
        return table
