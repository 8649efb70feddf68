"""Plans: load, reload, unload and share lanes without losing a request."""

from __future__ import annotations

import pytest

from slacktide.domain import (
    BatchFinished,
    Deployment,
    InputSize,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    ResizeLane,
    Route,
    TimerFired,
)


def test_a_new_version_takes_over_when_its_route_changes(world, one_model_plan):
    world.submit(1)
    world.submit(2)
    world.announce(3)
    both = one_model_plan("1", "2")
    loading = Plan(both.lanes, both.deployments, (Route("m", PoolId("m", "1")),))
    world.send(PlanChanged(loading))  # version 2 starts while version 1 serves
    world.send(ReplicaUp(world.started[-1].id))
    world.send(PlanChanged(one_model_plan("2")))
    assert world.answers == {}
    world.finish()  # request 1, in version 1, which then goes
    assert world.answers[1].reason is Reason.ON_TIME
    assert world.stopped == [(world.started[0], False)]
    assert world.batches[-1].replica.pool == PoolId("m", "2")
    assert [m.id for m in world.batches[-1].members] == [2]
    world.finish()
    world.submit(3)
    assert [m.id for m in world.batches[-1].members] == [3]
    assert set(world.engine.state.pools) == {PoolId("m", "2")}


def test_without_a_route_waiting_requests_are_still_served(world, one_model_plan):
    world.submit(1)
    world.submit(2)
    plan = one_model_plan("1")
    world.send(PlanChanged(Plan(plan.lanes, plan.deployments, ())))
    world.submit(3)
    assert world.reasons() == {3: Reason.UNAVAILABLE}
    world.finish()
    world.finish()
    assert world.reasons()[2] is Reason.ON_TIME


def test_an_undeployed_model_turns_away_what_waits_and_finishes_what_runs(world):
    world.submit(1)
    world.submit(2)
    world.send(PlanChanged(Plan()))
    assert world.reasons() == {2: Reason.DRAINING}
    assert world.stopped == []
    world.finish()
    assert world.reasons()[1] is Reason.ON_TIME
    assert len(world.stopped) == 1
    assert world.engine.state.pools == {}
    assert world.engine.state.lanes == {}


def test_a_batch_lost_by_a_removed_pool_moves_to_its_successor(world, one_model_plan):
    world.submit(1, 2)
    world.deploy(one_model_plan("2"))
    world.send(ReplicaLost(world.started[0].id, "killed"))
    assert [m.id for m in world.batches[-1].members] == [1]
    assert world.batches[-1].replica.pool == PoolId("m", "2")


def test_a_version_that_was_given_up_can_be_deployed_afresh(world, one_model_plan):
    world.send(ReplicaLost(world.started[0].id, "broken", permanent=True))
    world.deploy(one_model_plan("1"))
    world.submit(1)
    assert world.answers[1].reason is Reason.UNAVAILABLE
    world.send(PlanChanged(Plan()))
    world.deploy(one_model_plan("1"))
    world.submit(2)
    assert [m.id for m in world.batches[-1].members] == [2]


def test_changed_cores_resize_the_lane_in_place(world, one_model_plan):
    plan = one_model_plan("1")
    (resize,) = world.send(
        PlanChanged(Plan((LaneSpec("lane0", (0, 1)),), plan.deployments, plan.routes))
    )
    assert isinstance(resize, ResizeLane)
    assert resize.cores == (0, 1)
    assert resize.replicas == (world.started[0],)


def test_explicit_versions_and_narrow_routes_win(make_world):
    world = make_world()
    pools = [PoolId("m", version) for version in "123"]
    world.deploy(
        Plan(
            tuple(LaneSpec(f"lane{i}", (i,)) for i in range(3)),
            tuple(Deployment(pool, f"lane{i}", 4) for i, pool in enumerate(pools)),
            (
                Route("m", pools[0]),
                Route("m", pools[1], version="2"),
                Route("m", pools[1], application="video"),
                Route("m", pools[2], client="10.0.0.9"),
            ),
        )
    )
    world.submit(1)
    world.submit(2, version="2")
    world.submit(3, client="10.0.0.9", application="video")
    assert [batch.replica.pool.version for batch in world.batches] == ["1", "2", "3"]


class TestSharedLane:
    @pytest.fixture
    def shared(self, make_world):
        """A 1 ms model and a 100 ms model on one lane."""
        world = make_world()
        world.seconds = {"fast": 0.001, "slow": 0.1}
        pools = (PoolId("fast", "1"), PoolId("slow", "1"))
        world.deploy(
            Plan(
                (LaneSpec("lane", (0,)),),
                tuple(Deployment(pool, "lane", 4) for pool in pools),
                tuple(Route(pool.model, pool) for pool in pools),
            )
        )
        return world

    def test_runs_one_batch_at_a_time(self, shared):
        shared.submit(1, model="fast")
        shared.submit(2, model="slow")
        assert len(shared.batches) == 1
        shared.send(BatchFinished(shared.batches[0].id))
        assert [m.id for m in shared.batches[1].members] == [2]

    def test_goes_to_the_proposal_worth_most_whatever_the_models_speed(self, shared):
        shared.submit(1, model="fast")
        shared.submit(2, model="fast")
        shared.submit(3, model="slow")
        shared.submit(4, model="slow")  # two slow rows in one batch beat one fast row
        shared.finish()
        assert [m.id for m in shared.batches[-1].members] == [3, 4]

    def test_a_share_weighs(self, make_world):
        world = make_world()
        world.share = {"a": 3.0}
        pools = (PoolId("a", "1"), PoolId("b", "1"))
        world.deploy(
            Plan(
                (LaneSpec("lane", (0,)),),
                tuple(Deployment(pool, "lane", 4) for pool in pools),
                tuple(Route(pool.model, pool) for pool in pools),
            )
        )
        world.submit(1, model="b")
        world.submit(2, model="b")
        world.submit(3, model="b")
        world.submit(4, model="a")
        world.finish()
        assert [m.id for m in world.batches[-1].members] == [4]

    def test_best_effort_rises_until_it_is_worth_more_than_a_deadline(self, shared):
        shared.submit(1, model="fast")
        shared.submit(2, model="slow", slo=1.0, best_effort=True)
        shared.submit(3, model="fast", slo=100.0)
        shared.finish()
        assert [m.id for m in shared.batches[-1].members] == [3]
        shared.submit(4, model="fast", slo=100.0)
        shared.finish(after=2.0)
        assert [m.id for m in shared.batches[-1].members] == [2]

    def test_a_crash_of_one_model_leaves_the_lane_to_the_other(self, shared):
        shared.submit(1, model="fast")
        shared.submit(2, model="slow")
        shared.send(ReplicaLost(shared.batches[0].replica.id, "killed"))
        assert [m.id for m in shared.batches[-1].members] == [2]
        shared.send(TimerFired(), after=0.1)
        assert shared.started[-1].pool == PoolId("fast", "1")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LaneSpec("l", ()), "no cores"),
        (lambda: LaneSpec("l", (0, 0)), "twice"),
        (lambda: Plan((LaneSpec("a", (0,)), LaneSpec("b", (0,)))), "both own core 0"),
        (lambda: Plan((LaneSpec("a", (0,)), LaneSpec("a", (1,)))), "share a name"),
        (lambda: Plan((), (Deployment(PoolId("m", "1"), "x"),)), "unknown lane"),
        (lambda: Plan((), (), (Route("m", PoolId("m", "1")),)), "undeployed"),
        (lambda: Plan(inputs=(InputSize("m", "c", "1"), InputSize("m", "c", "2"))), "two input"),
        (lambda: Deployment(PoolId("m", "1"), "x", 0), "max_batch"),
        (lambda: Route("m", PoolId("m", "1"), application="a", client="c"), "a client or an"),
    ],
)
def test_a_plan_that_contradicts_itself_cannot_be_made(build, message):
    with pytest.raises(ValueError, match=message):
        build()


class TestAPoolThatMovesToAnotherLane:
    @pytest.fixture
    def moving(self, world):
        """Version 1 serves on `lane0`, and the plan wants it on `elsewhere`."""
        pool = PoolId("m", "1")
        world.submit(1)
        plan = Plan(
            (LaneSpec("elsewhere", (0,)),),
            (Deployment(pool, "elsewhere", 4),),
            (Route("m", pool),),
        )
        world.send(PlanChanged(plan))
        return world

    def test_serves_where_it_was_until_it_is_up(self, moving):
        moving.submit(2)
        moving.finish()
        moving.finish()
        assert moving.reasons() == {1: Reason.ON_TIME, 2: Reason.ON_TIME}
        assert moving.stopped == []
        moving.send(ReplicaUp(moving.started[-1].id))
        assert moving.stopped == [(moving.started[0], False)]
        assert list(moving.engine.state.lanes) == ["elsewhere"]
        moving.submit(3)
        assert moving.batches[-1].replica.lane == "elsewhere"

    def test_finishes_what_runs_when_it_is_up(self, moving):
        moving.send(ReplicaUp(moving.started[-1].id))
        assert moving.stopped == []
        moving.submit(2)
        assert moving.batches[-1].replica.lane == "elsewhere"
        moving.send(BatchFinished(moving.batches[0].id))
        assert moving.stopped == [(moving.started[0], False)]
        assert list(moving.engine.state.lanes) == ["elsewhere"]

    def test_does_not_start_again_where_it_left(self, moving):
        moving.send(ReplicaLost(moving.started[0].id, "killed"))
        assert list(moving.engine.state.lanes) == ["elsewhere"]
        moving.send(ReplicaUp(moving.started[-1].id))
        assert len(moving.started) == 2
        assert [m.id for m in moving.batches[-1].members] == [1]  # run again, elsewhere

    def test_may_come_back(self, moving, one_model_plan):
        moving.send(PlanChanged(one_model_plan("1")))
        assert list(moving.engine.state.lanes) == ["lane0"]
        moving.finish()
        moving.submit(2)
        assert moving.batches[-1].replica == moving.started[0]


class TestASharedLane:
    """Models `a` and `b` on one lane, the plan takes one of them off while the lane is busy."""

    A, B = PoolId("a", "1"), PoolId("b", "1")

    def plan(self, *pools, lane="lane"):
        return Plan(
            (LaneSpec(lane, (0,)),) if pools else (),
            tuple(Deployment(pool, lane, 4) for pool in pools),
            tuple(Route(pool.model, pool) for pool in pools),
        )

    @pytest.fixture
    def shared(self, make_world):
        world = make_world()
        world.deploy(self.plan(self.A, self.B))
        world.submit(1, model="a")
        world.submit(2, model="b")
        return world

    def test_one_that_does_not_run_goes_at_once(self, shared):
        shared.send(PlanChanged(self.plan(self.A)))
        assert [replica.pool for replica, _ in shared.stopped] == [self.B]
        assert shared.reasons() == {2: Reason.DRAINING}
        assert set(shared.engine.state.pools) == {self.A}
        shared.finish()
        assert shared.reasons()[1] is Reason.ON_TIME

    def test_one_that_runs_goes_after_its_batch_and_the_lane_stays(self, shared):
        shared.send(PlanChanged(self.plan(self.B)))
        assert shared.stopped == []
        assert set(shared.engine.state.pools) == {self.A, self.B}
        shared.finish()
        assert [replica.pool for replica, _ in shared.stopped] == [self.A]
        assert set(shared.engine.state.pools) == {self.B}
        assert [member.id for member in shared.batches[-1].members] == [2]
        shared.finish()
        assert shared.reasons() == {1: Reason.ON_TIME, 2: Reason.ON_TIME}
        assert set(shared.engine.state.lanes) == {"lane"}

    def test_a_lane_that_goes_is_kept_for_its_batch_alone(self, shared):
        shared.send(PlanChanged(self.plan()))
        assert set(shared.engine.state.lanes) == {"lane"}
        assert shared.reasons() == {2: Reason.DRAINING}
        shared.finish()
        assert shared.reasons()[1] is Reason.ON_TIME
        assert shared.engine.state.lanes == {}
        assert shared.engine.state.pools == {}

    def test_a_lane_that_goes_with_its_replica_lost_in_the_batch_is_gone_as_well(self, shared):
        running = shared.batches[-1].replica
        shared.send(PlanChanged(self.plan()))
        shared.send(ReplicaLost(running.id, "killed"))
        assert shared.reasons() == {1: Reason.UNAVAILABLE, 2: Reason.DRAINING}
        assert shared.engine.state.lanes == {}
        assert shared.engine.state.pools == {}

    def test_both_come_back_to_the_lane_they_had_not_left_yet(self, shared):
        shared.send(PlanChanged(self.plan()))
        shared.send(PlanChanged(self.plan(self.A, self.B)))
        started = shared.started[-1]
        assert started.pool == self.B, "it had gone; the one that runs had not"
        shared.send(ReplicaUp(started.id))
        shared.finish()
        assert len(shared.stopped) == 1
        shared.submit(3, model="a")
        assert shared.batches[-1].replica == shared.batches[0].replica

    def test_a_pool_counts_only_on_the_lanes_that_it_keeps(self, make_world, one_model_plan):
        world = make_world()
        world.deploy(one_model_plan("1", lanes=2))
        pool = world.engine.state.pools[PoolId("m", "1")]
        assert pool.lanes == 2
        world.submit(1)
        world.submit(2)
        world.send(PlanChanged(one_model_plan("1", lanes=1)))
        assert len(pool.placements) == 2, "both run"
        assert pool.lanes == 1
        world.send(PlanChanged(one_model_plan("1", lanes=2)))
        assert pool.lanes == 2


def test_a_lost_batch_goes_to_no_pool_that_is_going_or_down(world, one_model_plan):
    world.submit(1)
    world.deploy(one_model_plan("2"))
    world.send(ReplicaLost(world.started[1].id, "broken", permanent=True))
    assert world.engine.state.pools[PoolId("m", "2")].down_reason is not None
    world.send(ReplicaLost(world.started[0].id, "killed"))
    assert world.reasons() == {1: Reason.UNAVAILABLE}


def test_a_lost_batch_without_a_route_is_over(world, one_model_plan):
    world.submit(1)
    world.deploy(one_model_plan("1", model="other"))
    world.send(ReplicaLost(world.started[0].id, "killed"))
    assert world.reasons() == {1: Reason.UNAVAILABLE}


def test_a_lane_that_left_the_plan_goes_with_a_version_that_is_given_up(make_world, one_model_plan):
    """It serves on the old lane until it is up on the new one, where it turns out to be broken."""
    world = make_world()
    plan = one_model_plan("1")
    world.deploy(plan)
    elsewhere = Plan(
        (LaneSpec("elsewhere", (1,)),),
        (Deployment(PoolId("m", "1"), "elsewhere", 4),),
        plan.routes,
    )
    world.send(PlanChanged(elsewhere))
    world.send(ReplicaLost(world.started[-1].id, "no such file", permanent=True))
    assert "lane0" not in world.engine.state.lanes
