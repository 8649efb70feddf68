"""One in n of the requests that a profile refuses runs, and two runs settle the profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slacktide.domain import (
    Deployment,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    Route,
    TimerFired,
)
from slacktide.engine.time_share import TRIAL_EVERY

PROFILED_S, REAL_S, BUDGET_S = 0.4, 0.02, 0.1
M = PoolId("m", "1")


def set_profile(world: Any, pool: PoolId = M) -> None:
    """Have `pool` refuse what has less than its predicted time left."""
    world.times[pool].seconds = world.schedulers[pool].lead = PROFILED_S


@pytest.fixture
def slow(world: Any) -> Any:
    set_profile(world)
    return world


def refuse(world: Any, count: int, first: int) -> int:
    """So many requests are refused; the next free id."""
    for id in range(first, first + count):
        world.submit(id, slo=BUDGET_S)
        assert world.reasons()[id] is Reason.SHORTER_THAN_ALONE
    return first + count


def test_two_trials_settle_a_profile_that_is_far_too_long(slow: Any) -> None:
    id = refuse(slow, TRIAL_EVERY, 1)
    slow.submit(id, slo=BUDGET_S)
    slow.finish(REAL_S)
    assert slow.times[M].seconds == PROFILED_S
    slow.submit(id + 1, slo=BUDGET_S)
    slow.finish(REAL_S / 2)
    assert slow.times[M].seconds == pytest.approx(REAL_S)  # the slower of the two
    assert [slow.reasons()[request] for request in (id, id + 1)] == [Reason.ON_TIME] * 2
    assert [batch.rows for batch in slow.batches] == [1, 1]


def test_a_profile_that_is_right_is_tried_less_and_less_often(slow: Any) -> None:
    id = refuse(slow, TRIAL_EVERY, 1)
    slow.submit(id, slo=BUDGET_S)
    slow.finish(PROFILED_S)
    assert slow.reasons()[id] is Reason.AFTER_DEADLINE
    id = refuse(slow, 2 * TRIAL_EVERY, id + 1)
    slow.submit(id, slo=BUDGET_S)
    slow.finish(PROFILED_S)
    refuse(slow, 4 * TRIAL_EVERY, id + 1)
    assert slow.times[M].seconds == PROFILED_S


def test_one_fast_run_is_no_proof(slow: Any) -> None:
    id = refuse(slow, TRIAL_EVERY, 1)
    slow.submit(id, slo=BUDGET_S)
    slow.finish(REAL_S)
    slow.submit(id + 1, slo=BUDGET_S)
    slow.finish(PROFILED_S)
    assert slow.times[M].seconds == PROFILED_S
    refuse(slow, 2 * TRIAL_EVERY, id + 2)


def test_requests_that_run_show_whether_the_profile_is_right(slow: Any) -> None:
    id = 1
    for _ in range(3):
        id = refuse(slow, TRIAL_EVERY, id)
        slow.submit(id, slo=10 * PROFILED_S)
        slow.finish(PROFILED_S)
        id += 1
    assert len(slow.batches) == 3


def test_a_busy_lane_runs_no_trial(slow: Any) -> None:
    slow.submit(1, slo=10.0)  # runs
    refuse(slow, 3 * TRIAL_EVERY, 2)
    assert len(slow.batches) == 1


def test_an_announced_request_is_let_in_for_a_trial(slow: Any) -> None:
    for id in range(1, TRIAL_EVERY + 1):
        slow.announce(id, slo=BUDGET_S)
        assert slow.reasons()[id] is Reason.SHORTER_THAN_ALONE
    slow.announce(TRIAL_EVERY + 1, slo=BUDGET_S)
    assert TRIAL_EVERY + 1 not in slow.answers
    slow.submit(TRIAL_EVERY + 1, slo=BUDGET_S)
    slow.finish(REAL_S)
    assert slow.reasons()[TRIAL_EVERY + 1] is Reason.ON_TIME


def test_a_trial_that_crashes_its_worker_proves_nothing(slow: Any) -> None:
    id = refuse(slow, TRIAL_EVERY, 1)
    slow.submit(id, slo=0.9 * PROFILED_S)
    slow.send(ReplicaLost(slow.started[-1].id, "killed by signal 9"), after=0.001)
    slow.send(TimerFired(), after=0.15)
    slow.send(ReplicaUp(slow.started[-1].id))
    assert len(slow.batches) == 2  # it runs once more, by itself
    slow.finish(REAL_S)
    assert slow.reasons()[id] is Reason.ON_TIME
    refuse(slow, TRIAL_EVERY, id + 1)


@pytest.fixture
def shared(make_world: Callable[..., Any]) -> Any:
    """A lane that is shared with a model that usually has little time."""
    world = make_world()
    other = PoolId("n", "1")
    deployments = tuple(Deployment(pool, "a", 4) for pool in (M, other))
    routes = (Route("m", M), Route("n", other))
    world.send(PlanChanged(Plan((LaneSpec("a", (0,)),), deployments, routes)))
    for replica in world.started:
        world.send(ReplicaUp(replica.id))
    set_profile(world)
    world.submit(1000, slo=0.05, model="n")
    world.finish(0.01)
    return world


def test_the_first_trial_needs_no_time_of_the_others(shared: Any) -> None:
    shared.times[M].seconds = shared.schedulers[M].lead = 30.0
    for id in range(1, TRIAL_EVERY + 3):
        shared.submit(id, slo=BUDGET_S)
        if id > TRIAL_EVERY:
            shared.finish(REAL_S)
    assert shared.times[M].seconds == pytest.approx(REAL_S)


def test_the_other_models_of_a_lane_keep_their_time(shared: Any) -> None:
    id, trials = 1, 0
    for _ in range(200):
        shared.submit(id, slo=BUDGET_S)
        if id not in shared.answers:
            shared.finish(PROFILED_S)
            trials += 1
        id += 1
    # Ten seconds' worth of a tenth of the lane.
    assert 1 <= trials <= 3
