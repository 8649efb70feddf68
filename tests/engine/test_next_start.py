"""When the next request of a model would start, as other servers are told."""

from __future__ import annotations

import math

import pytest

from slacktide.domain import Cancelled, Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.engine import next_start

ALONE, ROW = 0.01, 0.01 / 4  # FlatTimes: any batch takes 10 ms; up to 4 rows


def wait(world, model: str = "m", **options: object) -> float:
    return next_start(world.engine, model, now=world.now, **options).wait_s


def test_an_idle_lane_starts_at_once(world):
    start = next_start(world.engine, "m", now=0.0)
    assert (start.wait_s, start.alone_s, start.row_s) == (0.0, ALONE, ROW)


def test_the_running_batch_and_waiting_rows_count(world):
    world.submit(1)
    assert wait(world) == pytest.approx(ALONE)
    world.submit(2)
    world.submit(3, rows=3)
    assert wait(world) == pytest.approx(ALONE + 4 * ROW)
    assert next_start(world.engine, "m", now=0.004).wait_s == pytest.approx(0.006 + 4 * ROW)
    world.finish()
    assert wait(world) == pytest.approx(ALONE)


def test_announced_requests_count_as_one_row(world):
    world.submit(1)
    world.announce(2)
    assert wait(world) == pytest.approx(ALONE + ROW)


def test_two_lanes_halve_the_time_per_row(make_world, one_model_plan):
    world = make_world()
    world.deploy(one_model_plan("1", lanes=2))
    assert next_start(world.engine, "m", now=0.0).row_s == ROW / 2
    world.submit(1)
    assert wait(world) == 0.0


def test_requests_of_unserved_models_never_start(make_world, one_model_plan):
    world = make_world()
    assert wait(world) == math.inf
    world.deploy(one_model_plan("1"))
    assert wait(world) == 0.0
    assert wait(world, "other") == math.inf
    assert wait(world, version="7") == math.inf
    world.deploy(Plan())
    assert wait(world) == math.inf


def test_work_of_another_model_on_the_lane_counts(make_world):
    world = make_world()
    pools = [PoolId(name, "1") for name in "mn"]
    world.deploy(
        Plan(
            (LaneSpec("lane", (0,)),),
            tuple(Deployment(pool, "lane", 4) for pool in pools),
            tuple(Route(pool.model, pool) for pool in pools),
        )
    )
    world.submit(1, model="n")
    world.finish()
    for id in range(2, 30):
        world.submit(id, model="n")
    lone = world.engine.state.pools[pools[0]].free_in(now=world.now)
    assert wait(world) > lone + ROW
    ahead = wait(world)
    for id in range(3, 30):
        world.send(Cancelled(id))
    assert wait(world) < ahead
