"""Trials: requests that run although the profile refuses them, to check the profile.

A profile that was measured on a busy machine, or edited, may state twenty times the true run time.
Then each request is refused as too short, nothing runs, and nothing shows that the profile is
wrong. So after `TRIAL_EVERY` refusals of a pool on an idle lane, without a run in between, the next
request runs alone and is answered, late or not. If the profile was right, the number of refusals
before the next trial doubles. If two trials in a row take less than `FAR_OFF` of the prediction,
the slower trial replaces the prediction; the second trial comes without further refusals.

The request of a pipeline's stage is tried at the first refusal. Otherwise the work of earlier
stages would be lost with each frame, and in a chain each stage would need its own series of
refusals.

A trial of a pool that is alone on its lane costs nobody anything. On a shared lane, the first trial
may delay other models. Later trials run if these models can usually wait for that long, or within a
share of the lane's time (`TRIAL_SHARE`), as for unmeasured shapes (engine/unmeasured.py).
"""

from __future__ import annotations

from slacktide.domain import Notice, Reason, Request
from slacktide.engine.idle_work import can_wait
from slacktide.engine.lanes import Placement, Pool, Running
from slacktide.engine.time_share import TRIAL_EVERY

MOST_EVERY = 1024
"""Maximum number of refusals before a trial. The number doubles whenever a trial confirms the
prediction."""
FAR_OFF = 0.7
"""A trial that takes more than this part of its prediction confirms the prediction. The remaining
deviation is learnt as from any other run."""
DOUBTED = (Reason.SHORTER_THAN_ALONE, Reason.BEHIND_WORK)
"""Reasons for which a pool on an idle lane refuses because of its profile alone."""


def trial_due(pool: Pool, request: Request | Notice, reason: Reason, *, now: float) -> bool:
    """Count a refusal. Returns whether this request runs nevertheless."""
    trials = pool.trials
    if reason not in DOUBTED or request.best_effort or not pool.times.learns or pool.has_requests:
        return False
    placement = _idle_placement(pool)
    if placement is None:
        return False
    trials.refused += 1
    is_part = isinstance(request, Request) and request.parent is not None
    if trials.refused <= trials.every and (trials.tried or not is_part):
        return False
    rows = request.rows if isinstance(request, Request) else 1
    members = (request,) if isinstance(request, Request) else ()
    seconds = pool.times.of(rows, placement.lane.size, members).expected * (trials.ratio or 1.0)
    if (
        trials.tried
        and not can_wait(placement.lane, seconds, but=placement)
        and trials.time.affordable_at(seconds, lanes=pool.lanes, now=now) > now
    ):
        return False
    trials.refused, trials.tried = 0, True
    return True


def trial_finished(running: Running, seconds: float, predicted: float) -> None:
    """Learn from a trial that took `seconds` instead of `predicted` seconds."""
    pool, batch = running.placement.pool, running.batch
    trials, before = pool.trials, pool.trials.ratio
    trials.time.pay(seconds)
    trials.ratio = seconds / predicted
    if trials.ratio > FAR_OFF:
        trials.ratio, trials.every = 0.0, min(2 * trials.every, MOST_EVERY)
    elif not before:
        trials.refused = trials.every
    else:
        slower = predicted * max(before, trials.ratio)
        pool.times.settle(slower, batch.members, batch.rows, running.cores)
        trials.ratio, trials.every, trials.tried = 0.0, TRIAL_EVERY, False


def _idle_placement(pool: Pool) -> Placement | None:
    """A placement on a lane that runs nothing and has no requests of other pools, or None."""
    for placement in pool.placements:
        lane = placement.lane
        if placement.standby or not placement.phase.serves or lane.running is not None:
            continue
        if not any(p.pool.has_requests for p in lane.placements if p is not placement):
            return placement
    return None
