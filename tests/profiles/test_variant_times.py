"""Times of variants: by the law over sizes, and never falling with the variant."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import LatencyTable, ProfileError
from slacktide.profiles.known_shape import LAW_SPREAD
from slacktide.profiles.latency_fit import SizeTime
from slacktide.profiles.variant_times import rising, table_at

TABLE = LatencyTable.linear(0.0, 0.016, 4, spread=1.5)


def square(side: int) -> tuple[tuple[int, ...], ...]:
    return ((side, side, 3),)


def others(*sides: int) -> tuple[SizeTime, ...]:
    """A model that takes as long as an image has pixels, measured at 400 and at others."""
    return tuple(
        SizeTime(1, 1, (side / 400) ** 2, 0.016 * (side / 400) ** 2, square(side)) for side in sides
    )


@pytest.mark.parametrize("side", [100, 200, 300, 400])
def test_sizes_within_what_was_measured_take_as_long_as_the_law_says(side: int) -> None:
    table = table_at(TABLE, square(400), others(100, 200), square(side))
    assert table.expected(1, 1) == pytest.approx(0.016 * (side / 400) ** 2, rel=0.05)
    assert table.p99(1, 1) == pytest.approx(1.5 * table.expected(1, 1))
    assert table.batches == TABLE.batches


def test_beyond_what_was_measured_the_law_is_less_sure() -> None:
    table = table_at(TABLE, square(400), others(100, 200), square(600))
    assert table.expected(1, 1) == pytest.approx(0.016 * 2.25, rel=0.3)
    assert table.p99(1, 1) == pytest.approx(1.5 * LAW_SPREAD * table.expected(1, 1))


def test_two_sizes_are_no_law_but_are_what_they_are() -> None:
    assert table_at(TABLE, square(400), others(200), square(200)).expected(1, 1) == pytest.approx(
        0.004
    )
    with pytest.raises(ProfileError, match=r"does not cover rows of shape \[\[300, 300, 3\]\]"):
        table_at(TABLE, square(400), others(200), square(300))
    with pytest.raises(ProfileError, match="does not cover"):
        table_at(TABLE, square(400), others(100, 200), square(4000))


@given(st.lists(st.lists(st.floats(0.001, 9.0), min_size=1, max_size=6), min_size=1, max_size=6))
def test_raised_times_fall_neither_with_the_batch_nor_with_the_variant(
    seconds: list[list[float]],
) -> None:
    raised_rows = rising(seconds)
    for own, raised in zip(seconds, raised_rows, strict=True):
        assert len(own) == len(raised)
        assert all(a <= b for a, b in zip(own, raised, strict=True))
        assert list(raised) == sorted(raised)
    for smaller, larger in pairwise(raised_rows):
        assert all(a <= b for a, b in zip(smaller, larger, strict=False))
    assert rising(raised_rows) == raised_rows


def test_times_that_rise_already_stay() -> None:
    assert rising([[1.0, 2.0], [1.5, 2.0, 4.0]]) == ((1.0, 2.0), (1.5, 2.0, 4.0))
    assert rising([[1.0, 3.0], [2.0]]) == ((1.0, 3.0), (2.0,))
    assert rising([[1.0], [0.5, 0.7]]) == ((1.0,), (1.0, 1.0))
