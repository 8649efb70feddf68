"""Scores the answers of a variant: boxes of a detector, or scores of classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, ModelInterface
from slacktide.executors.ports import Outputs
from slacktide.models.accuracy import Boxes, ImageScores, score_classes, score_detections
from slacktide.models.labelled.images import DataError, LabelledImage

_DETECTED = {"boxes", "scores", "classes"}
_DECODED = {"scores", "classes"}
"""Outputs of a classifier behind a decoder: the likeliest classes, best first."""


def score_answers(
    answers: Sequence[Outputs],
    images: Sequence[LabelledImage],
    interface: ModelInterface,
    output: str | None,
) -> ImageScores:
    """Score one variant's answers. `output`: the stated output with a score for each class. Raises
    DataError."""
    boxes = [image.truth for image in images if isinstance(image.truth, Boxes)]
    if boxes:
        return score_detections([*_detected(answers, interface)], boxes)
    labels = [image.truth for image in images if isinstance(image.truth, int)]
    names = {spec.name for spec in interface.outputs}
    if output is None and names == _DECODED:
        place = [spec.name for spec in interface.outputs].index("classes")
        best = [int(_array(answer, interface, place).reshape(-1)[0]) for answer in answers]
        return score_classes(best, labels)
    if output is None and names >= _DETECTED:
        raise DataError(
            f"{images[0].where}: expected 'boxes' and 'classes', as the model is a detector, got "
            "'label'; for a classifier, name its output of class scores in variants.output"
        )
    chosen = _scores_output(answers[0], interface, output)
    arrays = [_array(answer, interface, chosen).reshape(-1) for answer in answers]
    for image, label, array in zip(images, labels, arrays, strict=True):
        if label >= array.size:
            at = interface.outputs[chosen].name
            raise DataError(f"{image.where}: label: {label}, but {at!r} has {array.size} classes")
    return score_classes([int(array.argmax()) for array in arrays], labels)


def _detected(answers: Sequence[Outputs], interface: ModelInterface) -> Iterator[Boxes]:
    places = {spec.name: index for index, spec in enumerate(interface.outputs)}
    if not places.keys() >= _DETECTED:
        raise DataError(
            "expected the outputs 'boxes' [-1, K, 4], 'scores' [-1, K] and 'classes' [-1, K] of a "
            f"detector, got {', '.join(map(repr, places))}"
        )
    for answer in answers:
        boxes, scores, classes = (
            _array(answer, interface, places[name]) for name in ("boxes", "scores", "classes")
        )
        if scores.ndim != 2 or boxes.shape != (*scores.shape, 4) or classes.shape != scores.shape:
            shapes = [list(array.shape) for array in (boxes, scores, classes)]
            expected = "expected [1, K, 4], [1, K] and [1, K]"
            raise DataError(f"outputs 'boxes', 'scores' and 'classes': {expected}, got {shapes}")
        yield Boxes(boxes[0], classes[0], scores[0])


def _scores_output(answer: Outputs, interface: ModelInterface, output: str | None) -> int:
    """Return the index of the output with a score per class: the stated one, else the largest."""
    names = [spec.name for spec in interface.outputs]
    if output is not None:
        if output not in names:
            raise DataError(f"variants.output: the model has no output {output!r}")
        return names.index(output)
    sizes = {
        index: math.prod(answer[index][0])
        for index, spec in enumerate(interface.outputs)
        if spec.datatype.is_float and len(answer[index][0]) == 2
    }
    most = [index for index, size in sizes.items() if size == max(sizes.values())]
    if len(most) != 1:
        raise DataError(
            "the output with the scores of classes is ambiguous; state one of "
            f"{', '.join(map(repr, names))} as variants.output"
        )
    return most[0]


def _array(answer: Outputs, interface: ModelInterface, index: int) -> NDArray[Any]:
    spec, (shape, data) = interface.outputs[index], answer[index]
    if spec.datatype in (Datatype.BYTES, Datatype.BF16):
        raise DataError(f"output {spec.name!r}: expected numbers, got {spec.datatype.wire_name}")
    return np.frombuffer(data, spec.datatype.dtype).reshape(shape)
