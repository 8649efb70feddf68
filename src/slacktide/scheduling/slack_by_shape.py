"""`ShapeChooser`: the decisions of `slack` for a pool whose requests differ in input shape.

All members of a batch have one shape, so the candidate batches of a shape are formed as if all
requests were equal (slack_uniform.py), using the tables of the shape's class. The class determines
a request's worth (by the fairness knob `length_exponent`, as for different lengths), the time it
must have left, and which requests count as work ahead of it at admission (the requests of its own
class and of shorter classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from slacktide.domain import Notice, Request
from slacktide.engine.ports import PoolView
from slacktide.profiles import BatchTimes, ShapeClasses, sorted_alike
from slacktide.scheduling.announcements import as_request
from slacktide.scheduling.class_tables import ClassWorkAhead
from slacktide.scheduling.options import SlackOptions
from slacktide.scheduling.queue import DeadlineQueue, by_class
from slacktide.scheduling.slack_table import SlackTable
from slacktide.scheduling.slack_uniform import UniformChooser
from slacktide.scheduling.tables import Cached, Lazy, Lead, RowTimes, TimeByRows

PAYS_LONGER, MOST_PAYS = 0.03, 0.2
"""A larger batch blocks the lane for others, so it must reduce the time per row by at least the
share PAYS_LONGER × (time of its class ÷ time of the shortest class), at most MOST_PAYS
(docs/decisions/0038)."""


class MakeTable(Protocol):
    """Makes the table of one class."""

    def __call__(self, times: BatchTimes, cores: int, pays: float) -> SlackTable: ...


class ShapeChooser(UniformChooser):
    """Chooses among the requests with a deadline, by class. `refresh` must be called first."""

    def __init__(
        self,
        queue: DeadlineQueue,
        options: SlackOptions,
        make: MakeTable,
        lead: Lead,
        *,
        max_batch: int,
        times: BatchTimes,
        view: PoolView,
    ) -> None:
        self._queue = queue
        self._exponent = options.length_exponent
        self._make = make
        self._lead = lead
        self._max_batch = max_batch
        self._times = times
        self._view = view
        self._version: tuple[int, int] | None = None
        self._classes: ShapeClasses | None = None
        self._tables_by_times: dict[BatchTimes, Cached[SlackTable]] = {}
        self._worth: dict[int, tuple[float, ...]] = {}
        self._before: dict[int, tuple[RowTimes, ClassWorkAhead]] = {}
        self.lead: TimeByRows = Lazy(self._lead_of)
        """Time that a request must have left, by (rows, class)."""

    def refresh(self) -> bool:
        """Update the classes and tables to the current predictions. Returns True: predictions by
        shape always have classes."""
        version = (self._times.revision, self._view.cores)
        if version != self._version:
            self._version = version
            classes = self._times.classes(self._view.cores)
            assert isinstance(classes, ShapeClasses)
            if not sorted_alike(classes, self._classes):
                self._queue.sort_by(by_class(classes.class_of))
            if self._classes is not classes:
                self._classes = classes
                cached = self._tables_by_times
                self._tables_by_times = {t: cached[t] for t in classes.times if t in cached}
            self._worth.clear()
            self._before.clear()
            self.lead = Lazy(self._lead_of)
        return True

    @property
    def classes(self) -> ShapeClasses:
        """The present classes."""
        assert self._classes is not None
        return self._classes

    def _table(self, of: int, cores: int) -> SlackTable:
        times = self.classes.times[of]
        tables = self._tables_by_times.get(times)
        if tables is None:
            longer = self.classes.alone(of) / self.classes.alone(0)
            make = partial(self._make, times, pays=min(MOST_PAYS, PAYS_LONGER * longer))
            tables = self._tables_by_times[times] = Cached(times, make)
        return tables(cores)

    def table_of(self, request: Request, cores: int) -> SlackTable:
        return self._table(self.classes.class_of(request), cores)

    def worth_of(self, request: Request, cores: int) -> float:
        worth = self._worth.get(cores)
        if worth is None:
            every = range(len(self.classes))
            alone, typical = [self._table(of, cores).expected[1] for of in every], self.alone(cores)
            worth = tuple([(seconds / typical) ** self._exponent for seconds in alone])
            self._worth[cores] = worth
        return worth[self.classes.class_of(request)]

    def alone(self, cores: int) -> float:
        """Expected time of a request alone, averaged over all arrivals; seconds."""
        shares = enumerate(self.classes.shares)
        return sum([share * self._table(of, cores).expected[1] for of, share in shares if share])

    def seconds(self, members: Sequence[Request], rows: int, cores: int) -> float:
        return self.table_of(members[0], cores).expected[rows]

    def class_of(self, waiting: Request) -> int:
        """The class of a waiting request."""
        return self.classes.class_of(waiting)

    def batch_times(self, of: int) -> TimeByRows:
        """Expected seconds by rows of a batch of class `of`."""
        return self._table(of, self._view.cores).expected

    def share(self, waiting: Request) -> tuple[int, float]:
        """(class, least lane time in seconds) of a waiting request."""
        of = self.class_of(waiting)
        return of, waiting.rows * self._table(of, self._view.cores).per_row

    def work_before(self, arrival: Request | Notice) -> tuple[RowTimes, ClassWorkAhead]:
        """The times of `arrival` and the work ahead of it, for admission."""
        request = arrival if isinstance(arrival, Request) else as_request(arrival)
        of = self.classes.class_of(request)
        before = self._before.get(of)
        if before is None:
            tables = [self._table(shorter, self._view.cores) for shorter in range(of + 1)]
            times = RowTimes(
                tables[of].expected.__getitem__,
                lambda rows: self.lead[rows, of],
                self._max_batch,
                per_row=tables[of].per_row,
            )
            ahead = ClassWorkAhead(of, self._queue, [table.per_row for table in tables])
            before = self._before[of] = times, ahead
        return before

    def _lead_of(self, kind: tuple[int, int]) -> float:
        return self._lead(self.classes.times[kind[1]], kind[0], self._view.cores)
