"""Requests that run although their profile refuses them, to see whether it is right.

A profile that was taken on a busy machine, or edited, may say that a model takes twenty times as
long as it does. Then each request is refused as too short, nothing runs, and nothing shows that the
profile is wrong. So after `TRIAL_EVERY` refusals of a pool on an idle lane, with no run in between,
the next one runs alone and is answered, late or not. Where its profile was right, twice as many
refusals go by before the next trial. Where two trials in a row take less than `FAR_OFF` of what was
predicted, the slower of them replaces the prediction; the second one does not wait for refusals.

A pool that is alone on its lane costs nobody anything by this. Where models share the lane, the
first trial may make them wait; at later ones each of them can usually wait as long as is expected,
or the trial is within a share of the lane's time (`TRIAL_SHARE`), as for unmeasured shapes
(engine/unmeasured.py).
"""

from __future__ import annotations

from slacktide.domain import Notice, Reason, Request
from slacktide.engine.lanes import Placement, Pool, Running
from slacktide.engine.time_share import TRIAL_EVERY

MOST_EVERY = 1024
"""Most refusals before a trial: each trial that agrees with the prediction doubles them."""
FAR_OFF = 0.7
"""Part of the prediction above which a trial agrees with it; what is nearer is learnt as from any
run."""
DOUBTED = (Reason.SHORTER_THAN_ALONE, Reason.BEHIND_WORK)
"""Reasons for which a pool on an idle lane refuses because of its profile alone."""


def trial_due(pool: Pool, request: Request | Notice, reason: Reason, *, now: float) -> bool:
    """Count a refusal; whether this request runs all the same."""
    trials = pool.trials
    if reason not in DOUBTED or request.best_effort or not pool.times.learns:
        return False
    if len(pool.scheduler) or pool.quarantine or pool.announced:
        return False
    placement = _idle_placement(pool)
    if placement is None:
        return False
    trials.refused += 1
    if trials.refused <= trials.every:
        return False
    rows = request.rows if isinstance(request, Request) else 1
    members = (request,) if isinstance(request, Request) else ()
    seconds = pool.times.of(rows, placement.lane.size, members).expected * (trials.ratio or 1.0)
    if (
        trials.tried
        and not _others_can_wait(placement, seconds)
        and (trials.time.affordable_at(seconds, lanes=pool.lanes, now=now) > now)
    ):
        return False
    trials.refused, trials.tried = 0, True
    return True


def trial_finished(running: Running, seconds: float, predicted: float) -> None:
    """A trial took so long; `predicted` is what its pool expected when it began."""
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
    """A replica on a lane for which nothing runs, waits or is announced; None: there is none."""
    for placement in pool.placements:
        lane = placement.lane
        if placement.standby or not placement.phase.serves or lane.running is not None:
            continue
        neighbours = (p.pool for p in lane.placements if p is not placement)
        if not any(len(p.scheduler) or p.quarantine or p.announced for p in neighbours):
            return placement
    return None


def _others_can_wait(placement: Placement, seconds: float) -> bool:
    """Whether a run of `seconds` is within the usual slack of the other models of the lane."""
    lane = placement.lane
    return all(
        seconds <= p.pool.usual_budget - p.pool.times.of(1, lane.size).p99
        for p in lane.placements
        if p is not placement
    )
