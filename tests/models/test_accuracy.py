"""Scores by hand, against pycocotools by hand in pixels, and of resampled images."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from slacktide.models.accuracy import Boxes, score_classes, score_detections
from slacktide.models.bootstrap import SETS, interval, resampled_sets

LEFT, RIGHT = (0.0, 0.0, 0.4, 0.4), (0.5, 0.5, 0.9, 0.9)
WRONG = (0.0, 0.6, 0.2, 0.9)


def truth(*boxes: tuple[float, ...], kinds: tuple[int, ...] | None = None) -> Boxes:
    return Boxes(np.array(boxes, float).reshape(-1, 4), np.array(kinds or [0] * len(boxes), int))


def found(*scored: tuple[float, tuple[float, ...], int]) -> Boxes:
    return Boxes(
        np.array([box for _, box, _ in scored], float).reshape(-1, 4),
        np.array([kind for _, _, kind in scored], int),
        np.array([score for score, _, _ in scored], float),
    )


def test_all_found_is_perfect_and_nothing_found_is_nothing() -> None:
    images = [truth(LEFT, RIGHT), truth()]
    perfect = score_detections([found((0.9, LEFT, 0), (0.8, RIGHT, 0)), found()], images)
    assert perfect.accuracy == perfect.ap50 == pytest.approx(1.0)
    assert (perfect.f1, perfect.threshold) == (1.0, 0.8)
    nothing = score_detections([found(), found()], images)
    assert (nothing.accuracy, nothing.f1) == (0.0, 0.0)
    padding = found((0.0, LEFT, 0), (float("nan"), RIGHT, 0), (-1.0, RIGHT, 0))
    padded = score_detections([padding, found()], images)
    assert (padded.accuracy, padded.f1) == (0.0, 0.0)


def test_average_precision_by_hand() -> None:
    # Right, wrong, right: precision 1 at the 51 recalls up to 1/2, then 2/3 at 50.
    answers = found((0.9, LEFT, 0), (0.8, WRONG, 0), (0.7, RIGHT, 0))
    score = score_detections([answers], [truth(LEFT, RIGHT)])
    assert score.ap50 == pytest.approx((51 + 50 * 2 / 3) / 101)
    assert score.f1 == pytest.approx(2 * 2 / (3 + 2))
    assert score.threshold == 0.7


def test_a_loose_box_counts_at_loose_limits_alone() -> None:
    loose = (0.0, 0.0, 0.4, 0.3)  # three quarters of the union
    score = score_detections([found((0.9, loose, 0))], [truth(LEFT)])
    assert score.ap50 == pytest.approx(1.0)
    assert score.accuracy == pytest.approx(0.6, abs=0.11), "five or six limits of ten"


def test_a_box_is_found_once() -> None:
    answers = found((0.9, LEFT, 0), (0.8, LEFT, 0))
    score = score_detections([answers], [truth(LEFT, RIGHT)])
    assert score.ap50 == pytest.approx(51 / 101)
    assert score.f1 == pytest.approx(2 / 3)
    assert score.threshold == 0.9


def test_classes_are_told_apart_and_those_without_boxes_do_not_count() -> None:
    answers = [found((0.9, LEFT, 1), (0.8, RIGHT, 1), (0.7, WRONG, 7))]
    score = score_detections(answers, [truth(LEFT, RIGHT, kinds=(0, 1))])
    assert score.ap50 == pytest.approx((0.0 + 0.5) / 2, abs=0.01)
    assert sorted(score.classes) == [0, 1]
    assert [score.classes[kind].count for kind in (0, 1)] == [1, 1]
    assert score.classes[0].ap50 == score.classes[0].f1 == 0.0
    assert score.classes[1].ap50 == pytest.approx(0.5)


def test_detections_in_a_crowd_count_neither_way() -> None:
    crowd = Boxes(np.array([LEFT, RIGHT]), np.array([0, 0]), crowds=np.array([False, True]))
    inside = [(0.95 - at / 100, (0.5, 0.5, 0.6 + at / 10, 0.9), 0) for at in range(3)]
    score = score_detections([found((0.9, LEFT, 0), *inside)], [crowd])
    assert (score.accuracy, score.f1) == (pytest.approx(1.0), 1.0)
    assert score.classes[0].count == 1
    assert score.resampled(np.ones((1, 1), int)) == pytest.approx([1.0])


def test_without_any_box_there_is_no_score() -> None:
    with pytest.raises(ValueError, match="no image has a box"):
        score_detections([found((0.9, LEFT, 0))], [truth()])
    with pytest.raises(ValueError, match="no image has a box"):
        score_detections([], [])


def test_top1_and_f1_of_classes() -> None:
    score = score_classes([1, 0, 0], [1, 0, 1])
    assert score.accuracy == pytest.approx(2 / 3)
    assert score.classes[0].f1 == score.classes[1].f1 == score.f1 == pytest.approx(2 / 3)
    assert (score.classes[1].count, score.classes[1].accuracy) == (2, 0.5)
    weights = np.array([[3, 0, 0], [0, 0, 3], [1, 1, 1]])
    assert score.resampled(weights) == pytest.approx([1.0, 0.0, 2 / 3])


# ── against pycocotools by hand ──────────────────────────────────────────────────────────────────


def by_hand(answers: Sequence[Boxes], images: Sequence[Boxes], sizes: Any) -> tuple[float, float]:
    """AP50:95 and AP50 by COCOeval with its defaults, boxes in pixels of pictures."""

    def listed(boxes: Sequence[Boxes]) -> list[dict[str, Any]]:
        rows = []
        for number, image in enumerate(boxes):
            for at, kind in enumerate(image.classes):
                x0, y0, x1, y1 = image.boxes[at] * np.tile(sizes[number], 2)
                crowd = image.crowds is not None and image.crowds[at]
                rows.append({
                    "id": len(rows) + 1, "image_id": number + 10, "category_id": int(kind) * 3 + 1,
                    "bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0),
                    "iscrowd": int(crowd),
                })  # fmt: skip
                if image.scores is not None:
                    rows[-1]["score"] = float(image.scores[at])
        return rows

    kinds = {int(kind) for image in images for kind in image.classes}
    coco = COCO()
    coco.dataset = {
        "images": [{"id": number + 10} for number in range(len(images))],
        "categories": [{"id": kind * 3 + 1} for kind in kinds],
        "annotations": listed(images),
    }
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        scorer = COCOeval(coco, coco.loadRes(listed(answers)), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return float(scorer.stats[0]), float(scorer.stats[1])


@st.composite
def scenes(draw: Any, *, ties: bool = False) -> tuple[list[Boxes], list[Boxes]]:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    answers, images = [], []
    for _ in range(draw(st.integers(1, 4))):
        count, more = draw(st.integers(1, 5)), draw(st.integers(0, 4))
        corner = generator.random((count, 2)) * 0.5
        boxes = np.hstack([corner, corner + 0.2 + 0.3 * generator.random((count, 2))])
        kinds = generator.integers(2, size=count)
        crowds = generator.random(count) < 0.2
        images.append(Boxes(boxes, kinds, crowds=crowds))
        near = boxes + 0.05 * generator.standard_normal(boxes.shape)
        extra = np.sort(generator.random((more, 2, 2)), axis=1).reshape(more, 4)
        answers.append(
            Boxes(
                np.vstack([near, extra]),
                np.concatenate([kinds, generator.integers(2, size=more)]),
                generator.random(count + more).round(1 if ties else 9) + 0.01,
            )
        )
    return answers, images


def countable(images: Sequence[Boxes]) -> bool:
    return any((~image.crowds).any() for image in images if image.crowds is not None)


@given(scenes(ties=True), st.integers(1, 2000), st.integers(1, 2000))
def test_it_agrees_with_pycocotools_by_hand(scene: Any, width: int, height: int) -> None:
    answers, images = scene
    if not countable(images):
        return
    score = score_detections(answers, images)
    expected = by_hand(answers, images, [(width, height)] * len(images))
    assert (score.accuracy, score.ap50) == pytest.approx(expected, abs=1e-6)
    assert 0.0 <= score.f1 <= 1.0


@given(scenes(), st.data())
def test_a_resampled_set_scores_as_its_images_listed_so_often(scene: Any, data: Any) -> None:
    answers, images = scene
    if not countable(images):
        return
    score = score_detections(answers, images)
    assert score.resampled(np.ones((1, len(images)), int)) == pytest.approx([score.accuracy])
    drawn = data.draw(st.lists(st.integers(0, len(images) - 1), min_size=1, max_size=6))
    often = Counter(drawn)
    weights = np.array([[often[at] for at in range(len(images))]])
    listed = sorted(drawn)
    if countable([images[at] for at in listed]):
        again = score_detections([answers[at] for at in listed], [images[at] for at in listed])
        assert score.resampled(weights) == pytest.approx([again.accuracy])


# ── intervals ────────────────────────────────────────────────────────────────────────────────────


def test_sets_are_drawn_with_replacement_and_always_the_same() -> None:
    sets = resampled_sets(50)
    assert sets.shape == (SETS, 50)
    assert set(sets.sum(axis=1)) == {50}
    assert set(sets.sum(axis=0, dtype=int)) == {SETS}
    assert (sets == resampled_sets(50)).all()
    assert len({row.tobytes() for row in sets}) == SETS


def test_the_interval_is_about_that_of_a_share() -> None:
    right = np.arange(400) < 320
    score = score_classes((~right).astype(int).tolist(), [0] * 400)
    low, high = interval(score.resampled(resampled_sets(400)), 0.8)
    assert low == pytest.approx(0.8 - 1.96 * 0.02, abs=0.01)
    assert high == pytest.approx(0.8 + 1.96 * 0.02, abs=0.01)


def test_an_interval_lies_around_what_was_measured() -> None:
    """Average precision is higher on sets in which images repeat."""
    generator = np.random.default_rng(0)
    answers, images = [], []
    for _ in range(60):
        corner = generator.random((20, 2)) * 0.8
        boxes, kinds = np.hstack([corner, corner + 0.1]), generator.integers(5, size=20)
        images.append(Boxes(boxes[:3], kinds[:3]))
        answers.append(Boxes(boxes, kinds, generator.random(20)))
    score = score_detections(answers, images)
    drawn = score.resampled(resampled_sets(60))
    assert drawn.mean() > score.accuracy + 0.005
    low, high = interval(drawn, score.accuracy)
    assert (low + high) / 2 == pytest.approx(score.accuracy, abs=0.004)
