"""Planners beside a driver: what they plan comes first, and their faults cost no answers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from slacktide.domain import (
    BatchFinished,
    BatchTiming,
    Deployment,
    Event,
    LaneSpec,
    Plan,
    PlanChanged,
    PoolId,
    ReplicaUp,
    Request,
    Route,
    Submitted,
    TimerFired,
)
from slacktide.engine import Engine, PoolParts, Snapshot
from slacktide.planning import (
    Draft,
    ExitEvent,
    Planner,
    SessionClosed,
    SessionEvent,
    SessionMeasured,
    SessionOpened,
    Stated,
)
from slacktide.planning.exits import RampsRefused
from slacktide.planning.scaling import ScaledModel, ScalingLimits, ScalingPlanner
from slacktide.planning.scaling.horizontal import Horizontal
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.runtime import Runtime, RuntimeEvent
from slacktide.runtime.runtime import PAUSE_S
from slacktide.scheduling import make_scheduler

BASE = Plan((LaneSpec("m", (0,)),), (Deployment(PoolId("m", "1"), "m", 4),))


def engine() -> Engine:
    times = CorrectedTimes(LatencyTable.flat(0.01, max_batch=4))
    return Engine(
        lambda pool, max_batch, view: PoolParts(
            make_scheduler("edf", {}, max_batch=max_batch, times=times, view=view), times
        )
    )


class House:
    """A runtime, what its engine was told, and what failed."""

    def __init__(self, *planners: Planner, cores: Sequence[int] = (0, 1)) -> None:
        self.told: list[tuple[Event, ...]] = []
        self.faults: list[str] = []
        self.runtime = Runtime(
            engine(),
            planners or (ScalingPlanner(cores),),
            watch=lambda events, now, commands: self.told.append(tuple(events)),
            on_fault=lambda subject, error, fatal=False: self.faults.append(subject),
            stopwatch=time.perf_counter,
        )

    def serve(self, base: Plan, stated: Stated, *, now: float) -> None:
        self.turn(PlanChanged(self.runtime.rebase(base, stated, now=now)), now=now)

    def turn(self, *events: RuntimeEvent, now: float) -> tuple[Event, ...]:
        """One turn of a driver; what the engine was told."""
        self.runtime.handle(events, now=now)
        return self.told[-1]


@pytest.fixture
def house() -> House:
    """One scaled model, deployed at 1.0."""
    house = House()
    house.serve(BASE, STATED, now=1.0)
    return house


STATED = {"m": ScaledModel(ScalingLimits(1, 2, batch_max=4), "static")}


def test_a_plan_comes_before_what_it_is_for(house: House) -> None:
    timer = TimerFired()
    plan, last = house.turn(timer, now=2.0)
    assert isinstance(plan, PlanChanged)
    assert len(plan.plan.lanes[0].cores) == 2
    assert last is timer
    assert house.runtime.plans == 1
    assert house.runtime.planning_s > 0.0
    assert house.turn(timer, now=2.1) == (timer,)


def test_a_planner_that_fails_costs_no_events_and_is_asked_again_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = TimerFired()
    with monkeypatch.context() as patched:
        patched.setattr(ScalingPlanner, "observe", lambda *_, **__: 1 / 0)
        assert house.turn(timer, now=2.0) == (timer,)
        assert house.faults == ["planning failed: keeping the current plan for 10 s"]
        assert house.turn(timer, now=2.1) == (timer,)
        assert len(house.faults) == 1
    assert house.runtime.next_wakeup() == 2.0 + PAUSE_S
    assert house.turn(timer, now=2.2) == (timer,)
    assert len(house.turn(timer, now=2.0 + PAUSE_S)) == 2


def test_a_planner_that_fails_keeps_no_other_from_planning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = Plan(
        (LaneSpec("a", (0,)), LaneSpec("b", (1,))),
        (Deployment(PoolId("a", "1"), "a", 4), Deployment(PoolId("b", "1"), "b", 4)),
    )
    house = House(cores=(0, 1, 2))
    models = {
        "a": ScaledModel(ScalingLimits(1, 2, batch_max=4), "horizontal"),
        "b": ScaledModel(ScalingLimits(1, 2, batch_max=4), "static"),
    }
    monkeypatch.setattr(Horizontal, "decide", lambda *_, **__: 1 / 0)
    house.serve(base, models, now=1.0)
    assert len(house.turn(TimerFired(), now=2.0)) == 1
    assert house.faults == ["planning failed: a keeps its last target for 10 s"]
    assert house.runtime.next_wakeup() == 1.0, "the other one waits to be asked"
    plan, _ = house.turn(TimerFired(), now=2.0)
    assert isinstance(plan, PlanChanged)
    assert {lane.name: len(lane.cores) for lane in plan.plan.lanes} == {"a": 1, "b": 2}
    for now in (3.0, 4.0, 2.0 + PAUSE_S):
        house.turn(TimerFired(), now=now)
    assert len(house.faults) == 2


def test_a_load_after_a_fault_plans_at_once(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ScalingPlanner, "observe", lambda *_, **__: 1 / 0)
        house.turn(TimerFired(), now=2.0)
    house.serve(BASE, STATED, now=2.5)
    assert isinstance(house.turn(TimerFired(), now=2.6)[0], PlanChanged)


def test_without_scaled_models_there_is_nothing_to_do() -> None:
    idle = House()
    timer = TimerFired()
    idle.serve(BASE, {}, now=1.0)
    assert idle.runtime.engine.plan == BASE
    assert idle.turn(timer, now=2.0) == (timer,)
    assert idle.runtime.next_wakeup() == idle.runtime.engine.next_wakeup()
    assert idle.runtime.usage.totals(now=3.0) == {"m": 2.0}


def test_a_lane_that_goes_after_its_last_batch_costs_nothing_more() -> None:
    idle = House()
    routed = Plan(BASE.lanes, BASE.deployments, (Route("m", PoolId("m", "1")),))
    idle.serve(routed, {}, now=1.0)
    idle.turn(ReplicaUp(0), Submitted(Request(1, "m", 1.0, 9.0)), now=1.0)
    idle.serve(Plan(), {}, now=2.0)
    assert idle.runtime.engine.snapshot().lanes, "it is busy"
    idle.turn(BatchFinished(0, BatchTiming()), now=3.0)
    assert not idle.runtime.engine.snapshot().lanes
    assert idle.runtime.usage.totals(now=9.0) == {"m": 2.0}


def test_without_a_listener_faults_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Runtime(engine(), (ScalingPlanner((0, 1)),))
    bare.handle([PlanChanged(bare.rebase(BASE, STATED, now=1.0))], now=1.0)
    monkeypatch.setattr(ScalingPlanner, "observe", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bare.handle([TimerFired()], now=2.0)
    monkeypatch.undo()
    with pytest.raises(ValueError):
        bare.handle([BatchFinished(99)], now=3.0)


class Listener(Planner):
    """A planner that keeps what it hears of sessions and of early exits."""

    def __init__(self) -> None:
        self.heard: list[SessionEvent | ExitEvent] = []
        self.broken = False

    def observe_sessions(self, events: Sequence[SessionEvent], *, now: float) -> None:
        if self.broken:
            raise RuntimeError
        self.heard += events

    def observe_exits(self, events: Sequence[ExitEvent], *, now: float) -> None:
        self.observe_sessions(events, now=now)  # type: ignore[arg-type]  # kept alike

    def plan(self, snapshot: Snapshot, draft: Draft, *, now: float) -> Draft:
        return draft


def test_planners_hear_of_sessions_and_the_engine_does_not() -> None:
    planner = Listener()
    house = House(planner)
    house.serve(BASE, {}, now=1.0)
    joined, left = SessionOpened("s:1", "m", 10.0, 0.1), SessionClosed("s:1")
    timer = TimerFired()
    assert house.turn(joined, timer, left, now=2.0) == (timer,)
    assert planner.heard == [joined, left]
    assert house.turn(SessionMeasured("s:1", 1e6, 0.01, 0.1), now=2.0) == ()


def test_sessions_are_heard_of_while_planning_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Listener()
    house = House(planner, ScalingPlanner((0, 1)))
    house.serve(BASE, STATED, now=1.0)
    monkeypatch.setattr(ScalingPlanner, "observe", lambda *_, **__: 1 / 0)
    house.turn(TimerFired(), now=2.0)
    assert house.faults == ["planning failed: keeping the current plan for 10 s"]
    refused = RampsRefused(PoolId("m", "1"), "it has no position")
    house.turn(SessionClosed("s:1"), refused, now=3.0)
    assert planner.heard == [SessionClosed("s:1"), refused]


def test_a_planner_that_cannot_hear_of_a_session_costs_no_events() -> None:
    planner = Listener()
    planner.broken = True
    house = House(planner)
    house.serve(BASE, {}, now=1.0)
    assert house.turn(SessionClosed("s:1"), TimerFired(), now=2.0) == (TimerFired(),)
    assert house.faults == ["a planner could not handle events of sessions"]
    house.turn(RampsRefused(PoolId("m", "1"), "it has no position"), now=2.0)
    assert house.faults[1:] == ["a planner could not handle events of early exits"]


def test_planners_hear_of_exits_and_the_engine_does_not() -> None:
    planner = Listener()
    house = House(planner)
    house.serve(BASE, {}, now=1.0)
    refused = RampsRefused(PoolId("m", "1"), "it has no position")
    assert house.turn(refused, TimerFired(), now=2.0) == (TimerFired(),)
    assert planner.heard == [refused]
