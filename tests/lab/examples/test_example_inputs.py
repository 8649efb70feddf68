"""The generators of inputs: seeded, shaped as the models want, varied as they claim."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from slacktide.lab.examples import (
    MODELS,
    ExamplesError,
    Samples,
    make_inputs,
    make_stream,
    stories,
)
from slacktide.lab.examples.frames import (
    HOUR_FRAMES,
    HOURS,
    KINDS,
    SIZE,
    STREAM_FRAMES,
    STREAMS,
    Video,
    frames,
    video,
)
from slacktide.lab.examples.sentences import (
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
from slacktide.lab.examples.stories import LEVELS, PLACES, story
from slacktide.lab.examples.text_streams import text_stream


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
    once, again, reseeded = (make_inputs(name, 6, seed) for seed in (1, 1, 2))
    assert same(once, again)
    key = next(iter(once.requests[0]))
    assert not np.array_equal(once.requests[0][key], reseeded.requests[0][key])


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


_VIDEOS = {name: Video(conditions) for name, conditions in STREAMS.items()}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_the_same_in_any_order_and_hardly_changes_between_frames(name: str) -> None:
    (first, label), (second, _) = video(name, 9_001, 9_003)
    assert (first.shape, first.dtype) == ((3, SIZE, SIZE), np.uint8)
    far, _ = _VIDEOS[name].frame(20_000)
    again, same_label = _VIDEOS[name].frame(9_001)
    assert np.array_equal(again, first)
    assert same_label == label
    near, apart = (np.abs(first.astype(int) - picture).mean() for picture in (second, far))
    assert 0 < near < apart


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "day" else pytest.mark.slow) for name in STREAMS],
)
def test_road_users_of_most_kinds_come_and_go_in_a_stream(name: str) -> None:
    labels = [_VIDEOS[name].frame(number)[1] for number in range(0, STREAM_FRAMES, 90)]
    assert len(set(labels)) >= 7
    assert 0.2 < labels.count(0) / len(labels) < 0.6
    assert labels.count(KINDS.index("car")) > 0.15 * len(labels)
    ten_seconds = [label for _, label in video(name, 600, 900)]
    assert 2 <= sum(a != b for a, b in itertools.pairwise(ten_seconds)) <= 12


def test_light_and_fog_of_a_stream_move_as_stated() -> None:
    brightness = [float(_VIDEOS["dusk"].frame(i)[0].mean()) for i in range(0, STREAM_FRAMES, 4_000)]
    assert brightness[0] > 2 * brightness[-1]
    clear, foggy = (_VIDEOS["fog_rolling_in"].frame(i)[0] for i in (0, STREAM_FRAMES - 1))
    assert clear.std() > 1.3 * foggy.std()


def test_a_stream_of_an_hour_changes_its_light_over_the_hour() -> None:
    dusk = Video(HOURS["long_dusk"])
    brightness = [float(dusk.frame(i)[0].mean()) for i in (0, STREAM_FRAMES, HOUR_FRAMES - 1)]
    assert brightness[0] > brightness[1] > 1.5 * brightness[2]


def test_a_stream_there_is_none_of_or_a_frame_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="no stream is called 'noon'"):
        next(video("noon"))
    with pytest.raises(ValueError, match="frames 0 to 28799"):
        Video(STREAMS["day"]).frame(STREAM_FRAMES)


@pytest.mark.parametrize(
    ("model", "name"), [(m, s) for m, model in MODELS.items() for s in model.streams]
)
def test_a_stream_of_a_model_is_drawn_from_any_number(model: str, name: str) -> None:
    (_, _), (second, label), (third, _) = make_stream(model, name, 400, 403)
    again, same_label = next(make_stream(model, name, 401))
    assert second.keys() == again.keys() == make_inputs(model, 1, seed=0).requests[0].keys()
    assert all(np.array_equal(second[key], again[key]) for key in second)
    assert label == same_label
    assert 0 <= label < len(MODELS[model].classes)
    assert any(not np.array_equal(second[key], third[key]) for key in second)


def test_an_unknown_stream_is_refused_by_name() -> None:
    with pytest.raises(ExamplesError, match="text has no stream called 'day'"):
        make_stream("text", "day")
    with pytest.raises(ExamplesError, match="mlp has no stream called 'day'"):
        make_stream("mlp", "day")
    with pytest.raises(ValueError, match="no stream is called 'day'"):
        next(text_stream("day"))


def test_streams_of_texts_change_their_topics_slowly_or_at_once() -> None:
    def shares(name: str, start: int) -> NDArray[np.float64]:
        labels = [label for _, label in text_stream(name, start, start + 200)]
        return np.bincount(labels, minlength=len(TOPICS)) / 200

    def change(name: str, a: int, b: int) -> float:
        return float(np.abs(shares(name, a) - shares(name, b)).sum() / 2)

    assert change("breaking", 2_300, 2_500) > 2 * change("breaking", 2_100, 2_300)
    assert change("drifting", 0, 200) < 0.25 < 0.4 < change("drifting", 0, 5_000)


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), label=st.integers(0, len(PLACES) - 1))
def test_stories_can_be_followed_to_their_answer(level: str, seed: int, label: int) -> None:
    text = story(label, level, np.random.default_rng(seed))
    sentences = [sentence.split() for sentence in text.replace("?", ".").split(" . ")]
    thing = sentences[-1][3]
    place, carrier = "", ""
    for words in sentences[:-1]:
        if words[1] == "put" and words[3] == thing:
            place, carrier = words[-1], ""
        elif words[1:] == ["took", "the", thing]:
            carrier = words[0]
        elif words[1] == "went" and words[0] == carrier:
            place = words[-1]
    assert place == PLACES[label]
    assert len(stories.encode(text)) <= stories.LONGEST
    named = sum(text.count(f"the {place}") for place in PLACES)
    assert named == 1 if level == "plain" else named >= 1


def test_words_outside_the_vocabulary_of_stories_become_unknown() -> None:
    assert stories.encode("Zoe took the key.")[1] == UNKNOWN
    assert not (stories.encode("where is the key ?") == UNKNOWN).any()


def test_stories_come_in_all_places_and_very_unequal_lengths() -> None:
    ids, labels = stories.stories(400, np.random.default_rng(8))
    assert np.bincount(labels).tolist() == [50] * len(PLACES)
    short, long = np.quantile([len(row) for row in ids], [0.1, 0.9])
    assert long / short > 4
