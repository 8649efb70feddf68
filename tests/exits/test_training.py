"""Ramps: sums are the batch regression, judged on rows not seen, and refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slacktide.exits.errors import ExitError
from slacktide.exits.training import (
    LEAST_ROWS,
    MOST_HELD_BACK,
    RIDGES,
    JudgedRows,
    RampTrainer,
    RunningSums,
    fit_temperature,
)

Rows = NDArray[np.float64]


def drawn(rows: int, features: int, classes: int, seed: int = 1) -> tuple[Rows, Rows]:
    """Features of several scales, and logits that follow from them but for noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)) * 10.0 ** rng.integers(-2, 3, features) + rng.normal()
    truth = rng.normal(size=(features, classes)) / (x.std(axis=0)[:, None] + 1e-9)
    return x, x @ truth + 0.1 * rng.normal(size=(rows, classes))


def summed(x: Rows, y: Rows, *, forget: float = 0.0, cuts: Any = ()) -> RunningSums:
    sums = RunningSums(x.shape[1], y.shape[1], forget=forget)
    for part, target in zip(np.split(x, cuts), np.split(y, cuts), strict=True):
        if len(part):
            sums.add(part, target)
    return sums


def batch_ridge(x: Rows, y: Rows, ridge: float, counts: Rows) -> tuple[Rows, Rows]:
    """The textbook's way, of all rows at once."""
    y = y - y.mean(axis=1, keepdims=True)
    share = counts / counts.sum()
    mean, target = share @ x, share @ y
    centred = x - mean
    scale = np.sqrt(share @ centred**2)
    units = centred / scale
    system = (units * share[:, None]).T @ units + ridge * np.eye(x.shape[1])
    weights = np.linalg.solve(system, (units * share[:, None]).T @ (y - target)) / scale[:, None]
    return weights, target - mean @ weights


shapes = st.tuples(st.integers(3, 40), st.integers(1, 6), st.integers(2, 5), st.integers(0, 99))


@given(shapes, st.sampled_from([1e-4, 1e-2, 1.0]), st.sampled_from([0.0, 0.01, 0.2]))
def test_sums_give_the_regression_of_all_rows_at_once(
    shape: tuple[int, int, int, int], ridge: float, forget: float
) -> None:
    rows, features, classes, seed = shape
    x, y = drawn(rows, features, classes, seed)
    counts = (1.0 - forget) ** np.arange(rows - 1, -1, -1)
    sums = summed(x, y, forget=forget)
    assert sums.rows == pytest.approx(counts.sum())
    weights, bias = sums.solve(ridge)
    expected, expected_bias = batch_ridge(x, y, ridge, counts)
    np.testing.assert_allclose(x @ weights + bias, x @ expected + expected_bias, atol=1e-5)


@given(shapes, st.randoms(use_true_random=False))
def test_without_forgetting_the_order_of_rows_does_not_matter(
    shape: tuple[int, int, int, int], random: Any
) -> None:
    rows, features, classes, seed = shape
    x, y = drawn(rows, features, classes, seed)
    order = list(range(rows))
    random.shuffle(order)
    weights, bias = summed(x, y).solve(0.1)
    shuffled, shuffled_bias = summed(x[order], y[order], cuts=[rows // 2]).solve(0.1)
    np.testing.assert_allclose(x @ shuffled + shuffled_bias, x @ weights + bias, atol=1e-6)


@given(shapes, st.sampled_from([0.0, 0.05, 0.5]), st.lists(st.integers(0, 40), max_size=4))
def test_how_rows_are_cut_into_batches_does_not_matter(
    shape: tuple[int, int, int, int], forget: float, cuts: list[int]
) -> None:
    rows, features, classes, seed = shape
    x, y = drawn(rows, features, classes, seed)
    at = sorted(min(cut, rows) for cut in cuts)
    weights, bias = summed(x, y, forget=forget).solve(0.1)
    cut, cut_bias = summed(x, y, forget=forget, cuts=at).solve(0.1)
    np.testing.assert_allclose(x @ cut + cut_bias, x @ weights + bias, atol=1e-6)


def test_a_common_shift_of_logits_does_not_count_and_flat_features_get_no_weight() -> None:
    x, y = drawn(50, 3, 4)
    x[:, 1] = 7.25
    weights, bias = summed(x, y).solve(1e-3)
    shifted, shifted_bias = summed(x, y + np.arange(50)[:, None] * 100.0).solve(1e-3)
    np.testing.assert_allclose(shifted, weights, atol=1e-6)
    np.testing.assert_allclose(shifted_bias, bias, atol=1e-6)
    assert (weights[1] == 0.0).all()
    assert np.abs(weights[0]).max() > 0.0


def test_forgetting_follows_a_change() -> None:
    x, y = drawn(2000, 4, 3)
    after = -y[1000:]
    slow, quick = (
        summed(x, np.concatenate([y[:1000], after]), forget=forget) for forget in (0.0, 0.01)
    )
    right = [
        ((x @ weights + bias)[1000:].argmax(axis=1) == after.argmax(axis=1)).mean()
        for weights, bias in (slow.solve(1e-4), quick.solve(1e-4))
    ]
    assert right[1] > 0.95 > right[0]


def test_a_share_that_is_forgotten_is_below_one() -> None:
    with pytest.raises(ValueError, match="forget: expected 0 to below 1"):
        RunningSums(2, 2, forget=1.0)


@given(st.integers(0, 99), st.floats(0.05, 20.0), st.integers(2, 8))
def test_the_temperature_is_the_likeliest(seed: int, scale: float, classes: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(200, classes)) * scale
    noise = rng.gumbel(size=logits.shape)
    answers = (logits / scale * 2.0 + noise).argmax(axis=1)
    temperature, _ = fit_temperature(logits, answers)

    def loss(temperature: float) -> float:
        z = logits / temperature
        z = z - z.max(axis=1, keepdims=True)
        logs = np.log(np.exp(z).sum(axis=1))
        likelihood = (logs - z[np.arange(200), answers]).mean()
        return float(
            likelihood + (logs.mean() - z.mean()) / 200
        )  # and one row of which nothing is known

    assert 0.01 <= temperature <= 100.0
    assert loss(temperature) <= min(loss(temperature * 1.02), loss(temperature / 1.02)) + 1e-6


def test_a_ramp_that_is_always_right_is_not_certain_for_that() -> None:
    logits = np.eye(3)[np.arange(300) % 3] * 5.0
    temperature, _ = fit_temperature(logits, np.arange(300) % 3)
    certainty = 1.0 / (1.0 + 2.0 * np.exp(-5.0 / temperature))
    assert 0.99 < certainty < 0.9999


def trainer(features: int = 2, **stated: Any) -> RampTrainer:
    names = [f"t{number}" for number in range(features)]
    return RampTrainer(names, [number / 10 for number in range(features)], **stated)


def two_positions(rows: int, seed: int = 1) -> tuple[list[Rows], Rows]:
    """The second position knows all that the logits say; the first one only part of it."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(rows, 6)).astype(np.float32)
    logits = (hidden @ rng.normal(size=(6, 4))).astype(np.float32)
    return [hidden[:, :3], hidden], logits


def test_a_ramp_for_each_position_that_knows_how_often_it_agrees() -> None:
    learner = trainer()
    features, logits = two_positions(2400)
    for at in range(0, 1200, 7):
        stop = min(at + 7, 1200)
        learner.add([feature[at:stop] for feature in features], logits[at:stop])
    ramps = learner.train()
    assert [(ramp.position, ramp.tensor, ramp.cost) for ramp in ramps] == [
        (0, "t0", 0.0),
        (1, "t1", 0.1),
    ]
    assert ramps[1].weights.shape == (6, 4)
    assert ramps[1].weights.dtype == np.float32
    truth = logits[1200:].argmax(axis=1)
    for ramp, feature in zip(ramps, features, strict=True):
        measured = (ramp.logits(feature[1200:]).argmax(axis=1) == truth).mean()
        assert ramp.agreement == pytest.approx(measured, abs=0.1)
    assert ramps[1].agreement > 0.97 > ramps[0].agreement + 0.1


def test_agreement_is_of_rows_that_came_later() -> None:
    """From the moment at which the answers turn round, no ramp has seen any."""
    features, logits = two_positions(1000)
    logits[750:] *= -1.0
    learner = trainer()
    learner.add(features, logits)
    assert learner.train()[1].agreement < 0.2


def test_rows_wait_before_they_are_learnt_from_and_count_in_the_end() -> None:
    features, logits = two_positions(6000)
    learner = trainer()
    learner.add([feature[:5000] for feature in features], logits[:5000])
    first = learner.train()[1]
    learner.add([feature[5000:] for feature in features], logits[5000:])
    second = learner.train()[1]
    held = MOST_HELD_BACK
    before, whole = RunningSums(6, 4), RunningSums(6, 4)
    before.add(features[1][: 6000 - held], logits[: 6000 - held])
    whole.add(features[1], logits)
    matching = [
        ridge for ridge in RIDGES if np.allclose(second.weights, whole.solve(ridge)[0], atol=1e-5)
    ]
    assert len(matching) >= 1
    weights, bias = before.solve(matching[0])
    judged = (features[1][-held // 2 :] @ weights + bias).argmax(axis=1)
    expected = judged == logits[-held // 2 :].argmax(axis=1)
    np.testing.assert_array_equal(learner.judged[1].agrees, expected)
    assert not np.allclose(first.weights, second.weights, atol=1e-7)


def test_judged_on_the_same_rows_one_ramp_is_clearly_better_or_not() -> None:
    features, logits = two_positions(2000)
    learner = trainer()
    learner.add(features, logits)
    ramps = learner.train()
    poor, good = learner.judged
    assert good.clearly_better(poor)
    assert not poor.clearly_better(good)
    assert not good.clearly_better(good)
    assert good.agreement == ramps[1].agreement
    learner.add([feature[:256] for feature in features], logits[:256])
    assert learner.judge(ramps[1]).agreement > 0.97


def test_the_share_that_may_leave_holds_the_loss() -> None:
    uncertainty = np.array([0.5, 0.1, 0.2, 0.9, 0.3])
    agrees = np.array([True, True, False, False, True])
    judged = JudgedRows(uncertainty, agrees)
    assert judged.leaving(0.0) == pytest.approx(0.2)
    assert judged.leaving(0.2) == pytest.approx(0.8)
    assert judged.leaving(1.0) == 1.0
    assert JudgedRows(uncertainty, ~agrees).leaving(0.0) == 0.0


def test_too_few_rows_are_refused_with_how_many_are_wanted() -> None:
    learner = trainer()
    with pytest.raises(ExitError, match="ramps need at least 256 rows, got 0"):
        learner.train()
    features, logits = two_positions(LEAST_ROWS - 1)
    learner.add(features, logits)
    with pytest.raises(ExitError, match="ramps need at least 256 rows, got 255"):
        learner.train()
    learner.add([feature[:1] for feature in features], logits[:1])
    assert len(learner.train()) == 2


def test_one_class_is_refused() -> None:
    features, logits = two_positions(400)
    logits[:, 2] = 100.0
    learner = trainer()
    learner.add(features, logits)
    with pytest.raises(
        ExitError, match=r"the model answers the first 400 rows equally \(class 2\)"
    ):
        learner.train()
    with pytest.raises(ExitError, match="the model has only one class"):
        trainer().add(features, logits[:, :1])


@pytest.mark.parametrize(
    ("where", "named"), [(0, "tensor 't0'"), (1, "tensor 't1'"), (2, "logits")]
)
def test_values_that_are_not_finite_are_refused_and_named(where: int, named: str) -> None:
    features, logits = two_positions(400)
    arrays = [*features, logits]
    arrays[where] = arrays[where].copy()
    arrays[where][::5] = np.nan
    learner = trainer()
    learner.add(arrays[:2], arrays[2])
    with pytest.raises(ExitError, match=f"{named} has NaN or infinite values in 80 of 400"):
        learner.train()


def test_a_few_rows_that_are_not_finite_do_not_spoil_the_others() -> None:
    features, logits = two_positions(1000)
    spoiled = [features[0].copy(), features[1].copy()]
    spoiled[1][10] = np.inf
    learner = trainer()
    learner.add(spoiled, logits)
    assert learner.rows == 999
    assert learner.train()[1].agreement > 0.9


def test_features_of_another_size_are_refused_and_nothing_is_disturbed() -> None:
    features, logits = two_positions(400)
    learner = trainer()
    learner.add(features, logits)
    for wrong in (
        [features[0]],
        [features[1], features[0]],
        [features[0], features[1][:, :, None]],
    ):
        with pytest.raises(ExitError, match=r"expected features of 2|expected sizes"):
            learner.add(wrong, logits)
    assert learner.rows == 400
    with pytest.raises(ExitError, match="MiB of sums"):
        trainer(1).add([np.zeros((1, 20_000))], np.zeros((1, 2)))
