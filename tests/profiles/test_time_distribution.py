"""SplitLogLogistic: `quantile` and `on_time` are inverses, monotone, exact at p50 and p99."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slacktide.profiles import ProfileError
from slacktide.profiles.time_distribution import SplitLogLogistic

SPREADS = st.floats(0.005, 2.0)
DISTRIBUTIONS = st.builds(
    lambda p50, spread, lower, tail: SplitLogLogistic(p50, p50 * math.exp(spread), lower, tail),
    st.floats(1e-5, 10.0),
    SPREADS,
    SPREADS,
    SPREADS,
)
LEVELS = st.floats(0.0, 1.0)


@given(DISTRIBUTIONS)
def test_exact_at_the_measured_percentiles(times: SplitLogLogistic) -> None:
    assert times.quantile(0.5) == pytest.approx(times.expected)
    assert times.quantile(0.99) == pytest.approx(times.p99)
    assert times.on_time(times.expected) == pytest.approx(0.5)
    assert times.on_time(times.p99) == pytest.approx(0.99)


@given(DISTRIBUTIONS, st.floats(1e-4, 1 - 1e-4))
def test_inverse_of_each_other(times: SplitLogLogistic, level: float) -> None:
    assert times.on_time(times.quantile(level)) == pytest.approx(level, abs=1e-9)


@given(DISTRIBUTIONS, LEVELS, LEVELS)
def test_both_are_monotone(times: SplitLogLogistic, level: float, other: float) -> None:
    level, other = sorted((level, other))
    low, high = times.quantile(level), times.quantile(other)
    assert low <= high * (1 + 1e-12)
    assume(high < math.inf)
    assert times.on_time(low) <= times.on_time(high) + 1e-12


def test_the_ends() -> None:
    times = SplitLogLogistic(0.010, 0.013, lower=0.05, tail=0.3)
    assert times.quantile(0.0) == 0.0
    assert times.quantile(1.0) == math.inf
    assert times.on_time(0.0) == times.on_time(-1.0) == 0.0
    assert times.on_time(1e-300) == 0.0
    assert times.on_time(math.inf) == 1.0
    assert times.on_time(1e300) == 1.0
    with pytest.raises(ProfileError, match="level"):
        times.quantile(1.5)


def test_each_side_has_its_own_spread() -> None:
    times = SplitLogLogistic(1.0, 2.0, lower=0.1, tail=3.0)
    assert times.quantile(0.01) == pytest.approx(math.exp(-0.1))
    odds_of_late_another_99 = 1 / 99**2
    level = 1 / (1 + odds_of_late_another_99)
    assert times.quantile(level) == pytest.approx(2.0 * math.exp(3.0))


@pytest.mark.parametrize(
    "values", [(0.0, 1.0, 0.1, 0.1), (1.0, 1.0, 0.1, 0.1), (1.0, 2.0, 0.0, 0.1)]
)
def test_no_distribution_without_spread(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(ProfileError, match="expected 0 < expected < p99"):
        SplitLogLogistic(*values)
