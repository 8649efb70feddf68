"""Accuracy of answers: average precision and F1 of detectors, top-1 and F1 of classifiers.

Detections are matched and averaged by pycocotools (extra `accuracy`), COCO's reference code: AP50
counts a detection as right if it overlaps a true box of its class by at least half of their union.
AP50:95 is the mean over ten such limits up to 0.95. Only classes that have true boxes count.
Overlaps are the same in fractions of a picture as in pixels. F1 counts overlaps of at least 0.5,
and is the highest over all score thresholds.

`resampled` computes the accuracy on resampled sets of images, which pycocotools cannot do.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.floating[Any]]
Counts = NDArray[np.integer[Any]]
MISSING_SCORER = "scoring detectors needs pycocotools: pip install 'slacktide[accuracy]'"
_RECALLS = np.linspace(0.0, 1.0, 101)
"""Recalls at which precision is read, as in pycocotools."""
_MOST_DETECTIONS = 100
"""Maximum detections per image and class; those with the highest scores count, as in COCO."""
_BLOCK = 64
"""Resampled sets scored at a time. This limits memory: a set needs a weight per detection."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The n boxes of one image. Scores of 0 or less, and NaN, mark padding."""

    boxes: Numbers
    """[n, 4]: left, top, right and bottom, in fractions of the image."""
    classes: NDArray[Any]
    """[n], whole numbers."""
    scores: Numbers | None = None
    """[n]; None for true boxes."""
    crowds: NDArray[np.bool_] | None = None
    """[n]: whether a true box holds a crowd. Detections in a crowd count neither as right nor as
    wrong. None: no box is a crowd."""

    @property
    def counted(self) -> NDArray[np.bool_]:
        """[n]: whether a box is not a crowd."""
        return np.ones(len(self.classes), bool) if self.crowds is None else ~self.crowds


@dataclass(frozen=True, slots=True)
class ClassScore:
    """Accuracy on one class, 0 to 1."""

    count: int
    """Number of true boxes (without crowds) or, for classifiers, of images."""
    accuracy: float
    """AP50:95, or the share of images that are answered correctly."""
    f1: float
    """F1 at `ImageScores.threshold`."""
    ap50: float | None = None


@dataclass(frozen=True, slots=True)
class ImageScores:
    """Accuracy of answers to a set of images, 0 to 1."""

    accuracy: float
    """AP50:95 (mean over classes), or top-1."""
    f1: float
    """F1 over all detections together, or a classifier's mean over classes."""
    classes: dict[int, ClassScore]
    resampled: Callable[[Counts], Numbers]
    """Accuracy of each set, given how often each image is in it, [sets, images]."""
    ap50: float | None = None
    threshold: float | None = None
    """Score threshold that gives `f1`. For a classifier, it is None, like `ap50`."""


def can_score_boxes() -> bool:
    """Whether pycocotools is installed. Loads nothing."""
    return find_spec("pycocotools") is not None


def score_detections(detections: Sequence[Boxes], truth: Sequence[Boxes]) -> ImageScores:
    """Score detections against the true boxes of the same images. Raises ValueError if no image has
    a true box other than crowds, and ImportError without pycocotools."""
    kinds = [boxes.classes[boxes.counted] for boxes in truth]
    classes = np.unique(np.concatenate([np.zeros(0, np.int64), *kinds]))
    if not len(classes):
        raise ValueError("no image has a box")
    evaluation = _evaluated(detections, truth, classes)
    precision = evaluation.eval["precision"][..., 0, 0]  # [limits, recalls, classes]
    images = len(truth)
    matches = [
        _matches(evaluation.evalImgs[at * images : (at + 1) * images], images)
        for at in range(len(classes))
    ]
    f1, threshold = _best_f1(matches)
    by_class = {
        int(number): ClassScore(
            int(match.positives.sum()),
            float(precision[:, :, at].mean()),
            match.f1(threshold),
            float(precision[0, :, at].mean()),
        )
        for at, (number, match) in enumerate(zip(classes, matches, strict=True))
    }

    def resampled(weights: Counts) -> Numbers:
        blocks = np.array_split(weights, -(-len(weights) // _BLOCK))
        means = np.array(
            [np.concatenate([*map(match.average_precisions, blocks)]) for match in matches]
        )
        counted = np.isfinite(means)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(counted, means, 0.0).sum(axis=0) / counted.sum(axis=0))

    accuracy, ap50 = float(precision.mean()), float(precision[0].mean())
    return ImageScores(accuracy, f1, by_class, resampled, ap50, threshold)


def score_classes(answers: Sequence[int], labels: Sequence[int]) -> ImageScores:
    """Score a classifier by the class that it ranks first for each image."""
    answered, truth = np.asarray(answers), np.asarray(labels)
    right = answered == truth
    by_class = {}
    for number in np.unique(truth):
        of_class, hits = truth == number, int(right[truth == number].sum())
        f1 = 2.0 * hits / int(of_class.sum() + (answered == number).sum())
        by_class[int(number)] = ClassScore(int(of_class.sum()), float(right[of_class].mean()), f1)
    f1 = float(np.mean([score.f1 for score in by_class.values()]))

    def resampled(weights: Counts) -> Numbers:
        return np.asarray((weights * right).sum(axis=1) / weights.sum(axis=1))

    return ImageScores(float(right.mean()), f1, by_class, resampled)


class _Matches(NamedTuple):
    """The n detections of one class, highest score first, judged at ten limits of overlap."""

    image: NDArray[np.intp]
    scores: Numbers
    right: NDArray[np.bool_]
    """[limits, n]: whether a detection matches a true box."""
    counted: NDArray[np.bool_]
    """[limits, n]: False for detections in crowds."""
    positives: NDArray[np.int64]
    """[images]: true boxes."""

    def f1(self, threshold: float) -> float:
        """F1 of the detections from `threshold` up."""
        chosen = self.scores >= threshold
        true, counted = (flags[0][chosen].sum() for flags in (self.right, self.counted))
        return float(2.0 * true / (counted + self.positives.sum()))

    def average_precisions(self, weights: Counts) -> Numbers:
        """AP50:95 of each set. `weights`: how often each image is in each set, [sets, images].
        Equals pycocotools' result for images repeated that often; NaN for sets without a box."""
        positives = (weights * self.positives).sum(axis=1, dtype=np.float64)[:, None]
        drawn = weights.take(self.image, axis=1).astype(np.float32)
        total = np.zeros(len(weights))
        for right, counted in zip(self.right, self.counted, strict=True):
            # Only at right detections does precision rise and recall change.
            places = np.flatnonzero(right)
            detections = np.cumsum(drawn * counted, axis=1).take(places, axis=1)
            true = np.cumsum(drawn.take(places, axis=1), axis=1, dtype=np.float64)
            precision = true / (detections.astype(np.float64) + np.spacing(1))
            precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
            reached = np.searchsorted(_RECALLS, true / np.maximum(positives, 1.0), side="right")
            total += (precision * np.diff(reached, axis=1, prepend=0)).sum(axis=1)
        mean = total / (len(self.right) * len(_RECALLS))
        return np.where(positives[:, 0] > 0.0, mean, np.nan)


def _matches(evaluated: Sequence[Any], images: int) -> _Matches:
    """Join the results of pycocotools for one class over all images."""
    parts = [part for part in enumerate(evaluated) if part[1] is not None]
    positives = np.zeros(images, np.int64)
    for at, part in parts:
        positives[at] = len(part["gtIgnore"]) - int(np.sum(part["gtIgnore"]))
    scores = np.concatenate([np.asarray(part["dtScores"], float) for _, part in parts])
    image = np.repeat([at for at, _ in parts], [len(part["dtScores"]) for _, part in parts])
    matched, ignored = (
        np.concatenate([part[key] for _, part in parts], axis=1) > 0
        for key in ("dtMatches", "dtIgnore")
    )
    order = np.argsort(-scores, kind="stable")
    right, counted = (matched & ~ignored)[:, order], ~ignored[:, order]
    return _Matches(image[order], scores[order], right, counted, positives)


def _best_f1(matches: Sequence[_Matches]) -> tuple[float, float]:
    """Return the highest F1 over all classes together, and the score threshold that gives it."""
    scores = np.concatenate([match.scores for match in matches])
    if not len(scores):
        return 0.0, 0.0
    order = np.argsort(-scores, kind="stable")
    right = np.cumsum(np.concatenate([match.right[0] for match in matches])[order])
    counted = np.cumsum(np.concatenate([match.counted[0] for match in matches])[order])
    scores = scores[order]
    ends = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    positives = sum(int(match.positives.sum()) for match in matches)
    f1 = 2.0 * right[ends] / (counted[ends] + positives)
    best = int(f1.argmax())
    return float(f1[best]), float(scores[ends][best])


def _evaluated(detections: Sequence[Boxes], truth: Sequence[Boxes], classes: NDArray[Any]) -> Any:
    """Return a COCOeval that has matched and averaged the detections, for boxes of any area."""
    coco, evaluation = import_module("pycocotools.coco"), import_module("pycocotools.cocoeval")
    with redirect_stdout(io.StringIO()):  # it prints its progress
        sets = [_coco_set(coco, boxes, classes) for boxes in (truth, detections)]
        scorer = evaluation.COCOeval(*sets, "bbox")
        scorer.params.imgIds = list(range(len(truth)))
        scorer.params.areaRng, scorer.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        scorer.params.maxDets = [_MOST_DETECTIONS]
        scorer.evaluate()
        scorer.accumulate()
    return scorer


def _coco_set(coco: Any, images: Sequence[Boxes], classes: NDArray[Any]) -> Any:
    """Return the boxes of these classes as a COCO data set. Ids of boxes begin at 1, because
    pycocotools uses 0 for "no match"."""
    annotations: list[dict[str, Any]] = []
    for number, image in enumerate(images):
        boxes = np.asarray(image.boxes, float).reshape(-1, 4)
        scores = np.ones(len(boxes)) if image.scores is None else np.asarray(image.scores, float)
        counts = np.isfinite(scores) & (scores > 0.0) & np.isfinite(boxes).all(axis=1)
        for at in np.flatnonzero(counts & np.isin(image.classes, classes)):
            left, top, right, bottom = boxes[at].tolist()
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": int(image.classes[at]),
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": int(not image.counted[at]),
                    "score": float(scores[at]),
                }
            )
    coco_set = coco.COCO()
    coco_set.dataset = {
        "images": [{"id": number} for number in range(len(images))],
        "categories": [{"id": int(number)} for number in classes],
        "annotations": annotations,
    }
    coco_set.createIndex()
    return coco_set
