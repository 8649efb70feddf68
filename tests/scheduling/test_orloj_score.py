"""The priority curve against Eq. 2 as it is printed, and against what Eq. 2 stands for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.scheduling.orloj_score import BINS, ONE_STEP, OrlojTimes, Score, TimeHistogram


def histogram(edges: list[float], masses: list[float]) -> TimeHistogram:
    """Bins of these masses (scaled to 1) between these edges."""
    cdf = np.concatenate([[0.0], np.cumsum(masses)]) / sum(masses)
    mean = sum(
        (left + right) / 2 * (above - below)
        for (left, right), (below, above) in zip(pairwise(edges), pairwise(cdf), strict=True)
    )
    return TimeHistogram(tuple(edges), tuple(cdf.tolist()), float(mean), float(mean))


def equation_2(times: TimeHistogram, *, t: float, deadline: float, cost: float, b: float) -> float:
    """Eq. 2, literally, with h a density."""
    total = 0.0
    for (l1, l2), (below, above) in zip(pairwise(times.edges), pairwise(times.cdf), strict=True):
        factor = (above - below) / (l2 - l1) * cost / (times.mean * b)
        if t < deadline - l2:
            total += factor * (exp(b * l2) - exp(b * l1)) * exp(-b * deadline) * exp(b * t)
        elif t < deadline - l1:
            total += factor - factor * exp(b * l1) * exp(-b * deadline) * exp(b * t)
    return total


@st.composite
def histograms(draw: st.DrawFn) -> TimeHistogram:
    widths = draw(st.lists(st.integers(1, 64), min_size=1, max_size=12))
    first = draw(st.integers(0, 100)) / 64
    masses = draw(
        st.lists(st.sampled_from([0.0, 0.1, 1.0, 3.0]), min_size=len(widths), max_size=len(widths))
    )
    masses[-1] = max(masses[-1], 0.1)
    edges = first + np.concatenate([[0.0], np.cumsum(widths)]) / 64
    return histogram(edges.tolist(), masses)


rates = st.sampled_from([1e-4, 1e-2, 0.1, 1.0, 10.0])
slacks = st.integers(-100, 2000).map(lambda i: i / 128 + 1 / 1024)


@given(histograms(), rates, slacks)
def test_it_is_equation_2(times: TimeHistogram, b: float, slack: float) -> None:
    score = Score(times, b=b).at(slack)
    printed = equation_2(times, t=3.0, deadline=3.0 + slack, cost=1.0, b=b)
    # Printed, it is a small difference of large numbers where b is small.
    assert score == pytest.approx(printed, rel=1e-9, abs=1e-12 / (b * times.mean))


@given(
    histograms(),
    rates,
    slacks,
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 8)), max_size=3),
)
def test_several_steps_are_the_sum_of_single_ones(
    times: TimeHistogram, b: float, slack: float, later: list[tuple[int, int]]
) -> None:
    steps = [(0.0, 1.0), *((after / 64, cost / 4) for after, cost in later)]
    single = Score(times, b=b)
    expected = sum(cost * single.at(slack + after) for after, cost in steps)
    assert Score(times, b=b, steps=steps).at(slack) == pytest.approx(expected, rel=1e-9, abs=1e-15)


@given(
    histograms(),
    rates,
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 8)), max_size=2),
)
def test_between_two_turns_it_only_rises_or_only_falls(
    times: TimeHistogram, b: float, later: list[tuple[int, int]]
) -> None:
    steps = [(0.0, 1.0), *((after / 64, cost / 4) for after, cost in later)]
    score = Score(times, b=b, steps=steps)
    turns = [-10.0, *score.turns, 50.0]
    assert len(score.directions) == len(turns) - 1
    for (left, right), rises in zip(pairwise(turns), score.directions, strict=True):
        values = [score.at(left + (right - left) * i / 40) for i in range(41)]
        for before, after in pairwise(values):
            assert after >= before - 1e-12 if rises else after <= before + 1e-12


def test_it_is_what_being_passed_over_once_would_cost(lab) -> None:
    """E[C(t + τ + L) - C(t + L)] / E[L], drawn."""
    times = histogram([1.0, 2.0, 4.0, 5.0], [0.2, 0.5, 0.3])
    rng = np.random.default_rng(1)
    lengths = np.interp(rng.random(400_000), times.cdf, times.edges)
    delays = rng.exponential(1 / 0.5, lengths.size)
    for slack in (1.5, 3.0, 4.5, 8.0):
        missed = (lengths <= slack) & (lengths + delays > slack)
        expected = missed.mean() / times.mean
        assert Score(times, b=0.5).at(slack) == pytest.approx(expected, rel=0.02)


def test_days_of_slack_overflow_nothing() -> None:
    times = histogram([1.0, 2.0], [1.0])
    assert Score(times, b=0.1).at(1e9) == 0.0
    assert Score(times, b=100.0).at(1e6) == 0.0
    assert Score(times, b=1e-9).at(2.0) == pytest.approx(1 / 1.5)


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([0.02, 0.3]))
def test_without_classes_it_is_the_histogram_of_the_batch_times(
    lab, rows: int, size: int, sigma: float
) -> None:
    times = lab.LogNormalTimes(lab.weight_bound, sigma)
    histogram = OrlojTimes(times, 1, b=0.1, steps=ONE_STEP).histogram(0, rows, size)
    low, high = times.of(size, 1).quantile(0.001), times.of(size, 1).quantile(0.999)
    assert histogram.edges == pytest.approx(np.linspace(low, high, BINS + 1).tolist(), rel=1e-12)
    inner = [times.of(size, 1).on_time(edge) for edge in histogram.edges[1:-1]]
    assert histogram.cdf == (0.0, *inner, 1.0)
    assert histogram.mean == histogram.need == lab.weight_bound(size)


def test_times_that_do_not_vary_have_a_histogram_all_the_same(lab) -> None:
    times = lab.LogNormalTimes(lab.weight_bound, 1e-9)
    histogram = OrlojTimes(times, 1, b=0.1, steps=ONE_STEP).histogram(0, 1, 4)
    assert all(left < right for left, right in pairwise(histogram.edges))
    assert histogram.edges[-1] - histogram.edges[0] == pytest.approx(1e-6 * histogram.mean)
    late, on_time = (Score(histogram, b=0.1).at(share * histogram.mean) for share in (0.999, 1.001))
    assert late == 0.0
    assert on_time == pytest.approx(1.0 / histogram.mean, rel=0.001)


def test_a_histogram_without_a_probability_for_every_edge_is_refused() -> None:
    times = histogram([1.0, 2.0, 4.0], [0.5, 0.5])
    for wrong in (replace(times, cdf=(0.0, 1.0)), replace(times, edges=(1.0, 2.0))):
        with pytest.raises(ValueError, match="zip"):
            Score(wrong, b=0.1)
