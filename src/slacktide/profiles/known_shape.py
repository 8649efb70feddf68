"""`KnownShape`: what is known of one input shape; `WorkScale`: a profile for rows of other work.

The *work* L of a row is what it costs, in rows as profiled. With c0 and c1 as fitted to the profile

    l(b, c) = profiled(b, c) · (c0 · √L + c1 · b · L) / (c0 + c1 · b)

How much of c0, what every batch takes whatever its rows, goes with their size? Between nothing (it
is spent on calls) and all (few rows use cores badly); the root is between the two, and single
batches do not tell. What it leaves is corrected by the batches that run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from slacktide.domain import Signature
from slacktide.profiles import reading
from slacktide.profiles.corrected_times import CorrectedTimes
from slacktide.profiles.correction import BOUND
from slacktide.profiles.latency_fit import SizeTime, fit_latency
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.reading import ProfileError
from slacktide.profiles.record import read_signature
from slacktide.profiles.run_classes import BatchLatency
from slacktide.profiles.surface import Grid

FIRST_RUNS = 7
"""Batches that set the work of a shape. They count by their lower median: the first is often slow,
and nothing but other batches says what is too long."""
LAW_SPREAD = 1.3
"""The law over sizes may be off by this factor either way."""
SLOW_START = 30.0
"""After its first run a shape is taken to be as much faster, one time in a hundred: else requests
could be refused for ever because of one slow run."""
MOST_BATCHES = 30
"""Batches after which a shape is as sure as it gets."""
_LEAST_WORK, _MOST_WORK = 1e-6, 1e9
_KEYS = ("signature", "asked", "batches", "first", "work", "seen", "correction")


class WorkScale:
    """Rows of other work, by the table of those that were profiled."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        self._latencies: dict[int, BatchLatency] = {}

    def latency(self, cores: int) -> BatchLatency:
        """c0 and c1 of rows as profiled."""
        latency = self._latencies.get(cores)
        if latency is None:
            latency = self._latencies[cores] = fit_latency(self.table, cores).latency
        return latency

    def work_of(self, seconds: float, rows: int, cores: int) -> float:
        """Work of a row of which `rows` took `seconds`: the inverse of `table_of`."""
        latency = self.latency(cores)
        c0, c1 = latency.c0, latency.c1 * rows
        took = seconds / self.table.expected(rows, cores) * (c0 + c1)
        return _within_reason(((math.sqrt(c0 * c0 + 4.0 * c1 * took) - c0) / (2.0 * c1)) ** 2)

    def works_of(self, sizes: Iterable[SizeTime]) -> dict[tuple[float, Signature], float]:
        """Work of a row by (size, signature): the mean logarithm over the batches timed."""
        logs: dict[tuple[float, Signature], list[float]] = {}
        for timed in sizes:
            work = self.work_of(timed.seconds, timed.rows, timed.cores)
            logs.setdefault((timed.size, timed.signature), []).append(math.log(work))
        return {row: math.exp(sum(group) / len(group)) for row, group in logs.items()}

    def seconds(self, work: float, rows: int, cores: int) -> float:
        """Expected time of a batch of rows of this work."""
        return self.table.expected(rows, cores) * self._ratio(work, rows, cores)

    def table_of(self, work: float, wider: float = 1.0) -> LatencyTable:
        """The table for rows of this work, its p99 `wider` than that."""
        table = self.table
        if work == wider == 1.0:
            return table

        def scaled(grid: Grid, factor: float) -> list[list[float]]:
            return [
                [
                    seconds * factor * self._ratio(work, rows, cores)
                    for cores, seconds in zip(table.cores, row, strict=True)
                ]
                for rows, row in zip(table.batches, grid, strict=True)
            ]

        grids = scaled(table.p50_s, 1.0), scaled(table.p99_s, wider)
        return LatencyTable.from_grid(table.batches, table.cores, *grids, table.samples)

    def _ratio(self, work: float, rows: int, cores: int) -> float:
        latency = self.latency(cores)
        c0, c1 = latency.c0, latency.c1 * rows
        return (c0 * math.sqrt(work) + c1 * work) / (c0 + c1)


def _within_reason(work: float) -> float:
    return min(max(work, _LEAST_WORK), _MOST_WORK)


class KnownShape:
    """Work and times of one shape."""

    __slots__ = ("_scale", "asked", "batches", "first", "seen", "size", "times", "work")

    def __init__(self, scale: WorkScale, size: float, work: float = 1.0) -> None:
        self._scale = scale
        self.size = size
        """Elements of a row, relative to one as profiled."""
        self.work = work
        """What `times` was made with, on the machine as it was when it was profiled."""
        self.times = CorrectedTimes(scale.table_of(work))
        self.seen = 0.0
        """The machine's speed (log) as it is contained in `times`."""
        self.asked = 0.0
        """Requests lately."""
        self.batches = 0
        """That have corrected `times`, up to `MOST_BATCHES`."""
        self.first: list[float] = []
        """Work by each of its first runs; none once it is settled."""

    @property
    def runs(self) -> int:
        """How sure it is, in runs."""
        return len(self.first) or FIRST_RUNS + self.batches

    @property
    def work_now(self) -> float:
        """Its work as corrected, on the machine as it was when it was profiled."""
        if self.first:
            return self.work
        cores = self._scale.table.cores[0]
        seconds = self.times.of(1, cores).expected * math.exp(-self.seen)
        return self._scale.work_of(seconds, 1, cores)

    def follow(self, speed: float) -> None:
        """Take the machine's speed to be this."""
        self.times.shift(speed - self.seen)
        self.seen = speed

    def first_run(self, work: float, speed: float, law: float | None) -> None:
        """One of the first runs shows this work; `law` is what sizes near it would have it be."""
        self.first.append(work)
        said = sorted(self.first if law is None else [*self.first, law])
        self.work = _within_reason(said[(len(said) - 1) // 2])
        if len(self.first) >= FIRST_RUNS:
            self.first = []
        self._make(speed)

    def restart(self, work: float, speed: float) -> None:
        """Take it to have run twice, and to have shown this work."""
        self.first, self.batches = [work], 0
        self.first_run(work, speed, None)

    def _make(self, speed: float) -> None:
        runs = len(self.first)
        table = self._scale.table_of(self.work, LAW_SPREAD ** (1.0 / runs) if runs else 1.0)
        self.times = CorrectedTimes(table, lower=math.log(SLOW_START) / runs if runs else None)
        self.seen = 0.0
        self.follow(speed)

    def to_dict(self, signature: Signature) -> dict[str, object]:
        """JSON-ready (docs/internals/profile-files.md)."""
        shapes = [list(shape) for shape in signature]
        correction = self.times.export()
        values = (shapes, self.asked, self.batches, self.first, self.work, self.seen, correction)
        return dict(zip(_KEYS, values, strict=True))

    @classmethod
    def from_dict(
        cls, scale: WorkScale, size: float, fields: dict[str, object], name: str
    ) -> KnownShape:
        """Raises ProfileError, naming the field, for anything `to_dict` would not have made."""
        requests, work, speed_seen = (
            reading.number(fields[key], f"{name}.{key}") for key in ("asked", "work", "seen")
        )
        batches = reading.whole_number(fields["batches"], f"{name}.batches")
        first = reading.items(fields["first"], f"{name}.first", reading.number)
        for key, fine in (
            ("asked", requests >= 0.0),
            ("work", _within_reason(work) == work),
            ("seen", abs(speed_seen) <= BOUND),
            ("batches", 0 <= batches <= MOST_BATCHES),
            ("first", len(first) < FIRST_RUNS and all(_within_reason(x) == x for x in first)),
        ):
            if not fine:
                raise ProfileError(f"{name}.{key}: out of range")
        shape = cls(scale, size)
        shape.work, shape.first = work, list(first)
        shape._make(0.0)
        shape.times.load(fields["correction"])
        shape.asked, shape.batches, shape.seen = requests, batches, speed_seen
        return shape


def read_shape(value: object, name: str) -> tuple[Signature, dict[str, object]]:
    """The signature of what `KnownShape.to_dict` made, and its fields."""
    fields = reading.mapping(value, name, _KEYS)
    return read_signature(fields["signature"], f"{name}.signature"), dict(fields)
