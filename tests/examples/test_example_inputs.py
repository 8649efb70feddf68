"""The generators of inputs: seeded, shaped as the models want, varied as they claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktide.examples import MODELS, ExamplesError, Samples, make_inputs
from slacktide.examples.frames import SIZE, frames
from slacktide.examples.sentences import (
    CLS,
    LONGEST,
    PAD,
    SHORTEST,
    TOPICS,
    UNKNOWN,
    VOCABULARY,
    encode,
    texts,
)


def same(a: Samples, b: Samples) -> bool:
    """Whether two sets of samples hold the same requests and labels."""
    if (a.labels is None) != (b.labels is None) or not np.array_equal(a.labels, b.labels):
        return False
    return all(
        x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x)
        for x, y in zip(a.requests, b.requests, strict=True)
    )


@pytest.mark.parametrize("name", MODELS)
def test_inputs_follow_from_the_seed(name: str) -> None:
    once, again, other = (make_inputs(name, 6, seed) for seed in (1, 1, 2))
    assert same(once, again)
    key = next(iter(once.requests[0]))
    assert not np.array_equal(once.requests[0][key], other.requests[0][key])


@pytest.mark.parametrize("name", ["mlp", "residual", "text", "vehicles"])
def test_every_class_appears_equally_often(name: str) -> None:
    classes = len(MODELS[name].classes)
    labels = make_inputs(name, 3 * classes, seed=3).labels
    assert labels is not None
    assert np.bincount(labels).tolist() == [3] * classes


@pytest.mark.parametrize("name", MODELS)
def test_samples_survive_a_file_with_their_own_shapes(name: str, tmp_path: Path) -> None:
    samples = make_inputs(name, 5, seed=4)
    samples.write(tmp_path / "samples.npz")
    assert same(Samples.read(tmp_path / "samples.npz"), samples)


def test_an_empty_batch_or_count_is_refused() -> None:
    with pytest.raises(ValueError, match="no requests"):
        make_inputs("mlp", 2, seed=0).batch(2)
    with pytest.raises(ValueError, match="at least 1"):
        make_inputs("mlp", 0, seed=0)


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ExamplesError, match="did you mean 'residual'"):
        make_inputs("residul", 1, seed=0)


@settings(max_examples=10)
@given(seed=st.integers(0, 2**32))
def test_texts_are_in_bounds_and_readable(seed: int) -> None:
    ids, labels = texts(16, np.random.default_rng(seed))
    assert all(SHORTEST <= len(row) <= LONGEST for row in ids)
    assert all(row[0] == CLS and not np.isin(row, (PAD, UNKNOWN)).any() for row in ids)
    assert all(np.array_equal(encode(" ".join(VOCABULARY[i] for i in row[1:])), row) for row in ids)
    assert set(labels) <= set(range(len(TOPICS)))


def test_text_lengths_are_very_unequal() -> None:
    lengths = [len(row) for row in texts(400, np.random.default_rng(5))[0]]
    short, long = np.quantile(lengths, [0.1, 0.9])
    assert long / short > 8


def test_words_outside_the_vocabulary_become_unknown() -> None:
    assert encode("The xylophone, rained.").tolist() == [
        CLS,
        VOCABULARY.index("the"),
        UNKNOWN,
        VOCABULARY.index(","),
        VOCABULARY.index("rained"),
        VOCABULARY.index("."),
    ]


def test_frames_come_by_day_and_by_night() -> None:
    pictures, _ = frames(40, np.random.default_rng(6))
    assert pictures.shape == (40, 3, SIZE, SIZE)
    assert pictures.dtype == np.uint8
    brightness = pictures.mean((1, 2, 3))
    assert brightness.min() < 40
    assert brightness.max() > 90
