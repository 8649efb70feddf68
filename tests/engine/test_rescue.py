"""A request that its variant has no time for moves to a smaller one, once."""

from __future__ import annotations

import pytest

from slacktide.domain import (
    Announced,
    BatchFinished,
    Cancelled,
    Deployment,
    LaneSpec,
    Notice,
    Plan,
    PlanChanged,
    PoolId,
    Reason,
    ReplicaLost,
    Route,
    Submitted,
    TimerFired,
)

SECONDS = {"small": 0.01, "middle": 0.1, "large": 0.4}
SMALL, MIDDLE, LARGE = (PoolId("m", "1", name) for name in SECONDS)


def family_plan(
    route: PoolId = LARGE, pools=(SMALL, MIDDLE, LARGE), lanes: dict[PoolId, str] | None = None
) -> Plan:
    """Every variant on lane `a` unless `lanes` says otherwise."""
    placed = tuple(Deployment(pool, (lanes or {}).get(pool, "a"), 4) for pool in pools)
    specs = tuple(
        LaneSpec(name, (core,))
        for core, name in enumerate(sorted({deployment.lane for deployment in placed}))
    )
    return Plan(specs, placed, (Route("m", route),))


def family_world(make_world, plan: Plan):
    world = make_world()
    world.seconds = SECONDS
    world.variants = {
        "small": (100, ()),
        "middle": (200, ("small",)),
        "large": (300, ("middle", "small")),
    }
    world.deploy(plan)
    return world


@pytest.fixture
def family(make_world):
    return family_world(make_world, family_plan())


def place(world, id: int) -> PoolId:
    return world.engine.state.request_table.entries[id].pool.id


@pytest.mark.parametrize(
    ("slo", "expected"), [(0.5, LARGE), (0.39, MIDDLE), (0.11, MIDDLE), (0.09, SMALL)]
)
def test_one_refused_at_the_door_goes_to_the_most_accurate_that_fits(family, slo, expected):
    family.submit(1, slo=slo)
    assert [m.id for m in family.batches[0].members] == [1]
    assert family.batches[0].replica.pool == expected


def test_one_that_fits_nowhere_is_refused_as_it_would_be_without(family):
    family.submit(1, slo=0.009)
    assert family.reasons() == {1: Reason.SHORTER_THAN_ALONE}
    assert family.freed == [1]


def test_the_time_until_a_lane_is_free_counts(family):
    family.submit(1, slo=0.05)
    family.finish()
    family.submit(2, slo=1.0)  # the lane is busy for 0.4 s from now on
    family.submit(3, slo=0.39)
    assert family.reasons()[3] is Reason.SHORTER_THAN_ALONE


def test_one_about_to_be_dropped_moves_and_runs_at_once_on_an_idle_lane(make_world):
    world = family_world(make_world, family_plan(lanes={SMALL: "b"}))
    world.submit(1)
    world.submit(2, slo=0.45)
    assert place(world, 2) == LARGE
    world.send(TimerFired(), after=0.06)  # 0.34 s until `middle` could begin
    assert [m.id for m in world.batches[-1].members] == [2]
    assert world.batches[-1].replica.pool == SMALL
    world.finish()
    assert world.reasons()[2] is Reason.ON_TIME
    assert world.answers[2].budget_s == pytest.approx(0.38)


def test_one_dropped_while_its_lane_is_filled_runs_in_the_same_step(make_world):
    """Also if the variant that takes it has been asked already."""
    world = family_world(make_world, family_plan(pools=(SMALL, LARGE)))
    world.submit(1)
    world.submit(2, slo=0.7)
    world.send(BatchFinished(0), after=0.39)
    assert [m.id for m in world.batches[-1].members] == [2]
    assert world.batches[-1].replica.pool == SMALL


def test_it_moves_once(family):
    family.submit(1)
    family.submit(2, slo=0.55)
    family.send(TimerFired(), after=0.16)
    assert place(family, 2) == MIDDLE
    family.send(TimerFired(), after=0.3)  # the lane is busy for longer than expected
    assert family.reasons()[2] is Reason.HOPELESS
    assert family.engine.snapshot().counts["m"].rescued == 1


def test_a_variant_that_is_not_up_takes_none(family):
    middle = next(r for r in family.started if r.pool == MIDDLE)
    family.send(ReplicaLost(middle.id, "killed"))
    family.submit(1, slo=0.2)
    assert family.batches[0].replica.pool == SMALL


def test_a_variant_that_refuses_it_is_passed_over(family):
    family.schedulers[MIDDLE].refuse = Reason.QUEUE_FULL
    family.submit(1, slo=0.2)
    assert family.batches[0].replica.pool == SMALL
    assert family.engine.snapshot().pools[LARGE].rescued == 1


@pytest.mark.parametrize("reason", [Reason.BAD_INPUT, Reason.UNMEASURED])
def test_a_refusal_for_another_reason_stays(family, reason):
    family.schedulers[LARGE].refuse = reason
    family.submit(1)
    assert family.reasons() == {1: reason}


def test_one_with_too_many_rows_or_past_its_deadline_is_not_moved(family):
    family.submit(1, slo=0.2, rows=5)
    family.submit(2, slo=-1.0)
    assert family.reasons() == {1: Reason.BAD_INPUT, 2: Reason.EXPIRED}


def test_a_best_effort_request_moves_from_a_full_queue(family):
    family.schedulers[LARGE].refuse = Reason.QUEUE_FULL
    family.submit(1, best_effort=True)
    assert family.batches[0].replica.pool == MIDDLE


def test_a_notice_moves_and_its_body_follows(family):
    family.submit(1)
    family.announce(2, slo=0.39)
    assert family.reasons() == {2: Reason.SHORTER_THAN_ALONE}  # the lane is busy for longer
    family.finish(after=0.4)
    family.announce(3, slo=0.39)
    assert (place(family, 3), family.engine.state.pools[MIDDLE].announced) == (MIDDLE, 1)
    family.send(Submitted(family.request(3, size=300)))
    assert family.batches[-1].replica.pool == MIDDLE
    assert family.engine.state.pools[MIDDLE].announced == 0


def test_a_notice_goes_where_there_is_time_once_its_body_is_here(family):
    now = family.now
    family.send(Announced(Notice(1, "m", now, now + 0.39, 10, complete_at=now + 0.3)))
    assert place(family, 1) == SMALL
    family.send(Cancelled(1))
    assert family.reasons() == {1: Reason.CLIENT_CANCELLED}


def test_a_plan_leaves_it_where_it_is_while_its_variant_stays(make_world):
    world = family_world(make_world, family_plan())
    world.submit(1, slo=0.39)
    world.submit(2, slo=0.3)
    assert place(world, 2) == MIDDLE
    world.send(PlanChanged(family_plan(route=SMALL)))
    assert place(world, 2) == MIDDLE
    world.send(PlanChanged(family_plan(pools=(SMALL, LARGE))))
    assert place(world, 2) == LARGE


def test_a_notice_that_a_plan_moves_may_be_rescued_too(make_world):
    world = family_world(make_world, family_plan(route=SMALL))
    world.announce(1, slo=0.2)
    world.send(PlanChanged(family_plan()))
    assert place(world, 1) == MIDDLE
    assert world.engine.snapshot().pools[LARGE].rescued == 1


def test_requests_follow_their_route_to_another_variant_with_id_and_deadline(family):
    family.submit(1)
    family.submit(2, 3, slo=0.9)
    deadline = family.engine.state.request_table.entries[2].request.deadline
    family.send(PlanChanged(family_plan(route=SMALL)))
    assert place(family, 2) == place(family, 3) == SMALL
    family.finish(after=0.4)
    assert family.batches[-1].replica.pool == SMALL
    assert [(m.id, m.deadline) for m in family.batches[-1].members] == [
        (2, deadline),
        (3, deadline),
    ]


def test_where_it_is_switched_off_nothing_moves(make_world):
    world = make_world()
    world.seconds = SECONDS
    world.variants = {"small": (0, ()), "middle": (0, ()), "large": (0, ())}
    world.deploy(family_plan())
    world.submit(1, slo=0.39)
    assert world.reasons() == {1: Reason.SHORTER_THAN_ALONE}
    assert world.engine.snapshot().counts["m"].rescued == 0
