"""Lanes grow and shrink under what they run: who waits, who does not, and what counts meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide.domain import (
    Deployment,
    LaneResized,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    ResizeLane,
    StartReplica,
    StopReplica,
    TimerFired,
)

POOL = PoolId("m", "1")


@pytest.fixture
def world(make_world, one_model_plan):
    """A model whose batches take 0.4 s divided by the cores of its lane, up on two cores."""
    world = make_world()
    world.seconds["m"] = 0.4
    world.divides = True
    world.plan = one_model_plan("1")
    world.deploy(sized(world.plan, 2))
    return world


def sized(plan, cores, cap=4):
    return Plan(
        (LaneSpec("lane0", tuple(range(cores))),),
        tuple(replace(deployment, max_batch=cap) for deployment in plan.deployments),
        plan.routes,
    )


def resize(world, cores, *events, **fields):
    return world.send(PlanChanged(sized(world.plan, cores)), *events, **fields)


def confirm(world, cores, after=0.001):
    return world.send(LaneResized("lane0", tuple(range(cores))), after=after)


def lane_of(world):
    return world.engine.state.lanes["lane0"]


class TestGrowing:
    def test_a_batch_waits_for_the_cores_but_admission_counts_on_them(self, world):
        (command,) = resize(world, 4)
        assert isinstance(command, ResizeLane)
        assert world.views[POOL].cores == 4
        world.submit(1)
        assert world.batches == []
        confirm(world, 4)
        assert len(world.batches) == 1
        assert world.batches[0].replica.cores == (0, 1, 2, 3)
        world.finish(0.1)
        assert world.times[POOL].observed == [(pytest.approx(0.1), 1, 4)]

    def test_no_batch_waits_longer_than_the_limit(self, world):
        resize(world, 4)
        world.submit(1)
        assert world.engine.next_wakeup() == pytest.approx(world.now + 0.05)
        world.send(TimerFired(), after=0.05)
        assert world.batches[0].replica.cores == (0, 1)
        assert world.views[POOL].cores == 2, "what is not confirmed counts no more"
        confirm(world, 4)
        assert world.views[POOL].cores == 4

    def test_a_lane_held_for_others_asks_for_no_timer_while_it_grows(self, world):
        world.schedulers[POOL].wait = 0.03
        world.submit(1)
        assert world.engine.next_wakeup() == pytest.approx(world.now + 0.03)
        resize(world, 4)
        world.send(TimerFired(), after=0.04)
        assert world.batches == []
        assert world.engine.next_wakeup() == pytest.approx(world.now + 0.01)
        confirm(world, 4, after=0.0)
        assert len(world.batches) == 1

    def test_a_stream_of_plans_does_not_put_a_batch_off_for_ever(self, world):
        world.submit(1)
        world.finish(0.2)
        resize(world, 3)
        world.submit(2)
        resize(world, 4, after=0.03)
        assert world.engine.next_wakeup() == pytest.approx(world.now + 0.02)
        world.send(TimerFired(), after=0.02)
        assert [batch.members[0].id for batch in world.batches] == [1, 2]

    def test_a_running_batch_ends_sooner_and_teaches_nothing(self, world):
        world.submit(1)
        resize(world, 4, after=0.1)  # half of its 0.2 s are over
        assert world.views[POOL].free_in(now=world.now) == pytest.approx(0.1)
        confirm(world, 4, after=0.0)
        assert world.views[POOL].free_in(now=world.now) == pytest.approx(0.05)
        world.finish(0.05)
        assert world.times[POOL].observed == []

    def test_a_lane_is_expected_to_be_free_once_it_has_grown(self, world):
        resize(world, 3)
        confirm(world, 3, after=0.02)
        resize(world, 4)
        assert world.views[POOL].free_in(now=world.now) == pytest.approx(0.02)

    def test_it_is_expected_to_be_free_once_nobody_waits_for_cores_any_more(self, world):
        resize(world, 3)
        confirm(world, 3, after=2.0)
        resize(world, 4)
        assert world.views[POOL].free_in(now=world.now) == pytest.approx(0.05)

    def test_a_refusal_leaves_the_cores_that_are_there(self, world):
        resize(world, 4)
        confirm(world, 2)
        world.submit(1)
        world.send(TimerFired(), after=0.06)
        assert world.batches[0].replica.cores == (0, 1)

    def test_a_plan_that_thinks_better_of_it_ends_the_wait(self, world):
        resize(world, 4)
        world.submit(1)
        resize(world, 2)
        assert world.batches[0].replica.cores == (0, 1)

    def test_cores_that_were_promised_are_held_until_the_last_resize_is_confirmed(self, world):
        resize(world, 4)
        resize(world, 2)
        assert (lane_of(world).target, lane_of(world).held) == ((0, 1), (0, 1, 2, 3))
        confirm(world, 2)
        assert lane_of(world).held == (0, 1)


class TestShrinking:
    def test_nothing_waits_and_the_smaller_size_counts_at_once(self, world):
        world.submit(1)
        resize(world, 1, after=0.1)
        assert world.views[POOL].cores == 1
        assert world.views[POOL].free_in(now=world.now) == pytest.approx(0.2)
        world.finish(0.15)
        world.submit(2)
        assert world.batches[1].replica.cores == (0,)
        assert lane_of(world).cores == (0, 1), "it has them until that is confirmed"
        confirm(world, 1)
        assert lane_of(world).cores == (0,)

    def test_a_running_batch_gets_more_time_before_it_counts_as_hung(self, world):
        world.times[POOL].seconds = 4.0
        world.submit(1, slo=100.0)
        assert world.engine.next_wakeup() == pytest.approx(20.0)
        resize(world, 1, after=4.0)
        assert world.engine.next_wakeup() == pytest.approx(4.0 + 2 * 16.0)

    def test_growing_never_has_it_hang_before_the_floor(self, world):
        world.times[POOL].seconds = 0.1
        world.submit(1)
        resize(world, 4, after=0.01)
        confirm(world, 4, after=0.01)
        assert world.engine.next_wakeup() == pytest.approx(1.0)


def test_a_replica_that_starts_meanwhile_starts_on_the_new_cores(world):
    resize(world, 4)
    world.send(ReplicaLost(world.started[0].id, "died"))
    commands = world.send(TimerFired(), after=0.1)
    (start,) = [command for command in commands if isinstance(command, StartReplica)]
    assert start.replica.cores == (0, 1, 2, 3)
    confirm(world, 4)
    world.send(ReplicaUp(start.replica.id))
    world.submit(1)
    assert world.batches[0].replica == start.replica


def test_a_lane_that_somebody_else_resized_is_taken_as_it_is(world):
    world.send(LaneResized("lane0", (0, 1, 2)))
    world.submit(1)
    assert world.batches[0].replica.cores == (0, 1, 2)


def test_a_lane_holds_its_target_cores_while_it_has_fewer(world):
    world.send(LaneResized("lane0", (0,)))
    lane = lane_of(world)
    assert (lane.usable, lane.target, lane.held) == ((0,), (0, 1), (0, 1))
    world.send(LaneResized("lane0", (0, 1)))
    assert (lane.usable, lane.target, lane.held) == ((0, 1), (0, 1), (0, 1))


class TestBatchCap:
    def test_a_plan_caps_batches_at_once_and_the_replica_stays_ready_for_more(self, world):
        world.submit(1)
        assert world.send(PlanChanged(sized(world.plan, 2, cap=2))) == []
        world.submit(2, 3, 4)
        world.finish()
        assert [batch.rows for batch in world.batches] == [1, 2]
        world.send(PlanChanged(sized(world.plan, 2, cap=9)))
        world.finish()
        world.submit(5, 6, 7, 8, 9)
        world.finish()
        assert [batch.rows for batch in world.batches] == [1, 2, 1, 4], "four were started with"

    def test_a_replica_that_starts_under_a_cap_is_ready_for_whole_batches(self, world):
        world.send(PlanChanged(sized(world.plan, 2, cap=2)))
        world.send(ReplicaLost(world.started[0].id, "died"))
        world.send(TimerFired(), after=0.1)
        assert world.started[-1].max_batch == 4

    def test_a_request_with_more_rows_than_the_cap_runs_all_the_same(self, world):
        world.send(PlanChanged(sized(world.plan, 2, cap=2)))
        world.submit(1, rows=3)
        world.finish()
        assert world.reasons() == {1: Reason.ON_TIME}

    def test_under_a_cap_of_one_row_no_requests_share_a_batch(self, world):
        world.send(PlanChanged(sized(world.plan, 2, cap=1)))
        world.submit(1)
        world.submit(2, 3, 4)
        world.submit(5, rows=3)
        world.submit(6, rows=2)
        for _ in range(6):
            world.finish()
        assert sorted(batch.rows for batch in world.batches) == [1, 1, 1, 1, 2, 3]
        assert set(world.reasons().values()) == {Reason.ON_TIME}

    def test_a_new_lane_serves_under_the_cap_too(self, world):
        plan = sized(world.plan, 2, cap=2)
        more = Plan(
            (*plan.lanes, LaneSpec("lane1", (7,))),
            (*plan.deployments, Deployment(POOL, "lane1", 2)),
            plan.routes,
        )
        world.deploy(more)
        assert world.started[-1].max_batch == 4
        world.submit(1, 2, 3, 4)
        assert [batch.rows for batch in world.batches] == [2, 2]
        world.finish()
        stop = [c for c in world.send(PlanChanged(plan)) if isinstance(c, StopReplica)]
        assert [command.replica.id for command in stop] == [world.started[-1].id]


class TestRestarts:
    """A new generation of a deployment, as an autoscaler brings about that cannot resize."""

    def test_the_replica_starts_anew_after_its_batch_and_nothing_runs_meanwhile(self, world):
        world.submit(1)
        plan = sized(world.plan, 4)
        anew = replace(plan, deployments=(replace(plan.deployments[0], generation=1),))
        world.send(PlanChanged(anew))
        confirm(world, 4)
        world.submit(2)
        assert world.stopped == []
        world.finish(0.1)
        assert [(replica.id, kill) for replica, kill in world.stopped] == [(0, False)]
        assert world.started[-1].cores == (0, 1, 2, 3)
        assert len(world.batches) == 1
        world.send(ReplicaUp(world.started[-1].id), after=0.3)
        assert [member.id for member in world.batches[-1].members] == [2]
        world.send(PlanChanged(anew))
        assert len(world.started) == 2, "once for each generation"

    def test_an_idle_replica_starts_anew_at_once(self, world):
        plan = sized(world.plan, 2)
        commands = world.send(
            PlanChanged(replace(plan, deployments=(replace(plan.deployments[0], generation=1),)))
        )
        assert [type(command) for command in commands] == [StopReplica, StartReplica]


def test_another_size_told_while_one_is_asked_for_changes_nothing_that_was_asked(world):
    resize(world, 4)
    world.send(LaneResized("lane0", (0, 1, 2, 3, 4)))
    lane = lane_of(world)
    assert lane.target == (0, 1, 2, 3)
    world.send(LaneResized("lane0", (0, 1, 2, 3)))
    assert (lane.cores, lane.target) == ((0, 1, 2, 3), (0, 1, 2, 3))
