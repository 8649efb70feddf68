"""What is promised of answers that differ from the model's, on streams that change."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.exits.served_exits import ServedExits, learnt
from tests.planning.exits.streams import Array, exits, stream

from slacktide.domain import ExitReport
from slacktide.planning.exits import StatedExits
from slacktide.planning.exits.accuracy_budget import FRESH, AccuracyBudget, JudgedWindow, search_of

PRIOR = (0.8, 0.9, 0.95, 0.97, 0.98, 0.99)
RAMPS = len(PRIOR)


def served(**stated: float | str) -> ServedExits:
    exits = ServedExits(StatedExits(**stated), job_rows=2)  # type: ignore[arg-type]
    exits.learn(learnt(PRIOR))
    return exits


def eases(kind: str, rows: int) -> Array:
    """How easy each row is."""
    if kind == "drift":
        return np.linspace(2.0, -1.0, rows)
    if kind == "abrupt":
        return np.where(np.arange(rows) < rows // 2, 2.0, -2.0)
    return np.full(rows, {"easy": 2.0, "hard": -1.0}[kind])


@settings(max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["easy", "hard", "drift", "abrupt"]),
    loss=st.sampled_from([0.01, 0.03]),
)
def test_every_window_and_every_run_is_as_accurate_as_promised(
    seed: int, kind: str, loss: float
) -> None:
    rows = 1500
    exits = served(accuracy_loss=loss)
    exits.rows(*stream(np.random.default_rng(seed), rows, RAMPS, eases(kind, rows)))
    assert exits.worst_window() <= math.floor(loss * 512)
    so_far = np.cumsum(exits.wrong)
    assert (so_far <= loss * np.arange(1, rows + 1)).all()


@settings(max_examples=8)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["easy", "hard", "drift", "abrupt"]))
def test_a_promise_for_the_run_holds_so_far_and_in_windows_of_2048(seed: int, kind: str) -> None:
    exits = served(promise="run")
    exits.rows(*stream(np.random.default_rng(seed), 3000, RAMPS, eases(kind, 3000)))
    assert exits.worst_window(2048) <= 20
    assert (np.cumsum(exits.wrong) <= 0.01 * np.arange(1, 3001)).all()


def test_a_promise_for_the_run_alarms_as_soon() -> None:
    exits = served(promise="run")
    unsure, agrees = stream(np.random.default_rng(4), 1000, RAMPS, 3.0)
    agrees[600:] = False
    exits.rows(unsure, agrees)
    assert exits.saved(400) > 0.0
    assert sum(exits.wrong[600:]) <= 10
    with pytest.raises(ValueError, match=r"^promise must be 'window' or 'run', got 'day'$"):
        StatedExits(promise="day")


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), right=st.floats(0.0, 0.9))
def test_few_answers_differ_when_ramps_are_suddenly_wrong_of_what_they_are_sure(
    seed: int, right: float
) -> None:
    rng = np.random.default_rng(seed)
    exits = served()
    unsure, agrees = stream(rng, 1000, RAMPS, 3.0)
    agrees[600:] &= rng.random((400, RAMPS)) < right
    exits.rows(unsure, agrees)
    assert exits.saved(400) > 0.0
    assert sum(exits.wrong[600:]) <= 10


def test_where_nothing_is_ever_wrong_nearly_all_rows_leave_at_the_first_ramp_that_pays() -> None:
    exits = served()
    unsure = np.full((1200, RAMPS), 0.2)
    exits.rows(unsure, np.ones((1200, RAMPS), bool))
    assert exits.saved(600) > 0.8


def test_a_stricter_promise_takes_a_longer_window() -> None:
    assert AccuracyBudget(0.01).window == 512
    assert AccuracyBudget(0.001).window == 5000
    assert AccuracyBudget(0.3).window == 512
    assert AccuracyBudget(0.01, "run").window == 2048


def report(*wrong: bool, left: int = 0) -> ExitReport:
    rows = len(wrong)
    agrees = tuple((not differs,) for differs in wrong)
    return ExitReport((4,), ((0.1,),) * rows, agrees, (left,) * rows)


def judged(loss: float = 0.01) -> AccuracyBudget:
    """Of a model with five positions."""
    budget = AccuracyBudget(loss)
    budget.forget(5)
    return budget


def test_an_alarm_is_two_of_sixteen() -> None:
    budget = judged()
    assert not budget.add(report(*[False] * 400))
    assert not budget.add(report(True, *[False] * 15))
    assert not budget.add(report(True))
    assert budget.add(report(*[False] * 10, True))
    assert (budget.alarms, budget.may_leave) == (1, False)
    budget.add(report(*[False] * (FRESH - 17)))
    assert not budget.may_leave
    budget.add(report(False, False))
    assert budget.may_leave


def test_wrong_rows_that_did_not_leave_are_no_alarm() -> None:
    budget = judged()
    assert not budget.add(report(*[True] * 20, left=-1))
    assert budget.wrong == 0
    assert budget.accuracy == 1.0


def test_rows_that_are_not_judged_are_counted_by_those_that_are() -> None:
    budget = judged()
    budget.add(report(*[False] * 1000))
    assert budget.feedback(0.1) == pytest.approx(0.7**4)
    budget.add_unjudged(900)
    budget.add(report(*[True], *[False] * 99))  # stands for ten
    assert budget.may_leave
    assert budget.feedback(0.1) == 1.0
    budget.add_unjudged(900)
    budget.add(report(*[True], *[False] * 99))
    assert not budget.may_leave
    budget.add_unjudged(4000)
    assert budget.may_leave
    assert budget.feedback(0.1) == 0.1


def test_rows_of_other_ramps_are_joined_by_position() -> None:
    budget = judged()
    budget.add(report(False, True))
    budget.add(ExitReport((2, 4), ((0.3, math.nan),), ((True, False),), (-1,)))
    unsure, agrees = budget.rows.verdicts((2, 4))
    assert unsure[:, 0].tolist() == [math.inf, math.inf, 0.3]
    assert unsure[:2, 1].tolist() == [0.1, 0.1]
    assert agrees.tolist() == [[True, True], [True, False], [True, False]]


@given(batches=st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_window_keeps_the_newest_rows_in_order(batches: list[int]) -> None:
    window, count = JudgedWindow(4, 3), 0
    for rows in batches:
        unsure = [[float(count + row)] for row in range(rows)]
        window.add((1,), unsure, [[False]] * rows)
        count += rows
    kept = min(4, count)
    unsure, agrees = window.verdicts((1, 2))
    assert len(window) == kept
    assert unsure[:, 0].tolist() == [float(number) for number in range(count - kept, count)]
    assert not agrees[:, 0].any()
    assert np.isinf(unsure[:, 1]).all()
    assert agrees[:, 1].all()


def test_a_ramp_lets_no_row_leave_before_it_was_judged_on_enough() -> None:
    budget = judged()
    budget.add(report(*[False] * 300))
    both = ExitReport((2, 4), ((0.1, 0.1),) * 150, ((True, True),) * 150, (-1,) * 150)
    budget.add(both)
    assert exits(search_of(budget.rows.verdicts((2, 4)), (0.5, 0.2), 0.01, 450)) == (0.0, 1.0)
    budget.add(both)
    thresholds = exits(search_of(budget.rows.verdicts((2, 4)), (0.5, 0.2), 0.01, 600))
    assert thresholds == pytest.approx((300 / 512, 212 / 512))


def test_after_an_alarm_no_row_that_would_leave_may_be_wrong_among_the_fresh_ones() -> None:
    budget = judged()
    for number in range(512):
        row = ExitReport((0,), ((number % 100 / 100,),), ((number != 450,),), (-1,))
        budget.add(row)
    rows = budget.rows.verdicts((0,))
    old = search_of(rows, (1.0,), 0.01, 512).best()
    fresh = search_of(rows, (1.0,), 0.01, 100).best()
    assert old[0] > 0.5
    assert 0.0 < fresh[0] <= 0.5
