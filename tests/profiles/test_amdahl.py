"""AmdahlModel: the robust fit finds what made the points, whatever a tenth of them says."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import nnls

from slacktide.profiles import ProfileError
from slacktide.profiles.amdahl import (
    AmdahlModel,
    Timed,
    fit_amdahl,
    fit_grid,
)
from slacktide.profiles.least_squares import non_negative

BATCHES = (1, 2, 4, 8, 16)
CORES = st.sampled_from([(1, 2), (1, 2, 4), (1, 2, 4, 8, 16, 32), (2, 3, 6)])
COEFFICIENT = st.one_of(st.just(0.0), st.floats(1e-4, 0.1))


@st.composite
def models(draw: st.DrawFn) -> AmdahlModel:
    model = AmdahlModel(*(draw(COEFFICIENT) for _ in range(4)))
    assume(model.seconds(1, 32) > 0.0)
    return model


def timed(model: AmdahlModel, cores: tuple[int, ...]) -> list[Timed]:
    return [Timed(b, c, model.seconds(b, c)) for b in BATCHES for c in cores]


@given(models(), CORES)
def test_exact_points_give_back_the_coefficients(model: AmdahlModel, cores: tuple[int, ...]):
    fit = fit_amdahl(timed(model, cores))
    largest = max(model.gamma, model.epsilon, model.delta, model.eta)
    for name in ("gamma", "epsilon", "delta", "eta"):
        fitted, meant = getattr(fit.model, name), getattr(model, name)
        assert fitted == pytest.approx(meant, rel=1e-6, abs=1e-8 * largest)
    assert fit.worst_error < 1e-9


@given(
    models(),
    st.sampled_from([(1, 2, 4), (1, 2, 4, 8, 16, 32)]),
    st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
def test_a_tenth_of_the_points_may_say_what_it_likes(
    model: AmdahlModel, cores: tuple[int, ...], logs: list[float], random: Random
):
    points = timed(model, cores)
    wrong = random.sample(range(len(points)), len(points) // 10)
    for index, log in zip(wrong, logs, strict=False):
        points[index] = points[index]._replace(seconds=points[index].seconds * math.exp(log))
    fit = fit_amdahl(points)
    for batch in BATCHES:
        for count in cores:
            assert fit.model.seconds(batch, count) == pytest.approx(
                model.seconds(batch, count), rel=0.005
            )
    for index, point in enumerate(fit.points):
        if index in wrong and abs(math.log(point.measured / point.predicted)) > 0.1:
            assert point.weight == 0.0


@given(
    st.lists(
        st.builds(Timed, st.integers(1, 64), st.integers(1, 32), st.floats(1e-6, 1e3)),
        min_size=1,
        max_size=20,
    )
)
def test_any_points_give_a_model_that_rises_with_rows_and_falls_with_cores(points: list[Timed]):
    model = fit_amdahl(points).model  # raises if a coefficient is negative or not finite
    for cores in (1, 3, 16):
        times = [model.seconds(batch, cores) for batch in (1, 2, 5, 64)]
        assert all(a <= b for a, b in pairwise(times))
    for batch in (1, 7, 64):
        times = [model.seconds(batch, cores) for cores in (1, 2, 5, 64)]
        assert all(a >= b for a, b in pairwise(times))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.booleans())
def test_bounded_least_squares_agree_with_scipy(seed: int, count: int, as_fitted: bool):
    generator = np.random.default_rng(seed)
    if as_fitted:
        batch, cores = generator.integers(1, 65, count), generator.integers(1, 17, count)
        rows = np.stack([batch / cores, 1 / cores, batch, np.ones(count)], axis=1)
        target = generator.uniform(0.1, 9.0, count)
    else:
        rows, target = generator.uniform(0.1, 1.0, (count, 4)), generator.normal(0.5, 1.0, count)
    x = non_negative(rows, target)
    assert x.min() >= 0.0
    theirs, _ = nnls(rows, target)  # the residual that scipy 1.15.0 returns beside it is wrong
    assert np.linalg.norm(rows @ x - target) <= np.linalg.norm(rows @ theirs - target) + 1e-9


def test_one_core_count_promises_nothing_of_more_cores():
    model = fit_grid((1, 2, 4), (2,), [[0.3], [0.5], [0.9]]).model
    assert (model.gamma, model.epsilon) == (0.0, 0.0)
    assert model.seconds(3, 64) == pytest.approx(0.7)


def test_one_batch_size_makes_every_row_cost_as_much():
    model = fit_grid((2,), (1, 2), [[0.4, 0.3]]).model
    assert (model.epsilon, model.eta) == (0.0, 0.0)
    assert model.seconds(4, 1) == pytest.approx(0.8)


def test_the_errors_are_those_of_the_points():
    points = timed(AmdahlModel(0.02, 0.01, 0.004, 0.002), (1, 2, 4))
    points[0] = points[0]._replace(seconds=points[0].seconds * 2)
    fit = fit_amdahl(points)
    assert fit.points[0].error == pytest.approx(-0.5)
    assert fit.worst_error == pytest.approx(0.5)
    assert fit.median_error < 1e-6


@pytest.mark.parametrize(
    ("batch", "cores", "message"),
    [
        (33, 2, "batch 33 is out of range: measured up to 16"),
        (0, 2, "batch 0"),
        (4, 9, "9 cores are out of range: measured from 2 to 4"),
        (4, 0, "0 cores"),
    ],
)
def test_far_from_the_points_it_refuses(batch: int, cores: int, message: str):
    fit = fit_amdahl(timed(AmdahlModel(0.02, 0.01, 0.004, 0.002), (2, 4)))
    assert fit.seconds(32, 8) == pytest.approx(0.02 * 4 + 0.01 / 8 + 0.004 * 32 + 0.002)
    assert fit.seconds(32, 1) > fit.seconds(32, 2)
    with pytest.raises(ProfileError, match=message):
        fit.seconds(batch, cores)


@pytest.mark.parametrize("point", [Timed(0, 1, 1.0), Timed(1, 0, 1.0), Timed(1, 1, 0.0)])
def test_impossible_points_are_errors(point: Timed):
    with pytest.raises(ProfileError, match="points"):
        fit_amdahl([point])
    with pytest.raises(ProfileError, match="points"):
        fit_amdahl([])


def test_a_negative_coefficient_is_named():
    with pytest.raises(ProfileError, match="delta"):
        AmdahlModel(0.1, 0.1, -1e-9, 0.1)
