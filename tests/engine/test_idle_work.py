"""Finished requests run again, alone, when nobody wants the lane: exact times and commands."""

from __future__ import annotations

import pytest

from slacktide.domain import (
    BatchAborted,
    BatchFailed,
    BatchFinished,
    Cancelled,
    Deployment,
    LaneSpec,
    MemoryShort,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    ReplicaUp,
    Route,
    TimerFired,
)
from slacktide.engine.idle_work import HELD
from slacktide.engine.time_share import SoloProfiling

SHARE = 0.1
"""A batch takes 10 ms, so a sample is earned every 100 ms."""


@pytest.fixture
def sampled(make_world, one_model_plan):
    """One model on one lane; every request is wanted. Earning begins with the first sample."""

    def make(wants=lambda request: True, lanes=1, share=SHARE):
        world = make_world()
        world.solo = SoloProfiling(wants, share)
        world.deploy(one_model_plan("1", lanes=lanes))
        return world

    return make


def run_pair(world, first_id, **fields):
    """Two requests in one batch, served 10 ms later."""
    world.submit(first_id, first_id + 1, **fields)
    world.finish()


def samples_of(world):
    return [batch for batch in world.batches if batch.solo]


def wait(world):
    """Until the engine wants to be asked again."""
    at = world.engine.next_wakeup()
    world.send(TimerFired(), after=at - world.now)


def held(world):
    return [r.id for pool in world.engine.state.pools.values() for r in pool.solo.held]


def test_one_member_is_kept_and_runs_alone_when_it_has_been_earned(sampled):
    world = sampled()
    run_pair(world, 1)
    assert set(world.answers) == {1, 2}
    assert world.freed == [2]
    assert held(world) == [1]
    assert samples_of(world) == []
    assert world.engine.next_wakeup() == pytest.approx(0.01 + 0.1)
    wait(world)
    (batch,) = samples_of(world)
    assert [member.id for member in batch.members] == [1]
    assert batch.started == pytest.approx(0.11)
    times = next(iter(world.times.values()))
    assert len(times.observed) == 1
    world.finish(after=0.02)
    assert times.observed[-1] == (pytest.approx(0.02), 1, 1)
    assert world.freed == [2, 1]
    assert len(world.answers) == 2
    counts = world.solo.counts
    assert (counts.run, counts.run_s) == (1, pytest.approx(0.02))
    assert counts.delayed == 0
    scheduler = next(iter(world.schedulers.values()))
    assert batch.id not in scheduler.left, "a policy must not hear of what it did not start"


def test_requests_that_ran_alone_are_not_run_again(sampled):
    world = sampled()
    world.submit(1)
    world.finish()
    assert world.freed == [1]


def test_unwanted_requests_are_freed(sampled):
    world = sampled(wants=lambda request: False)
    run_pair(world, 1)
    assert sorted(world.freed) == [1, 2]


def test_held_requests_are_freed_once_unwanted(sampled):
    wanted = [True]
    world = sampled(wants=lambda request: wanted[0])
    run_pair(world, 1)
    wanted[0] = False
    wait(world)
    assert samples_of(world) == []
    assert world.freed == [2, 1]
    assert world.engine.next_wakeup() is None


def test_the_share_bounds_the_lane_time(sampled):
    """Always something to sample, for 100 s: a tenth of the time, and no burst at the end."""
    world = sampled()
    id = 1
    while world.now < 100.0:
        run_pair(world, id)
        id += 2
        for _ in range(3):
            if world.engine.next_wakeup() is not None:
                wait(world)
            if world.engine.state.running:
                world.finish()
        world.now += 0.03
    counts = world.solo.counts
    assert 0.09 * world.now < counts.run_s <= SHARE * world.now


def test_idle_time_is_not_saved_up_for_ever(sampled):
    world = sampled()
    run_pair(world, 1)
    wait(world)
    world.finish()
    world.now += 10_000.0
    begin = world.now
    for n in range(200):
        run_pair(world, 3 + 2 * n)
        if world.engine.state.running:
            world.finish()
    # 10 s at a tenth were saved up, and more was earned meanwhile.
    assert world.solo.counts.run_s <= 1.0 + SHARE * (world.now - begin) + 0.02


def test_nothing_runs_while_a_request_waits_or_is_announced(sampled):
    world = sampled()
    world.wait = None
    run_pair(world, 1)
    world.announce(50, slo=30.0)
    world.now += 1.0
    world.send(TimerFired())
    assert samples_of(world) == []
    world.send(Cancelled(50))
    assert len(samples_of(world)) == 1


def test_a_request_that_comes_meanwhile_waits_for_one_sample_and_is_counted(sampled):
    world = sampled()
    run_pair(world, 1)
    run_pair(world, 3)
    wait(world)
    (sample,) = samples_of(world)
    world.now += 0.004
    world.submit(10)
    world.send(BatchFinished(sample.id), after=0.006)
    assert [member.id for member in world.batches[-1].members] == [10]
    counts = world.solo.counts
    assert (counts.delayed, counts.delayed_s) == (1, pytest.approx(0.006))


def test_a_run_must_fit_the_usual_slack(sampled):
    world = sampled()
    run_pair(world, 1, slo=0.0195)
    assert held(world) == []
    run_pair(world, 3, slo=0.0195)
    assert sorted(world.freed) == [1, 2, 3, 4]
    loose = sampled()
    run_pair(loose, 1, slo=0.0205)
    assert held(loose) == [1]


def test_a_few_tight_requests_hold_the_others_samples_back(sampled):
    world = sampled(share=0.01)
    run_pair(world, 1, slo=1.0)
    for n in range(40):
        world.submit(10 + n, slo=0.015)
        world.finish()
    world.now += 10.0
    world.send(TimerFired())
    assert samples_of(world) == []
    assert held(world) == []


def test_a_neighbour_on_the_lane_counts_as_well(make_world):
    world = make_world()
    world.solo = SoloProfiling(lambda request: request.model == "a", SHARE)
    pools = [PoolId("a", "1"), PoolId("b", "1")]
    world.deploy(
        Plan(
            (LaneSpec("lane0", (0,)),),
            tuple(Deployment(pool, "lane0", 4) for pool in pools),
            tuple(Route(pool.model, pool) for pool in pools),
        )
    )
    world.submit(1, model="b", slo=0.015)
    world.finish()
    run_pair(world, 2, model="a")
    assert held(world) == []


def test_only_so_many_are_held(sampled):
    world = sampled(share=1e-6)
    for n in range(HELD + 5):
        run_pair(world, 1 + 2 * n)
    assert len(held(world)) == HELD
    assert len(world.freed) == HELD + 10


def test_a_lane_that_is_never_idle_singles_requests_out(sampled):
    """Always four that wait: a tenth of the time goes to requests that run alone."""
    world = sampled()
    id = 1
    world.submit(*range(1, 5))
    while world.now < 20.0:
        id += 4
        world.submit(*range(id, id + 4), slo=0.05)
        world.finish()
    counts = world.solo.counts
    assert counts.run == 0
    assert len(held(world)) == HELD
    alone = [batch for batch in world.batches if len(batch.members) == 1]
    assert len(alone) == counts.isolated
    assert 0.09 * 20.0 < 0.01 * counts.isolated <= SHARE * 20.0 + 0.01
    assert not any(batch.solo for batch in alone)
    times = next(iter(world.times.values()))
    assert sum(rows == 1 for _, rows, _ in times.observed) == counts.isolated


def test_nobody_waits_for_more_than_one_that_is_singled_out(sampled):
    """However much has been saved up: here for a hundred runs."""
    world = sampled()
    world.submit(*range(4 * HELD + 4), slo=100.0)
    for _ in range(HELD):
        world.finish()
    assert len(held(world)) == HELD
    world.submit(*range(1000, 1019), slo=100.0)
    before = len(world.batches)
    world.finish(after=10.0)
    while len(next(iter(world.schedulers.values()))):
        world.finish()
    assert [len(batch.members) for batch in world.batches[before:]] == [1, 4, 4, 4, 4, 2]
    assert world.solo.counts.isolated == 1


def test_nobody_is_singled_out_while_samples_can_run(sampled):
    world = sampled()
    run_pair(world, 1)
    world.now += 50.0
    world.submit(3, 4)
    assert len(world.batches[-1].members) == 2


def test_memory_that_is_short_is_given_back_at_once(sampled):
    world = sampled()
    run_pair(world, 1)
    run_pair(world, 3)
    world.send(MemoryShort())
    assert held(world) == []
    assert sorted(world.freed) == [1, 2, 3, 4]
    world.now += 1.0
    world.send(TimerFired())
    assert samples_of(world) == []


@pytest.mark.parametrize("end", ["failed", "aborted", "lost"])
def test_a_sample_that_goes_wrong_is_forgotten(sampled, end):
    world = sampled()
    run_pair(world, 1)
    wait(world)
    (sample,) = samples_of(world)
    event = {
        "failed": BatchFailed(sample.id, "raised"),
        "aborted": BatchAborted(sample.id),
        "lost": ReplicaLost(sample.replica.id, "died"),
    }[end]
    world.send(event)
    assert world.freed == [2, 1]
    assert world.engine.state.request_table.entries == {}
    assert world.reasons() == {1: Reason.ON_TIME, 2: Reason.ON_TIME}
    if end == "lost":
        wait(world)
        world.send(ReplicaUp(world.started[-1].id))
    run_pair(world, 3)
    assert set(world.answers) == {1, 2, 3, 4}


def test_an_unloaded_model_keeps_nothing(sampled):
    world = sampled()
    run_pair(world, 1)
    world.send(MemoryShort(), Cancelled(1))  # it was answered: nothing to withdraw
    run_pair(world, 3)
    world.send(PlanChanged(Plan()))
    assert sorted(world.freed) == [1, 2, 3, 4]
    assert world.engine.state.pools == {}


def test_an_unloaded_model_whose_sample_runs_goes_after_it(sampled):
    world = sampled()
    run_pair(world, 1)
    wait(world)
    world.send(PlanChanged(Plan()))
    assert world.engine.state.pools != {}
    world.finish()
    assert world.engine.state.pools == {}
    assert world.freed == [2, 1]


def test_the_share_is_a_share():
    with pytest.raises(ValueError, match=r"share must be above 0 and at most 1, got 2\.0"):
        SoloProfiling(lambda request: True, 2.0)


def test_a_member_that_left_before_the_end_is_not_kept(sampled):
    world = sampled()
    world.submit(1, 2)
    world.send(Cancelled(1), Cancelled(2))
    world.finish()
    assert held(world) == []


def test_held_requests_do_not_run_on_a_replica_that_is_not_up(sampled):
    world = sampled(lanes=1)
    run_pair(world, 1)
    assert len(held(world)) == 1
    world.send(ReplicaLost(world.started[0].id, "died"))
    for _ in range(3):
        world.send(TimerFired(), after=0.5)
    assert samples_of(world) == []
    world.send(ReplicaUp(world.started[-1].id))
    wait(world)
    assert len(samples_of(world)) == 1
