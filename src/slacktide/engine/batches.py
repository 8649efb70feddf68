"""Batches: from the proposals for a free lane to the outcome of every member."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from slacktide.domain import (
    Batch,
    BatchAborted,
    BatchFailed,
    BatchFinished,
    FreeSlots,
    Leaving,
    Reason,
    Replica,
    Request,
    RowsReleased,
    RunBatch,
    decoding_time,
)
from slacktide.engine.early_exits import ExitRules
from slacktide.engine.idle_work import IdleWork
from slacktide.engine.lanes import Lane, Placement, PoolCrash, Running
from slacktide.engine.ports import Proposal, WaitUntil
from slacktide.engine.request_table import RUNNING, Entry, State
from slacktide.engine.requests import Requests
from slacktide.engine.state import EngineState
from slacktide.engine.trials import trial_finished
from slacktide.engine.unmeasured import UnmeasuredWork
from slacktide.engine.windows import Offer, admit
from slacktide.engine.worth import best_effort_value, fair_shares, worth

FAIRNESS_FLOOR = 0.01
"""Seconds of lane time below which models are treated alike."""


ON_TIME: Final = Reason.ON_TIME  # a module constant for speed, see engine/request_table.py


class Batches:
    """Handles RowsReleased, BatchFinished, BatchFailed and BatchAborted, and fills free lanes."""

    def __init__(
        self,
        state: EngineState,
        requests: Requests,
        idle: IdleWork,
        unmeasured: UnmeasuredWork,
        exits: ExitRules,
    ) -> None:
        self._state = state
        self._requests = requests
        self._idle = idle
        self._unmeasured = unmeasured
        self._exits = exits
        self._next_id = 0

    def dispatch(self, lane: Lane) -> None:
        """If the lane is free and not about to grow, run the proposal that is worth most. If the
        lane runs a spare batch, stop this batch for other requests."""
        if lane.running is not None:
            if lane.running.spare:
                self._exits.stop_for_others(lane, lane.running)
            return
        lane.wait_until = math.inf
        if lane.awaited_until < math.inf:
            return
        offers: list[Offer] = []
        for placement in lane.placements:
            pool = placement.pool
            if pool.quiet or placement.standby or not placement.phase.serves:
                continue
            self._requests.expire(pool)
            if pool.quarantine or pool.unmeasured is not None or len(pool.scheduler):
                proposal = self._propose(placement)
                if isinstance(proposal, WaitUntil):
                    lane.wait_until = min(lane.wait_until, proposal.at)
                elif proposal is not None:
                    offers.append((placement, proposal))
            elif not pool.announced and pool.scheduler.next_expiry() is None:
                pool.quiet = True
        if offers and lane.windows is not None:
            offers, opens = admit(
                lane.windows, offers, lane.placements, self._proposed, self._state.now
            )
            lane.wait_until = min(lane.wait_until, opens)
        if offers:
            placement, proposal = offers[0] if len(offers) == 1 else self._best(offers)
            members = _within(proposal, placement.replica.max_batch)
            members = self._idle.isolated(placement, members, turn=self._next_id)
            if len(members) < len(proposal.members):
                proposal = Proposal(members, sum([member.rows for member in members]))
            self._run(lane, placement, proposal)
        elif lane.wait_until == math.inf:
            first = self._unmeasured.next_on(lane)
            if first is not None:
                placement, request = first
                self._run(lane, placement, Proposal((request,), request.rows))
            elif (solo_run := self._idle.next_on(lane)) is not None:
                placement, request = solo_run
                self._start(lane, placement, (request,), request.rows, solo=True)

    def _best(self, offers: Sequence[Offer]) -> Offer:
        """The offer that is worth most, given each model's recent share of the lane (of equals, the
        first)."""
        now = self._state.now
        had = fair_shares(
            [placement.lane_time.had(now=now) for placement, _ in offers],
            [placement.pool.share for placement, _ in offers],
            floor=FAIRNESS_FLOOR,
        )
        values = [
            self._worth(*offer) / standing**2 for offer, standing in zip(offers, had, strict=True)
        ]
        return offers[values.index(max(values))]

    def _propose(self, placement: Placement) -> Proposal | WaitUntil | None:
        pool = placement.pool
        if pool.quarantine:  # alone, so that a poison request harms no other
            request = pool.quarantine[0]
            return Proposal((request,), request.rows)
        if pool.unmeasured is not None:
            first = self._unmeasured.offered_on(placement)
            if first is not None:
                return Proposal((first,), first.rows)
        if not len(pool.scheduler):
            return None
        replica = placement.replica
        if pool.widest > replica.max_batch:
            # If the cap is below the rows of a request, the request would wait for ever.
            widest = max(request.rows for request in pool.scheduler.pending())
            if widest > replica.max_batch:
                replica = replace(replica, max_batch=widest)
        proposal = pool.scheduler.propose(replica, now=self._state.now)
        return proposal if isinstance(proposal, Proposal | WaitUntil) else None

    def _proposed(self, placement: Placement, replica: Replica) -> Proposal | None:
        """The batch that the placement's pool proposes if its replica is replaced by `replica`."""
        proposal = placement.pool.scheduler.propose(replica, now=self._state.now)
        return proposal if isinstance(proposal, Proposal) else None

    def _worth(self, placement: Placement, proposal: Proposal) -> float:
        pool, now = placement.pool, self._state.now
        if self._is_unmeasured(placement, proposal):
            (request,) = proposal.members
            if request.best_effort:
                return best_effort_value(request, now=now)
            return request.penalty
        return worth(
            proposal.members, proposal.rows, pool.times, cores=placement.lane.size, now=now
        )

    def _is_unmeasured(self, placement: Placement, proposal: Proposal) -> bool:
        if placement.pool.unmeasured is None:
            return False
        first = self._state.request_table.entries[proposal.members[0].id]
        return first.state is State.UNMEASURED

    def _run(self, lane: Lane, placement: Placement, proposal: Proposal) -> None:
        pool, first = placement.pool, self._is_unmeasured(placement, proposal)
        running = self._start(lane, placement, proposal.members, proposal.rows, first=first)
        if pool.quarantine:
            entry = self._state.request_table.entries[pool.quarantine.popleft().id]
            if entry.trial and not entry.crashes:
                running.trial_s = running.expected_end - running.batch.started
        elif first:
            self._unmeasured.started(running)
        else:
            pool.scheduler.take(running.batch)
        entries = self._state.request_table.entries
        for member in proposal.members:
            entries[member.id].state = RUNNING

    def _start(
        self,
        lane: Lane,
        placement: Placement,
        members: tuple[Request, ...],
        rows: int,
        *,
        solo: bool = False,
        first: bool = False,
    ) -> Running:
        """Start a batch on a free lane. `first`: it is one request without a predicted run time."""
        state, pool = self._state, placement.pool
        settings, now = state.settings, state.now
        leaving, judged, may_stop, refreshes = Leaving.NONE, False, False, False
        held: tuple[int, ...] = ()
        if pool.exits is not None and not solo:
            leaving, judged, may_stop, refreshes = self._exits.begin(
                lane, placement, self._next_id, len(members), first=first
            )
            if leaving is not Leaving.NONE:
                held = self._exits.held(placement, members)
                if runs := self._exits.in_runs(placement, members):
                    may_stop = False
                    held = tuple(sorted({*held, *runs})) if leaving is Leaving.SHRINK else held
        shrinks = may_stop or leaving is Leaving.SHRINK
        predict = pool.times.of if shrinks else pool.times.whole
        time = predict(rows, lane.size, members)
        decoding = decoding_time(members)
        expected, p99 = time.expected + decoding, time.p99 + decoding
        limit = max(settings.hang_floor, settings.hang_factor * time.p99)
        limit += settings.decoding_hang_factor * decoding
        replica = placement.replica
        if rows > replica.max_batch:  # a single request with more rows than the cap
            replica = replace(replica, max_batch=rows)
        batch = Batch(
            *(self._next_id, replica, members, rows, now, now + limit, solo, leaving, judged),
            *(held, refreshes),
        )
        self._next_id += 1
        running = lane.running = Running(batch, placement, now + expected)
        running.may_stop = may_stop
        if lane.windows is not None:
            lane.windows.ran(pool.id.model, now=now)
        state.running[batch.id] = running
        state.runs.append(RunBatch(batch, state.cause, expected, p99))
        return running

    def released(self, event: RowsReleased) -> None:
        running, ramp = self._find(event.batch), event.ramp if event.ramp >= 0 else None
        held = running.batch.held
        members = {member.id: at in held for at, member in enumerate(running.batch.members)}
        for id in event.ids:
            if members.get(id, True):  # True if it is final or not a member
                problem = "may not leave early" if id in members else "is not a member of it"
                raise ValueError(f"batch {event.batch} released request {id}, which {problem}")
        entries, before = self._state.request_table.entries, running.waiting
        for id in event.ids:
            entry = entries[id]
            if entry.state is RUNNING:
                self._state.end_running(entry, running.batch, Reason.EARLY_EXIT, ramp=ramp)
                entry.state = State.ENDED
                running.waiting -= 1
        if running.may_stop and before and not running.waiting:
            running.spare, running.expected_end = True, self._state.now
            self._state.mark(running.placement.lane)

    def finished(self, event: BatchFinished) -> None:
        state = self._state
        running = self.leave(event.batch)
        batch, placement = running.batch, running.placement
        took = state.now - batch.started - decoding_time(batch.members)
        if batch.leaving is not Leaving.NONE:
            seconds = took if running.steady else None
            placement.pool.times.saw(batch, event.exits, seconds, running.cores)
        elif running.steady:
            placement.pool.times.observe(took, batch.members, batch.rows, running.cores)
        if not batch.solo:
            placement.pool.trials.refused = 0
        if running.trial_s and running.steady:
            trial_finished(running, took, running.trial_s)
        crashes = placement.pool.crashes
        if crashes.undecided and not batch.solo:
            # If the version is down, this replica started before the trial, so it proves nothing.
            down = placement.pool.down_reason is not None
            if crashes.finished(0.0 if down else state.now - placement.since):
                state.to_review.append(placement.pool)
        entries = state.request_table.entries
        held = None if batch.solo else self._idle.hold(batch, placement)
        ids: list[int] = []
        for member in batch.members:
            entry = entries[member.id]
            if member is not held:
                ids.append(member.id)
                del entries[member.id]
            if entry.state is RUNNING or member is held:
                state.end_running(entry, batch, ON_TIME)
        state.commands.append(FreeSlots(tuple(ids), state.cause))
        if placement.pool.unmeasured is not None:
            self._unmeasured.finished(running)

    def failed(self, event: BatchFailed) -> None:
        running = self.leave(event.batch)
        batch = running.batch
        # One bad member may have made the whole batch fail; only a run alone shows which it was.
        retry = len(batch.members) > 1
        for entry in self._waiting(batch):
            if retry:
                self._quarantine(entry, batch, event.detail)
            else:
                self._state.end_running(entry, batch, Reason.RUNTIME_ERROR, event.detail)
        self._forget_all_but_quarantined(batch)
        if running.placement.pool.unmeasured is not None and not retry:
            self._unmeasured.failed(running, event.detail)

    def aborted(self, event: BatchAborted) -> None:
        running = self.leave(event.batch)
        batch = running.batch
        if event.exits is not None:
            running.placement.pool.times.saw(batch, event.exits, None, running.cores)
        for entry in self._waiting(batch):
            self._state.end_running(entry, batch, Reason.RUNTIME_ERROR, "its batch was stopped")
        self._forget_all_but_quarantined(batch)

    def lost(self, batch: Batch, crash: PoolCrash, *, guilty: bool) -> bool:
        """Handle the death of a batch's replica: run its members again, one by one, even if nobody
        waits for them. A request ends with its second crash, or with its first if it ran alone and
        `guilty` is set. Returns whether a request, not the version, is to blame."""
        self.leave(batch.id)
        entries = self._state.request_table.entries
        most = self._state.settings.crashes_per_request_count
        blames_members = not batch.solo and any(entries[m.id].crashes for m in batch.members)
        guilty = guilty and len(batch.members) == 1
        for entry in [entries[member.id] for member in batch.members]:
            if entry.state is State.ENDED and not entry.answered:
                continue  # answered by a ramp
            entry.crashes = most if guilty else entry.crashes + 1
            if entry.crash is None:
                entry.crash = crash
                crash.unjudged += 1
            if entry.crashes < most:
                self._quarantine(entry, batch, crash.detail)
            else:
                self._state.end_running(entry, batch, Reason.CRASHED, crash.detail)
        self._forget_all_but_quarantined(batch)
        return blames_members or (guilty and not batch.solo)

    def leave(self, batch: int) -> Running:
        """Free the lane of `batch`. Raises ValueError if no such batch runs."""
        state = self._state
        running = self._find(batch)
        del state.running[batch]
        placement = running.placement
        took = state.now - running.batch.started
        placement.lane_time.add(took, now=state.now)
        placement.lane.running = None
        placement.lane.free_since = state.now
        if placement.lane.windows is not None:
            placement.lane.windows.ran(placement.pool.id.model, now=state.now)
        if running.batch.solo:
            self._idle.ended(running.batch, placement)
        else:
            placement.pool.see_cost(took, len(running.batch.members))
            placement.pool.scheduler.ended(running.batch, now=state.now)
            placement.pool.quiet = False
        if running.unmeasured:
            self._unmeasured.ended(running, took)
        state.mark(placement.lane)
        return running

    def _find(self, batch: int) -> Running:
        try:
            return self._state.running[batch]
        except KeyError:
            raise ValueError(f"no batch {batch} is running") from None

    def _waiting(self, batch: Batch) -> list[Entry]:
        """Entries of the members without an answer."""
        entries = [self._state.request_table.entries[member.id] for member in batch.members]
        return [entry for entry in entries if entry.state is RUNNING]

    def _quarantine(self, entry: Entry, batch: Batch, detail: str) -> None:
        """Queue a member to run again, alone, in its pool or in the pool that replaced it."""
        state, request, pool = self._state, entry.request, entry.pool
        assert isinstance(request, Request)
        if pool.removed or pool.down_reason is not None:
            target = state.routes.pool_for(request)
            if target is None or target.removed or target.down_reason is not None:
                state.end_running(entry, batch, Reason.UNAVAILABLE, detail)
                return
            entry.pool = pool = target
        entry.state = State.QUARANTINED
        pool.quarantine.append(request)
        state.touch(pool)

    def _forget_all_but_quarantined(self, batch: Batch) -> None:
        state = self._state
        entries = state.request_table.entries
        ids = [m.id for m in batch.members if entries[m.id].state is not State.QUARANTINED]
        for id in ids:
            del entries[id]
        if ids:
            state.commands.append(FreeSlots(tuple(ids), state.cause))


def _within(proposal: Proposal, cap: int) -> tuple[Request, ...]:
    """The first members of a proposal, with at most `cap` rows together, but at least one
    member."""
    members, rows = proposal.members, proposal.rows
    while rows > cap and len(members) > 1:
        rows -= members[-1].rows
        members = members[:-1]
    return members
