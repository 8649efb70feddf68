"""Batch times of a scenario's models: for the simulated hardware, and for policies.

Both are made from the same profile, but separately: what a policy learns does not change the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from slacktide.domain import Request, Signature
from slacktide.lab.simulation.scenario.sections import PaddedLatency, StatedTable
from slacktide.lab.simulation.world.hardware import ByLength, ByProfile, Execution
from slacktide.lab.workloads import Lengths
from slacktide.models.repository import read_bounded
from slacktide.models.repository.profile_store import MAX_PROFILE_BYTES
from slacktide.profiles import (
    BatchLatency,
    BatchTimes,
    ClassedTimes,
    CorrectedTimes,
    FixedTimes,
    LatencyTable,
    ProfileError,
    ProfileRecord,
    ShapedTimes,
    classes_of_samples,
    fit_latency,
)
from slacktide.profiles.run_classes import Key


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """Facts that a policy may know of one model's requests before the run."""

    lengths: Mapping[Key, NDArray[np.float64]]
    """Sampled lengths by (application, hint bin)."""
    shares: Mapping[Key, float]
    """Arrival rate of each (application, hint bin), as a weight."""
    hint_edges: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Mean length over all arrivals."""
        parts = sum(self.shares.values())
        return sum(
            share / parts * float(self.lengths[key].mean()) for key, share in self.shares.items()
        )


@dataclass(frozen=True, slots=True)
class TableProfile:
    """A latency table: distributions of batch times by rows and, if the profile includes several
    shapes, by the shape of the requests."""

    record: ProfileRecord
    shaped: bool = False
    """Whether requests differ in shape."""

    @property
    def largest(self) -> int:
        """Largest batch that the profile covers."""
        return self.record.table.max_batch

    def misses(self, max_batch: int, cores: int) -> str | None:
        """Return why the profile does not cover `max_batch` rows on `cores`; None if it does."""
        return self.record.mismatch(
            cores=[cores], max_batch=max_batch, device=self.record.device, shapes={}
        )

    def times(self, training: Training, cores: int) -> BatchTimes:
        """Return the batch times that policies start with."""
        record = self.record
        if self.shaped:
            return self.by_shape()
        return ClassedTimes(
            record.table, latency=lambda cores: fit_latency(record.table, cores, record.sizes)[0]
        )

    def execution(self, generator: np.random.Generator) -> Execution:
        """Return the true batch times, drawn with `generator`."""
        truth = self.by_shape() if self.shaped else CorrectedTimes(self.record.table)
        return ByProfile(truth, generator)

    def slower(self, factor: float) -> TableProfile:
        """Return the profile of a machine on which batches take `factor` times as long."""
        sizes = tuple(size._replace(seconds=factor * size.seconds) for size in self.record.sizes)
        table = slower(self.record.table, factor)
        return replace(self, record=replace(self.record, table=table, sizes=sizes))

    def by_shape(self) -> ShapedTimes:
        """Return batch times by the shape of the requests."""
        record = self.record
        return ShapedTimes(record.table, tuple(record.shapes.values()), record.sizes)

    def p99_alone(
        self, lengths: Lengths | None, cores: int, signatures: Sequence[Signature] = ()
    ) -> float:
        """Return the p99 (seconds) of a batch of one request; with `signatures`, of the slowest."""
        if not signatures:
            return self.record.table.p99(1, cores)
        times = self.by_shape()
        return max(times.of(1, cores, (_one_of(signature),)).p99 for signature in signatures)

    def signatures(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Signature, ...]:
        """Return one signature for each of `shapes`, which are shapes of a row of the first input.
        Raises ProfileError."""
        if not shapes:
            return ()
        reference = tuple(self.record.shapes.values())
        if not reference:
            raise ProfileError("expected none: a table in the scenario has no shapes")
        times = self.by_shape()
        signatures = []
        for shape in shapes:
            if len(shape) != len(reference[0]):
                raise ProfileError(f"expected axes as in {list(reference[0])}, got {list(shape)}")
            signatures.append((shape, *reference[1:]))
            if not times.measured(_one_of(signatures[-1])):
                raise ProfileError(
                    f"the profile has no times for {list(shape)}: list it under 'shapes' of the "
                    "input in slacktide.yaml, and run slacktide profile"
                )
        return tuple(signatures)


@dataclass(frozen=True, slots=True)
class PaddedProfile:
    """A batch of k takes exactly c0 + c1 · k · (longest length) seconds on any number of cores."""

    latency: BatchLatency
    largest: int
    learned: bool = False
    """Whether policies start from the table and learn from batches that run, as a server does."""
    table: LatencyTable | None = None
    """Measured table; None: the table that a profiler would measure with the mean length."""

    def misses(self, max_batch: int, cores: int) -> str | None:
        if max_batch > self.largest:
            return f"has times up to batch {self.largest}, not {max_batch}"
        return None

    def times(self, training: Training, cores: int) -> BatchTimes:
        if self.learned:
            table = self.table or self._table(training.mean, cores)
            return ClassedTimes(table, latency=lambda cores: self.latency)
        return FixedTimes(
            classes_of_samples(
                training.lengths,
                self.latency,
                shares=training.shares,
                hint_edges=training.hint_edges,
            )
        )

    def _table(self, length: float, cores: int) -> LatencyTable:
        sizes = self.latency.sizes
        seconds = [[self.latency.seconds(size, length)] for size in sizes]
        return LatencyTable.from_grid(sizes, (cores,), seconds, seconds)

    def execution(self, generator: np.random.Generator) -> Execution:
        return ByLength(self.latency)

    def slower(self, factor: float) -> PaddedProfile:
        """Return the profile of a machine on which batches take `factor` times as long."""
        latency = self.latency
        scaled = replace(latency, c0=factor * latency.c0, c1=factor * latency.c1)
        table = None if self.table is None else slower(self.table, factor)
        return replace(self, latency=scaled, table=table)

    def p99_alone(
        self, lengths: Lengths | None, cores: int, signatures: Sequence[Signature] = ()
    ) -> float:
        assert lengths is not None, "a padded model's applications have lengths"
        return self.latency.seconds(1, lengths.quantile(0.99))


def _one_of(signature: Signature) -> Request:
    """Return a one-row request of this signature."""
    return Request(0, "", 0.0, 0.0, signature=signature)


Profile: TypeAlias = TableProfile | PaddedProfile
"""The batch times of one model."""


def slower(table: LatencyTable, factor: float) -> LatencyTable:
    """Return `table` with all times multiplied by `factor`."""
    p50 = [[factor * seconds for seconds in row] for row in table.p50_s]
    p99 = [[factor * seconds for seconds in row] for row in table.p99_s]
    return LatencyTable.from_grid(table.batches, table.cores, p50, p99)


def padded(section: PaddedLatency, *, learned: bool) -> PaddedProfile:
    """Return the padded profile that a scenario states. Raises ProfileError."""
    latency = BatchLatency(section.c0, section.c1, section.sizes)
    return PaddedProfile(latency, section.sizes[-1], learned)


def by_length(
    measured: TableProfile, cores: int, *, profiled_length: float, learned: bool
) -> PaddedProfile:
    """Return a profile for requests of any length, with c0 and c1 fitted to `measured`, which was
    profiled with requests of `profiled_length`."""
    record = measured.record
    fitted = fit_latency(record.table, cores, record.sizes).latency
    latency = BatchLatency(fitted.c0, fitted.c1 / profiled_length)
    return PaddedProfile(latency, measured.largest, learned, record.table)


def stated(section: StatedTable) -> TableProfile:
    """Return the profile of a table in the scenario itself. Raises ProfileError."""
    p99 = section.p50 if section.p99 is None else section.p99
    for name, grid in (("p50", section.p50), ("p99", p99)):
        shape = (len(section.batches), len(section.cores))
        if len(grid) != shape[0] or any(len(row) != shape[1] for row in grid):
            raise ProfileError(f"{name}: expected {shape[0]} rows of {shape[1]} values")
    table = LatencyTable.from_grid(section.batches, section.cores, section.p50, p99)
    return TableProfile(ProfileRecord(table, {}))


@lru_cache(maxsize=32)
def read_profile(path: Path) -> TableProfile:
    """Read a profile from JSON: a record, the output of `slacktide profile --json`, or a profile
    stored beside a model. Raises ProfileError; RepositoryError if unreadable or too large."""
    try:
        document = orjson.loads(read_bounded(path, MAX_PROFILE_BYTES, where=""))
    except orjson.JSONDecodeError:
        raise ProfileError("is not JSON") from None
    if isinstance(document, dict) and isinstance(document.get("profile"), dict):
        document = document["profile"].get("record")
    elif isinstance(document, dict) and document and all(key.isdecimal() for key in document):
        document = document[max(document, key=int)]
        if isinstance(document, dict):
            document.pop("fit", None)  # follows from the table
    return TableProfile(ProfileRecord.from_dict(document))
