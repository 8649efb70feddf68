"""Promises: `slack` admits what it can keep, and drops at once what it cannot keep any more.

Where there is too much work some requests are refused, and while no lane is idle goodput does not
depend on which. So it is the one that has just come (docs/decisions/0030-refusing-early.md): a
request is admitted only if it can be on time behind the work ahead *and* no waiting request of its
class that costs as much would be late because of it. *The plan*: requests in order of deadlines,
each behind those of its class and of shorter ones at the best rate × `slowdown`, in the time that
other models leave. What is over before a deadline is slack; a newcomer needs its own time of all
that are due after it.

A newcomer without a place takes that of one due earlier that came at most AT_ONCE before: else
the lane were idle sooner after a burst, for the last is due last. Where one was refused or
lost, those without a place are dropped at the next decision. And where more than a share `late`
of the refusals come after a wait, the slowdown rises.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from math import inf

from slacktide.domain import Reason, Request
from slacktide.engine.ports import PoolView
from slacktide.scheduling.admission import LOOKAHEAD
from slacktide.scheduling.queue import DeadlineQueue

AT_ONCE = 0.005
"""Seconds after its arrival within which a refusal is as good as one on arrival."""

TIGHT = 64
"""Decisions after the last refusal for which places are taken to be short."""

GAIN, MOST_SLOWDOWN = 0.02, 2.0
"""How much a refusal changes the slowdown at the most; and the largest."""

Share = Callable[[Request], tuple[int, float]]
"""Class of a request that waits, and the least that it takes of a lane in seconds."""


class Promises:
    """The plan of one queue. `late` is `late_refusals` of options.py."""

    def __init__(
        self,
        queue: DeadlineQueue,
        view: PoolView,
        share: Share,
        late: float,
        soonest: Callable[[], float],
    ) -> None:
        """`soonest`: part of its own time after which a request may have its answer."""
        self._queue, self._view, self._share, self._late = queue, view, share, late
        self._soonest = soonest
        self.slowdown = 1.0
        """How much longer than at the best rate the work ahead is taken to last."""
        self.due: float | None = None
        """Since when `give_up` may have something to say; None: it has not."""
        self._deciding = False
        """Whether a decision comes next that the plan is to be checked for."""
        self.tight = 0
        """Decisions for which places are taken to be short. While they are not, nothing is kept."""
        self._latest: deque[Request] = deque(maxlen=4)
        """Those admitted last."""
        self._lost: list[int] = []
        """Requests whose place was taken."""
        self._plan: dict[int, tuple[list[float], list[float]]] | None = None
        """By class: deadlines, ascending; the least slack of those due then or later."""
        self._made_for = (0.0, 0.0)
        """Penalty that those in the plan cost at least, and when it begins."""
        self._given = 0.0
        """Seconds of work admitted since it was made."""

    def spared(self, deadline: float, penalty: float, of: int, needed: float, start: float) -> bool:
        """Whether all of class `of` that are due after `deadline` and cost `penalty` can do without
        `needed` seconds, if the next batch starts at `start`."""
        for _ in range(2):
            if self._plan is None or self._made_for[0] != penalty:
                self._make(penalty, start)
            assert self._plan is not None
            deadlines, slack = self._plan.get(of, ([], []))
            i = bisect_left(deadlines, deadline)
            slipped = max(0.0, start - self._made_for[1]) + self._given
            if i == len(deadlines) or slack[i] - slipped >= needed:
                return True
            if not slipped:
                break
            self._plan = None  # Once more, with what is known now.
        return False

    def refused(self) -> None:
        """A request was refused on arrival."""
        self.tight = TIGHT
        self.slowdown = max(1.0, self.slowdown - GAIN * self._late)

    def lost(self, count: int) -> None:
        """So many were dropped after they had waited."""
        self.tight = TIGHT
        self.slowdown = min(MOST_SLOWDOWN, self.slowdown + count * GAIN * (1.0 - self._late))

    def let_in(self, request: Request) -> None:
        """A request is in the queue. Need not be called while places are not tight."""
        self._latest.append(request)
        self._given += self.slowdown * self._share(request)[1] / self._view.lanes

    def replaced(self, request: Request, of: int, *, now: float) -> bool:
        """Whether `request`, of class `of`, which was refused, takes the place of another."""
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
                self.due = now
                return True
        return False

    def freed(self, *, now: float) -> None:
        """A batch has ended: a decision comes next."""
        if self.tight:
            self._deciding, self.due = True, now

    def give_up(self, *, now: float) -> list[tuple[int, Reason]]:
        """The requests that have no place any more, and why. Changes no queue."""
        gone = [(id, Reason.BEHIND_WORK) for id in self._lost if id in self._queue]
        if self._deciding:
            self.tight -= 1
            without = self._make(0.0, now + self._view.free_in(now=now))
            self._deciding = False
            self._plan = self._plan if self.tight else None
            gone += [(id, Reason.CROWDED_OUT) for id in without]
        self._lost, self.due = [], None
        return gone

    def _make(self, penalty: float, start: float) -> list[int]:
        """Make the plan of those that cost at least `penalty`; ids of those without a place."""
        leave, factor = self._view.leave(now=start), self.slowdown / self._view.lanes
        per_second = factor * self._soonest()
        seconds_by_class: dict[int, float] = {}
        plan: dict[int, tuple[list[float], list[float]]] = {}
        without, cheapest = [], inf
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
                without.append(id)
        for _, slacks in plan.values():
            slacks[:] = [*accumulate(reversed(slacks), min)][::-1]
        self._plan, self._made_for, self._given = plan, (penalty, start), 0.0
        if without or not self._deciding:
            self.tight = TIGHT
        return without
