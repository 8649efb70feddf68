"""Distributions on the grid: the product of CDFs against the paper's Eq. 8 and against chance."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.profiles import BatchLatency, ProfileError, RunClasses
from slacktide.profiles.distribution import (
    POINTS,
    Floats,
    empirical_cdf,
    expected_max,
    point_cdf,
    quantile,
    share_within,
    step_for,
)

LENGTHS = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=60)


def two_modes(seed: int, short: float = 3.0, long: float = 17.0) -> Floats:
    rng = np.random.default_rng(seed)
    modes = np.where(rng.random(4_000) < 0.5, short, long)
    return np.maximum(modes + rng.standard_normal(4_000), 0.0)


@given(LENGTHS)
def test_a_cdf_is_one_whatever_the_samples(lengths: list[float]) -> None:
    samples = np.array(lengths)
    cdf = empirical_cdf(samples, step_for(100.0))
    assert cdf.shape == (POINTS,)
    assert cdf[0] == 0.0
    assert cdf[-1] == 1.0
    assert (np.diff(cdf) >= -1e-12).all()


@given(LENGTHS)
def test_the_mean_is_that_of_the_samples(lengths: list[float]) -> None:
    step = step_for(100.0)
    samples = np.maximum(np.array(lengths), 0.5 * step)
    assert expected_max(empirical_cdf(samples, step), step) == pytest.approx(samples.mean())


def test_a_point_is_within_one_step() -> None:
    step = step_for(10.0)
    cdf = point_cdf(4.0, step)
    assert expected_max(cdf, step) == pytest.approx(4.0)
    assert share_within(cdf, 4.0 - 1.5 * step, step) == 0.0
    assert share_within(cdf, 4.0 + 1.5 * step, step) == pytest.approx(1.0)


@given(LENGTHS, st.floats(0.01, 0.99))
def test_quantiles_invert_shares(lengths: list[float], level: float) -> None:
    step = step_for(100.0)
    cdf = empirical_cdf(np.array(lengths), step)
    assert share_within(cdf, quantile(cdf, level, step), step) == pytest.approx(level, abs=1e-9)


def test_beyond_the_grid() -> None:
    step = step_for(1.0)
    cdf = empirical_cdf(np.array([0.0, 1.0, 7.0]), step)
    assert share_within(cdf, -1.0, step) == 0.0
    assert share_within(cdf, 1e9, step) == 1.0
    assert quantile(cdf, 0.0, step) == 0.0
    assert quantile(cdf, 1.0, step) == pytest.approx(step * (POINTS - 1))


def longest(cdfs: list[Floats], counts: tuple[int, ...], step: float) -> Floats:
    """CDF of the longest of a batch with `counts[g]` members of distribution g, as policies do it:
    the product of CDFs is a sum of their logs."""
    equal = (1.0 / len(cdfs),) * len(cdfs)
    classes = RunClasses(BatchLatency(0.0, 1.0), step, np.stack(cdfs), equal, equal, {}, 0)
    return np.exp(np.asarray(counts, dtype=np.float64) @ classes.logs)


def equation_8(cdfs: list[Floats]) -> Floats:
    """Orloj's Eq. 8 with Eq. 7, integrated: Σ over subsets s of ± |s|^k / k! · (F^s)^k."""
    k = len(cdfs)
    total = np.zeros(POINTS)
    for size in range(1, k + 1):
        sign = (-1.0) ** (k - size)
        for subset in itertools.combinations(cdfs, size):
            mean = sum(subset) / size
            total += sign * size**k / math.factorial(k) * mean**k
    return total


@pytest.mark.parametrize("members", [(1,), (2,), (1, 1), (2, 1), (1, 3), (2, 2), (5, 0), (0, 4)])
def test_product_of_cdfs_is_equation_8(members: tuple[int, ...]) -> None:
    step = step_for(25.0)
    rng = np.random.default_rng(7)
    kinds = [
        empirical_cdf(two_modes(2), step),
        empirical_cdf(rng.exponential(4.0, 3_000), step),
    ][: len(members)]
    batch = [cdf for cdf, count in zip(kinds, members, strict=True) for _ in range(count)]
    assert longest(kinds, members, step) == pytest.approx(equation_8(batch), abs=1e-8)


def test_longest_of_a_batch_against_chance() -> None:
    """Two short and three wide ones, 200,000 times."""
    rng = np.random.default_rng(11)
    short, wide = rng.normal(6.0, 1.0, 5_000).clip(0.0), two_modes(3)
    step = step_for(float(max(short.max(), wide.max())))
    cdf = longest([empirical_cdf(short, step), empirical_cdf(wide, step)], (2, 3), step)
    drawn = np.concatenate([rng.choice(short, (2, 200_000)), rng.choice(wide, (3, 200_000))])
    largest = drawn.max(axis=0)
    assert expected_max(cdf, step) == pytest.approx(largest.mean(), rel=0.002)
    for length in (4.0, 8.0, 15.0, 17.0, 18.0):
        share = float((largest <= length).mean())
        assert share_within(cdf, length, step) == pytest.approx(share, abs=0.01)


def test_impossible_samples_are_refused() -> None:
    with pytest.raises(ProfileError, match="at least one length"):
        empirical_cdf(np.array([]), 1.0)
    with pytest.raises(ProfileError, match="finite"):
        empirical_cdf(np.array([1.0, math.nan]), 1.0)
    with pytest.raises(ProfileError, match="positive and finite, got 0"):
        step_for(0.0)
    with pytest.raises(ProfileError, match=r"level must be within 0 and 1, got 1\.5"):
        quantile(point_cdf(1.0, 1.0), 1.5, 1.0)
