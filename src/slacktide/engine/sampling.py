"""Running finished requests again, alone, to learn how long they are (Orloj §3.2, online profiler).

A request that ran in a batch does not show its own length. Where lengths are wanted, one member of
a finished batch at most is *held*: it has its answer, but its payload is kept, until its lane has
nothing better to do. Then it runs alone, as a batch that answers nobody, and only if

- nothing is pending or announced for any model of the lane,
- the run's p99 is within the usual slack of every model of the lane (the usual budget less the
  model's own p99 alone): a request that comes meanwhile waits for one such run at most, and can
  still be on time,
- the pool has earned it: samples get a share of the lanes' time, saved up for some seconds.

A server that always has more to do than it can would never learn, and take short requests for long
ones for ever. So where as much is held as may be and no lane becomes idle, a request is *singled
out* now and then, by the same rules and on the same account: it runs, for the first time, alone
instead of with the batch that was proposed, which waits for one such run and is not made to wait
for another, however much has been saved up.

What runs alone anyway teaches as much and costs nothing, so requests like those that have lately
done so are not wanted. Orloj's profiler is a machine of its own; a small server has none to spare.
"""

from __future__ import annotations

from collections.abc import Sequence

from slacktide.domain import Batch, Request
from slacktide.engine.lane import Lane
from slacktide.engine.ledger import Entry, State
from slacktide.engine.placement import Placement
from slacktide.engine.pool import Pool
from slacktide.engine.state import EngineState

HELD = 8
"""Most samples that a pool holds: each keeps a payload in memory."""


class Sampler:
    """What the engine does about samples; `Batches` asks it."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def choose(self, batch: Batch, placement: Placement) -> Request | None:
        """The member of a finished batch that is to be held, if any."""
        pool = placement.pool
        members = batch.members
        # Which one: any, but the same one whenever the same events are replayed.
        member = members[batch.id % len(members)]
        pool.see_budget(member.deadline - member.arrival)
        samples = pool.samples
        if samples is None or len(members) == 1 or len(samples.held) >= HELD:
            return None
        if pool.removed or pool.down_reason is not None:
            return None
        entry = self._state.ledger.entries[member.id]
        if entry.state is not State.RUNNING or not samples.rules.wants(member):
            return None
        if not self._fits(placement, member):
            return None
        return member

    def hold(self, entry: Entry) -> None:
        """A member that was chosen has its outcome."""
        samples, request = entry.pool.samples, entry.request
        assert samples is not None
        assert isinstance(request, Request)
        entry.state = State.SAMPLE
        samples.held.append(request)

    def next_on(self, lane: Lane) -> tuple[Placement, Request] | None:
        """The sample to run on a lane that nobody wants now; it is held no longer.

        Gives back what has become useless. Where the time for a sample is still to be earned, the
        lane is looked at again then.
        """
        holding = [p for p in lane.placements if p.pool.samples is not None and p.serves]
        if not any(p.pool.samples.held for p in holding if p.pool.samples is not None):
            return None
        for placement in lane.placements:
            pool = placement.pool
            if len(pool.scheduler) or pool.suspects or pool.announced:
                return None
        now = self._state.now
        for placement in holding:
            samples, pool = placement.pool.samples, placement.pool
            assert samples is not None
            while samples.held:
                request = samples.held[0]
                if not samples.rules.wants(request) or not self._fits(placement, request):
                    samples.held.popleft()
                    self._state.forget(request.id)
                    continue
                seconds = pool.times.of(request.rows, lane.size, (request,)).expected
                at = samples.affordable_at(seconds, lanes=pool.lanes, now=now)
                if at > now:
                    lane.wait_until = min(lane.wait_until, at)
                    break
                samples.held.popleft()
                self._state.ledger.entries[request.id].state = State.ENDED
                return placement, request
        return None

    def single_out(
        self, placement: Placement, members: Sequence[Request], *, turn: int
    ) -> Request | None:
        """The one of the proposed `members` that is to run alone instead of all; None: as proposed.

        `turn` picks it.
        """
        pool = placement.pool
        samples = pool.samples
        if samples is None or len(members) == 1 or len(samples.held) < HELD:
            return None
        if any(one.arrival <= samples.singled_at for one in members):
            return None
        member = members[turn % len(members)]
        if not samples.rules.wants(member) or not self._fits(placement, member):
            return None
        cores, now = placement.lane.size, self._state.now
        seconds = pool.times.of(member.rows, cores, (member,)).expected
        if samples.affordable_at(seconds, lanes=pool.lanes, now=now) > now:
            return None
        samples.pay(seconds)
        samples.singled_at = now
        samples.rules.counts.singled += 1
        return member

    def ended(self, batch: Batch, placement: Placement) -> None:
        """A sample has left its lane, one way or another: count it, and who waited for it."""
        now = self._state.now
        samples = placement.pool.samples
        assert samples is not None
        samples.pay(now - batch.started)
        counts = samples.rules.counts
        counts.run += 1
        counts.run_s += now - batch.started
        for neighbour in placement.lane.placements:
            for request in neighbour.pool.scheduler.pending():
                counts.delayed += 1
                counts.delayed_s += now - max(request.arrival, batch.started)

    def give_back(self, pool: Pool) -> None:
        """Let go of everything that is held for `pool`."""
        if pool.samples is not None:
            while pool.samples.held:
                self._state.forget(pool.samples.held.popleft().id)

    def _fits(self, placement: Placement, request: Request) -> bool:
        """Whether every model of the lane can wait for this request to run alone."""
        lane = placement.lane
        p99 = placement.pool.times.of(request.rows, lane.size, (request,)).p99
        return p99 <= min(
            p.pool.usual_budget - p.pool.times.of(1, lane.size).p99 for p in lane.placements
        )
