"""Where several models want a lane: efficiency counts, shares count, and nobody starves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.engine.lanes import FAIR, GOING_ON
from slacktide.engine.worth import LaneTime, fair_shares


def lane_time(make_world, *, rows, shares):
    """Batches each of two models gets while both always have work for full batches."""
    world = make_world()
    world.share = shares
    pools = [PoolId(name, "1") for name in rows]
    world.deploy(
        Plan(
            (LaneSpec("lane", (0,)),),
            tuple(Deployment(pool, "lane", rows[pool.model]) for pool in pools),
            tuple(Route(pool.model, pool) for pool in pools),
        )
    )
    ids = iter(range(1, 10**6))
    for _ in range(400):
        for name, count in rows.items():
            while len(world.schedulers[PoolId(name, "1")]) < count:
                world.submit(next(ids), model=name, slo=1e6)
        world.finish(after=0.1)
    models = [batch.replica.pool.model for batch in world.batches[100:]]
    return {name: models.count(name) / len(models) for name in rows}


def test_a_model_that_gains_from_batching_gets_more_but_not_all(make_world):
    shares = lane_time(make_world, rows={"batches": 9, "alone": 1}, shares={})
    assert shares["batches"] == pytest.approx(3 / 4, abs=0.05)  # the root of nine to one


def test_shares_divide_the_lane_between_equals(make_world):
    shares = lane_time(make_world, rows={"a": 1, "b": 1}, shares={"a": 3.0})
    assert shares["a"] == pytest.approx(3 / 4, abs=0.05)


def test_lane_time_fades():
    had = LaneTime(window=5.0)
    assert had.had(now=0.0) == 0.0
    had.add(2.0, now=10.0)
    assert had.had(now=10.0) == 2.0
    assert had.had(now=15.0) == pytest.approx(2.0 / 2.718281828)
    had.add(1.0, now=15.0)
    assert had.had(now=15.0) == pytest.approx(1.0 + 2.0 / 2.718281828)


@given(st.lists(st.tuples(st.floats(0, 1e3), st.floats(0.01, 100)), min_size=1, max_size=6))
def test_standings_are_positive_and_rise_with_what_was_had(pairs):
    had, shares = zip(*pairs, strict=True)
    standings = fair_shares(had, shares, floor=0.01)
    assert all(standing > 0 for standing in standings)
    if len(pairs) == 1:
        assert standings == [pytest.approx(1.0)]
    more = fair_shares([had[0] + 1.0, *had[1:]], shares, floor=0.01)
    assert len(pairs) == 1 or more[0] >= standings[0]


def test_waiting_work_of_rivals_comes_first_up_to_a_part_of_the_fair_share(make_world):
    world = make_world()
    pools = [PoolId(name, "1") for name in "ab"]
    world.deploy(
        Plan(
            (LaneSpec("lane", (0,)),),
            tuple(Deployment(pool, "lane", 1) for pool in pools),
            tuple(Route(pool.model, pool) for pool in pools),
        )
    )
    first, other = (world.engine.state.pools[pool] for pool in pools)
    assert first.leave(now=world.now)(3.0) == 3.0  # nothing has run, nothing waits
    for id in range(1, 5):
        world.submit(id, model="b", slo=1e6)
    world.finish(after=0.1)
    waiting = len(other.scheduler)
    assert waiting > 1
    leave = first.leave(now=world.now)
    lately = other.placements[0].lane_time.had(now=world.now) / first.settings.fairness_window
    assert leave(9.0) == pytest.approx(9.0 * (1.0 - GOING_ON * lately) - 0.1 * waiting)
    assert leave(0.01) == pytest.approx(0.01 * FAIR / 2)


def test_a_model_by_itself_has_all_of_its_lane(make_world):
    world = make_world()
    pool = PoolId("m", "1")
    world.deploy(
        Plan((LaneSpec("lane", (0,)),), (Deployment(pool, "lane", 1),), (Route("m", pool),))
    )
    for id in range(1, 4):
        world.submit(id, model="m", slo=1e6)
    world.finish(after=0.1)
    assert world.engine.state.pools[pool].leave(now=world.now)(2.5) == 2.5
