"""Requests whose run time cannot be judged: they wait beside the scheduler, and run one at a time.

Theory of operation. A pool may have rules that say which requests are *measured*: their shape has
run before, or a law judges it from other sizes. To judge any other by the time of another shape
would be wrong either way, so it is not given to the scheduler. It waits here, in the order of
deadlines, and is refused for its run time by nothing: it expires at its deadline.

At most one such request of a pool runs at a time, alone, and only if

- its share of the lanes' time allows it: a bucket of seconds, full at first. It then competes with
  what the models of the lane propose, as a request that is certain to be on time; or
- no model of the lane has anything to run, and each can wait for one run, as far as its length can
  be guessed (see `idle_work.can_wait`).

So requests of known shapes keep their deadlines however many new shapes come. A run that ends
teaches the pool's times: what is measured from then on leaves for the scheduler, which judges it as
any other. A run that fails ends its request only; further ones of its shape are refused for
a while, at once, with what the model said: those of the same client after one failure, all after
two clients have failed, so that no client can make a shape unusable for others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from slacktide.domain import Reason, Request, Signature
from slacktide.engine.idle_work import SAVED_S, TimeShare, can_wait
from slacktide.engine.ledger import State

if TYPE_CHECKING:
    from slacktide.engine.lane import Lane, Running
    from slacktide.engine.placement import Placement
    from slacktide.engine.pool import Pool
    from slacktide.engine.state import EngineState

FAILED_S = 60.0
"""Seconds for which requests of a shape that has failed are refused."""

LEAST_S = 0.001
"""Seconds of its share that a pool must have saved up before one runs."""

MOST_FAILED = 64
"""Shapes remembered for having failed; beyond that the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class UnmeasuredRules:
    """Which requests of a pool cannot be judged, and what becomes of them."""

    measured: Callable[[Request], bool]
    """Whether the run time of this request can be judged. The same for all of one signature; may
    change with what is learnt."""
    refuse: bool = False
    """Whether those with a deadline are refused instead (`Reason.UNMEASURED`)."""
    share: float = 0.1
    """Of the time of the pool's lanes that they may take from others, 0 to 1."""
    most: int | None = None
    """Most that wait; None: no limit."""


@dataclass(slots=True)
class _Failure:
    """A shape that the model could not run."""

    until: float
    detail: str
    clients: set[str]
    """Whose requests failed, two at most."""


class UnmeasuredQueue:
    """What waits in one pool, and the lane time that it may have."""

    __slots__ = ("best_effort", "failed", "is_running", "rules", "time", "timed")

    def __init__(self, rules: UnmeasuredRules) -> None:
        self.rules = rules
        self.time = TimeShare(rules.share, saved_s=SAVED_S)
        self.is_running = False
        """Whether one of them runs."""
        self.failed: OrderedDict[Signature, _Failure] = OrderedDict()
        self.timed: list[tuple[float, int, Request]] = []
        """Those with a deadline; sorted (deadline, id, request)."""
        self.best_effort: list[tuple[float, int, Request]] = []

    def __len__(self) -> int:
        return len(self.timed) + len(self.best_effort)

    def add(self, request: Request) -> None:
        insort(self._of(request), (request.deadline, request.id, request))

    def remove(self, request: Request) -> None:
        entries = self._of(request)
        del entries[bisect_left(entries, (request.deadline, request.id))]

    def _of(self, request: Request) -> list[tuple[float, int, Request]]:
        return self.best_effort if request.best_effort else self.timed

    @property
    def first(self) -> Request:
        """The next to run: the one due first. There must be one."""
        return min(self.timed[:1] + self.best_effort[:1])[2]

    @property
    def due(self) -> float:
        """When the next expires; inf if none will."""
        return self.timed[0][0] if self.timed else inf

    def requests(self) -> tuple[Request, ...]:
        """All that wait, in the order in which they would run."""
        return tuple(request for _, _, request in sorted(self.timed + self.best_effort))


class UnmeasuredWork:
    """What the engine does about them; see the module docstring."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def refusal(self, queue: UnmeasuredQueue, request: Request) -> tuple[Reason | None, str]:
        """Why a request that is not measured is refused, and the detail; None if it may wait."""
        known = queue.failed.get(request.signature)
        if known is not None and self._state.now >= known.until:
            del queue.failed[request.signature]
        elif known is not None and (request.client in known.clients or len(known.clients) > 1):
            return Reason.BAD_INPUT, known.detail
        rules = queue.rules
        if rules.refuse and not request.best_effort:
            return Reason.UNMEASURED, ""
        if rules.most is not None and len(queue) >= rules.most:
            return Reason.QUEUE_FULL, ""
        return None, ""

    def offered_on(self, placement: Placement) -> Request | None:
        """The one that may compete for the lane of `placement` now, by its pool's share."""
        queue = self._ready(placement.pool)
        if queue is None:
            return None
        now = self._state.now
        due = queue.time.affordable_at(LEAST_S, lanes=placement.pool.lanes, now=now)
        return queue.first if due <= now else None

    def next_on(self, lane: Lane) -> tuple[Placement, Request] | None:
        """The one to run on a lane that has nothing else. Where the lane must be kept free for
        other models, it is looked at again when its share allows it."""
        now = self._state.now
        for placement in lane.placements:
            pool = placement.pool
            if pool.unmeasured is None or not placement.serves:
                continue
            queue = self._ready(pool)
            if queue is None:
                continue
            request = queue.first
            guess = pool.times.of(request.rows, lane.size, (request,)).expected
            if can_wait(lane, guess):
                return placement, request
            due = queue.time.affordable_at(LEAST_S, lanes=pool.lanes, now=now)
            lane.wait_until = min(lane.wait_until, due)
        return None

    def started(self, running: Running) -> None:
        """The first of the queue runs."""
        queue = running.placement.pool.unmeasured
        assert queue is not None
        queue.remove(running.batch.members[0])
        queue.is_running = running.unmeasured = True

    def left(self, running: Running, seconds: float) -> None:
        """That run has left its lane, one way or another, after so many seconds."""
        pool = running.placement.pool
        queue = pool.unmeasured
        assert queue is not None
        queue.is_running = False
        queue.time.pay(seconds)
        self._state.touch(pool)

    def failed(self, running: Running, detail: str) -> None:
        """The model could not run it: refuse what else has its shape, for a while."""
        pool, (request,) = running.placement.pool, running.batch.members
        queue = pool.unmeasured
        assert queue is not None
        known = queue.failed.pop(request.signature, None)
        clients = {request.client} if known is None else {*known.clients, request.client}
        shapes = ", ".join(str(list(shape)) for shape in request.signature)
        why = f"the model cannot run rows of shape {shapes}: {detail}"
        until = self._state.now + FAILED_S
        queue.failed[request.signature] = _Failure(until, why, clients)
        if len(queue.failed) > MOST_FAILED:
            queue.failed.popitem(last=False)
        for other in queue.requests():
            if other.signature == request.signature:
                reason, why = self.refusal(queue, other)
                if reason is Reason.BAD_INPUT:
                    self._end(queue, other, reason, why)

    def release(self, pool: Pool) -> None:
        """What is measured by now leaves for the scheduler."""
        queue, state = pool.unmeasured, self._state
        assert queue is not None
        judged: dict[Signature, bool] = {}
        for request in queue.requests():
            measured = judged.get(request.signature)
            if measured is None:
                measured = judged[request.signature] = queue.rules.measured(request)
            if measured:
                reason = pool.scheduler.add(request, now=state.now)
                if reason is None:
                    queue.remove(request)
                    state.ledger.entries[request.id].state = State.QUEUED
                else:
                    self._end(queue, request, reason)
        state.touch(pool)

    def expire(self, queue: UnmeasuredQueue) -> None:
        """Drop those whose deadline has passed."""
        while queue.due <= self._state.now:
            self._end(queue, queue.timed[0][2], Reason.EXPIRED)

    def _end(
        self, queue: UnmeasuredQueue, request: Request, reason: Reason, detail: str = ""
    ) -> None:
        queue.remove(request)
        self._state.end(self._state.ledger.entries[request.id], reason, detail)
        self._state.forget(request.id)

    def _ready(self, pool: Pool) -> UnmeasuredQueue | None:
        """The queue of `pool`, if one of it may run; measured ones have left it."""
        queue = pool.unmeasured
        if queue is None or queue.is_running or not len(queue):
            return None
        if queue.rules.measured(queue.first):  # by what ran otherwise
            self.release(pool)
        return queue if len(queue) else None
