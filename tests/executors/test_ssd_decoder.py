"""Heads of single-shot detectors: anchors, offsets from them, and scores with a background."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.decoders.decoder import make_decoder
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource

ANCHORS = (((16.0, 16.0), (16.0, 8.0)), ((48.0, 48.0),))
SOURCE = DecodeSource(
    "ssd", ("loc", "conf"), confidence=0.3, iou=0.5, max_detections=4, anchors=ANCHORS,
    strides=(8, 32),
)  # fmt: skip
EXTENT = (36, 60)  # 5 × 8 cells of two anchors, 2 × 2 cells of one
WHOLE = np.array([[0.0, 0.0, 60.0, 36.0]])


def anchors() -> list[tuple[float, float, float, float]]:
    """Centre and size of each anchor, one after the other."""
    return [
        ((column + 0.5) * stride, (row + 0.5) * stride, *size)
        for stride, sizes in zip(SOURCE.strides, ANCHORS, strict=True)
        for row in range(-(-EXTENT[0] // stride))
        for column in range(-(-EXTENT[1] // stride))
        for size in sizes
    ]


def head(
    *rows: dict[int, tuple[tuple[float, float, float, float], int, float]], classes: int = 2
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Offsets, and logits; for each row: box (centre and size), class and score by anchor."""
    places = anchors()
    offsets = np.zeros((len(rows), len(places), 4), np.float32)
    scores = np.full((len(rows), len(places), 1 + classes), 1e-6, np.float32)
    scores[:, :, 0] = 1
    for number, row in enumerate(rows):
        for at, ((x, y, width, height), kind, score) in row.items():
            cx, cy, across, down = places[at]
            offsets[number, at, :2] = (x - cx) / across / 0.1, (y - cy) / down / 0.1
            offsets[number, at, 2:] = np.log([width / across, height / down]) / 0.2
            scores[number, at, 0] = 1 - score
            scores[number, at, 1 + kind] = score
    return offsets, np.log(scores)


def decoder(source: DecodeSource = SOURCE, labels: int = 0, **shapes: Any) -> Any:
    count = len(anchors())
    outputs = tuple(
        TensorSpec(name, Datatype.FP32, shape)
        for name, shape in {
            "landms": (-1, count, 10),
            "conf": (-1, count, 3),
            "loc": (-1, count, 4),
            **shapes,
        }.items()
    )
    inputs = (TensorSpec("image", Datatype.FP32, (-1, 3, *EXTENT)),)
    names = [f"class {number}" for number in range(labels)]
    return make_decoder(source, ModelInterface(inputs, outputs, 8), names)


BOXES = {
    3: ((14.0, 6.0, 12.0, 10.0), 1, 0.9),
    27: ((40.0, 12.0, 20.0, 7.0), 0, 0.8),
    82: ((20.0, 24.0, 30.0, 20.0), 1, 0.6),
    5: ((14.5, 6.0, 12.0, 10.0), 1, 0.7),  # hidden by the first
    40: ((50.0, 30.0, 8.0, 8.0), 0, 0.2),  # below the confidence
}


@pytest.mark.parametrize("probabilities", [False, True])
def test_boxes_are_offsets_from_anchors(probabilities: bool) -> None:
    offsets, logits = head(BOXES, {})
    scores = np.exp(logits) / np.exp(logits).sum(2, keepdims=True) if probabilities else logits
    source = DecodeSource(**{**vars_of(SOURCE), "probabilities": probabilities})
    ssd = decoder(source, labels=2)
    assert ssd.reads == (2, 1)
    assert [spec.shape for spec in ssd.outputs] == [(-1, 4, 4), (-1, 4), (-1, 4)]
    arrays = [np.empty(0), scores, offsets]
    boxes, best, classes = ssd.decode(arrays, np.tile(WHOLE, (2, 1)), EXTENT)
    np.testing.assert_allclose(best[0], [0.9, 0.8, 0.6, 0], atol=1e-5)
    assert classes[0].tolist() == [1, 0, 1, -1]
    for place, (x, y, width, height) in enumerate(BOXES[at][0] for at in (3, 27, 82)):
        corners = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
        expected = (corners / np.tile([60, 36], 2)).clip(0, 1)
        np.testing.assert_allclose(boxes[0, place], expected, atol=1e-5)
    assert not best[1].any()


def vars_of(source: DecodeSource) -> dict[str, Any]:
    return {name: getattr(source, name) for name in DecodeSource.__slots__}


def test_wild_numbers_give_no_boxes() -> None:
    offsets, logits = head(BOXES)
    offsets[0, [3, 27, 82, 5]] = np.array([np.nan, np.inf, 1e9, -1e9])[:, None]
    logits[0, 10], logits[0, 11] = np.nan, np.inf
    with np.errstate(all="raise", under="ignore"):
        boxes, scores, _ = decoder().decode([np.empty(0), logits, offsets], WHOLE, EXTENT)
    assert np.isfinite(boxes).all()
    assert np.count_nonzero(scores) <= 1


def test_scores_of_the_other_kind_are_an_error_at_once() -> None:
    offsets, logits = head(BOXES)
    scores = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    message = "decode.probabilities: expected true, since 'conf' holds probabilities"
    with pytest.raises(ModelError, match=message):
        decoder().decode([np.empty(0), scores, offsets], WHOLE, EXTENT)
    source = DecodeSource(**{**vars_of(SOURCE), "probabilities": True})
    message = "decode.probabilities: expected false, since 'conf' holds no probabilities"
    with pytest.raises(ModelError, match=message):
        decoder(source).decode([np.empty(0), logits, offsets], WHOLE, EXTENT)


@pytest.mark.parametrize(
    ("shapes", "labels", "message"),
    [
        ({"loc": (-1, 84, 5)}, 0, r"decode.from: expected \[rows, anchors, 4\] for 'loc', got"),
        ({"conf": (-1, 84, 1)}, 0, r"decode.from: expected \[rows, anchors, 1 \+ classes\] for"),
        (
            {"loc": (-1, 83, 4)},
            0,
            "decode.anchors: 84 anchors for 36 × 60 pixels, but 'loc' has 83",
        ),
        ({}, 3, "labels: expected 2 names, one for each class of output 'conf', got 3"),
        ({"conf": (-1, 84)}, 0, r"decode.from: expected \[rows, anchors, 1 \+ classes\] for"),
    ],
)
def test_heads_that_do_not_fit_name_the_key(
    shapes: dict[str, Any], labels: int, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        decoder(labels=labels, **shapes)


def test_free_axes_are_checked_as_they_come() -> None:
    ssd = decoder(loc=(-1, -1, -1), conf=(-1, -1, -1))
    offsets, logits = head(BOXES)
    assert np.count_nonzero(ssd.decode([np.empty(0), logits, offsets], WHOLE, EXTENT)[1]) == 3
    with pytest.raises(ModelError, match="9 anchors for 16 × 16 pixels, but"):
        ssd.decode([np.empty(0), logits, offsets], WHOLE, (16, 16))


def test_an_output_that_is_not_there_is_named() -> None:
    source = DecodeSource(**{**vars_of(SOURCE), "outputs": ("loc", "conv")})
    with pytest.raises(ModelError, match=r"decode\.from: the model has no output 'conv'; did you"):
        decoder(source)
