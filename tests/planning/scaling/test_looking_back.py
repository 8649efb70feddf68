"""Counts of arrivals, what was wanted most of late, the forecast of a minute, and what each number
of replicas would have cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling.forecast import MinuteForecast, ReplicaHistory, WindowMax
from slacktide.planning.scaling.rates import ArrivalCounts
from slacktide.planning.scaling.view import ModelView, ScalingLimits


def _view(arrived: float, budget: float = 1.0) -> ModelView:
    times = CertainTimes(lambda rows, cores: 1.0)
    return model_view(times, ScalingLimits(), budget=budget, arrived=int(arrived))


def test_rates_are_differences_of_the_count():
    counts = ArrivalCounts(span=60.0)
    assert counts.rate(15.0, now=0.0) == 0.0
    for second in range(101):
        counts.note(1000 + 10 * min(second, 80), now=float(second))
    assert counts.rate(15.0, now=100.0) == 0.0
    assert counts.rate(30.0, now=100.0) == pytest.approx(100 / 30)
    assert counts.rate(500.0, now=100.0) == pytest.approx(400 / 60)  # what is kept
    assert counts.rates(10.0, 4, now=100.0) == pytest.approx([10.0, 10.0, 0.0, 0.0])


@given(gaps=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=60), span=st.floats(1.0, 20.0))
def test_no_row_is_lost_or_counted_twice(gaps, span):
    counts = ArrivalCounts(span)
    now, rows, when = 0.0, 0, []
    for gap in gaps:
        now += gap
        rows += 3
        counts.note(rows, now=now)
        when.append(now)
    first = counts.rows(-1.0, now)
    assert counts.rows(now - span / 2, now) <= first <= rows
    halves = counts.rows(now - span, now - span / 3) + counts.rows(now - span / 3, now)
    assert halves == pytest.approx(counts.rows(now - span, now))


def test_the_largest_target_is_held_for_a_while():
    held = WindowMax(2.0)
    wanted = [(0.0, 3), (1.0, 1), (2.0, 2), (2.5, 1), (4.0, 1), (4.6, 1)]
    assert [held.most(much, now=now) for now, much in wanted] == [3, 3, 3, 2, 2, 1]


def test_the_forecast_follows_a_step_and_remembers_bursts():
    forecast = MinuteForecast(60.0)
    arrived = 0.0
    for second in range(60):
        arrived += 40.0 if 20 <= second < 40 else 5.0
        forecast.note(_view(arrived), alone=0.1, now=float(second))
    assert forecast.rate(0.0, now=59.0) == pytest.approx(40.0, rel=0.05)
    for second in range(60, 66):
        arrived += 200.0
        forecast.note(_view(arrived), alone=0.1, now=float(second))
    assert forecast.rate(0.0, now=65.0) >= 200.0


def test_the_forecast_carries_a_steady_rise_on():
    forecast = MinuteForecast(60.0)
    for second in range(61):
        forecast.note(_view(second * second), alone=0.1, now=float(second))  # rate 2 · second
    assert forecast.rate(10.0, now=60.0) == pytest.approx(2.0 * 70.0, rel=0.02)
    # No further than twice the highest piece, which came at 115 a second.
    assert forecast.rate(1000.0, now=60.0) == pytest.approx(230.0)


def test_a_step_is_no_rise():
    forecast = MinuteForecast(60.0)
    for second in range(61):
        forecast.note(_view(10 * second + 30 * max(0, second - 30)), alone=0.1, now=float(second))
    assert forecast.rate(10.0, now=60.0) == pytest.approx(40.0)


def test_short_budgets_count_once_they_last_and_hopeless_ones_never():
    forecast = MinuteForecast(60.0)
    assert forecast.budget(now=0.0) == math.inf
    for second in range(10):
        forecast.note(_view(0, budget=0.05 if second % 2 else 1.0), alone=0.1, now=float(second))
    assert forecast.budget(now=9.0) == 1.0
    for second in range(10, 41):
        forecast.note(_view(0, budget=0.2), alone=0.1, now=float(second))
    assert forecast.budget(now=40.0) == 0.2


def test_costs_are_weighted_by_time_and_cores_are_given_back_late():
    history = ReplicaHistory(window=10.0, patience=1.0)
    history.note({1: 4, 2: 1}, 16, now=0.0)
    history.note({1: None, 2: 3}, 16, now=3.0)
    history.note({1: 2, 2: 1}, 16, now=4.0)  # the cores of a second ago are held
    history.note({1: 2, 2: 1}, 16, now=6.0)
    assert not history.full(now=9.0)
    assert history.cost(1, now=8.0) == (3 * 4 + 16 + 2 * 16 + 2 * 2, 1 / 8)
    assert history.cost(2, now=8.0) == (3 * 2 + 6 + 2 * 6 + 2 * 2, 0.0)
    history.note({1: 2, 2: 1}, 16, now=13.0)
    assert history.full(now=13.0)
    assert history.cost(3, now=13.0) == (0.0, 0.0)
