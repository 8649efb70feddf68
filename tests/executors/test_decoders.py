"""Decoders: raw heads in, boxes and classes out, against loops that do one thing at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.decoders.decoder import make_decoder as decoder_of
from slacktide.executors.decoders.heads import extent_of
from slacktide.executors.functions import FunctionError
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource, FunctionSource

YOLO = DecodeSource("yolo", confidence=0.3, iou=0.5, max_detections=6)
WHOLE = np.array([[0.0, 0.0, 64.0, 64.0]])


def spec(*shape: int, name: str = "output0", datatype: Datatype = Datatype.FP32) -> TensorSpec:
    return TensorSpec(name, datatype, shape)


def make_decoder(source: DecodeSource, outputs: list[TensorSpec], labels: int | None) -> Any:
    names = [f"class {number}" for number in range(labels or 0)]
    return decoder_of(source, ModelInterface((), tuple(outputs), 8), names)


def head_8(*rows: list[tuple[float, ...]], classes: int, anchors: int) -> NDArray[np.float32]:
    """A head of version 8 with a candidate for each (x, y, width, height, class, score)."""
    raw = np.zeros((len(rows), 4 + classes, anchors), np.float32)
    for number, row in enumerate(rows):
        for place, (x, y, width, height, kind, score) in enumerate(row):
            raw[number, :4, place] = x, y, width, height
            raw[number, 4 + int(kind), place] = score
    return raw


def as_version_5(raw: NDArray[np.float32]) -> NDArray[np.float32]:
    """A head of version 5 with these candidates."""
    scores = raw[:, 4:].max(1, keepdims=True)
    objects = np.sqrt(scores)
    with np.errstate(invalid="ignore", divide="ignore"):
        classes = np.where(objects > 0, raw[:, 4:] / objects, 0)
    candidates = np.concatenate((raw[:, :4], objects, classes), axis=1).swapaxes(1, 2)
    return np.pad(candidates, ((0, 0), (0, 2 * raw.shape[2]), (0, 0)))  # three for each cell


CANDIDATES = [
    (20, 20, 20, 20, 0, 0.9),
    (21, 20, 20, 20, 0, 0.8),  # hidden by the first
    (21, 20, 20, 20, 1, 0.7),  # of another class
    (50, 50, 10, 20, 1, 0.5),
    (10, 50, 10, 10, 0, 0.2),  # below the confidence
]


def decoded(source: DecodeSource, raw: NDArray[Any], placements: Any = WHOLE) -> list[Any]:
    decoder = make_decoder(source, [spec(-1, *raw.shape[1:])], None)
    arrays = decoder.decode([raw], np.asarray(placements), (64, 64))
    for array, declared in zip(arrays, decoder.outputs, strict=True):
        assert array.dtype == declared.datatype.dtype
        assert array.shape == (len(raw), *declared.shape[1:])
    return arrays


@pytest.mark.parametrize("version", [8, 5])
def test_both_heads_give_the_best_boxes_first(version: int) -> None:
    raw = head_8(CANDIDATES, classes=2, anchors=84)
    boxes, scores, classes = decoded(YOLO, raw if version == 8 else as_version_5(raw))
    np.testing.assert_allclose(scores[0], [0.9, 0.7, 0.5, 0, 0, 0], rtol=1e-6)
    assert classes[0].tolist() == [0, 1, 1, -1, -1, -1]
    np.testing.assert_allclose(boxes[0, 0], np.array([10, 10, 30, 30]) / 64, rtol=1e-6)
    assert not boxes[0, 3:].any()


def test_boxes_of_all_classes_suppress_each_other_where_that_is_stated() -> None:
    raw = head_8(CANDIDATES, classes=2, anchors=84)
    source = DecodeSource("yolo", confidence=0.3, iou=0.5, per_class=False)
    _, scores, classes = decoded(source, raw)
    assert classes[0, :3].tolist() == [0, 1, -1]
    assert (scores[0, 2:] == 0).all()


def test_classes_and_the_number_of_boxes_can_be_limited() -> None:
    raw = head_8(CANDIDATES, classes=2, anchors=84)
    source = DecodeSource("yolo", confidence=0.1, iou=0.5, classes=(1,), max_detections=1)
    boxes, scores, classes = decoded(source, raw)
    assert boxes.shape == (1, 1, 4)
    assert (round(float(scores[0, 0]), 3), int(classes[0, 0])) == (0.7, 1)


def test_boxes_are_fractions_of_the_picture_and_not_of_its_margins() -> None:
    raw = head_8([(32, 32, 64, 32, 0, 0.9), (32, 4, 10, 6, 0, 0.8)], classes=2, anchors=84)
    boxes, scores, _ = decoded(YOLO, raw, [[0, 16, 64, 32]])  # 16:9 or so, with bars
    np.testing.assert_allclose(boxes[0, 0], [0, 0, 1, 1])
    assert scores[0, 1] == 0, "a box in the margin alone is none"
    boxes, *_ = decoded(YOLO, raw, [[-64, 0, 192, 64]])  # a picture cut off on both sides
    np.testing.assert_allclose(boxes[0, 0], [1 / 3, 0.25, 2 / 3, 0.75], rtol=1e-6)


def test_wild_numbers_give_no_boxes() -> None:
    raw = head_8(CANDIDATES[:1], classes=2, anchors=84)
    for place, value in enumerate((np.nan, np.inf, -np.inf), 1):
        raw[0, :4, place], raw[0, 4, place] = value, 0.9
        raw[0, :4, place + 3], raw[0, 4, place + 3] = 20, value
    raw[0, :4, 7], raw[0, 4, 7] = (20, 20, -5, 5), 0.9
    with np.errstate(all="raise"):
        _, scores, _ = decoded(YOLO, raw)
    assert np.count_nonzero(scores) <= 2
    assert np.isfinite(scores[scores < 2]).all()


Box = tuple[float, float, float, float]


def overlap(left: Box, right: Box) -> float:
    width = min(left[2], right[2]) - max(left[0], right[0])
    height = min(left[3], right[3]) - max(left[1], right[1])
    shared = max(width, 0.0) * max(height, 0.0)
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (left, right))
    return shared / (areas - shared)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.booleans(), st.floats(0.05, 0.95))
def test_a_batch_is_decoded_as_a_loop_over_rows_and_boxes_does(
    seed: int, rows: int, per_class: bool, iou: float
) -> None:
    generator = np.random.default_rng(seed)
    raw = np.zeros((rows, 7, 300), np.float32)
    raw[:, :2] = generator.uniform(10, 54, (rows, 2, 300))
    raw[:, 2:4] = generator.uniform(4, 20, (rows, 2, 300))
    raw[:, 4:] = generator.random((rows, 3, 300))
    source = DecodeSource("yolo", confidence=0.8, iou=iou, max_detections=40, per_class=per_class)
    whole = decoded(source, raw, np.tile(WHOLE, (rows, 1)))
    for row in range(rows):
        best = raw[row, 4:].max(axis=0)
        remaining = [at for at in range(300) if best[at] >= np.float32(0.8)]
        remaining.sort(key=lambda at: -best[at])
        expected: list[tuple[Box, float, int]] = []
        for at in remaining:
            x, y, width, height = raw[row, :4, at].tolist()
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            kind = int(raw[row, 4:, at].argmax())
            rivals = [other for other, _, same in expected if same == kind or not per_class]
            overlaps = [overlap(other, box) for other in rivals]
            if any(abs(share - iou) < 1e-5 for share in overlaps):
                return  # rounding decides
            if all(share <= iou for share in overlaps):
                expected.append((box, float(best[at]), kind))
        expected = expected[:40]
        boxes, scores, classes = (array[row] for array in whole)
        assert np.count_nonzero(scores) == len(expected)
        for place, (box, score, kind) in enumerate(expected):
            np.testing.assert_allclose(boxes[place], (np.array(box) / 64).clip(0, 1), atol=1e-5)
            assert (scores[place], classes[place]) == (np.float32(score), kind)


@pytest.mark.parametrize(
    ("shape", "labels", "extent", "version"),
    [
        ((84, 8400), None, (640, 640), "v8"),
        ((25200, 85), None, (640, 640), "v5"),
        ((84, 21), 80, (32, 32), "v8"),
        ((63, 85), None, (32, 32), "v5"),
        ((84, 84), 79, (0, 0), "v5"),
        ((84, 84), 80, (0, 0), "v8"),
        ((84, 84), None, (64, 64), "v8"),
    ],
)
def test_the_head_is_told_by_its_shape_and_labels(
    shape: tuple[int, int], labels: int | None, extent: tuple[int, int], version: str
) -> None:
    decoder = make_decoder(YOLO, [spec(-1, -1, -1)], labels)
    decoder.decode([np.zeros((1, *shape), np.float32)], WHOLE, extent)
    assert [*decoder._versions.values()] == [version]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1, 84, 84), r"^decode\.version: expected v5 or v8, since both fit 'output0', "),
        ((-1, 300, 6), r"^decode\.as: expected the head of a yolo, .* got \[-1, 300, 6\]"),
        ((-1, 8400, 85), r"^decode\.as: expected the head of a yolo"),  # undecoded, as of YOLOX
    ],
)
def test_heads_that_are_not_told_apart_name_the_key(shape: Any, message: str) -> None:
    decoder = make_decoder(YOLO, [spec(-1, -1, -1)], None)
    raw = np.zeros((1, *shape[1:]), np.float32)
    with pytest.raises(ModelError, match=message):
        decoder.decode([raw], WHOLE, (640, 640))


@pytest.mark.parametrize(
    ("source", "outputs", "labels", "message"),
    [
        (YOLO, [spec(-1, 1000)], None, r"^decode\.as: .* got \[-1, 1000\] of 'output0'"),
        (YOLO, [spec(-1, 3, 20)], None, r"^decode\.as: "),
        (YOLO, [spec(-1, 84, 8400)], 79, r"^labels: expected 80 names, .*'output0', got 79"),
        (
            DecodeSource("yolo", ("x",)),
            [spec(-1, 84, 99)],
            None,
            r"^decode\.from: .* no output 'x'",
        ),
        (DecodeSource("yolo", version="v5"), [spec(-1, 84, 4)], None, r"v?5 \+ classes\], got"),
        (DecodeSource("softmax"), [spec(-1, 84, 8400)], None, r"^decode\.as: .* \[rows, classes\]"),
        (DecodeSource("softmax"), [spec(-1, 10)], 11, r"^labels: expected 10 names"),
        (DecodeSource("softmax"), [spec(-1, 9), spec(-1, 7, name="b")], None, r"^decode\.from: "),
        (
            DecodeSource("sigmoid"),
            [spec(-1, 9, datatype=Datatype.INT64)],
            None,
            r"^decode\.from: expected an output of floats, 'output0' is INT64 \[-1, 9\]",
        ),
    ],
)
def test_a_decoder_for_another_head_is_refused(
    source: DecodeSource, outputs: list[TensorSpec], labels: int | None, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        make_decoder(source, outputs, labels)


LOGITS = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(0, 5, (3, 40)).astype(np.float32)
)


@given(LOGITS, st.integers(1, 45), st.sampled_from(["softmax", "sigmoid"]), st.booleans())
def test_classes_come_best_first(
    logits: NDArray[np.float32], top: int, name: str, probabilities: bool
) -> None:
    source = DecodeSource(name, top=top, probabilities=probabilities)
    decoder = make_decoder(source, [spec(-1, 40, 1, 1)], 40)
    before = logits.copy()
    scores, classes = decoder.decode([logits.reshape(3, 40, 1, 1)], WHOLE, (0, 0))
    assert (logits == before).all(), "the model's outputs are not written to"
    assert scores.shape == classes.shape == (3, min(top, 40))
    expected = logits.astype(float)
    if not probabilities and name == "softmax":
        expected = np.exp(expected) / np.exp(expected).sum(1, keepdims=True)
    elif not probabilities:
        expected = 1 / (1 + np.exp(-expected))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :top]
    assert (classes == order).all()
    np.testing.assert_allclose(scores, np.take_along_axis(expected, order, 1), rtol=1e-5)


def test_of_equal_scores_the_first_class_comes_first() -> None:
    for top in (3, 20):
        decoder = make_decoder(DecodeSource("softmax", top=top), [spec(-1, 30)], None)
        _, classes = decoder.decode([np.zeros((1, 30), np.float16)], WHOLE, (0, 0))
        assert classes[0].tolist() == [*range(top)]


def test_the_shape_of_answers_is_known_where_that_of_the_head_is() -> None:
    def shapes(*shape: int, labels: int | None = None) -> list[tuple[int, ...]]:
        decoder = make_decoder(DecodeSource("softmax", top=5), [spec(*shape)], labels)
        return [declared.shape for declared in decoder.outputs]

    assert shapes(-1, 3) == [(-1, 3), (-1, 3)]
    assert shapes(1, 1000) == [(1, 5), (1, 5)]
    assert shapes(-1, -1) == [(-1, -1), (-1, -1)]
    assert shapes(-1, -1, labels=2) == [(-1, 2), (-1, 2)]


def halves(arrays: Any, placements: Any, extent: Any) -> Any:
    return arrays[0] / 2, np.full((len(placements), 2), extent, np.int64)


def test_a_function_decodes_the_outputs_that_it_names() -> None:
    results = [
        {"name": "half", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "extent", "datatype": "INT64", "shape": [-1, 2]},
    ]
    interface = {"inputs": [], "outputs": results, "max_batch": 0}
    function = FunctionSource(f"{__name__}:halves", interface)
    outputs = [spec(-1, 9, name="a"), spec(-1, 3, name="b")]
    decoder = make_decoder(DecodeSource("mine", ("b",), function=function), outputs, None)
    arrays = [np.ones((1, 9), np.float32), np.full((1, 3), 4, np.float32)]
    half, extent = decoder.decode(arrays, WHOLE, (20, 30))
    assert half.tolist() == [[2, 2, 2]]
    assert extent.tolist() == [[20, 30]]
    arrays[1] = arrays[1].astype(np.float64)
    with pytest.raises(
        FunctionError, match=r"decoder 'mine' returned float64 \[1, 3\] as 'half', expected"
    ):
        decoder.decode(arrays, WHOLE, (20, 30))
    missing = DecodeSource("mine", function=FunctionSource("nowhere:halves", interface))
    with pytest.raises(ModelError, match=r"^decode\.as: the decoder 'mine' cannot be used: Mod"):
        make_decoder(missing, outputs, None)


def test_the_extent_is_that_of_the_first_picture() -> None:
    assert extent_of([(2, 7)]) == (0, 0)
    assert extent_of([(2, 7), (2, 3, 20, 30), (2, 3, 40, 40)]) == (20, 30)
    assert extent_of([(-1, 20, 30, 3)]) == extent_of([(-1, 1, 20, 30)]) == (20, 30)
    assert extent_of([(-1, 3, -1, -1)]) == (0, 0)
