"""A window of lengths: the latest count, and drift empties it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles.length_window import NEWEST, WINDOW, LengthWindow, ks_distance


def filled(lengths: np.ndarray, window: LengthWindow | None = None) -> tuple[LengthWindow, int]:
    """The window after these, and how often it has drifted."""
    window = window or LengthWindow()
    return window, sum(window.add(float(length), 0.0, math.nan) for length in lengths)


def test_the_latest_are_kept_in_order() -> None:
    window, _ = filled(np.tile([1.0, 2.0, 3.0, 4.0], 400))
    assert window.count == WINDOW
    assert window.lengths(1.0).tolist() == [1.0, 2.0, 3.0, 4.0] * 250


def test_steady_scatter_is_no_drift() -> None:
    rng = np.random.default_rng(1)
    _, drifts = filled(rng.exponential(3.0, 20_000))
    assert drifts == 0


def test_a_shift_leaves_only_the_newest() -> None:
    rng = np.random.default_rng(2)
    window, _ = filled(rng.normal(3.0, 0.5, 600))
    window, drifts = filled(rng.normal(4.0, 0.5, NEWEST), window)
    assert drifts == 1
    assert window.count == NEWEST
    assert window.lengths(1.0).mean() == pytest.approx(4.0, abs=0.3)


def test_a_length_follows_from_what_is_thought_of_c0() -> None:
    window = LengthWindow()
    window.add(6.0, 5.0, math.nan)
    assert [window.lengths(factor)[0] for factor in (1.0, 1.1, 2.0)] == pytest.approx(
        [1.0, 0.5, 0.0]
    )


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
    st.lists(st.integers(0, 9), min_size=1, max_size=20),
)
def test_distance_of_two_samples(first: list[int], other: list[int]) -> None:
    expected = max(
        abs(sum(v <= x for v in first) / len(first) - sum(v <= x for v in other) / len(other))
        for x in range(10)
    )
    distance = ks_distance(np.array(first, dtype=float), np.array(other, dtype=float))
    assert distance == pytest.approx(expected)
