"""Early exits: which members may leave a batch, and which batch stops for other requests.

Ramps inside a model answer rows that they are certain of (`ExitPolicy`). A worker evaluates them
and reports with `RowsReleased`. The rules of this module:

- A share of batches is *judged*: all their rows run to the end, so that the ramps' answers can be
  compared with the model's. A batch's id decides whether it is judged, so judged batches are evenly
  spread, and are chosen before anything is known about their rows. A choice by content would judge
  the ramps on easy inputs.
- If answers are remembered, *runs* of a session's frames are judged, in whatever batches they are:
  these frames stay in a batch that other members leave, and a batch that runs on with them is not
  stopped.
- In other batches, answered rows run on in mode `release` and leave in mode `shrink`.
- In mode `auto`, answered rows run on if the lane was idle before and no other request waits for
  it: their time then costs nothing, and accuracy is learnt from them. Otherwise they leave, even if
  the batch follows another one and takes all waiting requests: a busy lane will be needed before
  the batch is over (decision 0054). Once all members of a batch that runs on are answered, the
  batch is stopped as soon as there is a request that its lane could run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slacktide.domain import (
    AbortBatch,
    ExitMode,
    ExitPolicy,
    Leaving,
    PoolId,
    PublishExits,
    Request,
    is_in_run,
    is_judged,
)
from slacktide.engine.lanes import Lane, Placement, Running
from slacktide.engine.phases import UP
from slacktide.engine.state import EngineState


class ExitRules:
    """Publishes policies, and applies them to batches."""

    def __init__(self, state: EngineState) -> None:
        self._state = state

    def follow(self, policies: Iterable[ExitPolicy]) -> None:
        """Put the policies in force and publish changes to the replicas that are up."""
        policy_by_pool: dict[PoolId, ExitPolicy] = {policy.pool: policy for policy in policies}
        for pool in self._state.pools.values():
            policy = policy_by_pool.get(pool.id)
            if policy == pool.exits:
                continue
            pool.exits = policy
            pool.times.follow(policy)
            for placement in pool.placements:
                self._publish(placement, policy or ExitPolicy(pool.id))

    def came_up(self, placement: Placement) -> None:
        """Publish the policy to a replica that has just come up."""
        if placement.pool.exits is not None:
            self._publish(placement, placement.pool.exits)

    def _publish(self, placement: Placement, policy: ExitPolicy) -> None:
        if placement.state is UP and not placement.phase.dying:
            # `runs` is carried out in order: a policy precedes the first batch that it applies to.
            state = self._state
            state.runs.append(PublishExits(placement.replica, policy, state.cause))

    def begin(
        self, lane: Lane, placement: Placement, batch: int, members: int, *, first: bool
    ) -> tuple[Leaving, bool, bool, bool]:
        """Return the rules for a batch that is about to start: whether its members may leave,
        whether it is judged, whether it may be stopped once all members are answered, and
        `Batch.refreshes`. `members`: how many of its pool's waiting requests it takes. `first`:
        whether the batch's time is unknown, so that it must run to the end to be learnt.
        """
        policy = placement.pool.exits
        if policy is None or not policy.ramps:
            return Leaving.NONE, False, False, False
        busy = policy.mode is not ExitMode.RELEASE and (
            policy.mode is ExitMode.SHRINK
            or lane.free_since == self._state.now
            or is_wanted(lane, placement, members)
        )
        if first or is_judged(batch, policy.feedback):
            return Leaving.RUN_ON, True, False, not busy
        if busy:
            return Leaving.SHRINK, False, False, False
        return Leaving.RUN_ON, False, policy.mode is ExitMode.AUTO, True

    def held(self, placement: Placement, members: Sequence[Request]) -> tuple[int, ...]:
        """Return the places of members that only the model's end may answer."""
        policy = placement.pool.exits
        listed = None if policy is None else policy.applications
        return tuple(
            [
                place
                for place, member in enumerate(members)
                if member.final or (listed is not None and member.application not in listed)
            ]
        )

    def in_runs(self, placement: Placement, members: Sequence[Request]) -> tuple[int, ...]:
        """Return the places of members whose frame belongs to a judged run (`is_in_run`)."""
        policy = placement.pool.exits
        if policy is None or not policy.remembers:
            return ()
        frames = enumerate(members)
        return tuple([at for at, frame in frames if is_in_run(frame.session, frame.frame)])

    def stop_for_others(self, lane: Lane, running: Running) -> None:
        """Stop a batch whose members are all answered if a request waits for its lane."""
        if is_wanted(lane):
            running.spare = False
            state = self._state
            state.commands.append(AbortBatch(running.batch, state.cause))


def is_wanted(lane: Lane, asker: Placement | None = None, covered: int = 0) -> bool:
    """Whether a request waits that `lane` could run and that no free lane will take. The first
    `covered` requests in the pool of `asker` do not count."""
    for placement in lane.placements:
        if placement.standby or not placement.phase.serves:
            continue
        pool = placement.pool
        waiting = len(pool.scheduler) + len(pool.quarantine)
        if placement is asker:
            waiting -= covered
        if waiting > 0 and not any(
            rival.lane.running is None and rival.phase.serves and not rival.standby
            for rival in pool.placements
            if rival.lane is not lane
        ):
            return True
    return False
