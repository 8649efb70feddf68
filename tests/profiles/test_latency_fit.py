"""c0 and c1 from a profile: exact where the form holds, bounded and monotone where it does not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import LatencyTable, fit_latency
from slacktide.profiles.latency_fit import LengthTime


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
    others = [LengthTime(1, 1, 0.5, 0.35), LengthTime(1, 1, 4.0, 1.4), LengthTime(1, 2, 9.0, 0.1)]
    fit = fit_latency(table, 1, others)
    assert (fit.latency.c0, fit.latency.c1) == pytest.approx((0.2, 0.3))
    assert fit.error == pytest.approx(0.0, abs=1e-9)
