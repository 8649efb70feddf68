"""Arrival processes: sorted, inside the run, exact in the mean, stable under a longer run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.lab.workloads import (
    Arrivals,
    Constant,
    Gamma,
    GammaWindows,
    OnOff,
    Poisson,
    RateTrace,
    Replay,
    WindowCounts,
    WorkloadError,
)
from slacktide.lab.workloads.arrivals import CHUNK
from slacktide.lab.workloads.varying import Diurnal

RATES = st.floats(0.5, 300.0)
PROCESSES = st.one_of(
    st.builds(Constant, RATES),
    st.builds(Poisson, RATES),
    st.builds(Gamma, RATES, st.floats(0.2, 5.0)),
    st.builds(OnOff, RATES, st.floats(0.0, 50.0), st.floats(0.05, 3.0), st.floats(0.05, 3.0)),
    st.builds(GammaWindows, RATES, st.floats(0.05, 3.0), st.floats(0.2, 2.0)),
    st.builds(WindowCounts, st.lists(st.integers(0, 60), min_size=1), st.floats(0.05, 3.0)),
    st.builds(
        lambda low, more, period: Diurnal(low, low + more, period),
        st.floats(0.0, 50.0),
        RATES,
        st.floats(0.5, 10.0),
    ),
    st.builds(
        lambda gaps, rates: RateTrace(np.cumsum(gaps), rates[: len(gaps)]),
        st.lists(st.floats(0.01, 2.0), min_size=1, max_size=6),
        st.lists(st.floats(0.0, 200.0), min_size=6, max_size=6),
    ),
)


@given(PROCESSES, st.floats(0.01, 8.0), st.integers(0, 2**31))
def test_times_are_sorted_float64_inside_the_run(
    process: Arrivals, duration: float, seed: int
) -> None:
    times = process.times(duration, np.random.default_rng(seed))
    assert times.dtype == np.float64
    assert times.ndim == 1
    assert np.all(np.diff(times) >= 0.0)
    assert np.all((times >= 0.0) & (times < duration))


@given(PROCESSES, st.floats(0.1, 4.0), st.floats(1.0, 3.0), st.integers(0, 2**31))
def test_a_longer_run_begins_with_the_shorter_one(
    process: Arrivals, duration: float, factor: float, seed: int
) -> None:
    short = process.times(duration, np.random.default_rng(seed))
    long = process.times(duration * factor, np.random.default_rng(seed))
    prefix = long[: short.size]
    np.testing.assert_allclose(prefix, short, rtol=1e-9, atol=1e-9)


@given(PROCESSES, st.integers(0, 2**31))
def test_they_come_in_pieces_that_do_not_grow_with_the_run(process: Arrivals, seed: int) -> None:
    pieces = [*process.chunks(40.0, np.random.default_rng(seed))]
    window = getattr(process, "window", 0.0)
    assert all(piece.size <= CHUNK or piece[-1] - piece[0] <= window for piece in pieces)
    assert all(np.all(np.diff(piece) >= 0.0) for piece in pieces)
    together = np.concatenate([np.empty(0), *pieces])
    assert together.tolist() == process.times(40.0, np.random.default_rng(seed)).tolist()


def test_recorded_times_come_in_pieces_too() -> None:
    pieces = [*Replay(np.arange(5_000) * 1e-3).chunks(4.5, np.random.default_rng(0))]
    assert max(piece.size for piece in pieces) <= CHUNK
    assert np.concatenate(pieces).tolist() == (np.arange(4_500) * 1e-3).tolist()


@pytest.mark.parametrize(
    "process",
    [
        Poisson(40.0),
        Gamma(40.0, 3.0),
        Gamma(40.0, 0.3),
        OnOff(100.0, 5.0, 0.2, 0.5),
        OnOff(5.0, 0.0, 1.0, 0.1),
        RateTrace([0.0, 0.3, 0.7], [10.0, 0.0, 90.0]),
        RateTrace([0.5], [60.0]),
        GammaWindows(40.0, 0.5, 0.8),
        WindowCounts([30, 0, 5], 0.5),
        Diurnal(5.0, 80.0, 2.0),
        Diurnal(0.0, 80.0, 0.3),
    ],
    ids=lambda p: p.describe(),
)
@pytest.mark.parametrize("duration", [0.05, 1.3])
def test_the_mean_is_exact_even_over_short_runs(process: Arrivals, duration: float) -> None:
    """An ordinary (not stationary) Gamma process would miss by (cv² − 1)/2 = 4 arrivals."""
    counts = np.array(
        [process.times(duration, np.random.default_rng(seed)).size for seed in range(1500)]
    )
    expected = process.mean_rate(duration) * duration
    error = counts.std(ddof=1) / np.sqrt(counts.size)
    assert abs(counts.mean() - expected) <= 4.5 * error + 1e-12


def test_gamma_gaps_have_the_coefficient_of_variation_that_was_asked_for() -> None:
    gaps = np.diff(Gamma(100.0, 3.0).times(2000.0, np.random.default_rng(1)))
    assert gaps.std() / gaps.mean() == pytest.approx(3.0, rel=0.05)


def test_on_off_is_burstier_than_poisson_at_the_same_mean() -> None:
    process = OnOff(200.0, 0.0, 1.0, 1.0)
    rng = np.random.default_rng(3)
    times = process.times(400.0, rng)
    per_second = np.histogram(times, bins=400, range=(0.0, 400.0))[0]
    assert process.mean_rate(400.0) == 100.0
    assert per_second.var() > 5.0 * per_second.mean()


def test_a_day_is_quiet_at_its_ends_and_busy_in_its_middle() -> None:
    process = Diurnal(10.0, 110.0, 24.0)
    times = process.times(24.0 * 50, np.random.default_rng(4)) % 24.0
    per_hour = np.histogram(times, bins=24, range=(0.0, 24.0))[0] / 50.0
    hours = np.arange(24) + 0.5
    expected = 10.0 + 100.0 * (1.0 - np.cos(2.0 * np.pi * hours / 24.0)) / 2.0
    np.testing.assert_allclose(per_hour, expected, rtol=0.12, atol=2.0)
    assert process.mean_rate(24.0) == pytest.approx(60.0)
    assert process.mean_rate(12.0) == pytest.approx(60.0)
    assert process.mean_rate(6.0) == pytest.approx(60.0 - 100.0 / np.pi)


def test_window_counts_are_kept_exactly() -> None:
    process = WindowCounts([3, 0, 5], 2.0, "day.csv")
    times = process.times(100.0, np.random.default_rng(0))
    assert np.histogram(times, bins=[0.0, 2.0, 4.0, 6.0])[0].tolist() == [3, 0, 5]
    assert process.mean_rate(5.0) == pytest.approx((3 + 2.5) / 5.0)
    assert process.mean_rate(10.0) == 0.8
    assert process.describe() == "trace:day.csv"


def test_gamma_windows_have_the_variance_that_was_asked_for() -> None:
    """A count of mean m has variance m (Poisson) + m²·cv² (Gamma)."""
    process = GammaWindows(20.0, 5.0, 0.35)
    times = process.times(5.0 * 4000, np.random.default_rng(2))
    counts = np.histogram(times, bins=4000, range=(0.0, 20_000.0))[0]
    assert counts.mean() == pytest.approx(100.0, rel=0.02)
    assert counts.var() == pytest.approx(100.0 + (100.0 * 0.35) ** 2, rel=0.08)


def test_constant_counts_exactly() -> None:
    times = Constant(50.0).times(2.0, np.random.default_rng(0))
    assert times.size == 100
    assert times[0] == 0.0
    np.testing.assert_allclose(np.diff(times), 0.02)


def test_replay_gives_its_times_back_and_stops_at_the_end() -> None:
    process = Replay([0.0, 0.5, 0.5, 2.0], "day.csv")
    assert process.times(2.0, np.random.default_rng(0)).tolist() == [0.0, 0.5, 0.5]
    assert process.mean_rate(2.0) == 1.5
    assert process.describe() == "trace:day.csv"


def test_rate_trace_is_silent_where_its_rate_is_zero() -> None:
    process = RateTrace([0.0, 1.0, 2.0], [100.0, 0.0, 100.0])
    times = process.times(3.0, np.random.default_rng(5))
    assert not np.any((times > 1.0) & (times < 2.0))
    assert np.any(times < 1.0)
    assert np.any(times > 2.0)
    assert process.mean_rate(3.0) == pytest.approx(200.0 / 3.0)


def test_traces_keep_their_own_copy() -> None:
    mine = np.array([0.0, 1.0])
    process = Replay(mine)
    mine[0] = 0.7
    assert process.instants[0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        process.instants[0] = 0.3


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Poisson(0.0), "rate"),
        (lambda: Poisson(float("nan")), "rate"),
        (lambda: Gamma(1.0, -1.0), "cv"),
        (lambda: OnOff(1.0, -1.0, 1.0, 1.0), "rate_off"),
        (lambda: OnOff(1.0, 0.0, 1.0, float("inf")), "mean_off"),
        (lambda: Replay([1.0, 0.0]), "time_s"),
        (lambda: Replay([]), "time_s"),
        (lambda: Replay([-1.0]), "time_s"),
        (lambda: RateTrace([0.0, 0.0], [1.0, 1.0]), "time_s"),
        (lambda: RateTrace([0.0], [1.0, 1.0]), "rate_rps"),
        (lambda: RateTrace([0.0], [float("nan")]), "rate_rps"),
        (lambda: Diurnal(5.0, 4.0, 1.0), "high"),
        (lambda: Diurnal(-1.0, 4.0, 1.0), "low"),
        (lambda: Diurnal(1.0, 4.0, 0.0), "period"),
        (lambda: GammaWindows(1.0, 1.0, 0.0), "cv"),
        (lambda: GammaWindows(1.0, -1.0, 1.0), "window"),
        (lambda: WindowCounts([], 1.0), "counts"),
        (lambda: WindowCounts([1.5], 1.0), "counts"),
        (lambda: WindowCounts([-1], 1.0), "counts"),
        (lambda: Poisson(1.0).times(0.0, np.random.default_rng(0)), "duration"),
        (lambda: Poisson(1e9).times(60.0, np.random.default_rng(0)), "rate"),
    ],
)
def test_invalid_fields_are_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        make()
    assert caught.value.field == field
