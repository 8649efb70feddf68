"""Requests of a shape that was never measured wait beside the scheduler: exact times, commands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide.domain import (
    Announced,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Deployment,
    LaneResized,
    LaneSpec,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    Route,
    Submitted,
    TimerFired,
)
from slacktide.engine.request_table import State
from slacktide.engine.unmeasured import FAILED_S, MOST_FAILED

KNOWN, NEW, OTHER = ((1,),), ((2,),), ((3,),)


@pytest.fixture
def shaped(make_world, one_model_plan):
    """One model `m` that has measured the shape KNOWN."""

    def make(lanes=1, measured=True, **rules):
        world = make_world()
        world.unmeasured = {"m": rules}
        world.deploy(one_model_plan("1", lanes=lanes))
        if measured:
            times(world).measured.add(KNOWN)
        return world

    return make


def times(world):
    return next(iter(world.times.values()))


def state(world, id):
    return world.engine.state.request_table.entries[id].state


def members(world):
    return [[member.id for member in batch.members] for batch in world.batches]


def test_a_new_shape_runs_alone_once_and_the_rest_follow_as_a_batch(shaped):
    world = shaped()
    world.submit(1, 2, 3, signature=NEW)
    assert members(world) == [[1]]
    assert [state(world, id) for id in (2, 3)] == [State.UNMEASURED] * 2
    world.finish()
    assert members(world) == [[1], [2, 3]]
    world.finish()
    assert set(world.reasons().values()) == {Reason.ON_TIME}


def test_a_run_looks_at_the_shapes_of_others_only_if_they_may_be_measured_by_it(shaped):
    world = shaped()
    (pool,) = world.engine.state.pools.values()
    ids = []

    def measured(request, rules=pool.unmeasured.rules):
        ids.append(request.id)
        return rules.measured(request)

    pool.unmeasured.rules = replace(pool.unmeasured.rules, measured=measured)
    for id in range(50):
        world.submit(id, signature=((id + 100,),), slo=1.0 + id)
    world.submit(50, signature=((101,),), slo=99.0)
    world.finish()
    ids.clear()
    world.finish()  # of ((101,),): the other one of it can be judged now
    assert set(ids) <= {2, 50}
    assert state(world, 50) is not State.UNMEASURED
    world.judged.add(((120,),))
    world.finish()
    assert 20 in ids
    assert state(world, 20) is not State.UNMEASURED


def test_one_runs_at_a_time_whatever_its_shape_and_however_many_lanes(shaped):
    world = shaped(lanes=2)
    world.submit(1, signature=NEW)
    world.submit(2, signature=OTHER)
    assert members(world) == [[1]]
    world.submit(3, signature=KNOWN)
    assert members(world) == [[1], [3]]
    world.send(BatchFinished(world.batches[0].id), after=0.01)
    assert members(world) == [[1], [3], [2]]


def test_the_one_due_first_runs_first_also_among_best_effort_ones(shaped):
    world = shaped()
    world.submit(1, signature=KNOWN)
    world.submit(2, signature=NEW, slo=0.9)
    world.submit(3, signature=OTHER, slo=0.5, best_effort=True)
    world.submit(4, signature=((4,),), slo=0.7)
    for _ in range(3):
        world.finish()
    assert members(world) == [[1], [3], [4], [2]]


def test_a_request_expires_at_its_deadline_not_before(shaped):
    world = shaped()
    world.submit(1, signature=KNOWN)
    world.submit(2, signature=NEW, slo=0.005)
    world.submit(3, signature=NEW, slo=0.005, best_effort=True)
    assert world.engine.next_wakeup() == pytest.approx(0.005)
    world.send(TimerFired(), after=0.005)
    assert world.reasons() == {2: Reason.EXPIRED}


def test_while_requests_of_known_shapes_wait_new_shapes_get_their_share_of_the_lane(shaped):
    """Each takes 10 ms and a tenth may be used: 1 s is saved up from before."""
    world = shaped(share=0.1)
    runs = 0
    id = 0
    while world.now < 10.0:
        id += 10
        world.submit(id, signature=KNOWN)
        world.submit(id + 1, signature=((id,),), slo=0.05)
        runs += world.batches[-1].members[0].signature != KNOWN
        world.finish()
    # What was saved up, and what was earned since.
    assert runs * 0.01 == pytest.approx(1.0 + 0.1 * world.now, abs=0.05)


def test_runs_on_an_idle_lane_do_not_use_up_the_share(shaped):
    """For minutes no other request wants the lane; then it is wanted all the time."""
    world = shaped(share=0.1)
    for id in range(1, 6000):
        world.submit(id, signature=((id + 1,),))
        world.finish()
    began, runs = world.now, 0
    for id in range(10_000, 13_000, 2):
        world.submit(id, signature=KNOWN)
        world.submit(id + 1, signature=((id,),), slo=0.05)
        runs += world.batches[-1].members[0].signature != KNOWN
        world.finish()
    assert runs * 0.01 > 0.05 * (world.now - began)


def test_a_share_of_nothing_leaves_them_what_no_other_request_wants(shaped):
    world = shaped(share=0.0)
    world.submit(1, signature=KNOWN)
    world.submit(2, signature=NEW)
    world.submit(3, signature=KNOWN)
    world.finish()
    assert members(world) == [[1], [3]]
    world.finish()
    assert members(world) == [[1], [3], [2]]


def test_a_lane_is_kept_free_for_requests_that_could_not_wait_for_one(make_world):
    """`b` usually has 15 ms and takes 10: it cannot wait for 50 ms of `a` but by the share."""
    world = make_world()
    world.unmeasured = {"a": {"share": 0.1}}
    world.seconds = {"a": 0.05}
    pools = [PoolId("a", "1"), PoolId("b", "1")]
    lane = LaneSpec("lane0", (0,))
    routes = tuple(Route(pool.model, pool) for pool in pools)
    world.deploy(Plan((lane,), tuple(Deployment(p, "lane0", 4) for p in pools), routes))
    for id in range(4):
        world.submit(id, model="b", slo=0.015)
        world.finish()
    for id in range(100, 160):
        world.submit(id, model="a", signature=((id,),), slo=1000.0)
    while world.engine.state.running:
        world.finish(after=0.05)
    began = world.now
    spent = len(world.batches) - 4
    assert spent * 0.05 == pytest.approx(1.0 + 0.1 * world.now, abs=0.06)
    for _ in range(10):  # from now on each must be earned
        world.send(TimerFired(), after=world.engine.next_wakeup() - world.now)
        assert world.engine.state.running
        world.finish(after=0.05)
    assert 10 * 0.05 / (world.now - began) == pytest.approx(0.1, rel=0.15)


def test_with_no_share_an_idle_lane_runs_them_however_long(shaped):
    """Requests usually have 15 ms, and each takes 10: never would there be a better time."""
    world = shaped(share=0.0)
    for id in range(4):
        world.submit(id, signature=KNOWN, slo=0.015)
        world.finish()
    world.submit(10, signature=NEW, best_effort=True)
    assert members(world)[-1] == [10]


def test_it_competes_for_a_shared_lane_as_one_that_is_certain_to_be_on_time(make_world):
    world = make_world()
    world.unmeasured = {"a": {}}
    pools = [PoolId("a", "1"), PoolId("b", "1")]
    lane = LaneSpec("lane0", (0,))
    routes = tuple(Route(pool.model, pool) for pool in pools)
    world.deploy(Plan((lane,), tuple(Deployment(p, "lane0", 1) for p in pools), routes))
    world.send(
        Submitted(world.request(1, model="a", signature=NEW, penalty=2.0)),
        Submitted(world.request(2, model="b", penalty=1.0)),
    )
    assert members(world) == [[1]]
    world.finish()
    world.finish()
    world.send(
        Submitted(world.request(3, model="a", signature=OTHER, slo=9.0, best_effort=True)),
        Submitted(world.request(4, model="b", penalty=1.0)),
    )
    assert members(world)[2:] == [[4]]


def test_a_measured_request_may_still_be_refused_by_the_scheduler(shaped):
    world = shaped()
    world.submit(1, 2, signature=NEW)
    next(iter(world.schedulers.values())).refuse = Reason.SHORTER_THAN_ALONE
    world.finish()
    assert world.reasons() == {1: Reason.ON_TIME, 2: Reason.SHORTER_THAN_ALONE}


def test_a_run_during_a_resize_teaches_nothing_and_the_next_one_tries(shaped):
    world = shaped()
    world.divides = True
    world.submit(1, 2, signature=NEW)
    world.send(LaneResized("lane0", (5, 6)))
    world.finish()
    assert state(world, 2) is State.RUNNING
    assert world.batches[-1].members[0].id == 2
    world.finish()
    assert NEW in times(world).measured


def test_a_shape_that_fails_is_refused_for_a_while_to_the_same_client(shaped):
    world = shaped()
    world.submit(1, 2, signature=NEW, client="x")
    world.submit(3, signature=NEW, client="y")
    world.send(BatchFailed(world.batches[-1].id, "dimensions do not match"), after=0.01)
    why = "the model cannot run rows of shape [2]: dimensions do not match"
    assert world.answers[1].reason is Reason.RUNTIME_ERROR
    assert (world.answers[2].reason, world.answers[2].detail) == (Reason.BAD_INPUT, why)
    assert members(world) == [[1], [3]], "one client cannot speak for others"
    world.submit(4, signature=NEW, client="x")
    assert world.answers[4].detail == why
    world.send(BatchFailed(world.batches[-1].id, "again"), after=0.01)
    world.submit(5, signature=NEW, client="z")
    assert world.answers[5].reason is Reason.BAD_INPUT
    world.now += FAILED_S
    world.submit(6, signature=NEW, client="z")
    world.finish()
    assert world.answers[6].reason is Reason.ON_TIME


def test_a_shape_that_was_judged_by_others_is_refused_too_once_it_has_failed(shaped):
    world = shaped()
    world.judged = {NEW}
    world.submit(1, signature=KNOWN)
    world.submit(2, 3, signature=NEW, client="x")
    world.submit(4, 5, signature=NEW, client="y")
    world.submit(6, signature=KNOWN, client="x")
    world.finish()
    assert members(world)[-1] == [2, 3, 4, 5]
    world.send(BatchFailed(world.batches[-1].id, "no"), after=0.01)
    for _ in range(2):  # each by itself: one of them may have spoilt it for the others
        world.send(BatchFailed(world.batches[-1].id, "no"), after=0.01)
    world.submit(7, signature=NEW, client="x")
    world.submit(8, signature=NEW, client="y")
    assert world.answers[7].reason is Reason.BAD_INPUT
    assert 8 not in world.answers
    world.send(BatchFinished(world.batches[-1].id), after=0.01)
    assert members(world)[2:] == [[2], [3], [4], [5]]
    world.submit(9, signature=NEW, client="x")
    assert 9 not in world.answers, "the shape can be run"


def test_failures_of_a_known_shape_block_no_further_requests(shaped):
    world = shaped()
    world.submit(1, signature=KNOWN)
    world.send(BatchFailed(world.batches[-1].id, "no"), after=0.01)
    world.submit(2, signature=KNOWN)
    world.finish()
    assert world.answers[2].reason is Reason.ON_TIME


def test_only_so_many_failed_shapes_are_remembered(shaped):
    world = shaped()
    for id in range(MOST_FAILED + 1):
        world.submit(id, signature=((100 + id,),))
        world.send(BatchFailed(world.batches[-1].id, "no"), after=0.001)
    world.submit(1000, signature=((101,),))
    world.submit(1001, signature=((100,),))
    assert world.answers[1000].reason is Reason.BAD_INPUT
    assert 1001 not in world.answers


def test_under_a_guarantee_only_best_effort_requests_wait(shaped):
    world = shaped(refuse=True)
    world.submit(1, signature=NEW)
    assert world.answers[1].reason is Reason.UNMEASURED
    world.submit(2, signature=NEW, best_effort=True)
    world.finish()
    world.submit(3, signature=NEW)
    world.finish()
    assert world.answers[3].reason is Reason.ON_TIME


def test_no_more_wait_than_the_limit(shaped):
    world = shaped(most=2)
    world.submit(1, 2, 3, signature=NEW)
    assert world.reasons() == {3: Reason.QUEUE_FULL}


def test_an_announced_request_is_planned_with_but_not_refused_for_its_time(shaped):
    world = shaped()
    notice = Notice(1, "m", 0.0, 0.5, payload_bytes=10, complete_at=0.1)
    world.send(Announced(notice))
    (announced,) = next(iter(world.schedulers.values())).notices.values()
    assert announced.best_effort
    assert announced.planned_due == 0.5
    assert world.engine.next_wakeup() == 0.5, "it expires as any other"
    world.send(Submitted(world.request(1, signature=NEW)))
    assert members(world) == [[1]]


def test_a_request_that_waits_can_be_cancelled_moved_and_turned_away(shaped, one_model_plan):
    world = shaped()
    world.submit(1, signature=KNOWN)
    world.submit(2, 3, signature=NEW)
    snapshot = world.engine.snapshot()
    pool = snapshot.pools[PoolId("m", "1")]
    assert (pool.queued, pool.unmeasured) == (0, 2)
    assert [request.id for request in snapshot.waiting(pool.id)] == [2, 3]
    world.send(Cancelled(2))
    assert world.answers[2].reason is Reason.CLIENT_CANCELLED
    before = len(world.started)
    world.send(PlanChanged(one_model_plan("1", "2")))
    assert state(world, 3) is State.UNMEASURED
    world.finish()
    for replica in world.started[before:]:
        world.send(ReplicaUp(replica.id))
    assert world.batches[-1].replica.pool.version == "2"
    world.submit(4, signature=NEW)
    world.send(PlanChanged(one_model_plan()))
    assert world.answers[4].reason is Reason.DRAINING


@pytest.mark.parametrize("refuse", [False, True])
def test_a_request_that_is_moved_is_judged_by_the_pool_it_comes_to(make_world, refuse):
    world = make_world()
    plan = Plan(
        (LaneSpec("lane0", (0,)),),
        (Deployment(PoolId("m", "1"), "lane0", 4), Deployment(PoolId("m", "2"), "lane0", 4)),
        (Route("m", PoolId("m", "1")),),
    )
    world.deploy(plan)
    world.submit(1, 2, 3, 4, 5, signature=NEW)
    world.unmeasured = {"m": {"refuse": refuse}}
    other = Plan(
        plan.lanes,
        (*plan.deployments[:1], Deployment(PoolId("m", "3"), "lane0", 4)),
        (Route("m", PoolId("m", "3")),),
    )
    world.send(PlanChanged(other))
    if refuse:
        assert world.answers[5].reason is Reason.UNMEASURED
    else:
        assert state(world, 5) is State.UNMEASURED


def test_a_crash_under_it_has_it_run_again_like_any_other(shaped):
    world = shaped()
    world.submit(1, 2, signature=NEW, slo=10.0)
    world.send(ReplicaLost(world.started[-1].id, "died"), after=0.01)
    assert state(world, 1) is State.QUARANTINED
    world.send(TimerFired(), after=1.0)
    world.send(ReplicaUp(world.started[-1].id))
    assert members(world)[-1] == [1]
    world.finish()
    assert members(world)[-1] == [2], "that run has measured the shape"
    world.finish()
    assert set(world.reasons().values()) == {Reason.ON_TIME}


def test_a_refusal_has_no_numbers_of_a_shape_that_cannot_be_judged(shaped):
    world = shaped(most=0)
    world.engine.state.pools[PoolId("m", "1")].scheduler.explanation = (0.3, 0.2)
    world.submit(1, signature=NEW)
    assert (world.answers[1].reason, world.answers[1].needed_s) == (Reason.QUEUE_FULL, None)
    world.submit(2, slo=-1.0, signature=KNOWN)
    assert (world.answers[2].reason, world.answers[2].needed_s) == (Reason.EXPIRED, 0.3)


def test_a_refusal_that_makes_its_shape_doubtful_keeps_its_numbers(shaped):
    world = shaped()
    (pool,) = world.engine.state.pools.values()
    pool.scheduler.explanation = (0.3, 0.2)

    def add(request, *, now):
        times(world).measured.discard(request.signature)  # as `Learner.discount` does
        return Reason.SHORTER_THAN_ALONE

    pool.scheduler.add = add
    world.submit(1, signature=KNOWN)
    assert world.answers[1].reason is Reason.SHORTER_THAN_ALONE
    assert (world.answers[1].needed_s, world.answers[1].wait_s) == (0.3, 0.2)
