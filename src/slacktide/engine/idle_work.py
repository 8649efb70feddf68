"""What a lane does that no request waits for: it runs finished requests again, alone.

This is the one place where idle work comes in: `Batches` asks `IdleWork` what a lane should run,
which member of a finished batch to keep, and says when such a run has ended. So far there is one
kind of it, *solo profiling*, to learn how long requests are (Orloj §3.2, online profiler).

A request that ran in a batch does not show its own length. Where lengths are wanted, one member of
a finished batch at most is *held*: it has its answer, but its payload is kept, until its lane has
nothing better to do. Then it runs alone, as a batch that answers no request, and only if

- nothing is pending or announced for any model of the lane,
- the run's p99 is within the usual slack of every model of the lane (the usual budget less the
  model's own p99 alone): a request that comes meanwhile waits for one such run at most, and can
  still be on time,
- the pool has earned it: solo runs get a share of the lanes' time, saved up for some seconds.

A server that always has more to do than it can would never learn, and take short requests for long
ones for ever. So where as much is held as may be and no lane becomes idle, a request is *isolated*
now and then, by the same rules and on the same account: it runs, for the first time, alone instead
of with the batch that was proposed, which waits for one such run and is not made to wait for
another, however much has been saved up.

What runs alone anyway teaches as much and costs nothing, so requests like those that have lately
done so are not wanted. Orloj's profiler is a machine of its own; a small server has none to spare.
"""

from __future__ import annotations

from slacktide.domain import Batch, Request
from slacktide.engine.lanes import Lane, Placement, Pool
from slacktide.engine.ledger import RUNNING, State
from slacktide.engine.state import EngineState

HELD = 8
"""Most requests that a pool holds: each keeps a payload in memory."""


class IdleWork:
    """What the engine does about solo profiling; see the module docstring."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def isolated(
        self, placement: Placement, members: tuple[Request, ...], *, turn: int
    ) -> tuple[Request, ...]:
        """What is to run of the proposed `members`: all, or one of them alone, by `turn`."""
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
        """The held request to run again on a lane that has nothing else; it is held no longer.
        Drops what has become useless. Where the time for it is still to be earned, the lane is
        looked at again then."""
        holding = [p for p in lane.placements if p.pool.solo is not None and p.phase.serves]
        if not any(p.pool.solo.held for p in holding if p.pool.solo is not None):
            return None
        for placement in lane.placements:
            pool = placement.pool
            if len(pool.scheduler) or pool.quarantine or pool.announced:
                return None
        now = self._state.now
        for placement in holding:
            solo, pool = placement.pool.solo, placement.pool
            assert solo is not None
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
                self._state.ledger.entries[request.id].state = State.ENDED
                return placement, request
        return None

    def hold(self, batch: Batch, placement: Placement) -> Request | None:
        """The member of a finished batch that is held from now on, if any."""
        pool = placement.pool
        members = batch.members
        # Which one: any, but the same one whenever the same events are replayed.
        member = members[batch.id % len(members)]
        pool.see_budget(member.deadline - member.arrival)
        solo = pool.solo
        if solo is None or len(members) == 1 or len(solo.held) >= HELD:
            return None
        if pool.removed or pool.down_reason is not None:
            return None
        entry = self._state.ledger.entries[member.id]
        if entry.state is not RUNNING or not solo.rules.wants(member):
            return None
        if not self._fits(placement, member):
            return None
        entry.state = State.HELD
        solo.held.append(member)
        return member

    def ended(self, batch: Batch, placement: Placement) -> None:
        """A solo run has left its lane, one way or another: count it, and what waited for it."""
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
        """Let go of everything that is held for `pool`."""
        if pool.solo is not None:
            while pool.solo.held:
                self._state.forget(pool.solo.held.popleft().id)

    def _fits(self, placement: Placement, request: Request) -> bool:
        """Whether every model of the lane can wait for this request to run alone."""
        lane = placement.lane
        return can_wait(lane, placement.pool.times.of(request.rows, lane.size, (request,)).p99)


def can_wait(lane: Lane, seconds: float) -> bool:
    """Whether a run of `seconds` is within the usual slack of every model of the lane: a request
    that comes meanwhile can still be on time."""
    return seconds <= min(
        p.pool.usual_budget - p.pool.times.of(1, lane.size).p99 for p in lane.placements
    )
