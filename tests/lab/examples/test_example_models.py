"""The example models themselves: interfaces, sizes, accuracy, batching, padding."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from slacktide.lab.examples import MODELS, make_inputs, stories
from slacktide.lab.examples.catalog import example
from slacktide.lab.examples.dense import SEED, dense_model, layer_weights
from slacktide.lab.examples.frames import STREAM_FRAMES, STREAMS, Video
from slacktide.lab.examples.road_users import QUESTIONS

Open = Callable[[str], Any]
Axes = dict[str, tuple[str, list[Any]]]

DETECTIONS: dict[str, tuple[str, list[Any]]] = {
    "boxes": ("tensor(float)", ["batch", 96, 4]),
    "scores": ("tensor(float)", ["batch", 96]),
    "classes": ("tensor(int64)", ["batch", 96]),
}
INTERFACES: dict[str, tuple[Axes, Axes]] = {
    "mlp": (
        {"features": ("tensor(float)", ["batch", 64])},
        {"logits": ("tensor(float)", ["batch", 10])},
    ),
    "residual": (
        {"frames": ("tensor(uint8)", ["batch", 3, 96, 96])},
        {"logits": ("tensor(float)", ["batch", 10])},
    ),
    "text": (
        {
            "input_ids": ("tensor(int64)", ["batch", "tokens"]),
            "attention_mask": ("tensor(int64)", ["batch", "tokens"]),
        },
        {
            "logits": ("tensor(float)", ["batch", 8]),
            "embedding": ("tensor(float)", ["batch", 256]),
        },
    ),
    "chained": (
        {"frames": ("tensor(uint8)", ["batch", 3, 96, 96])},
        {"logits": ("tensor(float)", ["batch", 10])},
    ),
    "whereabouts": (
        {
            "input_ids": ("tensor(int64)", ["batch", "tokens"]),
            "attention_mask": ("tensor(int64)", ["batch", "tokens"]),
        },
        {"logits": ("tensor(float)", ["batch", 8])},
    ),
    "dense": (
        {"features": ("tensor(float)", ["batch", 256])},
        {"scores": ("tensor(float)", ["batch", 100])},
    ),
    "street": (
        {"image": ("tensor(uint8)", ["batch", "height", "width", 3])},
        DETECTIONS,
    ),
    "street_depth": (
        {"image": ("tensor(uint8)", ["batch", "height", "width", 3])},
        {
            **DETECTIONS,
            "depth1/quality": ("tensor(float)", ["batch"]),
            **{f"depth1/{name}": output for name, output in DETECTIONS.items()},
            "depth2/quality": ("tensor(float)", ["batch"]),
            **{f"depth2/{name}": output for name, output in DETECTIONS.items()},
        },
    ),
    "vehicles": (
        {"image": ("tensor(uint8)", ["batch", 96, 96, 3])},
        {"logits": ("tensor(float)", ["batch", 10])},
    ),
    "brand": (
        {"image": ("tensor(uint8)", ["batch", 64, 64, 3])},
        {"logits": ("tensor(float)", ["batch", 10])},
    ),
    "plate": (
        {"image": ("tensor(uint8)", ["batch", 64, "width", 3])},
        {"logits": ("tensor(float)", ["batch", 4, 20])},
    ),
    "clothing": (
        {"image": ("tensor(uint8)", ["batch", 48, 48, 3])},
        {"logits": ("tensor(float)", ["batch", 8])},
    ),
    "direction": (
        {"image": ("tensor(uint8)", ["batch", 48, 48, 3])},
        {"logits": ("tensor(float)", ["batch", 2])},
    ),
}
FLOORS = {
    "mlp": 0.93,
    "residual": 0.9,
    "text": 0.93,
    "chained": 0.9,
    "whereabouts": 0.82,
    "vehicles": 0.93,
    "brand": 0.9,
    "clothing": 0.95,
    "direction": 0.95,
}

PLATES = 0.85
"""Of which all four characters are to be right."""


@pytest.mark.parametrize("name", MODELS)
def test_interface_is_as_documented(name: str, open_session: Open) -> None:
    session = open_session(name)
    inputs = {i.name: (i.type, i.shape) for i in session.get_inputs()}
    outputs = {o.name: (o.type, o.shape) for o in session.get_outputs()}
    assert (inputs, outputs) == INTERFACES[name]


@pytest.mark.parametrize("name", MODELS)
def test_file_describes_itself_and_suits_older_runtimes(name: str) -> None:
    for content in example(name).onnx_files().values():
        model = onnx.load_from_string(content)
        described = {entry.key: entry.value for entry in model.metadata_props}
        assert described["description"] == model.doc_string
        assert [o.version for o in model.opset_import if o.domain == ""] <= [18]
        if example(name).classes:
            assert tuple(described["classes"].split(",")) == example(name).classes


def test_shipped_files_stay_small() -> None:
    folder = resources.files("slacktide.lab.examples") / "models"
    sizes = [len(file.read_bytes()) for model in folder.iterdir() for file in model.iterdir()]
    assert max(sizes) < 5e6
    assert sum(sizes) < 20e6
    assert all(
        len(example(name).onnx()) < 2e6 for name in ("chained", "whereabouts", "street_depth")
    )
    assert max(map(len, example("vehicles").onnx_files().values())) < 1e6
    assert all(len(example(name).onnx()) < 300_000 for name in QUESTIONS if name in MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_answers_as_its_rows_alone(name: str, open_session: Open) -> None:
    """For texts and stories this is also: padding with a mask changes nothing."""
    session = open_session(name)
    samples = make_inputs(name, 5, seed=11)
    together = session.run(None, samples.batch())
    for i, request in enumerate(samples.requests):
        alone = session.run(None, dict(request))
        for batched, single in zip(together, alone, strict=True):
            np.testing.assert_allclose(batched[i : i + 1], single, atol=1e-4)


@pytest.mark.parametrize("name", ["text", "whereabouts"])
def test_text_padded_far_beyond_its_end_answers_the_same(name: str, open_session: Open) -> None:
    session = open_session(name)
    request = make_inputs(name, 1, seed=12).requests[0]
    padded = {name: np.pad(value, ((0, 0), (0, 300))) for name, value in request.items()}
    # What stands in the padding must not matter either.
    padded["input_ids"][:, -300:] = 9
    padded = {name: value[:, :512] for name, value in padded.items()}
    for short, long in zip(
        session.run(None, dict(request)), session.run(None, padded), strict=True
    ):
        np.testing.assert_allclose(short, long, atol=1e-4)


@pytest.mark.parametrize("name", FLOORS)
@pytest.mark.slow
def test_accuracy_on_inputs_never_trained_on(name: str, open_session: Open) -> None:
    samples = make_inputs(name, 200, seed=13)
    answers = [
        open_session(name).run(["logits"], dict(request))[0].argmax()
        for request in samples.requests
    ]
    assert np.mean(np.array(answers) == samples.labels) >= FLOORS[name]


def test_plates_are_read_whole_and_padding_says_nothing(open_session: Open) -> None:
    session, right = open_session("plate"), []
    samples = make_inputs("plate", 150, seed=13)
    assert samples.labels is not None
    for request, label in zip(samples.requests, samples.labels, strict=True):
        (logits,) = session.run(["logits"], dict(request))
        right.append(logits[0].argmax(-1) == label)
    assert np.all(right, axis=1).mean() >= PLATES
    padded = np.pad(samples.requests[0]["image"], ((0, 0), (0, 0), (0, 37), (0, 0)))
    (alone,) = session.run(["logits"], dict(samples.requests[0]))
    np.testing.assert_allclose(session.run(["logits"], {"image": padded})[0], alone, atol=1e-4)


@cache
def drawn(stream: str) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Pictures from all over a stream, and their labels."""
    video = Video(STREAMS[stream])
    frames = [video.frame(number) for number in range(50, STREAM_FRAMES, 480)]
    return np.stack([frame for frame, _ in frames]), [label for _, label in frames]


@pytest.mark.parametrize("name", ["residual", "chained"])
@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(stream, marks=() if stream in ("day", "night") else pytest.mark.slow)
        for stream in STREAMS
    ],
)
def test_classifiers_of_frames_name_what_they_see_in_streams(
    name: str, stream: str, open_session: Open
) -> None:
    """Where a road user is half in the frame, or half out, either answer would be fair."""
    pictures, labels = drawn(stream)
    (logits,) = open_session(name).run(["logits"], {"frames": pictures})
    assert np.mean(logits.argmax(1) == labels) >= 0.75


def test_the_order_of_sentences_decides_where_a_thing_is(open_session: Open) -> None:
    """The same words, told backwards, have another answer: no bag of words could give both."""
    right = []
    for row in stories.stories(100, np.random.default_rng(16), mix=(0, 0, 1, 0))[0]:
        *story, question = " ".join(stories.VOCABULARY[i] for i in row[1:]).split(" . ")
        thing = question.split()[3]
        for sentences in (story, story[::-1]):
            *_, last = [
                sentence.split()[-1] for sentence in sentences if f"put the {thing}" in sentence
            ]
            ids = stories.encode(" . ".join([*sentences, question]))[None]
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            (logits,) = open_session("whereabouts").run(None, feed)
            right.append(stories.PLACES[logits.argmax()] == last)
    assert np.mean(right) > 0.75


@pytest.mark.slow
def test_deeper_files_of_the_family_are_more_accurate_and_take_the_same() -> None:
    assert [*example("vehicles").onnx_files()] == [f"depth{depth}.onnx" for depth in range(1, 6)]
    samples = make_inputs("vehicles", 600, seed=15)
    batch, right, interfaces = samples.batch(), [], []
    for content in example("vehicles").onnx_files().values():
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        nodes = [*session.get_inputs(), *session.get_outputs()]
        interfaces.append([(node.name, node.type, node.shape) for node in nodes])
        (logits,) = session.run(["logits"], batch)
        right.append(np.mean(logits.argmax(1) == samples.labels))
    assert interfaces == interfaces[:1] * 5
    assert 0.7 < right[0] < right[1] < right[2] < min(right[3:])


def test_dense_weights_follow_from_the_seed_alone() -> None:
    digest = hashlib.sha256()
    for weight in layer_weights(SEED):
        digest.update(weight.tobytes())
    assert digest.hexdigest() == "0c4d5c72d48177195cd4479956fd63808e4e2c57a9292e5cfbae5e6c4f907cfa"
    assert not np.array_equal(layer_weights(SEED + 1)[0], layer_weights(SEED)[0])


def test_dense_scores_are_finite_and_differ_by_row(open_session: Open) -> None:
    (scores,) = open_session("dense").run(None, make_inputs("dense", 4, seed=14).batch())
    assert np.isfinite(scores).all()
    assert 0.1 < scores.std() < 10
    assert len(np.unique(scores, axis=0)) == 4


@pytest.mark.slow
def test_dense_file_is_tens_of_megabytes_and_the_same_each_time() -> None:
    content = dense_model()
    assert 64e6 < len(content) < 100e6
    assert hashlib.sha256(content).digest() == hashlib.sha256(dense_model()).digest()
