"""Admission: refuses requests on arrival that cannot be on time behind the work ahead.

Goal: under any overload the queue stays bounded and refusals are immediate, while the goodput is
the same as without admission. So every test errs on the side of admitting. There are three tests:

1. alone: the request's budget is less than the model needs for this request alone;
2. limit: the queue is full;
3. work: even at the best measured rate, without gaps or smaller batches, free_in + (rows ahead +
   own rows) × best time per row ÷ lanes exceeds the request's budget. (If an early exit may answer
   the request, its own rows count only up to that exit.) Rows ahead are the rows of requests due no
   later, with at least the same penalty, that *can themselves still be on time*: a request that
   will be dropped is no work, and counting it would refuse others for nothing. A few rows more than
   fit are admitted as spares: batch times vary, and if a queue holds only the requests that fit on
   average, it has none to run instead when a slow batch makes its first requests late.

To find the requests that will not be served, the queue is walked in deadline order, skipping
requests that cannot be on time behind the requests served so far. For requests of equal length this
is the rule of Moore and Hodgson (1968), which serves the largest number. This projection takes tens
of µs. It is made only if a plain count of the rows ahead (by bisection) would refuse the request,
and it is reused until a request leaves the queue or half a row's time has passed. It ends after
`LOOKAHEAD` requests; the remaining requests count as feasible, as they did when they were admitted.
`slack` replaces the third test: promises.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from slacktide.domain import Notice, Reason, Request
from slacktide.engine.ports import PoolView
from slacktide.scheduling.queue import DeadlineQueue
from slacktide.scheduling.tables import RowTimes

if TYPE_CHECKING:
    from slacktide.scheduling.class_tables import ClassWorkAhead
    from slacktide.scheduling.promises import Promises

SPARE_ROWS = 4
"""Rows admitted beyond the rows that fit; without them goodput drops by up to two points (decision
0005)."""

SPARE = 0.1
"""Spare rows as a share of the rows that fit, if that is more than SPARE_ROWS."""

LOOKAHEAD = 256
"""Maximum number of requests that a projection examines."""


class AllWorkAhead:
    """The work ahead of a request at admission, if run times depend on rows alone."""

    of = 0
    """Class of the arriving request."""

    def __init__(self, queue: DeadlineQueue, times: RowTimes) -> None:
        self._queue = queue
        self.times = times

    def rows_due(self, deadline: float, penalty: float) -> float:
        """Rows due no later than `deadline` with at least this penalty, in units of the arriving
        request's rows: a row that takes half as long counts half."""
        return self._queue.rows_due(deadline, penalty)

    def contenders(self, penalty: float) -> Iterable[tuple[float, float, float]]:
        """(deadline, rows, seconds that it must have left) of the first `LOOKAHEAD` requests that
        have at least this penalty."""
        lead, kind = self.times.lead, self._queue.kind
        return (
            (deadline, request.rows, lead[kind(request)[0]])
            for deadline, _, request in self._queue.order[:LOOKAHEAD]
            if request.penalty >= penalty
        )


@dataclass(frozen=True, slots=True)
class _Projection:
    """The outcome of a projection: requests with at least `penalty` that will not be served."""

    penalty: float
    removals: int
    valid_until: float
    deadlines: tuple[float, ...]
    """Deadlines of these requests, ascending."""
    unserved: tuple[float, ...]
    """Element i: total rows of the first i of these requests; one longer than `deadlines`."""
    spares: tuple[float, ...]
    """Like `unserved`, but only rows that could be on time if a request ahead of them is lost."""

    def rows_due(self, deadline: float) -> tuple[float, float]:
        """(rows that will not be served, spare rows among them) due no later than `deadline`."""
        i = bisect_right(self.deadlines, deadline)
        return self.unserved[i], self.spares[i]


class Admission:
    """Admits or refuses requests. It keeps only the last projection, no requests."""

    def __init__(
        self, *, queue: DeadlineQueue, view: PoolView, max_queue: int | None, enabled: bool = True
    ) -> None:
        self._queue = queue
        self._view = view
        self._max_queue = max_queue
        self._enabled = enabled
        self._projection: _Projection | None = None
        self.promises: Promises | None = None
        """Replaces the projection if set. Must be set if requests have several classes."""

    def limit(self, waiting: int) -> Reason | None:
        """QUEUE_FULL if `waiting` requests and notices already fill the queue, else None."""
        full = self._max_queue is not None and waiting >= self._max_queue
        return Reason.QUEUE_FULL if full else None

    def refuse(
        self,
        arrival: Request | Notice,
        rows: int,
        *,
        waiting: int,
        times: RowTimes,
        now: float,
        ahead: AllWorkAhead | ClassWorkAhead,
    ) -> Reason | None:
        """The reason to refuse a request with a deadline now; None if it is admitted."""
        deadline, penalty = arrival.deadline, arrival.penalty
        budget = deadline - now
        lead = times.lead[rows]
        if budget <= lead and self._enabled:
            return Reason.SHORTER_THAN_ALONE
        if self._max_queue is not None and waiting >= self._max_queue:
            return Reason.QUEUE_FULL
        if not self._enabled:
            return None
        view = self._view
        free = view.free_in(now=now)
        if free + lead > budget:
            return Reason.BEHIND_WORK
        waiting_rows = self._queue.rows
        promises, remaining = self.promises, budget - free
        if promises is not None and (waiting_rows or free):
            remaining = view.leave(now=now)(remaining) / promises.slowdown
        first = rows * times.soonest
        # Usually there is time even for batches of one row; then the best rate is not needed.
        if waiting_rows <= remaining / (times.expected[1] / view.lanes) - first:
            return None
        per_row = times.per_row / view.lanes
        room = remaining / per_row - first
        if waiting_rows <= room:
            return None
        before = ahead.rows_due(deadline, penalty)
        if promises is not None:
            needed = rows * per_row * promises.slowdown
            if before <= room and promises.spared(deadline, penalty, ahead.of, needed, now + free):
                return None
            if promises.joins_next(arrival, ahead.of, now + free):
                return None
            promises.refused()
            return Reason.BEHIND_WORK
        if before <= room:
            return None
        assert isinstance(ahead, AllWorkAhead)
        unserved, spares = self._project(penalty, free, per_row, ahead, now).rows_due(deadline)
        # Rows beyond those that fit. They include requests admitted since the projection, which
        # its spares do not.
        excess = before - unserved - room
        if excess <= 0 or excess + spares <= max(SPARE_ROWS, SPARE * room):
            return None
        return Reason.BEHIND_WORK

    def outlook(
        self,
        arrival: Request | Notice,
        rows: int,
        *,
        times: RowTimes,
        now: float,
        ahead: AllWorkAhead | ClassWorkAhead,
    ) -> tuple[float, float]:
        """See `Scheduler.outlook`. The time needed is that of test 1. The wait is the time that all
        work ahead takes at the best rate (slowed as in promises.py), including work that may not be
        served. A request that could wait that long but is refused makes way for requests due later,
        so their work is added."""
        view, lead = self._view, times.lead[rows]
        wait = free = view.free_in(now=now)
        if not self._queue.rows:
            return lead, wait
        remaining = arrival.deadline - now - free
        per_row = times.per_row / view.lanes
        promises = self.promises
        if promises is not None and remaining > 0.0:
            leave = view.leave(now=now)(remaining)
            per_row *= promises.slowdown * remaining / leave if leave > 0.0 else inf
        if before := ahead.rows_due(arrival.deadline, arrival.penalty):
            wait += before * per_row
        if promises is not None and wait + lead <= free + remaining:
            wait = free + ahead.rows_due(inf, arrival.penalty) * per_row
        return lead, wait

    def _project(
        self, penalty: float, free: float, per_row: float, ahead: AllWorkAhead, now: float
    ) -> _Projection:
        """The projection for requests with at least this penalty; reused while it is valid."""
        queue = self._queue
        projection = self._projection
        if (
            projection is not None
            and projection.penalty == penalty
            and projection.removals == queue.removals
            and now < projection.valid_until
        ):
            return projection
        start = now + free
        served_rows = 0.0
        deadlines: list[float] = []
        unserved = [0.0]
        spares = [0.0]
        for deadline, rows, lead in ahead.contenders(penalty):
            alone = start + lead
            if alone <= deadline and start + (served_rows + rows) * per_row <= deadline:
                served_rows += rows
            else:
                deadlines.append(deadline)
                unserved.append(unserved[-1] + rows)
                spares.append(spares[-1] + (rows if alone <= deadline else 0.0))
        self._projection = _Projection(
            penalty,
            queue.removals,
            now + per_row / 2,
            tuple(deadlines),
            tuple(unserved),
            tuple(spares),
        )
        return self._projection
