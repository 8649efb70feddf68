"""`PoolTimes`: a pool's predicted batch times as plain tuples, rebuilt when they change.

A prediction costs a microsecond or more and a policy asks for dozens per decision; a tuple indexed
by rows answers in nanoseconds. `BatchTimes.revision` says when the tuples are stale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from slacktide.engine.ports import BatchTimes


@dataclass(frozen=True, slots=True)
class RowTimes:
    """Times of a batch by its rows, for one number of cores. Index 0 is 0; seconds."""

    expected: tuple[float, ...]
    """Median time; non-decreasing."""
    lead: tuple[float, ...]
    """Time that a request of so many rows must have left, or it is given up; non-decreasing."""
    per_row: float
    """The least that a row costs at any batch size: min over k of expected(k) / k."""


Table = TypeVar("Table")


class Cached(Generic[Table]):
    """One table per key, built on demand and thrown away when the predictions change."""

    __slots__ = ("_build", "_revision", "_tables", "_times")

    def __init__(self, times: BatchTimes, build: Callable[[int], Table]) -> None:
        self._times = times
        self._build = build
        self._revision = times.revision
        self._tables: dict[int, Table] = {}

    def __call__(self, key: int) -> Table:
        """The table of `key` under the present predictions."""
        revision = self._times.revision
        if revision != self._revision:
            self._tables.clear()
            self._revision = revision
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._build(key)
        return table


Lead = Callable[[BatchTimes, int, int], float]
"""(times, rows, cores) -> seconds that a request of so many rows must have left."""


def row_times(times: BatchTimes, max_batch: int, lead: Lead) -> Cached[RowTimes]:
    """Row times by number of cores, up to `max_batch` rows."""

    def build(cores: int) -> RowTimes:
        expected = [times.expected(rows, cores) for rows in range(1, max_batch + 1)]
        return RowTimes(
            expected=(0.0, *expected),
            lead=(0.0, *(lead(times, rows, cores) for rows in range(1, max_batch + 1))),
            per_row=min(time / rows for rows, time in enumerate(expected, start=1)),
        )

    return Cached(times, build)
