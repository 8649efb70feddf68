"""Compares the accuracies of variants on the same images, and makes the document to store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from slacktide.models.accuracy import ClassScore, ImageScores
from slacktide.models.bootstrap import Interval, interval, resampled_sets
from slacktide.models.labelled.images import LabelledSet


@dataclass(frozen=True, slots=True)
class VariantAccuracy:
    """Accuracy of a variant."""

    variant: str
    accuracy: float
    """AP50:95, or top-1."""
    interval: Interval
    """95 % interval of `accuracy`, over images."""
    differences: dict[str, Interval]
    """95 % interval of this accuracy minus that of each smaller variant, by name."""
    f1: float
    classes: dict[str, ClassScore]
    """Scores by class name, or by number if the class has no name."""
    ap50: float | None = None
    threshold: float | None = None
    """Score threshold that gives `f1`. For a classifier, it is None, like `ap50`."""


def compare(
    scores: Mapping[str, ImageScores], labelled: LabelledSet
) -> tuple[VariantAccuracy, ...]:
    """Return the accuracies of variants with their intervals, in the order of `scores`."""
    sets = resampled_sets(len(labelled.images))
    resampled: dict[str, NDArray[Any]] = {}
    accuracies = []
    for name, score in scores.items():
        drawn = score.resampled(sets)
        classes: dict[str, ClassScore] = {}
        for number, of_class in score.classes.items():
            class_name = labelled.class_names.get(number, str(number))
            classes[f"{class_name} {number}" if class_name in classes else class_name] = of_class
        differences = {
            smaller: interval(drawn - base, score.accuracy - scores[smaller].accuracy)
            for smaller, base in resampled.items()
        }
        low, high = interval(drawn, score.accuracy)
        resampled[name] = drawn
        accuracies.append(
            VariantAccuracy(
                name,
                score.accuracy,
                (max(low, 0.0), min(high, 1.0)),
                differences,
                score.f1,
                classes,
                score.ap50,
                score.threshold,
            )
        )
    return tuple(accuracies)


def accuracy_document(measured: Sequence[VariantAccuracy], labelled: LabelledSet) -> dict[str, Any]:
    """Return the document of a measurement to store as JSON (docs/variants.md)."""
    document: dict[str, Any] = {"metric": labelled.metric, "images": len(labelled.images)}
    for key in ("accuracy", "interval", "differences", "ap50", "f1", "threshold"):
        by_variant = {score.variant: getattr(score, key) for score in measured}
        document[key] = {name: part for name, part in by_variant.items() if part is not None}
    document["classes"] = {
        score.variant: {name: asdict(part) for name, part in score.classes.items()}
        for score in measured
    }
    return document
