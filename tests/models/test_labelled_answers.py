"""What is made of variants' answers: outputs, scores, and how variants compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.accuracy import Boxes, score_classes
from slacktide.models.families import worth_serving
from slacktide.models.labelled.answers import score_answers
from slacktide.models.labelled.comparison import accuracy_document, compare
from slacktide.models.labelled.images import DataError, LabelledImage, LabelledSet

BOX = [0.1, 0.2, 0.3, 0.4]
SPEC = TensorSpec("image", Datatype.UINT8, (-1, -1, -1, 3))


def outputs(**arrays: Any) -> tuple[tuple[tuple[int, ...], bytes], ...]:
    return tuple((np.shape(array), np.asarray(array).tobytes()) for array in arrays.values())


def interface(**specs: tuple[Datatype, tuple[int, ...]]) -> ModelInterface:
    outputs_declared = tuple(TensorSpec(name, *details) for name, details in specs.items())
    return ModelInterface((SPEC,), outputs_declared, 4)


def labelled(*truths: Any) -> list[LabelledImage]:
    return [LabelledImage(Path(), f"line {i + 1}", truth) for i, truth in enumerate(truths)]


FP32 = Datatype.FP32
SCORES = interface(scores=(FP32, (-1, 3)), embedding=(FP32, (-1, 2)))
TWO = [
    outputs(scores=np.array([[0.1, 0.7, 0.2]], "f4"), embedding=np.zeros((1, 2), "f4")),
    outputs(scores=np.array([[0.9, 0.0, 0.1]], "f4"), embedding=np.zeros((1, 2), "f4")),
]


def test_the_output_of_the_most_classes_has_the_scores() -> None:
    assert score_answers(TWO, labelled(1, 2), SCORES, None).accuracy == 0.5
    assert score_answers(TWO, labelled(0, 0), SCORES, "embedding").accuracy == 1.0


def test_the_first_class_of_a_decoded_answer_counts() -> None:
    decoded = interface(scores=(FP32, (-1, 2)), classes=(Datatype.INT64, (-1, 2)))
    answers = [
        outputs(scores=np.array([[0.9, 0.1]], "f4"), classes=np.array([[best, 0]], "i8"))
        for best in (7, 3)
    ]
    assert score_answers(answers, labelled(7, 4), decoded, None).accuracy == 0.5


def test_an_unclear_output_and_a_label_beyond_it_are_named() -> None:
    both = interface(one=(FP32, (-1, 2)), two=(FP32, (-1, 2)))
    pair = [outputs(one=np.zeros((1, 2), "f4"), two=np.zeros((1, 2), "f4"))]
    with pytest.raises(DataError, match=r"state one of 'one', 'two' as variants\.output"):
        score_answers(pair, labelled(1), both, None)
    with pytest.raises(DataError, match=r"variants\.output: the model has no output 'three'"):
        score_answers(pair, labelled(1), both, "three")
    with pytest.raises(DataError, match="line 2: label: 3, but 'scores' has 3 classes"):
        score_answers(TWO, labelled(1, 3), SCORES, None)


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
    score = score_answers([answer], labelled(truth), DETECTOR, None)
    assert (score.accuracy, score.f1) == (pytest.approx(1.0), 1.0)
    assert score.threshold == pytest.approx(0.8)
    with pytest.raises(DataError, match="of a detector, got 'scores', 'embedding'"):
        score_answers(TWO[:1], labelled(truth), SCORES, None)
    flat = outputs(
        boxes=np.zeros((1, 8), "f4"), scores=np.zeros((1, 2), "f4"), classes=np.zeros((1, 2), "i8")
    )
    with pytest.raises(DataError, match=r"expected \[1, K, 4\], \[1, K\] and \[1, K\], got"):
        score_answers([flat], labelled(truth), DETECTOR, None)


# ── comparison ───────────────────────────────────────────────────────────────────────────────────


def test_variants_are_compared_on_the_same_images() -> None:
    """`near` errs where `small` does and once more; `poor` errs on a third of the images."""
    right = {name: np.ones(300, bool) for name in ("small", "near", "poor")}
    right["small"][:40] = right["near"][:41] = False
    right["poor"][::3] = False
    scores = {
        name: score_classes((~hits).astype(int).tolist(), [0] * 300) for name, hits in right.items()
    }
    images = LabelledSet(tuple(labelled(*[0] * 300)), {0: "cat"})
    compared = {comparison.variant: comparison for comparison in compare(scores, images)}
    low, high = compared["near"].differences["small"]
    assert -0.02 < low < 0.0 == high, "pairs: much narrower than the intervals of both"
    low, high = compared["small"].interval
    assert high - low > 0.05
    assert compared["poor"].differences["small"][1] < 0.0
    document = json.loads(json.dumps(accuracy_document(list(compared.values()), images)))
    assert document["metric"] == "top-1"
    assert document["images"] == 300
    assert document["accuracy"]["near"] == pytest.approx(259 / 300)
    assert set(document["differences"]["poor"]) == {"small", "near"}
    assert document["classes"]["small"]["cat"]["count"] == 300
    assert document["ap50"] == {}
    pairs = {
        (name, smaller): tuple(ends)
        for name, by_larger in document["differences"].items()
        for smaller, ends in by_larger.items()
    }
    served, notes = worth_serving(document["accuracy"], pairs)
    assert served == ("small", "near")
    assert notes[0].startswith("variants: 'poor' is not served: its accuracy, 0.667, is below that")
    assert worth_serving(document["accuracy"])[0] == ("small",)
