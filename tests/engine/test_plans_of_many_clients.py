"""A plan that has much in common with the one in force does what it would do in full."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide.domain import Deployment, LaneSpec, Plan, PlanChanged, PoolId, Route

POOLS = [PoolId("m", "1", name) for name in ("128", "256", "416")]
CLIENTS = ("", "a", "b", "c", "d")

clients = st.dictionaries(st.sampled_from(CLIENTS[1:]), st.sampled_from(POOLS))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """On two lanes; most have all variants and the same lanes, and differ in clients' routes."""
    same = draw(st.sampled_from([True, True, True, False]))
    pools = POOLS if same else draw(st.lists(st.sampled_from(POOLS), min_size=1, unique=True))
    cores = (0, 1) if same else draw(st.sampled_from([(0, 1), (2, 3), (0, 3)]))
    lanes = tuple(LaneSpec(f"lane{core % 2}", (core,)) for core in cores)
    placed = tuple(
        Deployment(pool, lane.name, 4 if same else draw(st.integers(1, 4)))
        for pool in pools
        for lane in lanes
    )
    plain = draw(st.sampled_from(pools[-1:] * 3 + pools))
    mapped = {client: pool for client, pool in draw(clients).items() if pool in pools}
    routes = [Route("m", plain), *[Route("m", pool, client=c) for c, pool in mapped.items()]]
    if draw(st.booleans()):
        routes.append(Route("m", pools[0], application="app"))
    return Plan(lanes, placed, tuple(routes))


steps = st.lists(
    plans()
    | st.tuples(st.sampled_from(CLIENTS), st.sampled_from(("", "app")), st.integers(0, 450))
    | st.just("finish"),
    max_size=25,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_it_commands_what_it_would_in_full(make_world, steps):
    quick, full = make_world(), make_world()
    for world in (quick, full):
        world.variants = {pool.variant: (int(pool.variant), ()) for pool in POOLS}
        world.deploy(Plan((LaneSpec("lane0", (0,)),), (Deployment(POOLS[0], "lane0", 4),)))
    for id, step in enumerate(steps):
        command_lists = []
        for world in (quick, full):
            world.engine._deploying._applied = (
                world.engine._deploying._applied if world is quick else None
            )
            if isinstance(step, Plan):
                before = len(world.started)
                world.deploy(step)
                command_lists.append(world.started[before:])
            elif step == "finish":
                running = sorted(world.engine.state.running)
                command_lists.append(
                    world.finish() if running and running[-1] == world.batches[-1].id else []
                )
            else:
                client, application, size = step
                command_lists.append(
                    world.submit(id, client=client, application=application, size=size)
                )
        assert command_lists[0] == command_lists[1]
        entries = [
            {key: entry.pool.id for key, entry in world.engine.state.request_table.entries.items()}
            for world in (quick, full)
        ]
        assert entries[0] == entries[1]
    assert quick.answers == full.answers


def test_requests_of_clients_with_another_route_are_moved(make_world):
    world = make_world()
    lanes, placed = (LaneSpec("lane", (0,)),), tuple(Deployment(p, "lane", 4) for p in POOLS)

    def plan(**clients: PoolId) -> Plan:
        routes = [Route("m", POOLS[0]), *[Route("m", p, client=c) for c, p in clients.items()]]
        return Plan(lanes, placed, tuple(routes))

    world.deploy(plan(a=POOLS[1], b=POOLS[1], c=POOLS[2]))
    before = world.engine.state.routes
    world.submit(0)
    for id, client in enumerate("abcd", 1):
        world.submit(id, client=client)
    world.send(PlanChanged(plan(a=POOLS[1], b=POOLS[0], d=POOLS[2])))
    assert world.engine.state.routes.clients_unlike(before) == {"b", "c", "d"}
    entries = world.engine.state.request_table.entries
    assert [entries[id].pool.id for id in (1, 2, 3, 4)] == [POOLS[1], POOLS[0], POOLS[0], POOLS[2]]


def test_a_request_moves_to_the_variant_of_its_size_once_that_serves(make_world):
    """The plan that comes next is the same, to the letter."""
    world = make_world()
    world.variants = {pool.variant: (int(pool.variant), ()) for pool in POOLS}
    lanes = (LaneSpec("lane", (0,)),)
    small, all_sizes = (
        Plan(lanes, tuple(Deployment(p, "lane", 4) for p in pools), (Route("m", pools[-1]),))
        for pools in (POOLS[:1], POOLS)
    )
    world.deploy(small)
    world.submit(1)  # takes the lane
    world.submit(2, size=129)
    entries = world.engine.state.request_table.entries
    assert entries[2].pool.id == POOLS[0]
    world.deploy(all_sizes)
    world.deploy(all_sizes)
    assert entries[2].pool.id == POOLS[1]


@pytest.mark.parametrize("again", [1, 2])
def test_a_plan_that_fails_is_not_taken_for_the_one_in_force(make_world, again):
    world = make_world()
    good = Plan((LaneSpec("lane", (0,)),), (Deployment(POOLS[0], "lane"),), (Route("m", POOLS[0]),))
    world.deploy(good)
    factory = world.engine.state.factory
    world.engine.state.factory = lambda *_: 1 // 0
    both = Plan(good.lanes, (*good.deployments, Deployment(POOLS[1], "lane")), good.routes)
    for _ in range(again):
        with pytest.raises(ZeroDivisionError):
            world.send(PlanChanged(both))
    world.engine.state.factory = factory
    world.deploy(both)
    assert set(world.engine.state.pools) == {POOLS[0], POOLS[1]}
