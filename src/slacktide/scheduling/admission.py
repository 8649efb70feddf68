"""Admission: requests that cannot be on time behind the work ahead are refused on arrival.

Goal: under any overload the queue stays bounded and refusals come at once, while the goodput is
that of the same policy without admission. So every test errs towards letting in. Three tests:

1. alone: its budget is below what the model needs for it alone;
2. limit: the queue is full;
3. work: even at the best measured rate, with no gap and no smaller batch, free_in + (rows ahead +
   its own) × best time per row ÷ lanes exceeds its budget. (Of its own only what comes before its
   answer counts, where that may be an early one.) Ahead are those due no later, at its
   penalty or a higher one, that *can themselves still be on time*: a request that will be dropped
   is no work, and counting it would refuse others for nothing. A few rows more than fit are kept
   as spares: batch times vary, and a queue that holds only what fits on average has nothing to fall
   back on when its head is lost to a slow batch.

Those that will not be served are found by walking the queue in deadline order and passing over
what cannot make it behind those kept: for requests of equal length this is the rule of Moore and
Hodgson (1968), which keeps the most. To project the queue like this costs tens of µs, so it is done
only if the plain count of rows ahead (bisections) would refuse, is kept until something leaves the
queue or half a row's time has passed, and ends after `LOOKAHEAD` requests; the rest are taken to be
feasible, as they were when admitted. For `slack` the third test is another one: promises.py.
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
"""Rows admitted beyond those that fit; without them goodput falls by up to two points (decision
0005)."""

SPARE = 0.1
"""The same as a share of those that fit, if that is more."""

LOOKAHEAD = 256
"""Most requests looked at to find those that are doomed."""


class AllWorkAhead:
    """The work ahead of one request at admission, where all take as long but for their rows."""

    of = 0
    """Class of the one that asks."""

    def __init__(self, queue: DeadlineQueue, times: RowTimes) -> None:
        self._queue = queue
        self.times = times

    def rows_due(self, deadline: float, penalty: float) -> float:
        """Rows due no later than `deadline` that cost at least `penalty`. Measured in rows of the
        one that asks: what takes half as long counts half."""
        return self._queue.rows_due(deadline, penalty)

    def contenders(self, penalty: float) -> Iterable[tuple[float, float, float]]:
        """(deadline, rows, time it must have left) of the first `LOOKAHEAD` that cost as much."""
        lead, kind = self.times.lead, self._queue.kind
        return (
            (deadline, request.rows, lead[kind(request)[0]])
            for deadline, _, request in self._queue.order[:LOOKAHEAD]
            if request.penalty >= penalty
        )


@dataclass(frozen=True, slots=True)
class _Projection:
    """Outcome of one projection: which of those that cost at least `penalty` will not be served."""

    penalty: float
    removals: int
    valid_until: float
    deadlines: tuple[float, ...]
    """Theirs, ascending."""
    unserved: tuple[float, ...]
    """Rows of the first i of them together; one longer than `deadlines`."""
    spares: tuple[float, ...]
    """The same, but of those only that could still be on time if one ahead of them fails."""

    def due(self, deadline: float) -> tuple[float, float]:
        """(rows that will not be served, spare rows among them) due no later than `deadline`."""
        i = bisect_right(self.deadlines, deadline)
        return self.unserved[i], self.spares[i]


class Admission:
    """Admits or refuses. Holds no request, only the outcome of its last walk."""

    def __init__(
        self, *, queue: DeadlineQueue, view: PoolView, max_queue: int | None, enabled: bool = True
    ) -> None:
        self._queue = queue
        self._view = view
        self._max_queue = max_queue
        self._enabled = enabled
        self._known: _Projection | None = None
        self.promises: Promises | None = None
        """What decides instead of the walk; where requests differ in class, it must."""

    def limit(self, waiting: int) -> Reason | None:
        """QUEUE_FULL if `waiting` requests and notices leave no room for one more."""
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
        """Why a request with a deadline is refused now, or None if it is admitted."""
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
        # As a rule there is room even one row at a time, and the best rate need not be known.
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
            promises.refused()
            return Reason.BEHIND_WORK
        if before <= room:
            return None
        assert isinstance(ahead, AllWorkAhead)
        unserved, spares = self._project(penalty, free, per_row, ahead, now).due(deadline)
        # Rows too many; those admitted since the walk are among them, hence not among its spares.
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
        """See `Outlook`: what tests 1 and 3 go by. What comes first is the work ahead at the best
        rate, stretched as promises.py does; some of it may not be served in the end. One that has
        time for both is refused for the sake of those due after it, so these come first as well.
        """
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
        """Which of those that cost at least `penalty` will not be served; kept for a while."""
        queue = self._queue
        projection = self._known
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
        self._known = _Projection(
            penalty,
            queue.removals,
            now + per_row / 2,
            tuple(deadlines),
            tuple(unserved),
            tuple(spares),
        )
        return self._known
