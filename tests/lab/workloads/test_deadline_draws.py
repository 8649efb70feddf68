"""Deadlines: drawn values stay in their range and follow their weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from slacktide.lab.workloads import Deadlines, Fixed, Mix, WorkloadError
from slacktide.lab.workloads.deadlines import Uniform


def test_fixed_is_the_same_for_all() -> None:
    assert Fixed(0.05).draw(3, np.random.default_rng(0)).tolist() == [0.05] * 3


def test_mix_follows_its_weights() -> None:
    mix = Mix((0.01, 0.1), (3.0, 1.0))
    drawn = mix.draw(20_000, np.random.default_rng(0))
    assert set(drawn.tolist()) == {0.01, 0.1}
    assert np.mean(drawn == 0.01) == pytest.approx(0.75, abs=0.02)


def test_mix_is_even_without_weights() -> None:
    drawn = Mix((1.0, 2.0, 3.0)).draw(30_000, np.random.default_rng(0))
    assert np.mean(drawn == 2.0) == pytest.approx(1 / 3, abs=0.02)


def test_uniform_stays_in_its_range() -> None:
    drawn = Uniform(0.02, 0.2).draw(5000, np.random.default_rng(0))
    assert drawn.min() >= 0.02
    assert drawn.max() <= 0.2
    assert drawn.mean() == pytest.approx(0.11, abs=0.005)


@pytest.mark.parametrize("source", [Mix((0.01, 0.1), (3.0, 1.0)), Uniform(0.02, 0.2), Fixed(1.0)])
def test_draws_one_after_another_are_those_of_one_draw(source: Deadlines) -> None:
    generator = np.random.default_rng(7)
    parts = [source.draw(count, generator) for count in (3, 0, 1_000, 24)]
    whole = source.draw(1_027, np.random.default_rng(7))
    assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Fixed(0.0), "deadline"),
        (lambda: Mix(()), "deadline"),
        (lambda: Mix((0.1, -0.1)), "deadline"),
        (lambda: Mix((0.1,), (1.0, 2.0)), "weights"),
        (lambda: Mix((0.1,), (0.0,)), "weights"),
        (lambda: Uniform(0.2, 0.1), "high"),
        (lambda: Uniform(0.0, 0.1), "low"),
    ],
)
def test_invalid_fields_are_named(make: Callable[[], object], field: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        make()
    assert caught.value.field == field
