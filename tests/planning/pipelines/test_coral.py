"""CORAL: windows never overlap, none is lost, and no condition is ever broken."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.pipelines.questions import TRAFFIC, at_random, question

from slacktide.planning.lanes.lane_schedule import DeviceSchedule, Resident
from slacktide.planning.pipelines.coral import CoralSchedule
from slacktide.planning.pipelines.distribution import distribute
from slacktide.planning.pipelines.problem import DeviceView, PlacedStage

DEVICE = DeviceView("d", "d", accelerators=2, streams=2, memory=100.0, utilisation=1.0)


def resident(name="p", at=0, replica=0, *, seconds=0.01, cycle=0.1, **fields) -> Resident:
    own = {"earliest": 0.0, "latest": cycle - seconds, **fields}
    return Resident(
        (name, at, replica), seconds, own.pop("earliest"), own.pop("latest"), cycle, **own
    )


def assert_sound(schedule: DeviceSchedule, residents: dict[tuple, Resident]) -> None:
    """All three conditions, from what is handed out alone."""
    device, taken = schedule.device, schedule.windows()
    assert {(p.pipeline, p.stage, p.replica) for p in taken} == set(residents)
    by_stream: dict[int, list] = {at: [] for at in range(device.lanes)}
    for window in taken:
        own = residents[window.pipeline, window.stage, window.replica]
        assert own.earliest <= window.start <= own.latest + 1e-12
        assert window.end - window.start == pytest.approx(own.seconds)
        assert window.end <= window.period <= own.cycle
        by_stream[window.lane].append((window, own))
    free = {at: [] for at in range(device.lanes)}
    for stream, start, end in schedule.free():
        assert start < end
        free[stream].append((start, end))
    for stream, windows in by_stream.items():
        periods = {window.period for window, _ in windows}
        assert len(periods) <= 1
        end = periods.pop() if periods else math.inf
        pieces = sorted([(p.start, p.end) for p, _ in windows] + free[stream])
        assert pieces[0][0] == 0.0 and pieces[-1][1] == end  # noqa: PT018
        for before, after in pairwise(pieces):
            assert before[1] == after[0]  # nothing overlaps, nothing is lost
        for before, after in pairwise(sorted(free[stream])):
            assert before[1] < after[0]  # what is free and adjacent is one
    for accelerator in range(device.accelerators):
        own = [by_stream[at] for at in range(device.lanes) if at // device.streams == accelerator]
        weights = sum(r.weights for windows in own for _, r in windows)
        most = sum(max((r.intermediate for _, r in windows), default=0.0) for windows in own)
        assert weights + most <= device.memory + 1e-6
        used = sum(max((r.utilisation for _, r in windows), default=0.0) for windows in own)
        assert used <= device.utilisation + 1e-6


@st.composite
def residents(draw) -> Resident:
    cycle = draw(st.sampled_from([0.05, 0.075, 0.1]))
    seconds = draw(st.floats(0.001, cycle))
    earliest = draw(st.floats(0.0, cycle))
    return Resident(
        (draw(st.sampled_from("pqr")), draw(st.integers(0, 3)), draw(st.integers(0, 4))),
        seconds,
        earliest,
        draw(st.floats(earliest, cycle)),
        cycle,
        draw(st.floats(0.0, 40.0)),
        draw(st.floats(0.0, 40.0)),
        draw(st.floats(0.0, 0.7)),
    )


@given(st.lists(st.tuples(st.booleans(), residents()), max_size=40))
def test_windows_stay_sound_as_replicas_come_and_go(steps):
    schedule, residents = DeviceSchedule(DEVICE), {}
    for goes, window in steps:
        if window.key in residents:
            if goes:
                schedule.give_back(window.key)
                del residents[window.key]
        elif schedule.place(window) is not None:
            residents[window.key] = window
        assert_sound(schedule, residents)
    for key in list(residents):
        schedule.give_back(key)
    assert_sound(schedule, {})
    assert schedule.free() == [(at, 0.0, math.inf) for at in range(DEVICE.lanes)]
    assert schedule.weights == pytest.approx([0.0, 0.0], abs=1e-9)
    assert schedule.intermediate == pytest.approx([0.0, 0.0], abs=1e-9)
    assert schedule.utilisation == pytest.approx([0.0, 0.0], abs=1e-9)


def test_the_window_that_leaves_least_is_taken():
    schedule = DeviceSchedule(replace(DEVICE, accelerators=1))
    first = schedule.place(resident("a", seconds=0.06))
    schedule.place(resident("b", seconds=0.09))
    third = schedule.place(resident("c", seconds=0.01))
    assert first.lane == 0
    assert (third.lane, third.start) == (1, pytest.approx(0.09))
    fourth = schedule.place(resident("d", seconds=0.04))
    assert (fourth.lane, fourth.start) == (0, pytest.approx(0.06))
    assert schedule.place(resident("e", seconds=0.001)) is None


def test_a_stream_keeps_its_cycle_until_it_is_empty():
    schedule = DeviceSchedule(replace(DEVICE, accelerators=1, streams=1))
    schedule.place(resident("slow", cycle=0.1))
    assert schedule.place(resident("fast", cycle=0.05)) is None
    assert schedule.place(resident("slower", cycle=0.15)).period == 0.1
    schedule.give_back(("slow", 0, 0))
    assert schedule.place(resident("fast", cycle=0.05)) is None
    schedule.give_back(("slower", 0, 0))
    assert schedule.place(resident("fast", cycle=0.05)).period == 0.05


def test_memory_and_utilisation_bound_what_an_accelerator_holds():
    schedule = DeviceSchedule(DEVICE)
    heavy = {"weights": 30.0, "intermediate": 60.0, "utilisation": 0.6}
    assert schedule.place(resident("a", **heavy)).lane == 0
    assert schedule.place(resident("b", weights=10.0, intermediate=60.0, utilisation=0.6)).lane == 0
    assert schedule.place(resident("c", **heavy)).lane in (2, 3)
    with pytest.raises(ValueError, match="already"):
        schedule.place(resident("c", **heavy))
    with pytest.raises(KeyError):
        schedule.give_back(("unknown", 0, 0))


def placed(problem, **changes):
    return tuple(
        tuple(PlacedStage("server", **changes) for _ in pipeline.stages)
        for pipeline in problem.pipelines
    )


def test_stages_follow_one_another_within_half_of_the_slo():
    problem = question(replace(TRAFFIC, slo=0.2), replace(TRAFFIC, name="other", slo=0.3))
    answer = CoralSchedule(problem).schedule(placed(problem))
    assert answer.unscheduled == ()
    ends = {(p.pipeline, p.stage): p for p in answer.windows}
    for name, cycle in (("traffic", 0.1), ("other", 0.15)):
        for stage in (1, 2):
            assert ends[name, stage].start >= ends[name, 0].end
            assert ends[name, stage].end <= cycle


def test_each_pipeline_has_one_replica_before_any_has_two():
    problem = question(*(replace(TRAFFIC, name=f"p{k}") for k in range(30)))
    answer = CoralSchedule(problem).schedule(placed(problem, replicas=3))
    first = [key for key in answer.unscheduled if key[2] == 0]
    second = [window for window in answer.windows if window.replica > 0]
    assert answer.unscheduled
    assert not (first and second)
    assert len(answer.windows) + len(answer.unscheduled) == 30 * 3 * 3


@pytest.mark.parametrize("batch", [1, 4])
def test_there_are_windows_for_all_rows_of_a_cycle(batch):
    """One that has a window runs a batch in a cycle, not back to back."""
    problem = question()
    answer = CoralSchedule(problem).schedule(placed(problem, batch=batch))
    (pipeline,), (stages,) = problem.pipelines, answer.pipelines
    assert answer.unscheduled == ()
    for at, (stage, rate) in enumerate(zip(stages, pipeline.rates(), strict=True)):
        windows = [window for window in answer.windows if window.stage == at]
        assert (
            len(windows) == stage.replicas == math.ceil(rate * 0.5 * pipeline.slo / (0.8 * batch))
        )
    assert batch > 1 or max(stage.replicas for stage in stages) > 1


def test_a_replica_for_the_rows_of_a_cycle_comes_only_with_a_window():
    problem = question(replace(TRAFFIC, rate=3_000.0))
    answer = CoralSchedule(problem).schedule(placed(problem))
    assert answer.unscheduled == ()
    assert len(answer.windows) == sum(stage.replicas for stage in answer.pipelines[0])
    assert answer.pipelines[0][0].replicas < 300


def test_the_autoscaler_takes_windows_and_gives_them_back():
    problem = question()
    schedule, stages = CoralSchedule(problem), placed(problem)[0]
    before = schedule.schedule((stages,)).windows
    new = sum(p.stage == 1 for p in before)
    portion = schedule.add(problem.pipelines[0], stages, 1, new)
    assert portion.start >= next(p.end for p in before if p.stage == 0)
    schedule.remove("traffic", stages, 1, new)
    assert schedule.devices["server"].windows() == list(before)
    with pytest.raises(KeyError):
        schedule.remove("traffic", stages, 1, new)


@pytest.mark.parametrize("seed", range(40))
def test_each_placed_replica_is_scheduled_or_listed_as_unscheduled(seed):
    problem = at_random(np.random.default_rng(seed))
    answer = CoralSchedule(problem).schedule(distribute(problem))
    replicas = sum(stage.replicas for stages in answer.pipelines for stage in stages)
    assert len(answer.windows) + len(answer.unscheduled) == replicas
    for window in answer.windows:
        assert window.end <= window.period <= 0.5 * problem.pipelines[0].slo
