"""Bounds that are stated beside what settings say: the planners of one model keep within them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.harness import parts_of
from tests.planning.variants.served_family import (
    SIDES,
    SIZES,
    ServedFamily,
    base_plan,
    measured,
    opened,
)

from slacktide.domain import PoolId, Request, Submitted
from slacktide.engine import Engine
from slacktide.planning import Draft, ModelBounds, PlannerError
from slacktide.planning.exits import ExitsPlanner
from slacktide.planning.exits.events import RampFacts, RampsLearnt, StatedExits
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.variants import Family

FAMILY = Family(SIZES)


def bounded(family: ServedFamily, **bounds) -> None:
    family.stated = {"m": (FAMILY, ModelBounds(**bounds))}
    family.rebase(base_plan(2))
    family.wait(1.0)


def test_requests_go_to_the_largest_variant_that_is_allowed_and_no_further():
    family = ServedFamily()
    for id in range(30):
        family.turn(Submitted(Request(id, "m", family.now, family.now + 1.0)), at=family.now + 0.1)
    family.wait(1.0)
    assert family.plain == "608"
    bounded(family, largest="256")
    assert family.plain == "256"
    assert family.lane("lane0") == {str(side) for side in SIDES}  # those that ask for it, get it
    bounded(family)
    for id in range(30, 50):
        family.turn(Submitted(Request(id, "m", family.now, family.now + 1.0)), at=family.now + 0.1)
    family.wait(1.0)
    assert family.plain == "608"


def test_a_variant_that_there_is_not_is_refused():
    with pytest.raises(PlannerError, match="no variant '512'"):
        bounded(ServedFamily(), largest="512")


@settings(max_examples=12)
@given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(st.tuples(st.floats(0.02, 1.0), st.floats(1.0, 80.0)), max_size=4),
    st.booleans(),
)
def test_sessions_and_requests_keep_within_bounds(first, other, clients, plain):
    least, most = sorted((first, other))
    family = ServedFamily()
    bounded(family, smallest=str(SIDES[least]), largest=str(SIDES[most]))
    for number, (slo, rate) in enumerate(clients):
        family.turn(opened(f"c{number}", slo=slo, rate=rate), measured(f"c{number}"))
        family.wait(0.05)
    for id in range(20 if plain else 0):
        family.turn(Submitted(Request(id, "m", family.now, family.now + 0.3)), at=family.now + 0.02)
    family.wait(2.0)
    assert not family.faults
    allowed = {str(side) for side in SIDES[least : most + 1]}
    assert family.plain in allowed
    # A session without time for any of them is told so: it has no size.
    assert set(family.sizes.values()) <= allowed | {""}


def test_cores_have_a_most_but_never_less_than_settings_say():
    planner, snapshot = ScalingPlanner(range(8)), Engine(parts_of("edf", None)).snapshot(now=0.0)
    planner.rebase(base_plan(1), {"m": ScaledModel(ScalingLimits(2, 4))}, now=0.0)
    for most, expected in ((None, 4), (3, 3), (1, 2), (9, 4)):
        planner.plan(snapshot, Draft(base_plan(1), {"m": ModelBounds(cores=most)}), now=0.0)
        assert planner.states["m"].limits == ScalingLimits(2, expected)
    planner.plan(snapshot, Draft(base_plan(1), {}), now=0.0)
    assert planner.states["m"].limits == ScalingLimits(2, 4)


def test_rows_leave_early_only_where_that_is_allowed():
    planner, pool = ExitsPlanner(), PoolId("m", "1", "128")
    stated = StatedExits(accuracy_loss=0.01)
    ramps = (RampFacts(0, "a", 0.9, 0.3), RampFacts(1, "b", 0.95, 0.6))
    planner.rebase(base_plan(1), {"m": stated}, now=0.0)
    planner.observe_exits([RampsLearnt(pool, 1, ramps)], now=0.0)
    unbounded = Draft(base_plan(1), {})
    (policy, *_) = planner.plan(None, unbounded, now=0.0).plan.exits
    bounded = Draft(base_plan(1), {"m": ModelBounds(exits=False)})
    assert planner.plan(None, bounded, now=0.0).plan.exits == ()
    assert planner.plan(None, unbounded, now=0.0).plan.exits[0].ramps == policy.ramps
