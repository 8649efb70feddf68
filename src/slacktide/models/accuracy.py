"""Accuracy of answers: mean average precision and F1 of detectors, top-1 of classifiers.

Within an image, detections are matched by falling score, each to the unmatched true box of its
class that it overlaps most. A detection is right if its intersection with that box is at least half
of their union. Detections with equal scores form one step of the precision-recall curve, so their
order does not matter. Average precision is the area under the best precision at each recall or
above (all points, as in PASCAL VOC since 2010), averaged over the classes that have boxes. F1 is
computed over all classes together, at the score threshold where it is highest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]
OVERLAP = 0.5
"""Minimum intersection over union of a right detection."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The n boxes of one image. Scores of 0 or less, and NaN, mark padding."""

    boxes: Numbers
    """[n, 4]: left, top, right and bottom, in fractions of the image."""
    classes: NDArray[Any]
    """[n], whole numbers."""
    scores: Numbers | None = None
    """[n]; None for true boxes."""


@dataclass(frozen=True, slots=True)
class DetectionScore:
    """Accuracy of detections, 0 to 1."""

    mean_average_precision: float
    f1: float
    threshold: float
    """Score threshold at which `f1` is reached."""


def score_detections(detections: Sequence[Boxes], truth: Sequence[Boxes]) -> DetectionScore:
    """Score detections against the true boxes of the same images. Raises ValueError if no image has
    a box."""
    classes = np.concatenate([boxes.classes for boxes in truth]) if truth else np.zeros(0)
    if not len(classes):
        raise ValueError("no image has a box")
    hits, kinds, scores = [np.zeros(0, bool)], [np.zeros(0)], [np.zeros(0)]
    for found_boxes, true_boxes in zip(detections, truth, strict=True):
        counted, right = _matched(found_boxes, true_boxes)
        hits.append(right)
        kinds.append(np.asarray(found_boxes.classes)[counted])
        scores.append(np.asarray(found_boxes.scores, float)[counted])
    right, kind, score = map(np.concatenate, (hits, kinds, scores))
    precisions = []
    for class_number in np.unique(classes):
        of_class = kind == class_number
        precisions.append(
            _average_precision(
                right[of_class], score[of_class], int((classes == class_number).sum())
            )
        )
    counts, true, steps = _curve(right, score)
    f1 = 2.0 * true / (counts + len(classes))
    best = int(f1.argmax()) if len(f1) else -1
    return DetectionScore(
        float(np.mean(precisions)),
        float(f1[best]) if best >= 0 else 0.0,
        float(steps[best]) if best >= 0 else 0.0,
    )


def top1(scores: Sequence[Numbers], labels: Sequence[int]) -> float:
    """Return the share of images whose label is the first class with the highest score."""
    pairs = zip(scores, labels, strict=True)
    return float(np.mean([int(np.argmax(class_scores)) == label for class_scores, label in pairs]))


def overlaps(found_boxes: Numbers, true_boxes: Numbers) -> Numbers:
    """Return [n, m]: intersection over union of each of n boxes with each of m."""
    low = np.maximum(found_boxes[:, None, :2], true_boxes[None, :, :2])
    high = np.minimum(found_boxes[:, None, 2:], true_boxes[None, :, 2:])
    both = np.clip(high - low, 0.0, None).prod(axis=2)
    areas = [
        np.clip(boxes[:, 2:] - boxes[:, :2], 0.0, None).prod(axis=1)
        for boxes in (found_boxes, true_boxes)
    ]
    union = areas[0][:, None] + areas[1][None, :] - both
    ratios: Numbers = np.divide(both, union, out=np.zeros_like(both), where=union > 0.0)
    return ratios


def _matched(detections: Boxes, truth: Boxes) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the indices of detections that are not padding, and whether each is right."""
    scores = np.asarray(detections.scores, float)
    counted = np.flatnonzero(np.isfinite(scores) & (scores > 0.0))
    right = np.zeros(len(counted), bool)
    if not len(counted) or not len(truth.classes):
        return counted, right
    boxes = np.asarray(detections.boxes, float).reshape(-1, 4)[counted]
    covered = overlaps(boxes, np.asarray(truth.boxes, float).reshape(-1, 4))
    covered[
        np.asarray(detections.classes)[counted][:, None] != np.asarray(truth.classes)[None, :]
    ] = 0.0
    for box in np.lexsort((-covered.max(axis=1), -scores[counted])):
        best = int(covered[box].argmax())
        if covered[box, best] >= OVERLAP:
            right[box] = True
            covered[:, best] = 0.0  # no longer free
    return counted, right


def _curve(right: NDArray[np.bool_], scores: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return (detections, right detections, score threshold) per threshold, highest first."""
    order = np.argsort(-scores, kind="stable")
    right, scores = right[order], scores[order]
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True)[: len(scores)])
    return ends + 1.0, np.cumsum(right)[ends].astype(float), scores[ends]


def _average_precision(right: NDArray[np.bool_], scores: Numbers, boxes: int) -> float:
    counts, true, _ = _curve(right, scores)
    precision = np.maximum.accumulate((true / counts)[::-1])[::-1] if len(counts) else counts
    return float((np.diff(true / boxes, prepend=0.0) * precision).sum())
