"""Promises: `slack` admits only requests it can serve, and drops any that it no longer can.

Under overload some requests must be refused, and while no lane is idle, goodput does not depend on
which requests. So the newest request is refused (docs/decisions/0030-refusing-early.md): a request
is admitted only if it can be on time after the work ahead *and* no waiting request of its class
with at least its penalty becomes late because of it. *The plan* assumes that requests run by
deadline, each after the requests of its own and shorter classes, in the time that other models
leave, and take `slowdown` × their time at the best rate. The time between a request's planned end
and its deadline is its slack; a new request uses up slack of all requests due later.

A new request for which the plan has no time may replace a request that is due earlier and arrived
at most AT_ONCE before it. Otherwise the last request of a burst would be refused although it is due
last, and the lane would idle sooner. A new request that would make the next batch more efficient
needs no place (next_batch.py). After a refusal or a loss, requests without a place are dropped at
the next decision, except those that the next batch may answer. If more than a share `late` of the
refusals come after a wait, the slowdown rises, and only the plan counts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from math import inf

from slacktide.domain import Notice, Reason, Request
from slacktide.engine.ports import PoolView
from slacktide.scheduling.admission import LOOKAHEAD
from slacktide.scheduling.next_batch import NextBatch
from slacktide.scheduling.queue import DeadlineQueue

AT_ONCE = 0.005
"""Seconds after arrival within which a refusal counts as immediate."""

TIGHT = 64
"""Number of decisions after the last refusal for which places count as scarce."""

GAIN, MOST_SLOWDOWN = 0.02, 2.0
"""Limit to the change of `slowdown` by one refusal or loss; limit to `slowdown`."""

Share = Callable[[Request], tuple[int, float]]
"""Class of a waiting request, and its least lane time in seconds."""


class Promises:
    """The plan of one queue. `late` is the option `late_refusals`."""

    def __init__(
        self,
        queue: DeadlineQueue,
        view: PoolView,
        share: Share,
        late: float,
        soonest: Callable[[], float],
        next_batch: NextBatch,
    ) -> None:
        """`soonest`: returns the share of a request's lane time after which it may be answered."""
        self._queue, self._view, self._share, self._late = queue, view, share, late
        self._soonest, self._next_batch = soonest, next_batch
        self.slowdown = 1.0
        """Factor by which the work ahead is expected to take longer than at the best rate."""
        self.next_drop: float | None = None
        """Time from which on `give_up` may return requests; None: it returns none."""
        self._deciding = False
        """Whether the next call of `give_up` precedes a decision and checks the plan."""
        self.tight = 0
        """Number of further decisions with scarce places. At 0 nothing is recorded."""
        self._latest: deque[Request] = deque(maxlen=4)
        """The requests admitted last."""
        self._lost: list[int] = []
        """Ids of requests that were replaced."""
        self._plan: dict[int, tuple[list[float], list[float]]] | None = None
        """By class: (ascending deadlines, for each the least slack of the requests that are due no
        earlier)."""
        self._plan_basis = (0.0, 0.0)
        """Least penalty of the requests in the plan, and the time at which the plan begins."""
        self._admitted_s = 0.0
        """Seconds of work admitted since the plan was made."""

    def spared(self, deadline: float, penalty: float, of: int, needed: float, start: float) -> bool:
        """Whether all requests of class `of` with at least this penalty, due at `deadline` or
        later, can spare `needed` seconds if the next batch starts at `start`."""
        for _ in range(2):
            if self._plan is None or self._plan_basis[0] != penalty:
                self._make(penalty, start)
            assert self._plan is not None
            deadlines, slack = self._plan.get(of, ([], []))
            i = bisect_left(deadlines, deadline)
            slipped = max(0.0, start - self._plan_basis[1]) + self._admitted_s
            if i == len(deadlines) or slack[i] - slipped >= needed:
                return True
            if not slipped:
                break
            self._plan = None  # Make a new plan, and try once more.
        return False

    def joins_next(self, arrival: Request | Notice, of: int, start: float) -> bool:
        """Whether a request of class `of` without a place should join the next batch, which begins
        at `start`."""
        return (
            self.slowdown == 1.0
            and isinstance(arrival, Request)
            and self._next_batch.admits(arrival, of, start=start)
        )

    def refused(self) -> None:
        """Record that a request was refused on arrival."""
        self.tight = TIGHT
        self.slowdown = max(1.0, self.slowdown - GAIN * self._late)

    def lost(self, count: int) -> None:
        """Record that `count` requests were dropped after they had waited."""
        self.tight = TIGHT
        self.slowdown = min(MOST_SLOWDOWN, self.slowdown + count * GAIN * (1.0 - self._late))

    def let_in(self, request: Request) -> None:
        """Record that a request was queued. Need not be called while `tight` is 0."""
        self._latest.append(request)
        self._admitted_s += self.slowdown * self._share(request)[1] / self._view.lanes

    def replaced(self, request: Request, of: int, *, now: float) -> bool:
        """Replace another request by the refused `request` of class `of`; False if none fits."""
        for rival in reversed(self._latest):
            if (
                now - rival.arrival <= AT_ONCE
                and rival.deadline < request.deadline
                and rival.penalty <= request.penalty
                and rival.rows >= request.rows
                and rival.id in self._queue
                and rival.id not in self._lost
                and self._share(rival)[0] == of
            ):
                self._lost.append(rival.id)
                self.next_drop = now
                return True
        return False

    def freed(self, *, now: float) -> None:
        """Record that a batch has ended, so that a decision follows."""
        if self.tight:
            self._deciding, self.next_drop = True, now

    def give_up(self, *, now: float) -> list[tuple[int, Reason]]:
        """Requests that no longer have a place, with reasons. Changes no queue."""
        dropped = [(id, Reason.BEHIND_WORK) for id in self._lost if id in self._queue]
        if self._deciding:
            self.tight -= 1
            start = now + self._view.free_in(now=now)
            without = self._make(0.0, start)
            self._deciding = False
            self._plan = self._plan if self.tight else None
            stay = self._next_batch.members(without, start=start) if self.slowdown == 1.0 else ()
            dropped += [
                (request.id, Reason.CROWDED_OUT) for request in without if request.id not in stay
            ]
        self._lost, self.next_drop = [], None
        return dropped

    def _make(self, penalty: float, start: float) -> list[Request]:
        """Plan for requests with at least this penalty; return the requests without a place."""
        leave, factor = self._view.leave(now=start), self.slowdown / self._view.lanes
        per_second = factor * self._soonest()
        seconds_by_class: dict[int, float] = {}
        plan: dict[int, tuple[list[float], list[float]]] = {}
        without: list[Request] = []
        cheapest = inf
        for deadline, id, request in self._queue.order[:LOOKAHEAD]:
            if request.penalty < penalty or id in self._lost:
                continue
            cheapest = min(cheapest, request.penalty)
            of, seconds = self._share(request)
            before = sum([took for g, took in seconds_by_class.items() if g <= of])
            slack = leave(deadline - start) - before - seconds * per_second
            if slack >= 0.0:
                seconds_by_class[of] = seconds_by_class.get(of, 0.0) + seconds * factor
                deadlines, slacks = plan.setdefault(of, ([], []))
                deadlines.append(deadline)
                slacks.append(slack)
            elif before and request.penalty <= cheapest:
                without.append(request)
        for _, slacks in plan.values():
            slacks[:] = [*accumulate(reversed(slacks), min)][::-1]
        self._plan, self._plan_basis, self._admitted_s = plan, (penalty, start), 0.0
        if without or not self._deciding:
            self.tight = TIGHT
        return without
