"""Requests: how they arrive and are refused, cancelled, or dropped while they wait.

**Rescue.** A pool may name smaller variants of its family (`PoolParts.rescue`). If the pool has no
time for a request, on arrival or later, the request moves to the first of these variants that is
resident, that could finish it in time at its p99 on the lane that is free soonest, and that admits
it. A request moves at most once, so it never returns, and then ends like any other request of its
new pool.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

from slacktide.domain import (
    AbortBatch,
    Announced,
    Cancelled,
    Notice,
    Reason,
    Refused,
    Request,
    Submitted,
)
from slacktide.engine.lanes import Pool
from slacktide.engine.request_table import QUEUED, RUNNING, Entry, State
from slacktide.engine.state import FOR_LACK_OF_TIME, EngineState
from slacktide.engine.trials import DOUBTED, trial_due
from slacktide.engine.unmeasured import UnmeasuredWork

SWEEP_FLOOR = 64
"""Number of notices below which sweeping out outdated ones is not worthwhile."""


class Requests:
    """Handles Announced, Submitted, Refused and Cancelled."""

    def __init__(self, state: EngineState, unmeasured: UnmeasuredWork) -> None:
        self._state = state
        self._unmeasured = unmeasured
        self._notices: list[tuple[float, int]] = []
        """Heap of (deadline, id) of notices. Outdated ids stay until they surface or a sweep drops
        them."""
        self._sweep_at = SWEEP_FLOOR

    def announced(self, event: Announced) -> None:
        state, notice = self._state, event.notice
        pool = state.routes.pool_for(notice)
        if pool is None or pool.down_reason is not None:
            self._unavailable(notice, pool)
            return
        entry = state.request_table.open(notice, pool, State.ANNOUNCED)
        if notice.deadline <= state.now and not notice.best_effort:
            reason: Reason | None = Reason.EXPIRED
        else:
            reason = self._announce(notice, pool)
            if reason is not None and trial_due(pool, notice, reason, now=state.now):
                entry.trial, reason = True, None  # unknown to the scheduler
        if reason is None:
            pool.announced += 1
        elif not self._rescue(entry, reason):
            state.end(entry, reason)
            state.forget(notice.id)
            return
        if not notice.best_effort:
            heapq.heappush(self._notices, (notice.deadline, notice.id))
            if len(self._notices) > self._sweep_at:
                self._sweep()

    def _announce(self, notice: Notice, pool: Pool) -> Reason | None:
        """Announce a request to the scheduler. If run times depend on the shape, which is not known
        yet, the deadline serves only for planning, and the request is not refused because of a
        predicted time."""
        if pool.unmeasured is not None and not notice.best_effort:
            notice = replace(notice, best_effort=True, likely_due=notice.deadline)
        pool.quiet = False
        return pool.scheduler.announce(notice, now=self._state.now)

    def _sweep(self) -> None:
        """Drop outdated notices, which otherwise stay until their deadlines, perhaps years away."""
        entries = self._state.request_table.entries
        waiting = [
            (deadline, id)
            for deadline, id in self._notices
            if (entry := entries.get(id)) is not None and entry.state is State.ANNOUNCED
        ]
        heapq.heapify(waiting)
        self._notices = waiting
        self._sweep_at = 2 * len(waiting) + SWEEP_FLOOR

    def submitted(self, event: Submitted) -> None:
        state, request = self._state, event.request
        entry = state.request_table.entries.get(request.id)
        if entry is not None:
            if entry.state is not State.ANNOUNCED or entry.request.model != request.model:
                raise ValueError(f"request id {request.id} is already in use")
            pool = entry.pool
            pool.announced -= 1
            if request.size != entry.request.size:
                pool = self._by_its_size(entry, request)
            entry.request = request
            entry.state = QUEUED
        else:
            routed = state.routes.pool_for(request)
            if routed is None or routed.down_reason is not None:
                self._unavailable(request, routed)
                return
            pool = routed
            entry = state.request_table.open(request, pool, QUEUED)
        detail = ""
        now = state.now
        if request.rows > pool.max_batch:
            reason: Reason | None = Reason.BAD_INPUT
            detail = f"{request.rows} rows, and the model takes {pool.max_batch} at most"
            pool.scheduler.remove(request.id)
        elif request.deadline <= now and not request.best_effort:
            reason = Reason.EXPIRED
            pool.scheduler.remove(request.id)
        elif request.decoding and not _could_decode(pool, request, now):
            reason = Reason.SHORTER_THAN_ALONE
            pool.scheduler.remove(request.id)
        else:
            if request.rows > pool.widest:
                pool.widest = request.rows
            if pool.unmeasured is None:
                reason = pool.scheduler.add(request, now=now)
            else:
                reason, detail = self._unmeasured.admit(entry, pool, request)
        if not (
            reason is None or self._rescue(entry, reason) or self._try(entry, pool, request, reason)
        ):
            state.end(entry, reason, detail)
            state.forget(request.id)
        state.touch(pool)  # even after a refusal: a lane may be held for it

    def _try(self, entry: Entry, pool: Pool, request: Request, reason: Reason) -> bool:
        """If a trial is due, run a request next and alone although its pool refuses it."""
        # Its notice may have been let in for a trial.
        is_let_in = entry.trial and reason in DOUBTED
        if not (is_let_in and not pool.quarantine and not len(pool.scheduler)) and (
            not trial_due(pool, request, reason, now=self._state.now)
        ):
            return False
        entry.trial, entry.state = True, State.QUARANTINED
        pool.quarantine.append(request)
        return True

    def _by_its_size(self, entry: Entry, request: Request) -> Pool:
        """The pool for a request whose body asks for another size than its notice."""
        announced, routed = entry.pool, self._state.routes.pool_for(request)
        if entry.rescued or routed is None or routed is announced or not routed.resident:
            return announced
        announced.scheduler.remove(request.id)
        self._state.touch(announced)  # a lane may be held for it
        entry.pool = routed
        return routed

    def refused(self, event: Refused) -> None:
        state = self._state
        entry = state.request_table.entries.get(event.id)
        if entry is None:
            state.turn_away(event.id, event.model, event.reason, event.detail)
            return
        if entry.state is not State.ANNOUNCED:
            raise ValueError(f"request {event.id} was already submitted")
        state.withdraw(entry)
        state.end(entry, event.reason, event.detail)
        state.forget(event.id)
        state.touch(entry.pool)  # a lane may be held for it

    def cancelled(self, event: Cancelled) -> None:
        state = self._state
        entry = state.request_table.entries.get(event.id)
        if entry is None or entry.answered or entry.state in (State.ENDED, State.HELD):
            return  # it ended before the cancellation arrived
        if entry.state is RUNNING:
            self._cancel_running(entry, event.reason, event.detail)
            return
        if event.reason is Reason.CRASHED_BEFORE:
            state.judge(entry, convicted=True, by_input=True)
        elif entry.state is State.QUARANTINED:  # it still runs again, to be judged
            state.answer_waiting(entry, event.reason)
            entry.answered = True
            return
        state.withdraw(entry)
        state.end(entry, event.reason)
        state.forget(event.id)
        state.touch(entry.pool)

    def _cancel_running(self, entry: Entry, reason: Reason, detail: str) -> None:
        """Discard the answer of a running request; the batch keeps its payload until it ends."""
        entry.crashes += reason is Reason.CRASHED_BEFORE  # the next crash ends it
        state, request = self._state, entry.request
        running = next(
            r for r in state.running.values() if any(m is request for m in r.batch.members)
        )
        state.answer_running(entry, running.batch, reason, detail)
        entry.answered = True
        if entry.crash is not None:
            return  # the run continues, to judge the request
        entry.state = State.ENDED
        running.waiting -= 1
        if running.waiting == 0 and not running.batch.judged:
            state.commands.append(AbortBatch(running.batch, state.cause))

    def move(self, entry: Entry, target: Pool) -> None:
        """Move a waiting request to another pool; it keeps its id and deadline."""
        state, request = self._state, entry.request
        state.withdraw(entry)
        entry.pool = target
        reason = None
        if isinstance(request, Notice):
            reason = self._announce(request, target)
            target.announced += reason is None
        elif request.rows > target.max_batch:
            reason = Reason.BAD_INPUT
        elif entry.state is State.QUARANTINED:
            target.quarantine.append(request)
        else:
            target.widest = max(target.widest, request.rows)
            entry.state = QUEUED
            queue = target.unmeasured
            if queue is not None and not queue.rules.measured(request):
                reason = self._unmeasured.hold(entry, queue, request, moved=True)
            else:
                target.scheduler.admit_moved(request, now=state.now)
        if reason is not None and not self._rescue(entry, reason):
            state.end(entry, reason)
            state.forget(request.id)
        state.touch(target)

    def expire(self, pool: Pool) -> None:
        """Drop requests of `pool` that can no longer be on time."""
        state = self._state
        now = state.now
        expiry = pool.scheduler.next_expiry()
        if expiry is not None and expiry <= now:
            for id, reason in pool.scheduler.expire(now=now):
                entry = state.request_table.entries[id]
                if not self._rescue(entry, reason):
                    state.end(entry, reason)
                    state.forget(id)
        if pool.unmeasured is not None:
            self._unmeasured.expire(pool.unmeasured)

    def _rescue(self, entry: Entry, reason: Reason) -> bool:
        """Move a request, no longer queued in its pool, to a smaller variant if one admits it."""
        state, pool, request = self._state, entry.pool, entry.request
        if not pool.rescue or entry.rescued or reason not in FOR_LACK_OF_TIME:
            return False
        now = state.now
        for id in pool.rescue:
            target = state.pools.get(id)
            if target is None or not target.resident or not _could_serve(target, request, now):
                continue
            if isinstance(request, Notice):
                if self._announce(request, target) is not None:
                    continue
                target.announced += 1
            else:
                if target.scheduler.add(request, now=now) is not None:
                    continue
                target.widest = max(target.widest, request.rows)
            entry.pool, entry.rescued = target, True
            pool.rescued += 1
            state.request_table.counts[request.model].rescued += 1
            state.has_rescued = True
            state.touch(target)
            return True
        return False

    def expire_notices(self) -> None:
        """End announced requests whose body has not arrived by the deadline."""
        state, heap = self._state, self._notices
        while heap and heap[0][0] <= state.now:
            _, id = heapq.heappop(heap)
            entry = state.request_table.entries.get(id)
            if entry is not None and entry.state is State.ANNOUNCED:
                state.withdraw(entry)
                state.end(entry, Reason.EXPIRED, "its body did not come in time")
                state.forget(id)
                state.touch(entry.pool)  # a lane may be held for it

    def next_due(self) -> float:
        """When the next notice may expire; inf: never."""
        return self._notices[0][0] if self._notices else math.inf

    def _unavailable(self, request: Request | Notice, pool: Pool | None) -> None:
        detail = "" if pool is None else pool.down_reason or ""
        self._state.turn_away(request.id, request.model, Reason.UNAVAILABLE, detail)


def _could_serve(pool: Pool, request: Request | Notice, now: float) -> bool:
    """Whether `pool` could finish `request` in time at its p99, alone on the lane that is free
    soonest."""
    start = now + pool.free_in(now=now)
    if isinstance(request, Notice):
        start = max(start, request.complete_at)
        p99 = pool.times.of(1, pool.cores).p99
    else:
        if request.rows > pool.max_batch or (
            pool.unmeasured is not None and not pool.unmeasured.rules.measured(request)
        ):
            return False
        p99 = request.decoding + pool.times.of(request.rows, pool.cores, (request,)).p99
    return request.best_effort or start + p99 <= request.deadline


def _could_decode(pool: Pool, request: Request, now: float) -> bool:
    """Whether the request can be decoded and run alone in time. Schedulers ignore decoding."""
    if request.best_effort:
        return True
    run = 0.0
    if pool.unmeasured is None or pool.unmeasured.rules.measured(request):
        run = pool.times.of(request.rows, pool.cores, (request,)).expected
    return now + request.decoding + run <= request.deadline
