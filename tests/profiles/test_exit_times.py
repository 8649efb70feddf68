"""What is predicted of a model whose requests may leave early: lane times, and times of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import (
    Batch,
    ExitMode,
    ExitPolicy,
    ExitReport,
    Leaving,
    PoolId,
    Replica,
    Request,
)
from slacktide.profiles import BatchTimes, CorrectedTimes, ExitTimes, LatencyTable, PointTime

POOL = PoolId("m", "1")
REPLICA = Replica(0, POOL, "lane", (0,), 8)
POLICY = ExitPolicy(POOL, (2, 5), (0.3, 0.2), ExitMode.RELEASE, 0.1)
SHRINK = replace(POLICY, mode=ExitMode.SHRINK)
WHOLE = 0.1


def table() -> LatencyTable:
    p50 = [[WHOLE, WHOLE / 2], [4 * WHOLE, 2 * WHOLE]]
    p99 = [[1.1 * seconds for seconds in row] for row in p50]
    return LatencyTable.from_grid((1, 8), (1, 2), p50, p99)


@pytest.fixture
def times() -> ExitTimes:
    return ExitTimes(CorrectedTimes(table()))


def batch(rows: int = 1, leaving: Leaving = Leaving.RUN_ON) -> Batch:
    members = tuple(Request(id, "m", 0.0, 1.0) for id in range(rows))
    return Batch(0, REPLICA, members, rows, 0.0, 1.0, False, leaving)


def report(*left: int, stages: tuple[float, ...] = (0.3 * WHOLE, 0.6 * WHOLE)) -> ExitReport:
    empty: tuple[tuple[bool, ...], ...] = ((),) * len(left)
    return ExitReport(POLICY.ramps, ((),) * len(left), empty, left, stages)


def taught(times: ExitTimes, policy: ExitPolicy, *left: int, batches: int = 40) -> None:
    """Batches of one row, which leave in turn at these ramps, and take what they take."""
    times.follow(policy)
    for i in range(batches * len(left)):
        ramp = left[i % len(left)]
        leaving = Leaving.SHRINK if policy.mode is ExitMode.SHRINK else Leaving.RUN_ON
        seconds = WHOLE
        if leaving is Leaving.SHRINK and ramp >= 0:
            seconds *= (0.3, 0.6)[ramp]
        times.saw(batch(1, leaving), report(ramp), seconds, 1)


def test_without_a_policy_and_before_any_exit_they_are_those_of_whole_passes(times):
    assert times.of(1, 1) is times.inner.of(1, 1)
    times.follow(replace(POLICY, thresholds=(0.0, 0.0)))
    for _ in range(50):
        times.saw(batch(), report(-1), WHOLE, 1)
    assert times.of(4, 2) is times.inner.of(4, 2)
    assert times.soonest == 1.0
    assert times.classes(1) is None


def test_where_rows_run_on_answers_come_sooner_and_lanes_are_free_as_late(times):
    taught(times, POLICY, 0, 0, 1, -1)
    early, whole = times.of(1, 1), times.whole(1, 1)
    assert early.expected == whole.expected
    assert early.p99 == whole.p99
    assert early.on_time(0.2 * WHOLE) < 0.05
    assert early.on_time(0.45 * WHOLE) == pytest.approx(0.5, abs=0.1)
    assert early.on_time(0.75 * WHOLE) == pytest.approx(0.75, abs=0.1)
    assert early.on_time(2.0 * WHOLE) > 0.999
    assert times.soonest == pytest.approx(0.3, abs=0.03)


def test_where_rows_leave_lanes_are_free_sooner_but_for_the_batches_that_are_judged(times):
    taught(times, SHRINK, 0, 0, 1, -1)
    shrunk = (0.3 + 0.3 + 0.6 + 1.0) / 4
    early, whole = times.of(1, 1), times.whole(1, 1)
    assert early.expected / whole.expected == pytest.approx(0.1 + 0.9 * shrunk, abs=0.08)
    assert early.p99 == whole.p99
    assert whole.expected == pytest.approx(WHOLE, rel=0.05)  # not by batches that rows left
    assert 0.4 < times.soonest < 0.6


def test_a_batch_that_hardly_shrinks_is_learnt_to_take_longer(times):
    times.follow(SHRINK)
    for _ in range(200):
        left = (0, 0, 0, -1)
        whole = times.whole(4, 1).expected
        judged = report(*left, stages=(0.3 * whole, 0.6 * whole))
        times.saw(batch(4, Leaving.SHRINK), judged, 0.9 * whole, 1)
    ratio = times.of(4, 1).expected / times.whole(4, 1).expected
    assert ratio == pytest.approx(0.1 + 0.9 * 0.9, abs=0.05)


def test_the_mode_counts_as_soon_as_it_changes(times):
    taught(times, POLICY, 0, 0, 0, -1)
    before = times.revision
    times.follow(replace(POLICY, mode=ExitMode.AUTO))
    assert times.revision > before
    assert times.of(1, 1).expected < 0.7 * times.whole(1, 1).expected
    times.follow(None)
    assert times.of(1, 1) is times.whole(1, 1)


def test_of_a_batch_that_was_stopped_only_the_exits_are_learnt(times):
    times.follow(POLICY)
    inner = times.inner
    assert isinstance(inner, CorrectedTimes)
    for _ in range(40):
        times.saw(batch(), report(0, stages=(0.3 * WHOLE,)), None, 1)
    assert inner.batches == 0
    assert times.of(1, 1).on_time(0.5 * WHOLE) > 0.9


def test_reports_of_ramps_that_are_not_in_force_are_passed_over(times):
    times.follow(replace(POLICY, ramps=(3, 4)))
    times.saw(batch(), report(0), WHOLE, 1)
    assert times.of(1, 1) is times.whole(1, 1)
    times.saw(batch(), ExitReport((), ((),), ((),), (-1,)), WHOLE, 1)
    times.saw(batch(), None, WHOLE, 1)
    assert times.of(1, 1) is times.whole(1, 1)


def test_predictions_stand_still_between_revisions(times):
    taught(times, POLICY, 0, -1)
    same = times.of(1, 1)
    before, changes = times.revision, 0
    for i in range(400):
        times.saw(batch(), report((0, -1)[i % 2]), WHOLE, 1)
        if times.revision == before:
            assert times.of(1, 1) is same
        else:
            before, same, changes = times.revision, times.of(1, 1), changes + 1
    assert changes <= 4


def test_ramps_that_begin_to_answer_are_hoped_for(times):
    """Else nothing that only they could serve would be let in to show what they do."""
    taught(times, replace(POLICY, thresholds=(0.0, 0.0)), -1)
    assert times.of(1, 1).on_time(0.7 * WHOLE) < 0.01
    times.follow(POLICY)
    assert times.of(1, 1).on_time(0.7 * WHOLE) > 0.2
    for _ in range(200):
        times.saw(batch(), report(-1), WHOLE, 1)
    assert times.of(1, 1).on_time(0.7 * WHOLE) < 0.06


def test_a_policys_costs_of_ramps_count_until_they_are_measured(times):
    times.follow(replace(POLICY, costs=(0.5, 0.8)))
    assert times.of(1, 1).on_time(0.6 * WHOLE) > 0.4
    assert times.of(1, 1).on_time(0.4 * WHOLE) < 0.01
    for _ in range(60):
        times.saw(batch(), report(0), WHOLE, 1)
    assert times.of(1, 1).on_time(0.4 * WHOLE) > 0.9


def test_refusals_on_an_idle_lane_raise_the_chance_of_the_first_ramp_before_all_else(times):
    inner = times.inner
    taught(times, replace(POLICY, thresholds=(0.0, 0.0)), -1, batches=600)
    refusals = 0
    while times.of(1, 1).quantile(0.2) > 0.7 * WHOLE:
        times.discount()
        refusals += 1
    assert 5 < refusals < 25
    assert inner.of(1, 1).expected == pytest.approx(WHOLE, rel=0.05)
    for _ in range(1000):
        times.discount()
    assert inner.of(1, 1).expected < 0.5 * WHOLE


def test_of_requests_without_a_chance_nine_in_ten_are_let_in_on_an_idle_lane(times):
    policy = replace(POLICY, thresholds=(0.0, 0.0))
    taught(times, policy, -1, batches=600)
    tried = 0
    for _ in range(1000):
        if times.of(1, 1).quantile(0.2) > 0.7 * WHOLE:
            times.discount()
        else:
            tried += 1
            times.saw(batch(), report(-1), WHOLE, 1)
    assert 850 < tried < 950


@given(
    st.lists(st.integers(-1, 1), min_size=1, max_size=12),
    st.sampled_from(ExitMode),
    st.floats(0.01, 0.99),
    st.integers(1, 8),
    st.integers(1, 2),
)
def test_on_time_undoes_quantile_and_both_rise(left, mode, level, rows, cores):
    times = ExitTimes(CorrectedTimes(table()))
    taught(times, replace(POLICY, mode=mode), *left, batches=5)
    time = times.of(rows, cores)
    assert time.on_time(time.quantile(level)) == pytest.approx(level, abs=0.01)
    levels = [time.quantile(level) for level in np.linspace(0.0, 1.0, 9)]
    assert levels == sorted(levels)
    assert levels[-1] == math.inf
    assert time.p99 >= time.expected
    assert times.of(rows + 1, cores).expected >= time.expected
    assert times.of(rows, cores + 1).expected <= time.expected
    assert time.on_time(0.0) == 0.0


class Certain(BatchTimes):
    """Times that never change."""

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        return PointTime(rows * WHOLE)


def test_predictions_that_do_not_learn_are_wrapped_as_well():
    times = ExitTimes(Certain())
    taught(times, POLICY, 0)
    times.discount()
    assert times.of(1, 1).on_time(0.5 * WHOLE) > 0.9
