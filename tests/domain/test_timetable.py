"""Timetables: windows that fit their period, and when they open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Deployment, LaneSpec, ModelWindow, Plan, PoolId, Timetable

TABLE = Timetable(0.05, (ModelWindow("a", 0.0, 0.02), ModelWindow("b", 0.03, 0.04)))


@pytest.mark.parametrize(
    ("period", "windows", "wrong"),
    [
        (0.0, (), "at least 1 ms"),
        (float("inf"), (), "at least 1 ms"),
        (0.05, (ModelWindow("a", 0.02, 0.01),), "end after it starts"),
        (0.05, (ModelWindow("a", -0.01, 0.01),), "end after it starts"),
        (0.05, (ModelWindow("a", 0.02, 0.06),), "after the period"),
        (0.05, (ModelWindow("a", 0.0, 0.02), ModelWindow("b", 0.01, 0.03)), "overlap"),
        (0.05, (ModelWindow("a", 0.03, 0.04), ModelWindow("b", 0.0, 0.01)), "not ascending"),
    ],
)
def test_an_impossible_timetable_is_refused(period, windows, wrong):
    with pytest.raises(ValueError, match=wrong):
        Timetable(period, windows)


def test_a_model_without_a_window_cannot_be_placed_on_the_lane():
    lane = LaneSpec("lane", (0,), timetable=TABLE)
    with pytest.raises(ValueError, match="without a window for 'c'"):
        Plan((lane,), (Deployment(PoolId("c", "1"), "lane"),))


@pytest.mark.parametrize(
    ("now", "model"), [(0.0, "a"), (0.019, "a"), (0.02, None), (0.03, "b"), (0.045, None)]
)
def test_the_open_window(now, model):
    for at in (now, now + 10.0):
        window = TABLE.at(at)
        assert (window.model if window else None) == model


@given(
    period=st.floats(0.001, 10.0),
    cuts=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8, unique=True),
    now=st.floats(0.0, 1e6),
)
def test_openings_are_where_they_are_said_to_be(period, cuts, now):
    edges = sorted({round(cut * period, 5) for cut in cuts if round(cut * period, 5) <= period})
    windows = tuple(ModelWindow(str(i), *edges[i : i + 2]) for i in range(0, len(edges) - 1, 2))
    table = Timetable(period, windows)
    for window in windows:
        opens = table.next_start(window, now)
        assert now < opens <= now + period + 1e-5
        assert table.at(opens) == window
        opened, closed = table.last(window, now)
        assert closed <= now + 1e-5 < closed + period + 2e-5
        assert closed - opened == pytest.approx(window.end - window.start, abs=1e-6)


@given(now=st.floats(0.0, 1e5), share=st.floats(0.0, 1.0, exclude_max=True))
def test_the_last_closed_window_stays_until_another_closes(now, share):
    until = TABLE.unchanged_until(now)
    assert until <= now + TABLE.period
    for window in TABLE.windows:
        last_closed = TABLE.last(window, now)
        assert TABLE.last(window, now + share * max(0.0, until - now)) == pytest.approx(last_closed)
    closed = [TABLE.last(window, until + 1e-5) for window in TABLE.windows]
    assert max(closed)[1] == pytest.approx(until, abs=1e-5)


def test_a_lane_without_windows_has_nothing_to_wait_for():
    assert Timetable(0.05, ()).unchanged_until(0.0) == float("inf")
