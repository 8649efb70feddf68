"""mAP, F1 and top-1, by hand and against a slow reading of their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.models.accuracy import Boxes, overlaps, score_detections, top1

LEFT, RIGHT = (0.0, 0.0, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9)


def truth(*boxes: tuple[float, ...], kinds: tuple[int, ...] | None = None) -> Boxes:
    return Boxes(np.array(boxes, float).reshape(-1, 4), np.array(kinds or [0] * len(boxes)))


def found(*scored: tuple[float, tuple[float, ...], int]) -> Boxes:
    return Boxes(
        np.array([box for _, box, _ in scored], float).reshape(-1, 4),
        np.array([kind for _, _, kind in scored], int),
        np.array([score for score, _, _ in scored], float),
    )


def test_boxes_overlap_by_their_shared_part_of_both() -> None:
    half = np.array([[0.0, 0.0, 0.4, 0.2]])
    assert overlaps(np.array([LEFT, RIGHT]), half).tolist() == [[pytest.approx(0.5)], [0.0]]
    empty = np.array([[0.2, 0.2, 0.2, 0.2], [0.3, 0.3, 0.1, 0.1]])
    assert overlaps(empty, empty).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_all_found_is_perfect_and_nothing_found_is_nothing() -> None:
    images = [truth(LEFT, RIGHT), truth()]
    perfect = score_detections([found((0.9, LEFT, 0), (0.8, RIGHT, 0)), found()], images)
    assert (perfect.mean_average_precision, perfect.f1, perfect.threshold) == (1.0, 1.0, 0.8)
    nothing = score_detections([found(), found()], images)
    assert (nothing.mean_average_precision, nothing.f1) == (0.0, 0.0)
    padding = found((0.0, LEFT, 0), (float("nan"), RIGHT, 0), (-1.0, RIGHT, 0))
    assert score_detections([padding, found()], images) == nothing


def test_average_precision_by_hand() -> None:
    # right, wrong, right: precision 1 up to recall 1/2, then 2/3.
    answers = found((0.9, LEFT, 0), (0.8, (0.0, 0.6, 0.2, 0.9), 0), (0.7, RIGHT, 0))
    score = score_detections([answers], [truth(LEFT, RIGHT)])
    assert score.mean_average_precision == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert score.f1 == pytest.approx(2 * 2 / (3 + 2))
    assert score.threshold == 0.7


def test_a_box_is_found_once_and_by_the_better_score() -> None:
    answers = found((0.9, (0.0, 0.0, 0.4, 0.3), 0), (0.8, LEFT, 0))
    score = score_detections([answers], [truth(LEFT)])
    assert score.mean_average_precision == 1.0, "the second is beyond full recall"
    assert score.f1 == 1.0
    swapped = score_detections([answers], [truth(LEFT, RIGHT)])
    assert swapped.mean_average_precision == 0.5


def test_a_box_that_is_taken_leaves_the_next_best() -> None:
    near = (0.0, 0.0, 0.4, 0.38)
    answers = found((0.9, LEFT, 0), (0.8, LEFT, 0))
    assert score_detections([answers], [truth(LEFT, near)]).f1 == 1.0


def test_another_class_is_another_box() -> None:
    score = score_detections(
        [found((0.9, LEFT, 1), (0.8, RIGHT, 1))], [truth(LEFT, RIGHT, kinds=(0, 1))]
    )
    assert score.mean_average_precision == pytest.approx((0.0 + 0.5) / 2)
    only_known = score_detections([found((0.9, LEFT, 0), (0.8, RIGHT, 7))], [truth(LEFT)])
    assert only_known.mean_average_precision == 1.0, "class 7 has no boxes, so no average"
    assert only_known.threshold == 0.9


def test_equal_scores_are_one_step_in_whatever_order_they_come() -> None:
    scored = [(0.5, LEFT, 0), (0.5, (0.0, 0.6, 0.2, 0.9), 0), (0.5, RIGHT, 0)]
    one, other = (
        score_detections([found(*each)], [truth(LEFT, RIGHT)]) for each in (scored, scored[::-1])
    )
    assert one == other
    assert one.mean_average_precision == pytest.approx(2 / 3)


def test_without_any_box_there_is_no_score() -> None:
    with pytest.raises(ValueError, match="no image has a box"):
        score_detections([found((0.9, LEFT, 0))], [truth()])
    with pytest.raises(ValueError, match="no image has a box"):
        score_detections([], [])


def test_top1() -> None:
    scores = [np.array([0.1, 0.9]), np.array([0.5, 0.5]), np.array([0.9, 0.1])]
    assert top1(scores, [1, 0, 1]) == pytest.approx(2 / 3)


def slowly(answers: list[Boxes], images: list[Boxes]) -> float:
    """Mean average precision by its definition, for scores that all differ: for each recall that is
    reached, the best precision from there on."""
    precisions = []
    for kind in sorted({int(k) for each in images for k in each.classes}):
        ranked = sorted(
            (
                (float(s), i, n)
                for i, a in enumerate(answers)
                for n, s in enumerate(a.scores if a.scores is not None else ())
                if a.classes[n] == kind
            ),
            reverse=True,
        )
        total = sum(int((each.classes == kind).sum()) for each in images)
        taken: set[tuple[int, int]] = set()
        hits = []
        for _, i, n in ranked:
            options = [
                (float(overlaps(answers[i].boxes[n : n + 1], images[i].boxes[g : g + 1])[0, 0]), -g)
                for g in range(len(images[i].classes))
                if images[i].classes[g] == kind and (i, g) not in taken
            ]
            best = max(options, default=(0.0, 0))
            hits.append(best[0] >= 0.5)
            if hits[-1]:
                taken.add((i, -best[1]))
        points = [(sum(hits[:k]) / total, sum(hits[:k]) / k) for k in range(1, len(hits) + 1)]
        area, before = 0.0, 0.0
        for recall in sorted({r for r, _ in points}):
            area += (recall - before) * max((p for r, p in points if r >= recall), default=0.0)
            before = recall
        precisions.append(area)
    return sum(precisions) / len(precisions)


@st.composite
def scenes(draw: Any) -> tuple[list[Boxes], list[Boxes]]:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    answers, images = [], []
    for _ in range(draw(st.integers(1, 3))):
        count, more = draw(st.integers(0, 5)), draw(st.integers(0, 4))
        corner = generator.random((count, 2)) * 0.5
        boxes = np.hstack([corner, corner + 0.2 + 0.3 * generator.random((count, 2))])
        kinds = generator.integers(2, size=count)
        images.append(Boxes(boxes, kinds))
        near = boxes + 0.1 * generator.standard_normal(boxes.shape)
        extra = generator.random((more, 4))
        answers.append(
            Boxes(
                np.vstack([near, extra]),
                np.concatenate([kinds, generator.integers(2, size=more)]),
                generator.random(count + more) + 0.01,
            )
        )
    return answers, images


@given(scenes())
def test_it_agrees_with_the_definition(scene: tuple[list[Boxes], list[Boxes]]) -> None:
    answers, images = scene
    if not any(len(each.classes) for each in images):
        return
    score = score_detections(answers, images)
    assert score.mean_average_precision == pytest.approx(slowly(answers, images))
    assert 0.0 <= score.f1 <= 1.0
