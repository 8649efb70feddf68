"""c0 and c1 from a profile: exact where the form holds, bounded and monotone where it does not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import LatencyTable, fit_latency
from slacktide.profiles.latency_fit import SizeTime, latency_on


def test_a_linear_profile_is_found_again(resnet: LatencyTable) -> None:
    fit = fit_latency(resnet, 1)
    assert fit.latency.c0 == pytest.approx(0.010)
    assert fit.latency.c1 == pytest.approx(0.002)
    assert fit.error == pytest.approx(0.0, abs=1e-9)
    assert fit_latency(resnet, 2).latency.seconds(8, 1.0) == pytest.approx(resnet.expected(8, 2))


def test_a_profile_that_does_not_grow_has_lengths_all_the_same() -> None:
    latency = fit_latency(LatencyTable.flat(0.1, 16), 1).latency
    assert latency.c1 > 0.0
    assert latency.seconds(16, 1.0) == pytest.approx(0.1, rel=0.02)


def test_one_batch_size_is_taken_to_grow_with_the_rows() -> None:
    latency = fit_latency(LatencyTable.from_grid((1,), (1,), [[0.2]], [[0.3]]), 1).latency
    assert (latency.c0, latency.c1) == (0.0, 0.2)


def test_a_profile_that_bends_upwards_has_no_fixed_part() -> None:
    table = LatencyTable.from_grid((1, 2, 4), (1,), [[1.0], [3.0], [9.0]], [[1.0], [3.0], [9.0]])
    fit = fit_latency(table, 1)
    assert fit.latency.c0 == 0.0
    assert 1.0 < fit.latency.c1 < 9.0 / 4.0
    assert 0.1 < fit.error < 0.5


@given(st.from_type(LatencyTable))
def test_more_cores_are_never_slower(table: LatencyTable) -> None:
    for fewer, more in pairwise((1, 2, 3, 5, 8, 16, 20)):
        slow, fast = fit_latency(table, fewer).latency, fit_latency(table, more).latency
        assert slow.c0 >= fast.c0 >= 0.0
        assert slow.c1 >= fast.c1 > 0.0


def test_times_at_other_lengths_are_fitted_too() -> None:
    """One batch size cannot tell c0 from c1; other lengths can."""
    table = LatencyTable.from_grid((1,), (1,), [[0.5]], [[0.6]])
    others = [SizeTime(1, 1, 0.5, 0.35), SizeTime(1, 1, 4.0, 1.4), SizeTime(1, 2, 9.0, 0.1)]
    fit = fit_latency(table, 1, others)
    assert (fit.latency.c0, fit.latency.c1) == pytest.approx((0.2, 0.3))
    assert fit.error == pytest.approx(0.0, abs=1e-9)


def test_a_square_in_the_length_is_not_taken_for_a_smaller_fixed_part() -> None:
    """As attention has it: a row of four times the length takes ten times as long."""
    grid = [[0.010 + rows * (0.004 + 0.002)] for rows in (1, 2, 4, 8)]
    table = LatencyTable.from_grid((1, 2, 4, 8), (1,), grid, grid)
    others = [
        SizeTime(rows, 1, n, 0.010 + rows * (0.004 * n + 0.002 * n * n))
        for rows in (1, 8)
        for n in (0.5, 2.0, 4.0)
    ]
    latency = fit_latency(table, 1, others).latency
    assert (latency.c0, latency.c1) == pytest.approx((0.010, 0.006))


def test_core_counts_that_were_not_measured_lie_between_their_neighbours() -> None:
    sizes = (1, 2, 4)
    grid = [[0.010 + 0.004 / c + size * (0.001 + 0.008 / c) for c in (2, 8)] for size in sizes]
    table = LatencyTable.from_grid(sizes, (2, 8), grid, grid)
    latency = fit_latency(table, 4).latency
    assert latency.c0 == pytest.approx(0.010 + 0.004 / 4)
    assert latency.c1 == pytest.approx(0.001 + 0.008 / 4)
    further, furthest = fit_latency(table, 16).latency, fit_latency(table, 99).latency
    assert further.seconds(4, 1.0) < fit_latency(table, 8).latency.seconds(4, 1.0)
    assert further == furthest


def test_a_fit_on_measured_cores_gives_the_same_times_on_others(resnet: LatencyTable) -> None:
    others = [SizeTime(1, 1, 4.0, 0.040), SizeTime(1, 2, 4.0, 0.018)]
    measured = {count: fit_latency(resnet, count, others).latency for count in (1, 2)}
    for cores in (1, 2, 3, 4, 9):
        assert latency_on(measured, resnet, cores) == fit_latency(resnet, cores, others).latency
