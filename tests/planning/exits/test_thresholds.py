"""The search for thresholds: it keeps what may be wrong, and saves about as much as can be."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom
from tests.planning.exits.streams import Array, answers, exits

from slacktide.planning.exits.thresholds import (
    CONFIDENCE,
    ThresholdSearch,
    most_likely,
    most_wrong,
)

INF = math.inf


@given(rows=st.integers(1, 2000), share=st.floats(0.001, 0.9), chance=st.floats(0.01, 0.99))
def test_likely_counts_follow_the_binomial_law(rows: int, share: float, chance: float) -> None:
    most = most_likely(rows, share, chance)
    assert -1 <= most <= rows
    assert binom.cdf(most, rows, share) <= chance + 1e-6
    assert binom.cdf(most + 1, rows, share) > chance - 1e-6


@given(rows=st.integers(1, 1000), loss=st.sampled_from([0.005, 0.01, 0.05, 0.1]))
def test_the_permitted_wrong_rows_are_the_bound_of_clopper_and_pearson(
    rows: int, loss: float
) -> None:
    most = most_wrong(rows, loss)
    if most >= 0:
        assert beta.ppf(CONFIDENCE, most + 1, rows - most) <= loss * (1 + 1e-9)
    if most + 1 < rows:
        assert beta.ppf(CONFIDENCE, most + 2, rows - most - 1) > loss * (1 - 1e-9)


def test_of_few_rows_nothing_can_be_told() -> None:
    assert [most_wrong(rows, 0.01) for rows in (1, 160, 161, 298, 299, 512)] == [-1, -1, 0, 0, 1, 2]


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 120),
    ramps=st.integers(1, 5),
    most=st.integers(0, 4),
)
def test_found_thresholds_are_never_wrong_more_often_than_permitted(
    seed: int, rows: int, ramps: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    unsure, agrees = answers(rng, rows, ramps)
    unsure = np.round(unsure, 2)  # ties
    unsure[rng.random((rows, ramps)) < 0.1] = INF
    saved = sorted(rng.random(ramps), reverse=True)
    search = ThresholdSearch(unsure, agrees, saved, most)
    thresholds = search.best()
    wrong = gained = 0.0
    for row in range(rows):
        at = next((k for k in range(ramps) if unsure[row, k] < thresholds[k]), None)
        if at is not None:
            wrong += not agrees[row, at]
            gained += saved[at]
    assert wrong <= most
    assert search.cost(thresholds) == wrong
    assert search.saving(thresholds) == pytest.approx(gained)


def grid_search(unsure: Array, agrees: Array, saved: list[float], most: int) -> float:
    """The most that thresholds in steps of 0.05 save, by trying all of them."""
    search = ThresholdSearch(unsure, agrees, saved, most)
    grid = np.linspace(0.0, 1.05, 22)
    best = 0.0
    for thresholds in itertools.product(grid, repeat=unsure.shape[1]):
        if search.cost(np.array(thresholds)) <= most:
            best = max(best, search.saving(np.array(thresholds)))
    return best


@pytest.mark.parametrize(("ramps", "cases"), [(1, 20), (2, 20), (3, 2)])
def test_it_saves_at_least_as_much_as_nearly_all_of_a_grid_search(ramps: int, cases: int) -> None:
    for seed in range(cases):
        rng = np.random.default_rng(seed)
        unsure, agrees = answers(rng, 120, ramps, ease=rng.random())
        saved = sorted(rng.random(ramps), reverse=True)
        for most in (0, 1, 3):
            search = ThresholdSearch(unsure, agrees, saved, most)
            grid = grid_search(unsure, agrees, saved, most)
            assert search.saving(search.best()) >= 0.96 * grid, (seed, most)


def test_the_first_ramp_is_a_ramp_like_the_others() -> None:
    """Published code takes the first ramp, number 0, for none."""
    unsure = np.array([[0.1, INF], [0.2, INF], [0.3, 0.5]])
    agrees = np.ones((3, 2), bool)
    assert exits(ThresholdSearch(unsure, agrees, (0.9, 0.4), 0)) == (1.0, 0.0)


def test_a_row_that_leaves_earlier_may_be_right_where_it_was_wrong() -> None:
    """Such a move costs less than nothing, and makes room for others."""
    unsure = np.array([[0.1, 0.2], [0.4, 0.1], [0.5, 0.3]])
    agrees = np.array([[True, False], [False, True], [False, True]])
    search = ThresholdSearch(unsure, agrees, (0.9, 0.4), 0)
    assert search.cost(search.best()) == 0
    assert exits(search) == pytest.approx((1 / 3, 2 / 3))
    # Without the first, the last row could not leave: the one wrong is surer than it.
    assert search.placed(np.zeros(2), 1)[1] < 0.2
    assert search.placed(np.array([0.2, 0.35]), 1)[1] > 0.3


def test_a_row_may_cost_more_than_another() -> None:
    unsure = np.array([[0.1], [0.2], [0.3]])
    agrees = np.array([[True], [False], [True]])
    assert exits(ThresholdSearch(unsure, agrees, (1.0,), 1)) == (1.0,)
    price = np.array([[1.0], [2.0], [1.0]])
    assert exits(ThresholdSearch(unsure, agrees, (1.0,), 1, price=price)) == pytest.approx((1 / 3,))


def test_no_row_that_a_ramp_has_not_seen_leaves_there() -> None:
    unsure = np.full((4, 1), INF)
    thresholds = ThresholdSearch(unsure, np.ones((4, 1), bool), (1.0,), 0).best()
    assert thresholds.tolist() == [0.0]
