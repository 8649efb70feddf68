"""Requests without a prediction: they wait beside the scheduler and run one at a time.

Theory of operation. A pool may have rules that say which requests are *measured*: their shape has
run before, or can be predicted from other sizes. Any prediction for other requests could be far too
long or too short, so the scheduler does not get them. They wait here in deadline order, and expire
at their deadlines; none is refused for its run time.

At most one such request of a pool runs at a time, alone, and only if

- the pool's share of the lanes' time (a bucket of seconds, full at first) allows it. The request
  then competes with proposals of the lane's models as if it were certain to be on time; or
- no model of the lane has anything to run, and each can wait for a run of the guessed length (see
  `idle_work.can_wait`). With a share of 0 this second condition does not apply, since the request
  might never run otherwise.

So requests of known shapes keep their deadlines, however many new shapes come. A finished run
teaches the pool's times: requests that are measured now move to the scheduler, which treats them
like any other. A failed run ends only its request. If its shape has never run, further requests of
that shape are refused for a while, with the model's message: of the same client or, once requests
of two clients have failed, of all clients. So no client alone can block a shape for others.
"""

from __future__ import annotations

from math import inf

from slacktide.domain import Reason, Request, Signature
from slacktide.engine.idle_work import can_wait
from slacktide.engine.lanes import Lane, Placement, Pool, Running
from slacktide.engine.request_table import QUEUED, Entry, State
from slacktide.engine.state import EngineState
from slacktide.engine.unmeasured_queue import ShapeFailure, UnmeasuredQueue

FAILED_S = 60.0
"""Seconds for which requests of a failed shape are refused."""

LEAST_S = 0.001
"""Seconds that a pool must have saved up from its share before a run."""

MOST_FAILED = 64
"""Maximum number of failed shapes to remember; the oldest is forgotten first."""


class UnmeasuredWork:
    """Handles unmeasured requests; see the module docstring."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def admit(self, entry: Entry, pool: Pool, request: Request) -> tuple[Reason | None, str]:
        """Queue a request, with the scheduler or here, or return (reason, detail) to refuse it."""
        queue, scheduler = pool.unmeasured, pool.scheduler
        assert queue is not None
        why = self._failure(queue, request) if queue.failed else None
        if why is None and queue.rules.measured(request):
            return scheduler.add(request, now=self._state.now), ""
        scheduler.remove(request.id)  # its notice
        if why is not None:
            return Reason.BAD_INPUT, why
        return self.hold(entry, queue, request), ""

    def hold(
        self, entry: Entry, queue: UnmeasuredQueue, request: Request, *, moved: bool = False
    ) -> Reason | None:
        """Queue an unmeasured request here, or return a reason to refuse it. `moved`: another pool
        has admitted it, so a full queue is no reason."""
        rules, entry.state = queue.rules, State.UNMEASURED
        if rules.refuse and not request.best_effort:
            return Reason.UNMEASURED
        if rules.most is not None and len(queue) >= rules.most and not moved:
            return Reason.QUEUE_FULL
        queue.add(request)
        return None

    def _failure(self, queue: UnmeasuredQueue, request: Request) -> str | None:
        """The model's error with this shape, if `request` must be refused because of it."""
        failure = queue.failed.get(request.signature)
        if failure is None:
            return None
        if self._state.now >= failure.until:
            del queue.failed[request.signature]
            return None
        applies = request.client in failure.clients or len(failure.clients) > 1
        return failure.detail if applies else None

    def offered_on(self, placement: Placement) -> Request | None:
        """The request that may now compete for the placement's lane, if its pool's share allows."""
        queue = self._ready(placement.pool)
        if queue is None:
            return None
        now = self._state.now
        affordable_at = queue.time.affordable_at(LEAST_S, lanes=placement.pool.lanes, now=now)
        return queue.first if affordable_at <= now else None

    def next_on(self, lane: Lane) -> tuple[Placement, Request] | None:
        """The request to run on a lane without other work. If other models cannot wait for it, the
        lane is dispatched again when the share allows a run."""
        now = self._state.now
        for placement in lane.placements:
            pool = placement.pool
            if pool.unmeasured is None or placement.standby or not placement.phase.serves:
                continue
            queue = self._ready(pool)
            if queue is None:
                continue
            request = queue.first
            guess = pool.times.of(request.rows, lane.size, (request,)).expected
            affordable_at = queue.time.affordable_at(LEAST_S, lanes=pool.lanes, now=now)
            if affordable_at == inf or can_wait(lane, guess):
                return placement, request
            lane.wait_until = min(lane.wait_until, affordable_at)
        return None

    def started(self, running: Running) -> None:
        """Record that the first request of the queue runs."""
        queue = running.placement.pool.unmeasured
        assert queue is not None
        queue.remove(running.batch.members[0])
        queue.is_running = running.unmeasured = True

    def ended(self, running: Running, seconds: float) -> None:
        """Record that this run has left its lane after `seconds`."""
        pool = running.placement.pool
        queue = pool.unmeasured
        assert queue is not None
        queue.is_running = False
        queue.time.pay(seconds)
        self._state.touch(pool)

    def finished(self, running: Running) -> None:
        """A batch of a pool with rules has finished, which shows that the model can run its
        shape."""
        pool = running.placement.pool
        assert pool.unmeasured is not None
        pool.unmeasured.failed.pop(running.batch.members[0].signature, None)
        if running.unmeasured:
            self.release(pool, running.batch.members[0].signature)

    def failed(self, running: Running, detail: str) -> None:
        """Handle a failure of the model on a request of a pool with rules: if its shape has never
        run, refuse further requests of that shape for a while."""
        pool, request = running.placement.pool, running.batch.members[0]
        queue, state = pool.unmeasured, self._state
        assert queue is not None
        if queue.rules.has_run(request):
            return
        failure = queue.failed.pop(request.signature, None)
        clients = {request.client} if failure is None else {*failure.clients, request.client}
        shapes = ", ".join(str(list(shape)) for shape in request.signature)
        why = f"the model cannot run rows of shape {shapes}: {detail}"
        until = state.now + FAILED_S
        queue.failed[request.signature] = ShapeFailure(until, why, clients)
        if len(queue.failed) > MOST_FAILED:
            queue.failed.popitem(last=False)
        pending = [r for r in pool.scheduler.pending() if r.signature == request.signature]
        for similar in (*queue.requests(request.signature), *pending):
            if self._failure(queue, similar) is not None:
                entry = state.request_table.entries[similar.id]
                state.withdraw(entry)
                state.end(entry, Reason.BAD_INPUT, why)
                state.forget(similar.id)

    def release(self, pool: Pool, ran: Signature) -> None:
        """Move requests that are now measured to the scheduler. Checks all requests if
        `rules.reach` has changed, else only the shape `ran`, since there may be thousands of
        requests."""
        queue, state = pool.unmeasured, self._state
        assert queue is not None
        before, queue.reach = queue.reach, queue.rules.reach()
        every = queue.reach != before
        judged: dict[Signature, bool] = {}
        for request in queue.requests(None if every else ran):
            measured = judged.get(request.signature)
            if measured is None:
                measured = judged[request.signature] = queue.rules.measured(request)
            if measured:
                queue.remove(request)
                entry = state.request_table.entries[request.id]
                entry.state = QUEUED
                reason = pool.scheduler.add(request, now=state.now)
                if reason is not None:
                    state.end(entry, reason)
                    state.forget(request.id)
        state.touch(pool)

    def expire(self, queue: UnmeasuredQueue) -> None:
        """End requests whose deadline has passed."""
        state = self._state
        while queue.next_expiry <= state.now:
            _, id, _ = queue.timed.pop(0)
            state.end(state.request_table.entries[id], Reason.EXPIRED)
            state.forget(id)

    def _ready(self, pool: Pool) -> UnmeasuredQueue | None:
        """The queue of `pool` if one of its requests may run now; else None."""
        queue = pool.unmeasured
        if queue is None or queue.is_running or not len(queue):
            return None
        while len(queue) and queue.rules.measured(queue.first):  # by other runs
            self.release(pool, queue.first.signature)
        return queue if len(queue) else None
