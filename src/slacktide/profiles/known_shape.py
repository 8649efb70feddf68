"""`KnownShape`: work and times of one input shape. `WorkScale`: a profile, applied to rows with
another work.

The *work* L of a row is its cost, in rows as profiled. With c0 and c1 as fitted to the profile

    l(b, c) = profiled(b, c) · (c0 · √L + c1 · b · L) / (c0 + c1 · b)

How much of c0, the fixed time of a batch, grows with the size of rows? Nothing, if c0 is spent on
calls; all of c0, if it is due to cores that few rows cannot keep busy. A single batch does not show
which, so the formula takes √L, which lies in between. Running batches correct the remaining error.
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
"""Number of batches whose lower median determines the work of a shape. The first batch is often
slow, and only further batches show that."""
LAW_SPREAD = 1.3
"""Factor by which the law over sizes may be off either way."""
SLOW_START = 30.0
"""With a probability of 1 %, a shape is faster than its first run by more than this factor. Without
this doubt, requests of a shape could be refused for ever after one slow run."""
MOST_BATCHES = 30
"""Batches after which the certainty of a shape no longer grows."""
_LEAST_WORK, _MOST_WORK = 1e-6, 1e9
_KEYS = ("signature", "asked", "batches", "first", "work", "seen", "correction")


class WorkScale:
    """The table of a profile, scaled to rows with another work."""

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
        """Work of a row if `rows` of them took `seconds`: the inverse of `table_of`."""
        latency = self.latency(cores)
        c0, c1 = latency.c0, latency.c1 * rows
        took = seconds / self.table.expected(rows, cores) * (c0 + c1)
        return _within_reason(((math.sqrt(c0 * c0 + 4.0 * c1 * took) - c0) / (2.0 * c1)) ** 2)

    def works_of(self, sizes: Iterable[SizeTime]) -> dict[tuple[float, Signature], float]:
        """Work of a row by (size, signature): the geometric mean over the timed batches."""
        logs: dict[tuple[float, Signature], list[float]] = {}
        for timed in sizes:
            work = self.work_of(timed.seconds, timed.rows, timed.cores)
            logs.setdefault((timed.size, timed.signature), []).append(math.log(work))
        return {row: math.exp(sum(group) / len(group)) for row, group in logs.items()}

    def seconds(self, work: float, rows: int, cores: int) -> float:
        """Expected time of a batch of rows of this work."""
        return self.table.expected(rows, cores) * self._ratio(work, rows, cores)

    def table_of(self, work: float, wider: float = 1.0) -> LatencyTable:
        """The table for rows of this work, with its p99 multiplied by `wider`."""
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
    """The learnt work and times of one shape."""

    __slots__ = ("_scale", "batches", "first", "requests", "size", "speed", "times", "work")

    def __init__(self, scale: WorkScale, size: float, work: float = 1.0) -> None:
        self._scale = scale
        self.size = size
        """Elements of a row, relative to a row as profiled."""
        self.work = work
        """The work that `times` was made with, at the machine's speed when it was profiled."""
        self.times = CorrectedTimes(scale.table_of(work))
        self.speed = 0.0
        """The machine's speed (log) that `times` contains."""
        self.requests = 0.0
        """Number of recent requests; older ones count less."""
        self.batches = 0
        """Batches that have corrected `times`, up to `MOST_BATCHES`."""
        self.first: list[float] = []
        """Its work according to each of its first runs; empty once its work is settled."""

    @property
    def runs(self) -> int:
        """The certainty of its work, as a number of runs."""
        return len(self.first) or FIRST_RUNS + self.batches

    @property
    def work_now(self) -> float:
        """Its corrected work, at the machine's speed when it was profiled."""
        if self.first:
            return self.work
        cores = self._scale.table.cores[0]
        seconds = self.times.of(1, cores).expected * math.exp(-self.speed)
        return self._scale.work_of(seconds, 1, cores)

    def follow(self, speed: float) -> None:
        """Adapt `times` to the machine's speed."""
        self.times.shift(speed - self.speed)
        self.speed = speed

    def first_run(self, work: float, speed: float, law: float | None) -> None:
        """Record the work of one of its first runs. `law`: the work by the law; None: no law."""
        self.first.append(work)
        estimates = sorted(self.first if law is None else [*self.first, law])
        self.work = _within_reason(estimates[(len(estimates) - 1) // 2])
        if len(self.first) >= FIRST_RUNS:
            self.first = []
        self._make(speed)

    def restart(self, work: float, speed: float) -> None:
        """Restart as if it had run twice with this work."""
        self.first, self.batches = [work], 0
        self.first_run(work, speed, None)

    def _make(self, speed: float) -> None:
        runs = len(self.first)
        table = self._scale.table_of(self.work, LAW_SPREAD ** (1.0 / runs) if runs else 1.0)
        self.times = CorrectedTimes(table, lower=math.log(SLOW_START) / runs if runs else None)
        self.speed = 0.0
        self.follow(speed)

    def to_dict(self, signature: Signature) -> dict[str, object]:
        """JSON-ready (docs/internals/profile-files.md)."""
        shapes = [list(shape) for shape in signature]
        correction = self.times.export()
        values = (
            shapes,
            self.requests,
            self.batches,
            self.first,
            self.work,
            self.speed,
            correction,
        )
        return dict(zip(_KEYS, values, strict=True))

    @classmethod
    def from_dict(
        cls, scale: WorkScale, size: float, fields: dict[str, object], name: str
    ) -> KnownShape:
        """Read what `to_dict` wrote. Raises ProfileError, naming the field, for anything else."""
        requests, work, speed = (
            reading.number(fields[key], f"{name}.{key}") for key in ("asked", "work", "seen")
        )
        batches = reading.whole_number(fields["batches"], f"{name}.batches")
        first = reading.items(fields["first"], f"{name}.first", reading.number)
        works = f"{_LEAST_WORK:g} to {_MOST_WORK:g}"
        for key, valid, expected in (
            ("asked", requests >= 0.0, "a number of at least 0"),
            ("work", _within_reason(work) == work, f"a number from {works}"),
            ("seen", abs(speed) <= BOUND, f"a number from {-BOUND:.3g} to {BOUND:.3g}"),
            ("batches", 0 <= batches <= MOST_BATCHES, f"0 to {MOST_BATCHES}"),
            (
                "first",
                len(first) < FIRST_RUNS and all(_within_reason(x) == x for x in first),
                f"fewer than {FIRST_RUNS} numbers from {works}",
            ),
        ):
            if not valid:
                raise ProfileError(f"{name}.{key}: expected {expected}, got {fields[key]!r:.100}")
        shape = cls(scale, size)
        shape.work, shape.first = work, list(first)
        shape._make(0.0)
        shape.times.load(fields["correction"])
        shape.requests, shape.batches, shape.speed = requests, batches, speed
        return shape


def read_shape(value: object, name: str) -> tuple[Signature, dict[str, object]]:
    """The signature of a `KnownShape.to_dict`, and its fields."""
    fields = reading.mapping(value, name, _KEYS)
    return read_signature(fields["signature"], f"{name}.signature"), dict(fields)
