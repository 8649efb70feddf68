"""Planners beside a driver: what they plan comes first, and their faults cost no answers."""

from __future__ import annotations

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
from slacktide.engine import Engine, PoolParts
from slacktide.planning.scaling import Autoscaler, ScaledModel, ScalingLimits
from slacktide.planning.scaling.horizontal import Horizontal
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.runtime.scaling import PAUSE_S, Scaling
from slacktide.scheduling import make_scheduler

BASE = Plan((LaneSpec("m", (0,)),), (Deployment(PoolId("m", "1"), "m", 4),))


def engine() -> Engine:
    times = CorrectedTimes(LatencyTable.flat(0.01, max_batch=4))
    return Engine(
        lambda pool, max_batch, view: PoolParts(
            make_scheduler("edf", {}, max_batch=max_batch, times=times, view=view), times
        )
    )


@pytest.fixture
def scaling() -> Scaling:
    """One scaled model, deployed at 1.0."""
    made = Scaling(engine(), (0, 1))
    models = {"m": ScaledModel(ScalingLimits(1, 2, batch_max=4), "static")}
    turn(made, [PlanChanged(made.rebase(BASE, models, now=1.0))], now=1.0)
    return made


def turn(scaling: Scaling, events: Sequence[Event], *, now: float) -> Sequence[Event]:
    """One turn of a driver; what the engine was told."""
    told = [*scaling.before(events, now=now), *events]
    scaling._engine.handle_all(told, now=now)
    scaling.after(told, now=now)
    return told


def test_a_plan_comes_before_what_it_is_for(scaling: Scaling) -> None:
    timer = TimerFired()
    plan, last = turn(scaling, [timer], now=2.0)
    assert isinstance(plan, PlanChanged)
    assert len(plan.plan.lanes[0].cores) == 2
    assert last is timer
    assert scaling.plans == 1
    assert scaling.planning_s > 0.0
    assert turn(scaling, [timer], now=2.1) == [timer]


def test_a_planner_that_fails_costs_no_events_and_is_asked_again_later(
    scaling: Scaling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("somebody divided")

    timer = TimerFired()
    with monkeypatch.context() as patched:
        patched.setattr(Autoscaler, "before", fail)
        assert turn(scaling, [timer], now=2.0) == [timer]
        assert caplog.text.count("planning failed") == 1
        assert turn(scaling, [timer], now=2.1) == [timer]
        assert caplog.text.count("planning failed") == 1
    assert scaling.next_wakeup() == 2.0 + PAUSE_S
    assert turn(scaling, [timer], now=2.2) == [timer]
    assert len(turn(scaling, [timer], now=2.0 + PAUSE_S)) == 2


def test_a_planner_that_fails_keeps_no_other_from_planning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = Plan(
        (LaneSpec("a", (0,)), LaneSpec("b", (1,))),
        (Deployment(PoolId("a", "1"), "a", 4), Deployment(PoolId("b", "1"), "b", 4)),
    )
    made = Scaling(engine(), (0, 1, 2))
    models = {
        "a": ScaledModel(ScalingLimits(1, 2, batch_max=4), "horizontal"),
        "b": ScaledModel(ScalingLimits(1, 2, batch_max=4), "static"),
    }
    monkeypatch.setattr(Horizontal, "decide", lambda *_, **__: 1 / 0)
    turn(made, [PlanChanged(made.rebase(base, models, now=1.0))], now=1.0)
    assert len(turn(made, [TimerFired()], now=2.0)) == 1
    assert "the last wish of a stays" in caplog.text
    assert made.next_wakeup() == 1.0, "the other one waits to be asked"
    plan, _ = turn(made, [TimerFired()], now=2.0)
    assert isinstance(plan, PlanChanged)
    assert {lane.name: len(lane.cores) for lane in plan.plan.lanes} == {"a": 1, "b": 2}
    for now in (3.0, 4.0, 2.0 + PAUSE_S):
        turn(made, [TimerFired()], now=now)
    assert caplog.text.count("planning failed") == 2


def test_a_load_after_a_fault_plans_at_once(
    scaling: Scaling, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Autoscaler, "before", lambda *_, **__: 1 / 0)
        turn(scaling, [TimerFired()], now=2.0)
    plan = scaling.rebase(BASE, scaling.models, now=2.5)
    turn(scaling, [PlanChanged(plan)], now=2.5)
    assert isinstance(turn(scaling, [TimerFired()], now=2.6)[0], PlanChanged)


def test_without_scaled_models_there_is_nothing_to_do() -> None:
    idle = Scaling(engine(), (0, 1))
    timer = TimerFired()
    plan = idle.rebase(BASE, {}, now=1.0)
    assert plan == BASE
    turn(idle, [PlanChanged(plan)], now=1.0)
    assert turn(idle, [timer], now=2.0) == [timer]
    assert idle.next_wakeup() is None
    assert idle.usage.totals(now=3.0) == {"m": 2.0}


def test_a_lane_that_goes_after_its_last_batch_costs_nothing_more() -> None:
    idle = Scaling(engine(), (0, 1))
    routed = Plan(BASE.lanes, BASE.deployments, (Route("m", PoolId("m", "1")),))
    turn(idle, [PlanChanged(routed)], now=1.0)
    turn(idle, [ReplicaUp(0), Submitted(Request(1, "m", 1.0, 9.0))], now=1.0)
    turn(idle, [PlanChanged(Plan())], now=2.0)
    assert idle._engine.state.lanes, "it is busy"
    turn(idle, [BatchFinished(0, BatchTiming())], now=3.0)
    assert not idle._engine.state.lanes
    assert idle.usage.totals(now=9.0) == {"m": 2.0}
