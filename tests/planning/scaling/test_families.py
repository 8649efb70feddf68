"""The variant that a scaling policy chooses is where requests of a family go."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from tests.planning.scaling.scripted_scaling import ScriptedScaling, scaled

from slacktide.domain import (
    Deployment,
    LaneSpec,
    OutcomeKind,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaLost,
    Request,
    Route,
)
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.simulation import ByProfile, Simulation
from slacktide.planning.planner import PlanField
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.variants import Family, FamilyVariant
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import PoolRecipe

ACCURACIES = {"s": 0.4, "m": 0.6, "l": 0.7}
FAMILY = Family(
    tuple(FamilyVariant(*name_and_accuracy) for name_and_accuracy in ACCURACIES.items()),
    planner="none",
)
POOLS = {name: PoolId("f", "1", name) for name in ACCURACIES}


def family_base(*, generation: int = 0, pin: str | None = None, resident: str = "sml") -> Plan:
    pools = [POOLS[name]._replace(generation=generation) for name in resident]
    return Plan(
        (LaneSpec("f", (0,)),),
        tuple(Deployment(pool, "f", 8) for pool in pools),
        (
            Route("f", pools[0], version=pin),
            Route("f", pools[-1], version=pin, client="mapped"),
            Route("f", pools[-1], version=pin, application="batch"),
        ),
    )


@pytest.fixture
def family():
    world = ScriptedScaling()
    world.serve(family_base(), f=(scaled("f"), FAMILY))
    return world


def routes(world) -> dict[str, str]:
    return {
        route.client or route.application or "": route.pool.variant
        for route in world.engine.plan.routes
    }


def choose(world, variant: str) -> None:
    script = world.scripts["f"]
    script.target, script.endangered = replace(script.target, variant=variant), True
    world.tick()
    world.settle()
    script.endangered = False


def test_the_policy_sees_the_variants_that_are_up(family):
    _, view = family.scripts["f"].views[-1]
    assert {variant.name: variant.accuracy for variant in view.variants} == ACCURACIES
    assert view.times is family.engine.snapshot().pools[POOLS["s"]].times
    (replica,) = family.engine.snapshot().pools[POOLS["m"]].replicas
    family.turn(ReplicaLost(replica.replica.id, "killed"))
    family.tick()
    _, view = family.scripts["f"].views[-1]
    assert [variant.name for variant in view.variants] == ["s", "l"]


def test_its_choice_is_the_plain_route_and_no_other(family):
    assert routes(family) == {"": "s", "mapped": "l", "batch": "l"}
    choose(family, "m")
    assert routes(family) == {"": "m", "mapped": "l", "batch": "l"}
    family.submit(1, model="f")
    assert family.batches[-1].batch.replica.pool == POOLS["m"]
    family.tick()
    _, view = family.scripts["f"].views[-1]
    assert view.times is family.engine.snapshot().pools[POOLS["m"]].times


def test_waiting_requests_go_along(family):
    family.submit(1, 2, 3, model="f", slo=9.0)
    family.submit(4, model="f", slo=8.0)
    choose(family, "l")
    family.finish(after=0.1)
    batch = family.batches[-1].batch
    assert batch.replica.pool == POOLS["l"]
    assert 4 in {member.id for member in batch.members}


def test_without_a_choice_the_route_stays(family):
    choose(family, "")
    assert routes(family)[""] == "s"


def test_the_choice_outlives_a_reload_and_holds_for_every_version(family):
    choose(family, "l")
    again, old = family_base(generation=1), family_base(pin="1")
    both = Plan(again.lanes, again.deployments + old.deployments, again.routes + old.routes)
    family.serve(both, f=(scaled("f"), FAMILY))
    plain = [
        route.pool
        for route in family.engine.plan.routes
        if not route.client and not route.application
    ]
    assert plain == [POOLS["l"]._replace(generation=1), POOLS["l"]]
    family.tick()
    _, view = family.scripts["f"].views[-1]
    assert [variant.name for variant in view.variants] == ["s", "m", "l"]
    new = family.engine.snapshot().pools[POOLS["l"]._replace(generation=1)]
    assert view.times is new.times


def test_a_variant_that_is_not_deployed_is_not_routed_to():
    world = ScriptedScaling()
    world.serve(family_base(resident="sm"), f=(scaled("f"), FAMILY))
    choose(world, "l")
    assert routes(world)[""] == "s"


def test_routes_belong_to_one_planner(family):
    alone = {"f": (scaled("f"), FAMILY)}
    beside = {"f": (scaled("f"), replace(FAMILY, planner="variants"))}
    owned = [family.planner.owns(stated) for stated in (alone, beside, {"f": scaled("f")})]
    assert ("f", PlanField.ROUTES) in owned[0]
    assert ("f", PlanField.BATCH_CAPS) not in owned[1]
    assert not any(field is PlanField.ROUTES for fields in owned[1:] for _, field in fields)


def test_where_a_planner_of_variants_has_the_routes_none_are_shown_or_changed():
    world = ScriptedScaling()
    world.serve(family_base(), f=(scaled("f"), replace(FAMILY, planner="variants")))
    choose(world, "l")
    assert world.scripts["f"].views[-1][1].variants == ()
    assert routes(world)[""] == "s"


FACTOR = {"s": 1.0, "m": 4.0, "l": 12.0}


def simulated(planners, rates) -> tuple[Counter[str], Counter[str], list[str]]:
    """(outcomes, requests by the variant that ran, plain routes in force) of a family under rates
    of so many requests per second, ten seconds each."""
    tables = {
        POOLS[name]: LatencyTable.linear(0.001 * factor, 0.002 * factor, 8, spread=1.1)
        for name, factor in FACTOR.items()
    }

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        smaller = tuple(name for name in reversed(FACTOR) if FACTOR[name] < FACTOR[pool.variant])
        recipe = PoolRecipe("slack", rescue=smaller)
        return recipe.parts(CorrectedTimes(tables[pool]), max_batch=max_batch, view=view)

    class Truth:
        def __init__(self) -> None:
            draw = np.random.default_rng(1)
            self.of = {pool: ByProfile(CorrectedTimes(t), draw) for pool, t in tables.items()}

        def seconds(self, batch, cores):
            ran[batch.replica.pool.variant] += len(batch.members)
            return self.of[batch.replica.pool].seconds(batch, cores)

    ran: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    variants = []

    def watch(events, now, commands):
        for event in events:
            if isinstance(event, PlanChanged):
                variants.append(event.plan.routes[0].pool.variant)

    chance, items, now = np.random.default_rng(2), [], 0.5
    for place, rate in enumerate(rates):
        while now < 10.0 * (place + 1):
            items.append(Request(len(items), "f", now, now + 0.2))
            now += chance.exponential(1.0 / rate)
    model = ScaledModel(ScalingLimits(1, 1, 1, 1, 8), "joint", {"scale_down_delay": 3.0})
    simulation = Simulation(
        Engine(parts),
        family_base(),
        Truth(),
        answered=lambda request, outcome: outcomes.update([outcome.kind.value]),
        watch=watch,
        start_s=0.1,
        planners=planners,
        stated={"f": (model, FAMILY)},
        check=True,
    )
    simulation.run(items)
    assert outcomes.total() == len(items)
    return outcomes, ran, variants


def test_joint_trades_accuracy_for_load_and_back() -> None:
    rates = [8.0, 60.0, 8.0, 8.0, 8.0]
    outcomes, ran, variants = simulated((ScalingPlanner((0,)),), rates)
    assert outcomes[OutcomeKind.SERVED.value] > 0.98 * outcomes.total()
    order = [variant for variant, _ in groupby(variants)]
    assert order == ["s", "m", "l", "m", "l"]  # until something comes, "s" is what the base says
    assert min(ran["l"], ran["m"]) > 100
    _, ran, _ = simulated((), rates)
    assert set(ran) == {"s"}, "without a planner the base's route stays"
