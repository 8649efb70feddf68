"""Answers of detectors: the boxes that remain when overlapping boxes are removed, as fractions of
pictures."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.crops import apart
from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.ports import DecodeSource


class Candidates(NamedTuple):
    """Boxes of a batch whose scores exceed the stated score."""

    rows: NDArray[np.intp]
    """The row of each box; ascending."""
    boxes: NDArray[np.float32]
    """Centre and size, in pixels of the model's input."""
    scores: NDArray[np.float32]
    classes: NDArray[np.int64]


def box_outputs(source: DecodeSource, rows: int) -> tuple[TensorSpec, ...]:
    """The outputs of a detector. `rows`: number of rows in the model's output; −1: any."""
    most = source.max_detections
    return (
        TensorSpec("boxes", Datatype.FP32, (rows, most, 4)),
        TensorSpec("scores", Datatype.FP32, (rows, most)),
        TensorSpec("classes", Datatype.INT64, (rows, most)),
    )


def best_boxes(
    source: DecodeSource, candidates: Candidates, placements: NDArray[np.float64], count: int
) -> list[NDArray[Any]]:
    """The answers to `count` rows: the usable candidates of the stated classes without overlaps,
    best first. `placements`: see `Decoder.decode`."""
    rows, boxes, scores, classes = candidates
    with np.errstate(invalid="ignore", over="ignore"):
        usable = np.isfinite(boxes).all(1) & (boxes[:, 2:] > 0).all(1) & np.isfinite(scores)
    if source.classes:
        usable &= np.isin(classes, source.classes)
    order = np.flatnonzero(usable)
    order = order[np.lexsort((-scores[order], rows[order]))]
    rows, boxes, scores, classes = rows[order], boxes[order], scores[order], classes[order]
    half = boxes[:, 2:] / 2
    corners = np.asarray(
        np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1), np.float32
    )
    most = source.max_detections
    answer: list[NDArray[Any]] = [
        np.zeros((count, most, 4), np.float32),
        np.zeros((count, most), np.float32),
        np.full((count, most), -1, np.int64),
    ]
    ends = np.searchsorted(rows, np.arange(count + 1))
    for row in np.unique(rows).tolist():
        part = slice(ends[row], ends[row + 1])
        kinds = classes[part] if source.per_class else None
        chosen = np.array(apart(corners[part], kinds, source.iou, most), np.intp) + part.start
        left, top, width, height = placements[row].tolist()
        inside = (corners[chosen] - (left, top, left, top)) / (width, height, width, height)
        inside = inside.clip(0, 1).astype(np.float32)
        visible = (inside[:, 2:] > inside[:, :2]).all(1)  # the others lie in the margins
        chosen, inside = chosen[visible], inside[visible]
        columns = (inside, scores[chosen], classes[chosen])
        for array, column in zip(answer, columns, strict=True):
            array[row, : len(chosen)] = column
    return answer
