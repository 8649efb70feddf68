"""Labelled images: what is read, what is refused, and what is made of a variant's answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.accuracy import Boxes
from slacktide.models.labelled_images import (
    DataError,
    LabelledImage,
    VariantAccuracy,
    _bytes_of,
    _scored,
    read_labels,
)

BOX = [0.1, 0.2, 0.3, 0.4]
SPEC = TensorSpec("image", Datatype.UINT8, (-1, -1, -1, 3))


def folder(root: Path, *lines: Any) -> Path:
    (root / "images").mkdir(exist_ok=True)
    np.save(root / "images" / "0.npy", np.zeros((4, 4, 3), np.uint8))
    (root / "images" / "1.jpg").write_bytes(b"\xff\xd8")
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (root / "labels.jsonl").write_text("\n".join(text) + "\n")
    return root


def detected(**more: Any) -> dict[str, Any]:
    return {"image": "images/0.npy", "boxes": [BOX], "classes": [2], **more}


def test_boxes_and_labels_are_read(tmp_path: Path) -> None:
    found = read_labels(folder(tmp_path, detected(), "", detected(boxes=[], classes=[], night=1)))
    assert [each.where for each in found] == ["labels.jsonl line 1", "labels.jsonl line 3"]
    first, second = (each.truth for each in found)
    assert isinstance(first, Boxes)
    assert isinstance(second, Boxes)
    assert first.boxes.tolist() == [BOX]
    assert first.classes.tolist() == [2]
    assert second.boxes.shape == (0, 4)
    (labelled,) = read_labels(folder(tmp_path, {"image": "images/1.jpg", "label": 7}))
    assert labelled.truth == 7


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "labels.jsonl: expected a line for each image, there is none"),
        (["{"], "labels.jsonl line 1: expected a JSON object"),
        (["[" * 100_000], "labels.jsonl line 1: expected a JSON object"),
        (["[]"], "labels.jsonl line 1: expected a JSON object with the path of an 'image'"),
        ([{"label": 1}], "labels.jsonl line 1: expected a JSON object with the path of an 'image'"),
        ([detected(image="images/0.png")], "line 1: image: expected a .jpg or .npy file, got 'im"),
        ([detected(image="images/9.npy")], "image: there is no file 'images/9.npy' in the folder"),
        ([detected(image="../out.npy")], "image: there is no file '../out.npy' in the folder"),
        ([detected(image="link.npy")], "image: there is no file 'link.npy' in the folder"),
        ([detected(image="a\0b.npy")], "image: expected the path of a file"),
        ([{"image": "images/0.npy"}], "expected 'label', or the lists 'boxes' and 'classes'"),
        ([{"image": "images/0.npy", "label": -1}], "label: expected a whole number from 0, got -1"),
        ([{"image": "images/0.npy", "label": True}], "label: expected a whole number from 0"),
        ([{"image": "images/0.npy", "label": 1.0}], "label: expected a whole number from 0"),
        ([detected(classes=[])], "expected a class for each of 4096 boxes at most: 1 boxes and 0"),
        ([detected(boxes=[BOX] * 5000, classes=[0] * 5000)], "at most: 5000 boxes"),
        ([detected(), detected(boxes=[[1, 2, 3]])], "line 2: boxes[0]: expected [left, top, right"),
        ([detected(boxes=[[0.3, 0.2, 0.1, 0.4]])], "boxes[0]: expected [left, top, right, bottom]"),
        ([detected(boxes=[[0, 0, 304, 208]])], "boxes[0]: expected [left, top, right, bottom]"),
        (['{"image": "images/0.npy", "boxes": [[0,0,NaN,1]], "classes": [0]}'], "boxes[0]: exp"),
        ([detected(classes=["car"])], "classes[0]: expected a whole number, got 'car'"),
        ([detected(), {"image": "images/0.npy", "label": 1}], "line 2: expected 'label' in every"),
        ([detected(boxes=[], classes=[])], "labels.jsonl: no image has a box"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path: Path, lines: list[Any], message: str) -> None:
    np.save(tmp_path / "out.npy", np.zeros((4, 4, 3), np.uint8))
    data = tmp_path / "data"
    data.mkdir()
    os.symlink(tmp_path / "out.npy", data / "link.npy")
    with pytest.raises(DataError) as caught:
        read_labels(folder(data, *lines))
    assert message in str(caught.value)


def test_a_folder_without_labels_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^labels\.jsonl: cannot be read: No such file"):
        read_labels(tmp_path)
    (tmp_path / "labels.jsonl").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"^labels\.jsonl: expected UTF-8"):
        read_labels(tmp_path)


def test_pixels_are_sent_as_they_are_and_files_as_bytes(tmp_path: Path) -> None:
    first, second = read_labels(folder(tmp_path, detected(), detected(image="images/1.jpg")))
    assert _bytes_of(first) == (bytes(48), (1, 4, 4, 3))
    assert _bytes_of(second) == (b"\x02\0\0\0\xff\xd8", (1,))


@pytest.mark.parametrize(
    "array", [np.zeros((4, 4)), np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)]
)
def test_an_array_that_is_no_image_is_refused(tmp_path: Path, array: Any) -> None:
    (image,) = read_labels(folder(tmp_path, detected()))
    np.save(image.path, array)
    with pytest.raises(DataError, match=r"line 1: 0\.npy: expected uint8 \[height, width, 3\]"):
        _bytes_of(image)
    image.path.write_bytes(b"no array")
    with pytest.raises(DataError, match=r"0\.npy: expected uint8"):
        _bytes_of(image)
    np.save(image.path, np.array([{"an": "object"}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"0\.npy: expected uint8"):
        _bytes_of(image)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def outputs(**arrays: Any) -> tuple[tuple[tuple[int, ...], bytes], ...]:
    return tuple((np.shape(array), np.asarray(array).tobytes()) for array in arrays.values())


def interface(**specs: tuple[Datatype, tuple[int, ...]]) -> ModelInterface:
    made = tuple(TensorSpec(name, *each) for name, each in specs.items())
    return ModelInterface((SPEC,), made, 4)


def labelled(*truths: Any) -> list[LabelledImage]:
    return [LabelledImage(Path(), f"line {i + 1}", truth) for i, truth in enumerate(truths)]


FP32 = Datatype.FP32
SCORES = interface(scores=(FP32, (-1, 3)), embedding=(FP32, (-1, 2)))
TWO = [
    outputs(scores=np.array([[0.1, 0.7, 0.2]], "f4"), embedding=np.zeros((1, 2), "f4")),
    outputs(scores=np.array([[0.9, 0.0, 0.1]], "f4"), embedding=np.zeros((1, 2), "f4")),
]


def test_the_output_of_the_most_classes_has_the_scores() -> None:
    assert _scored("a", TWO, labelled(1, 2), SCORES, None) == VariantAccuracy("a", 0.5)
    assert _scored("a", TWO, labelled(0, 0), SCORES, "embedding").accuracy == 1.0


def test_an_unclear_output_and_a_label_beyond_it_are_named() -> None:
    both = interface(one=(FP32, (-1, 2)), two=(FP32, (-1, 2)))
    pair = [outputs(one=np.zeros((1, 2), "f4"), two=np.zeros((1, 2), "f4"))]
    with pytest.raises(DataError, match=r"state one of 'one', 'two' as variants\.output"):
        _scored("a", pair, labelled(1), both, None)
    with pytest.raises(DataError, match=r"variants\.output: the model has no output 'three'"):
        _scored("a", pair, labelled(1), both, "three")
    with pytest.raises(DataError, match="line 2: label: 3, but 'scores' has 3 classes"):
        _scored("a", TWO, labelled(1, 3), SCORES, None)


DETECTOR = interface(
    boxes=(FP32, (-1, 2, 4)), scores=(FP32, (-1, 2)), classes=(Datatype.INT64, (-1, 2))
)


def test_a_detectors_outputs_are_boxes_scores_and_classes() -> None:
    truth = Boxes(np.array([BOX]), np.array([2]))
    answer = outputs(
        boxes=np.array([[BOX, [0, 0, 1, 1]]], "f4"),
        scores=np.array([[0.8, 0.0]], "f4"),
        classes=np.array([[2, 2]], "i8"),
    )
    found = _scored("a", [answer], labelled(truth), DETECTOR, None)
    assert (found.accuracy, found.f1) == (1.0, 1.0)
    assert found.threshold == pytest.approx(0.8)
    with pytest.raises(DataError, match="of a detector, got 'scores', 'embedding'"):
        _scored("a", TWO[:1], labelled(truth), SCORES, None)
    flat = outputs(
        boxes=np.zeros((1, 8), "f4"), scores=np.zeros((1, 2), "f4"), classes=np.zeros((1, 2), "i8")
    )
    with pytest.raises(DataError, match=r"expected \[1, K, 4\], \[1, K\] and \[1, K\], got"):
        _scored("a", [flat], labelled(truth), DETECTOR, None)
