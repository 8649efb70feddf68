"""Replicas on standby: loaded, given no batch, and in service at once when a plan says so."""

from __future__ import annotations

import pytest

from slacktide.domain import Deployment, LaneSpec, Plan, PlanChanged, PoolId, Reason, Route

SMALL, LARGE = PoolId("m", "1", "small"), PoolId("m", "1", "large")
LANES = (LaneSpec("a", (0,)), LaneSpec("b", (1,)))


def plan(a: PoolId, b: PoolId, route: PoolId) -> Plan:
    """Both pools on both lanes; each lane serves one of them."""
    return Plan(
        LANES,
        tuple(
            Deployment(pool, lane, 4, standby=pool != serving)
            for lane, serving in (("a", a), ("b", b))
            for pool in (SMALL, LARGE)
        ),
        (Route("m", route),),
    )


def test_a_lane_serves_only_what_is_not_on_standby(world):
    world.deploy(plan(SMALL, LARGE, SMALL))
    world.submit(1)
    world.submit(2)  # lane b is free, but its copy is on standby
    assert [(batch.replica.lane, len(batch.members)) for batch in world.batches] == [("a", 1)]
    snapshot = world.engine.snapshot()
    assert snapshot.pools[SMALL].free_in > 0.0
    assert {r.replica.lane for r in snapshot.pools[SMALL].replicas} == {"a", "b"}


def test_another_plan_puts_it_in_service_at_once(world):
    world.deploy(plan(SMALL, LARGE, SMALL))
    world.submit(1)
    world.submit(2)
    before = len(world.started), len(world.stopped)
    world.send(PlanChanged(plan(SMALL, SMALL, SMALL)))
    assert [batch.replica.lane for batch in world.batches] == ["a", "b"]
    assert (len(world.started), len(world.stopped)) == before


def test_waiting_requests_follow_their_route_to_the_pool_in_service(world):
    world.deploy(plan(SMALL, SMALL, SMALL))
    world.submit(1)
    world.submit(2)
    world.submit(3)
    world.send(PlanChanged(plan(LARGE, LARGE, LARGE)))
    assert [len(batch.members) for batch in world.batches] == [1, 1]  # they run on where they are
    world.finish()
    assert world.batches[-1].replica.pool == LARGE
    world.finish()
    assert set(world.reasons().values()) == {Reason.ON_TIME}


def test_a_request_by_size_goes_to_a_variant_in_service(world):
    world.variants = {"small": (128, ()), "large": (608, ())}
    world.deploy(plan(LARGE, LARGE, LARGE))
    world.submit(1, size=100)
    assert world.batches[-1].replica.pool == LARGE


def test_no_request_is_rescued_to_a_variant_on_standby(world):
    world.variants = {"small": (128, ()), "large": (608, ("small",))}
    world.seconds = {"small": 0.01, "large": 0.1}
    world.deploy(plan(LARGE, LARGE, LARGE))
    world.submit(1, slo=0.05)
    assert world.batches == []
    assert world.answers[1].reason is not Reason.ON_TIME


def test_a_route_to_what_is_on_standby_everywhere_contradicts_the_plan():
    with pytest.raises(ValueError, match="leads to undeployed m:1@small"):
        plan(LARGE, LARGE, SMALL)
