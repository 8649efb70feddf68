"""Ties are decided as `EventOrder` says, and all happens when it is due."""

from __future__ import annotations

import math

import pytest

from slacktide.domain import (
    Cancelled,
    Event,
    LaneResized,
    PlanChanged,
    Reason,
    ReplicaLost,
    Submitted,
)
from slacktide.domain.frames import FRAME_EVENTS
from slacktide.engine import EngineSettings
from slacktide.lab.simulation import SimulatedUpload, SimulationError
from slacktide.lab.simulation.items import ExternalEvent, Failure
from slacktide.lab.simulation.world import driver
from slacktide.lab.simulation.world.driver import ORDER_OF, EventOrder
from slacktide.planning.exits.events import EXIT_EVENTS
from slacktide.planning.sessions import SESSION_EVENTS


def test_every_event_has_its_kind():
    assert set(ORDER_OF) == {*Event.__args__, *SESSION_EVENTS, *EXIT_EVENTS, *FRAME_EVENTS}
    assert list(EventOrder) == sorted(EventOrder)


def test_a_batch_that_ends_frees_the_lane_for_who_comes_at_that_instant(make):
    world = make.world().run(make.request(1, 0.0), make.request(2, 1.0))
    assert world.events == [
        (0.0, "PlanChanged"),
        (0.0, "ReplicaUp"),
        (0.0, "Submitted"),
        (1.0, "BatchFinished"),
        (1.0, "Submitted"),
        (2.0, "BatchFinished"),
    ]
    assert world.batches == [(0.0, (1,)), (1.0, (2,))]


def test_requests_of_one_instant_share_a_batch_and_later_ones_do_not(make):
    world = make.world().run(*[make.request(i, 0.5) for i in range(3)], make.request(3, 0.6))
    assert world.batches == [(0.5, (0, 1, 2)), (3.5, (3,))]
    assert (0.5, "Submitted+Submitted+Submitted") in world.events


def test_an_answer_due_at_this_instant_is_on_time(make):
    world = make.world().run(make.request(1, 0.0, slo=1.0))
    assert world.reasons == {1: Reason.ON_TIME}


def test_a_timer_that_is_due_as_a_batch_ends_has_nothing_left_to_say(make):
    # The latest start of request 2 is 1.0, at which the batch of request 1 ends: the dispatch that
    # follows gives it up.
    world = make.world(scheduler="edf", options={"admission": False}).run(
        make.request(1, 0.0), make.request(2, 0.5, slo=1.5)
    )
    assert world.outcomes[2].at == 1.0
    assert world.events[2:] == [(0.0, "Submitted"), (0.5, "Submitted"), (1.0, "BatchFinished")]


def test_the_timer_fires_when_it_is_due_between_events(make):
    world = make.world(scheduler="edf", options={"admission": False}).run(
        make.request(1, 0.0), make.request(2, 0.0, slo=100.0), make.request(3, 0.5, slo=1.25)
    )
    assert world.outcomes[3].at == 0.75  # its latest start
    assert (0.75, "TimerFired") in world.events


def test_timers_of_many_instants_are_no_timer_that_comes_again_and_again(make, monkeypatch):
    # Where load is too high, a request takes the place of another, which is given up at once: the
    # timer fires at the instant of each arrival, and at no other.
    monkeypatch.setattr(driver, "_TURNS_MOST", 20)
    requests = [make.request(i, 0.004 * i, slo=4.0) for i in range(400)]
    world = make.world(scheduler="slack").run(*requests)
    timers = [at for at, kind in world.events if kind == "TimerFired"]
    arrivals = {request.arrival for request in requests}
    assert len([at for at in timers if at in arrivals]) > 20
    assert len(world.outcomes) == len(requests)


def test_a_replica_that_dies_as_it_finishes_has_finished(make):
    world = make.world().run(make.request(1, 0.0), Failure(1.0, "lane0"))
    assert world.reasons == {1: Reason.ON_TIME}
    assert world.events[3:] == [
        (1.0, "BatchFinished"),
        (1.0, "ReplicaLost"),
        (1.1, "TimerFired"),
        (1.1, "ReplicaUp"),
    ]


def test_at_one_instant_batches_end_replicas_change_requests_come_and_go(make):
    world = make.world(fixed=1.0, per_row=0.0, lanes=2)
    items = [
        make.request(0, 0.0),
        ExternalEvent(1.0, Cancelled(9)),
        make.request(9, 1.0),
        SimulatedUpload(make.notice(8, 1.0, 1.5), make.request(8, 1.0), 1.5),
        Failure(1.0, "lane1"),
        ExternalEvent(1.0, LaneResized("lane0", (0,))),
    ]
    world.run(*items)
    at_one = [name for now, name in world.events if now == 1.0]
    assert at_one == [
        "BatchFinished",
        "ReplicaLost",
        "LaneResized",
        "Announced+Submitted",
        "Cancelled",
        "BatchAborted",
    ]
    assert world.reasons == {0: Reason.ON_TIME, 8: Reason.ON_TIME, 9: Reason.CLIENT_CANCELLED}


def test_a_body_that_comes_with_its_notice_waits_for_the_answer_to_it(make):
    world = make.world(fixed=1.0, per_row=0.0)
    world.run(
        SimulatedUpload(make.notice(1, 1.0, 1.0), make.request(1, 1.0), 1.0),
        SimulatedUpload(make.notice(2, 1.0, 1.0, slo=0.0), make.request(2, 1.0), 1.0),  # refused
        make.request(3, 1.0),
    )
    at_one = [name for now, name in world.events if now == 1.0]
    assert at_one == ["Announced+Announced", "Submitted+Submitted"]  # bodies 1 and 3
    assert world.reasons[2] is Reason.EXPIRED
    assert world.reasons[1] is world.reasons[3] is Reason.ON_TIME


def test_items_out_of_order_are_refused(make):
    with pytest.raises(SimulationError, match=r"got 1.0 s after 2.0 s"):
        make.world().run(make.request(1, 2.0), make.request(2, 1.0))


def test_an_event_that_cannot_be_is_the_engines_error(make):
    with pytest.raises(ValueError, match="already in use"):
        make.world().run(make.request(1, 0.0), ExternalEvent(0.5, Submitted(make.request(1, 0.5))))


def test_plans_change_while_it_runs(make):
    world = make.world().run(
        make.request(1, 0.0),
        ExternalEvent(0.5, PlanChanged(make.plan(lanes=2))),
        make.request(2, 0.75),
    )
    assert world.batches == [(0.0, (1,)), (0.75, (2,))]


def test_a_loss_of_a_replica_that_is_gone_is_passed_over(make):
    world = make.world().run(
        ExternalEvent(1.0, ReplicaLost(0, "first")), ExternalEvent(1.0, ReplicaLost(0, "again"))
    )
    assert [name for now, name in world.events if now == 1.0] == ["ReplicaLost"]


def test_until_ends_the_run_where_it_stands(make):
    world = make.world()
    world.simulation.run([make.request(1, 0.0), make.request(2, 5.0)], until=0.5)
    assert world.simulation.in_flight == 1
    assert world.events[-1] == (0.0, "Submitted")


def test_a_batch_time_that_is_no_number_is_refused(make):
    class Broken(make.LinearTimes):
        def seconds(self, batch, cores):
            return float("nan")

    with pytest.raises(SimulationError, match="a batch of 1 rows takes nan s"):
        make.world(execution=Broken(0.0, 1.0)).run(make.request(1, 0.0))


def test_a_request_that_nothing_will_ever_answer_is_an_error(make):
    hanging = make.LinearTimes(math.inf, 0.0)
    world = make.world(execution=hanging, settings=EngineSettings(hang_floor=math.inf))
    with pytest.raises(SimulationError, match="1 requests have no outcome"):
        world.run(make.request(1, 0.0))
