"""Idle work: lanes without waiting requests run finished requests again, alone.

`Batches` asks `IdleWork` what an idle lane should run and which member of a finished batch to hold,
and reports the end of such runs. So far there is one kind of idle work, *solo profiling*, to learn
how long requests are (Orloj §3.2, online profiler).

A request that ran in a batch does not reveal its own length. If lengths are needed, at most one
member of a finished batch is *held*: it has its answer, but its payload is kept until its lane is
idle. Then the request runs alone, as a batch that answers no request, and only if

- nothing is pending or announced for any model of the lane,
- the run's p99 is within the usual slack of every model of the lane (the usual budget less the
  model's own p99 alone), so that a request that arrives meanwhile waits for at most one such run
  and can still be on time,
- the pool can afford it: solo runs get a share of the lanes' time, which is saved up for some
  seconds.

A server that is always overloaded would never learn this way, and would treat short requests as
long ones for ever. So if a pool holds as many requests as it may and no lane becomes idle, a
request is *isolated* now and then, by the same rules and from the same share: its first run is
alone, and the rest of the proposed batch waits for it. A request waits for at most one such run,
however much time has been saved up.

Requests that happen to run alone also reveal their length, so further requests like them are not
held. Orloj's profiler has a machine of its own, which a small server lacks.
"""

from __future__ import annotations

from slacktide.domain import Batch, Request
from slacktide.engine.lanes import Lane, Placement, Pool
from slacktide.engine.request_table import RUNNING, State
from slacktide.engine.state import EngineState

HELD = 8
"""Maximum number of requests that a pool holds, since each keeps a payload in memory."""


class IdleWork:
    """Solo profiling; see the module docstring."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def isolated(
        self, placement: Placement, members: tuple[Request, ...], *, turn: int
    ) -> tuple[Request, ...]:
        """The members to run now: all of them, or only the member at `turn`, isolated."""
        pool = placement.pool
        solo = pool.solo
        if solo is None or len(members) == 1 or len(solo.held) < HELD:
            return members
        if any(request.arrival <= solo.isolated_at for request in members):
            return members
        member = members[turn % len(members)]
        if not solo.rules.wants(member) or not self._fits(placement, member):
            return members
        now = self._state.now
        seconds = pool.times.of(member.rows, placement.lane.size, (member,)).expected
        if solo.affordable_at(seconds, lanes=pool.lanes, now=now) > now:
            return members
        solo.pay(seconds)
        solo.isolated_at = now
        solo.rules.counts.isolated += 1
        return (member,)

    def next_on(self, lane: Lane) -> tuple[Placement, Request] | None:
        """Take the held request to run again on a lane without other work; None if there is none.

        Drops held requests that are no longer useful. If a run is not affordable yet, the lane is
        dispatched again when it is.
        """
        holding = [
            (placement, solo)
            for placement in lane.placements
            if (solo := placement.pool.solo) is not None and solo.held and placement.phase.serves
        ]
        if not holding or any(placement.pool.has_requests for placement in lane.placements):
            return None
        now = self._state.now
        for placement, solo in holding:
            pool = placement.pool
            while solo.held:
                request = solo.held[0]
                if not solo.rules.wants(request) or not self._fits(placement, request):
                    solo.held.popleft()
                    self._state.forget(request.id)
                    continue
                seconds = pool.times.of(request.rows, lane.size, (request,)).expected
                at = solo.affordable_at(seconds, lanes=pool.lanes, now=now)
                if at > now:
                    lane.wait_until = min(lane.wait_until, at)
                    break
                solo.held.popleft()
                self._state.request_table.entries[request.id].state = State.ENDED
                return placement, request
        return None

    def hold(self, batch: Batch, placement: Placement) -> Request | None:
        """Hold a member of a finished batch; None if none is held."""
        pool = placement.pool
        members = batch.members
        # Any member will do, but a replay must choose the same one.
        member = members[batch.id % len(members)]
        pool.see_budget(member.deadline - member.arrival)
        solo = pool.solo
        if solo is None or len(members) == 1 or len(solo.held) >= HELD:
            return None
        if pool.removed or pool.down_reason is not None:
            return None
        entry = self._state.request_table.entries[member.id]
        if entry.state is not RUNNING or not solo.rules.wants(member):
            return None
        if not self._fits(placement, member):
            return None
        entry.state = State.HELD
        solo.held.append(member)
        return member

    def ended(self, batch: Batch, placement: Placement) -> None:
        """Count a solo run that has left its lane, and the requests that waited for it."""
        now = self._state.now
        solo = placement.pool.solo
        assert solo is not None
        solo.pay(now - batch.started)
        counts = solo.rules.counts
        counts.run += 1
        counts.run_s += now - batch.started
        for neighbour in placement.lane.placements:
            for request in neighbour.pool.scheduler.pending():
                counts.delayed += 1
                counts.delayed_s += now - max(request.arrival, batch.started)

    def drop_held(self, pool: Pool) -> None:
        """Release all held requests of `pool`."""
        if pool.solo is not None:
            while pool.solo.held:
                self._state.forget(pool.solo.held.popleft().id)

    def _fits(self, placement: Placement, request: Request) -> bool:
        """Whether every model of the lane can wait while this request runs alone."""
        lane = placement.lane
        return can_wait(lane, placement.pool.times.of(request.rows, lane.size, (request,)).p99)


def can_wait(lane: Lane, seconds: float, *, but: Placement | None = None) -> bool:
    """Whether a run of `seconds` is within the usual slack of every model of the lane, so that a
    request that arrives meanwhile can still be on time. The model of `but` is not asked."""
    return all(
        seconds <= placement.pool.usual_budget - placement.pool.times.of(1, lane.size).p99
        for placement in lane.placements
        if placement is not but
    )
