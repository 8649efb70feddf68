"""Tables of predicted batch times, filled on demand and kept until the predictions change.

Computing a prediction takes microseconds, and a policy needs dozens per decision; a dictionary
answers in tens of nanoseconds. `BatchTimes.revision` shows when tables are stale. They are filled
on demand, since a tiny model often needs one or two batch sizes between two revisions, and its
batches are shorter than the time to fill a table of all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from slacktide.profiles import BatchTimes, Classes

MOST_KEPT = 4096
"""Maximum number of times kept per table; queues need the same few mixtures again and again."""


class TimeByRows(Protocol):
    """Seconds by rows, non-decreasing; 0 at 0."""

    def __getitem__(self, rows: Any, /) -> float: ...


class Lazy(dict[Any, float]):
    """A `TimeByRows` that calls `time` once for each key."""

    __slots__ = ("_time",)

    def __init__(self, time: Callable[[Any], float]) -> None:
        super().__init__({0: 0.0})
        self._time = time

    def __missing__(self, rows: Any) -> float:
        if len(self) > MOST_KEPT:
            self.clear()
        seconds = self[rows] = self._time(rows)
        return seconds


def size_grid(max_batch: int) -> tuple[int, ...]:
    """Batch sizes worth trying: 1, 2, 3, 4, 6, 8, 12, … and `max_batch`, ascending."""
    powers = [1 << i for i in range(max_batch.bit_length())]
    halves = [power + power // 2 for power in powers[1:]]
    return (*sorted(size for size in powers + halves if size < max_batch), max_batch)


class RowTimes:
    """Times of a batch by rows, for one number of cores; seconds."""

    def __init__(
        self,
        expected: Callable[[int], float],
        lead: Callable[[Any], float],
        max_batch: int,
        classes: Classes | None = None,
        per_row: float | None = None,
        soonest: float = 1.0,
    ) -> None:
        self.classes = classes
        """The classes to which keys of `lead` refer; None: its keys are rows alone."""
        self.expected: TimeByRows = Lazy(expected)
        """Median time."""
        self.lead: TimeByRows = Lazy(lead)
        """A request with less time left than this is dropped: by rows, or by (rows, class) if there
        are `classes`."""
        self.soonest = soonest
        """Share of a request's own lane time after which its answer may come; 1: not before the
        end."""
        self._max_batch = max_batch
        self._per_row = per_row

    @property
    def per_row(self) -> float:
        """The least time per row at any batch size: min of expected(k) / k over the grid.

        Profiles are measured at powers of two and `max_batch`, all on the grid, and are linear in
        between, where expected(k) / k has no minimum of its own. So the minimum over the grid is
        the minimum over all sizes. For times that are not piecewise linear, it may be a little
        higher.
        """
        if self._per_row is None:
            self._per_row = min(self.expected[k] / k for k in size_grid(self._max_batch))
        return self._per_row


Table = TypeVar("Table")


class Cached(Generic[Table]):
    """One table per key, built on demand and discarded when the predictions change."""

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
"""(times, rows, cores) -> seconds that a request of this many rows must have left."""

ClassLead = Callable[[Classes, int, tuple[int, ...], int], float]
"""(classes, rows, classes of the members, cores) -> seconds; usually there is one member."""


def row_times(
    times: BatchTimes,
    max_batch: int,
    lead: Lead,
    class_lead: ClassLead | None = None,
    classed: Callable[[Classes | None], None] = lambda classes: None,
) -> Cached[RowTimes]:
    """Row times by number of cores, up to `max_batch` rows. Whenever new row times are made,
    `classed` is called with their classes."""

    def build(cores: int) -> RowTimes:
        def expected(rows: int) -> float:
            return times.of(rows, cores).expected

        classes = times.classes(cores) if class_lead is not None else None
        classed(classes)
        if classes is None or class_lead is None:
            return RowTimes(
                expected, lambda rows: lead(times, rows, cores), max_batch, soonest=times.soonest
            )
        return RowTimes(
            expected, lambda kind: class_lead(classes, kind[0], kind[1:], cores), max_batch, classes
        )

    return Cached(times, build)
