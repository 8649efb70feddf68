"""A request of a free size goes to the variant of that size, else to the next larger one."""

from __future__ import annotations

import pytest

from slacktide.domain import (
    Deployment,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaLost,
    ReplicaUp,
    Route,
    Submitted,
)

SIZES = (128, 256, 416)


def variant(size: int, generation: int = 0) -> PoolId:
    return PoolId("m", "1", str(size), generation)


def family_plan(*routes: Route, sizes=SIZES, generation: int = 0) -> Plan:
    """Variants of one family on one lane; the largest has the plain route."""
    pools = [variant(size, generation) for size in sizes]
    return Plan(
        (LaneSpec("lane", (0,)),),
        tuple(Deployment(pool, "lane", 4) for pool in pools),
        (Route("m", pools[-1]), *routes),
    )


@pytest.fixture
def family(make_world):
    world = make_world()
    world.variants = {str(size): (size, ()) for size in SIZES}
    world.deploy(family_plan(Route("m", variant(416), client="mapped")))
    world.submit(0)  # the lane is busy: what comes now waits
    return world


def waits_in(world, id: int) -> str:
    return world.engine.state.request_table.entries[id].pool.id.variant


@pytest.mark.parametrize(
    ("size", "expected"), [(0, "416"), (1, "128"), (128, "128"), (129, "256"), (5000, "416")]
)
def test_it_goes_to_the_smallest_variant_that_is_large_enough(family, size, expected):
    family.submit(1, size=size)
    assert waits_in(family, 1) == expected


def test_the_route_of_its_client_comes_first(family):
    family.submit(1, size=128, client="mapped")
    assert waits_in(family, 1) == "416"


def test_a_variant_that_it_names_comes_before_the_route_of_its_client(family):
    family.submit(1, size=128, client="mapped", names_variant=True)
    family.announce(2, size=256, client="mapped", names_variant=True)
    assert (waits_in(family, 1), waits_in(family, 2)) == ("128", "256")
    family.send(PlanChanged(family_plan(Route("m", variant(256), client="mapped"))))
    assert waits_in(family, 1) == "128", "its client's route has changed, its own wish has not"


def test_a_variant_that_is_not_up_is_passed_over(family):
    up = {replica.pool: replica.id for replica in family.started}
    family.send(ReplicaLost(up[variant(128)], "it died"))
    family.submit(1, size=100)
    assert waits_in(family, 1) == "256"
    family.send(ReplicaLost(up[variant(256)], "it died"))
    family.submit(2, size=100)
    assert waits_in(family, 2) == "416"


def test_where_none_is_up_it_waits_on_its_route(make_world):
    world = make_world()
    world.variants = {str(size): (size, ()) for size in SIZES}
    world.send(PlanChanged(family_plan()))
    world.submit(1, size=128)
    assert waits_in(world, 1) == "416"


def test_a_body_of_another_size_than_announced_goes_to_its_own_variant(family):
    family.announce(1)
    family.announce(2, size=128)
    family.announce(3, size=128)
    assert (waits_in(family, 1), waits_in(family, 2)) == ("416", "128")
    for id, size in ((1, 200), (2, 128), (3, 0)):
        family.send(Submitted(family.request(id, size=size)))
    assert [waits_in(family, id) for id in (1, 2, 3)] == ["256", "128", "416"]
    assert not family.schedulers[variant(416)].notices


def test_a_version_that_is_loaded_again_serves_by_its_own_variants(family):
    family.submit(1, size=128)
    old = family_plan()
    new = family_plan(generation=1)
    both = Plan(old.lanes, old.deployments + new.deployments, old.routes)
    before = len(family.started)
    family.send(PlanChanged(both))
    for replica in family.started[before:]:
        family.send(ReplicaUp(replica.id))
    assert family.engine.state.request_table.entries[1].pool.id == variant(128)
    family.send(PlanChanged(new))
    assert family.engine.state.request_table.entries[1].pool.id == variant(128, 1)
    assert not family.answers


def test_a_plan_without_its_variant_sends_it_to_the_next(family):
    family.submit(1, size=128)
    family.send(PlanChanged(family_plan(sizes=SIZES[1:])))
    assert waits_in(family, 1) == "256"
