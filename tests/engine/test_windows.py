"""Lanes with a timetable: whose batch may start, and which windows are missed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktide.domain import (
    BatchFinished,
    Deployment,
    LaneSpec,
    ModelWindow,
    Plan,
    PoolId,
    Route,
    RunBatch,
    Submitted,
    TimerFired,
    Timetable,
)
from slacktide.profiles import BatchTimes, PointTime

TABLE = Timetable(0.1, (ModelWindow("a", 0.0, 0.04), ModelWindow("b", 0.05, 0.09)))


def plan(table=TABLE, models=("a", "b"), max_batch=4):
    pools = [PoolId(model, "1") for model in models]
    return Plan(
        (LaneSpec("lane", (0,), timetable=table),),
        tuple(Deployment(pool, "lane", max_batch) for pool in pools),
        tuple(Route(pool.model, pool) for pool in pools),
    )


@pytest.fixture
def lane(make_world):
    """Models `a`, whose batches take 20 ms, and `b`, 30 ms; 10 s into the clock."""
    world = make_world()
    world.seconds = {"a": 0.02, "b": 0.03}
    world.now = 10.0
    world.deploy(plan())
    return world


def ran(world):
    return [(batch.replica.pool.model, round(batch.started - 10.0, 6)) for batch in world.batches]


def tick(world):
    """Go to the next wake-up."""
    at = world.engine.next_wakeup()
    world.send(TimerFired(), after=max(at - world.now, 0.0))


def test_inside_its_window_a_model_comes_first(lane):
    lane.send(
        *[Submitted(lane.request(i, model="b")) for i in range(4)],
        Submitted(lane.request(9, model="a")),
    )
    assert ran(lane) == [("a", 0.0)]


def test_a_batch_that_would_run_into_a_wanted_window_waits_for_its_own(lane):
    lane.submit(1, model="a")
    lane.finish(after=0.02)
    lane.now += 0.06  # 80 ms: a's next window opens in 20 ms, b's is open
    lane.submit(2, model="a")  # would end as its own window opens, and nobody wants b's
    lane.finish(after=0.01)
    lane.send(*[Submitted(lane.request(i, model=m)) for i, m in ((3, "b"), (4, "a"))])
    assert ran(lane)[-1] == ("a", 0.09)  # b takes 30 ms, a's window opens in 10
    lane.finish(after=0.02)
    assert ran(lane)[-1] == ("b", 0.11)


def test_a_gap_is_used_by_what_is_sure_to_end_in_it(lane):
    lane.now += 0.041
    lane.send(*[Submitted(lane.request(i, model=m)) for i, m in ((1, "a"), (2, "b"))])
    assert ran(lane) == [("b", 0.041)]  # a would run into b's window, b does not into a's


def test_an_unwanted_window_holds_nothing_up(lane):
    lane.now += 0.041
    lane.submit(1, model="a")
    assert ran(lane) == [("a", 0.041)]


def test_a_batch_is_made_smaller_to_fit(make_world):
    class PerRow(BatchTimes):
        """4 ms for each row."""

        def of(self, rows, cores, members=()):
            return PointTime(0.004 * rows)

    world = make_world()
    world.seconds = {"b": 0.065}
    world.now = 10.0
    world.deploy(plan())
    world.engine.state.pools[PoolId("a", "1")].times = PerRow()
    world.now += 0.041  # b's window opens in 9 ms, a's in 59
    coming = [("b", 9), ("a", 1), ("a", 2), ("a", 3), ("a", 4)]
    world.send(*[Submitted(world.request(id, model=model)) for model, id in coming])
    assert [(b.replica.pool.model, len(b.members)) for b in world.batches] == [("a", 2)]


def test_missed_windows_are_counted(lane):
    lane.submit(1, model="b")  # begins in a's window, which nobody wants
    lane.send(Submitted(lane.request(2, model="a")))
    lane.finish(after=0.045)  # longer than was thought
    snapshot = lane.engine.snapshot()
    assert dict(snapshot.lanes["lane"].missed) == {"a": 1}
    lane.deploy(plan(replace(TABLE, period=0.2)))
    assert dict(lane.engine.snapshot().lanes["lane"].missed) == {"a": 1}
    lane.deploy(plan(None))
    assert not lane.engine.snapshot().lanes["lane"].missed


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_all_is_answered_and_windows_are_kept(make_world, data):
    world = make_world()
    world.seconds = {"a": data.draw(st.floats(0.001, 0.08)), "b": data.draw(st.floats(0.001, 0.08))}
    world.deploy(plan())
    coming = data.draw(
        st.lists(st.tuples(st.floats(0.0, 0.05), st.sampled_from("ab")), min_size=1, max_size=30)
    )
    ends = []

    def until(at):
        """Play all that happens before `at`."""
        while True:
            due = min([end for end, _ in ends], default=float("inf"))
            wakeup = world.engine.next_wakeup()
            first = min(due, float("inf") if wakeup is None else max(wakeup, world.now))
            if first >= at:
                return
            if first == due:
                end = min(ends)
                ends.remove(end)
                keep(world.send(BatchFinished(end[1]), after=max(due - world.now, 0.0)))
            else:
                keep(world.send(TimerFired(), after=first - world.now))

    def keep(commands):
        for command in commands:
            if isinstance(command, RunBatch):
                ends.append((world.now + command.expected, command.batch.id))
                check(command.batch)

    def check(batch):
        window = TABLE.at(batch.started)
        other = "b" if batch.replica.pool.model == "a" else "a"
        if window is not None and window.model != other:
            return  # it is its own
        if not len(world.schedulers[PoolId(other, "1")]):
            return
        assert window is None  # else `other` would have come first
        took = world.seconds[batch.replica.pool.model]
        opens = min(TABLE.next_start(w, batch.started) for w in TABLE.windows if w.model == other)
        assert batch.started + took <= opens + 1e-9

    for i, (after, model) in enumerate(coming):
        at = world.now + after
        until(at)
        request = replace(
            world.request(i, model=model, slo=0.5), arrival=max(at, world.now), deadline=at + 0.5
        )
        keep(world.send(Submitted(request), after=max(at - world.now, 0.0)))
    until(float("inf"))
    assert set(world.answers) == set(range(len(coming)))
