"""Replicas die, hang, come back, and are given up."""

from __future__ import annotations

import pytest

from slacktide.domain import (
    BatchFinished,
    DriverStalled,
    LaneResized,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    TimerFired,
)


def crash(world, detail="killed by signal 9", **fields):
    world.send(ReplicaLost(world.started[-1].id, detail, **fields), after=0.001)


def restart(world):
    """Let the pause pass, and bring the new replica up."""
    at = world.engine.next_wakeup()
    world.send(TimerFired(), after=max(0.0, at - world.now))
    world.send(ReplicaUp(world.started[-1].id), after=0.2)


def test_nothing_runs_before_the_replica_is_up(make_world, one_model_plan):
    world = make_world()
    world.send(PlanChanged(one_model_plan("1")))
    world.submit(1)
    assert world.batches == []
    world.send(ReplicaUp(world.started[0].id), after=0.1)
    assert [m.id for m in world.batches[0].members] == [1]


def test_members_of_a_lost_batch_run_again_one_by_one(world):
    world.submit(1, 2)
    crash(world)
    assert world.answers == {}
    restart(world)
    assert [m.id for m in world.batches[-1].members] == [1]
    world.finish()
    assert [m.id for m in world.batches[-1].members] == [2]
    world.finish()
    assert set(world.reasons().values()) == {Reason.ON_TIME}


def test_a_poison_request_ends_with_its_second_crash_and_spares_the_others(world):
    world.submit(1, 2)
    crash(world)
    restart(world)
    crash(world)
    assert world.reasons() == {1: Reason.CRASHED}
    assert world.answers[1].detail == "killed by signal 9"
    restart(world)
    world.finish()
    assert world.reasons()[2] is Reason.ON_TIME


def test_restarts_pause_longer_and_longer(world):
    pauses = []
    for _ in range(4):
        crash(world)
        pauses.append(world.engine.next_wakeup() - world.now)
        restart(world)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_old_crashes_are_forgiven(world):
    crash(world)
    restart(world)
    world.now += 60.0
    crash(world)
    assert world.engine.next_wakeup() - world.now == pytest.approx(0.1)


def test_a_broken_model_is_given_up_at_once(make_world, one_model_plan):
    world = make_world()
    world.send(PlanChanged(one_model_plan("1")))
    world.submit(1)
    crash(world, detail="not an ONNX file", permanent=True)
    assert world.answers[1].detail == "not an ONNX file"
    assert len(world.started) == 1


def test_a_hanging_batch_is_killed_at_its_limit_and_its_members_run_again(world):
    world.submit(1, slo=10.0)
    assert world.engine.next_wakeup() == pytest.approx(1.0)
    world.send(TimerFired(), after=1.0)
    assert world.stopped == [(world.started[0], True)]
    assert world.engine.next_wakeup() is None or world.engine.next_wakeup() > world.now
    crash(world)
    restart(world)
    world.finish()
    assert world.answers[1].reason is Reason.ON_TIME


def test_time_in_which_the_driver_stood_still_is_held_against_no_batch(world):
    world.submit(1, slo=10.0)
    world.send(DriverStalled(4.0), TimerFired(), after=4.0)
    assert world.stopped == []
    assert world.engine.next_wakeup() == pytest.approx(5.0)
    world.finish(after=0.5)
    assert world.answers[1].reason is Reason.ON_TIME
    (times,) = world.times.values()
    assert times.observed == []  # nobody knows when it ended
    world.submit(2, slo=10.0)
    world.finish()
    assert len(times.observed) == 1


def test_a_batch_that_hangs_is_killed_however_often_the_driver_stands_still(world):
    world.submit(1, slo=100.0)
    for _ in range(3):
        world.send(DriverStalled(4.0), TimerFired(), after=4.0)
        world.send(TimerFired(), after=0.3)
        assert world.stopped == []
    world.send(TimerFired(), after=0.1)
    assert world.stopped == [(world.started[0], True)]


def test_a_replica_may_start_for_longer_if_the_driver_stood_still(make_world, one_model_plan):
    world = make_world()
    world.send(PlanChanged(one_model_plan("1")))
    world.send(DriverStalled(400.0), TimerFired(), after=400.0)
    assert world.stopped == []
    assert world.engine.next_wakeup() == pytest.approx(700.0)
    world.send(TimerFired(), after=300.0)
    assert world.stopped == [(world.started[0], True)]


def test_a_batch_that_ends_while_its_replica_is_killed_counts(world):
    world.submit(1, slo=10.0)
    world.send(TimerFired(), after=1.0)
    world.send(BatchFinished(world.batches[0].id))
    assert world.answers[1].reason is Reason.ON_TIME
    world.submit(2)
    assert len(world.batches) == 1  # the replica is about to die
    crash(world)
    restart(world)
    assert [m.id for m in world.batches[-1].members] == [2]


def test_suspects_wait_for_their_run_alone_past_their_deadline(world):
    world.submit(1, slo=0.05)
    crash(world)
    world.send(TimerFired(), after=0.05)
    assert world.answers == {}
    restart(world)
    world.finish()
    assert world.answers[1].reason is Reason.AFTER_DEADLINE


def test_a_crash_leaves_the_other_replica_serving(make_world, one_model_plan):
    world = make_world()
    world.deploy(one_model_plan("1", lanes=2))
    world.send(ReplicaLost(world.started[0].id, "killed"))
    world.submit(1)
    assert world.batches[-1].replica == world.started[1]


def test_a_pool_sees_when_its_lane_will_be_free(world):
    view = world.views[PoolId("m", "1")]
    assert view.free_in(now=world.now) == 0.0
    world.submit(1)
    assert view.free_in(now=world.now) == pytest.approx(0.01)
    assert view.free_in(now=world.now + 5.0) == 0.0
    crash(world)
    assert view.free_in(now=world.now) == pytest.approx(0.1)


def test_a_resized_lane_predicts_with_its_new_cores(world):
    world.send(LaneResized("lane0", (0, 1)))
    world.submit(1)
    world.finish()
    assert world.times[PoolId("m", "1")].observed == [(pytest.approx(0.01), 1, 2)]
    assert world.views[PoolId("m", "1")].cores == 2


def test_reports_of_a_stopped_replica_are_ignored(make_world, one_model_plan):
    world = make_world()
    world.send(PlanChanged(one_model_plan("1")))
    world.send(PlanChanged(one_model_plan()))
    assert world.stopped == [(world.started[0], False)]
    assert world.send(ReplicaUp(world.started[0].id)) == []
    assert world.send(ReplicaLost(world.started[0].id, "stopped")) == []


def test_a_version_that_never_came_up_in_time_is_given_up(make_world, one_model_plan):
    world = make_world()
    world.send(PlanChanged(one_model_plan("1")))
    world.send(TimerFired(), after=300.0)
    assert world.stopped == [(world.started[0], True)]
    crash(world)
    world.submit(1)
    assert world.answers[1].reason is Reason.UNAVAILABLE
    assert "not up within 300 s" in world.answers[1].detail
    assert len(world.started) == 1


def test_a_version_that_was_up_once_is_started_again_after_a_slow_start(world):
    crash(world)
    world.send(TimerFired(), after=0.2)
    world.send(TimerFired(), after=300.0)
    crash(world)
    restart(world)
    world.submit(1)
    world.finish()
    assert world.answers[1].reason is Reason.ON_TIME
