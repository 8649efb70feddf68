"""`SsdDecoder`: boxes from the raw head of a single-shot detector (SSD).

Each cell of a few grids over the model's input has some anchors: boxes of given sizes around its
centre. The head says for each anchor how its box differs, [rows, anchors, 4], and how likely each
class is, [rows, anchors, 1 + classes], with the background first. Anchors come grid by grid, within
a grid cell by cell in reading order, and within a cell in the stated order.

A box's centre is that of its anchor, moved by the first two numbers × variance × the anchor's size.
Its size is that of the anchor × exp(the other two × variance). The source is section 2.2 of Liu et
al., SSD: Single Shot MultiBox Detector, ECCV 2016; its code added the variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.decoders.heads import (
    Arrays,
    Extent,
    Placements,
    check_labels,
    floats_at,
    index_of,
)
from slacktide.executors.decoders.suppression import Candidates, best_boxes, box_outputs
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource

Sizes = tuple[tuple[tuple[float, float], ...], ...]
"""Widths and heights of the anchors of each grid, in pixels."""
_MOST_CACHED = 8


class SsdDecoder:
    """Makes the outputs of `box_outputs` from those of an SSD head."""

    def __init__(
        self,
        source: DecodeSource,
        outputs: Sequence[TensorSpec],
        labels: int | None,
        extent: Extent,
    ) -> None:
        """`extent`: height and width of the model's input. Raises ModelError if the outputs, the
        labels or the anchors do not fit."""
        offsets, scores = (index_of(name, outputs) for name in source.outputs)
        self.reads = (offsets, scores)
        self._source, self._labels = source, labels
        self._offsets, self._scores = (floats_at(index, outputs) for index in self.reads)
        self._are_unchecked = True  # whether `decode.probabilities` is unverified
        for spec in (self._offsets, self._scores):
            if spec.shape != (-1,) and -1 not in spec.shape[1:]:
                self._check(spec, spec.shape, extent)
        self.outputs = box_outputs(source, self._offsets.shape[0] if self._offsets.shape else -1)

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`."""
        offsets, scores = (np.asarray(arrays[index], np.float32) for index in self.reads)
        self._check(self._offsets, offsets.shape, extent)
        self._check(self._scores, scores.shape, extent)
        if self._are_unchecked and scores.size:
            self._check_probabilities(scores)
        if not self._source.probabilities:
            with np.errstate(over="ignore", invalid="ignore"):
                scores = np.exp(scores - scores.max(2, keepdims=True))
                scores /= scores.sum(2, keepdims=True)
        is_confident = scores[:, :, 1:].max(2) >= np.float32(self._source.confidence)
        rows, places = np.nonzero(is_confident)
        classes = scores[rows, places, 1:].argmax(1)
        anchors = _anchors(self._source.anchors, self._source.strides, extent)[places]
        change = offsets[rows, places]
        first, second = self._source.variance
        boxes = np.empty((len(rows), 4), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            boxes[:, :2] = anchors[:, :2] + change[:, :2] * first * anchors[:, 2:]
            boxes[:, 2:] = anchors[:, 2:] * np.exp(change[:, 2:] * second)
        best = scores[rows, places, classes + 1]
        candidates = Candidates(rows, boxes, best, classes)
        return best_boxes(self._source, candidates, placements, len(offsets))

    def _check_probabilities(self, scores: NDArray[np.float32]) -> None:
        """Raise ModelError if `decode.probabilities` contradicts the scores."""
        sums = scores.sum(2)
        are = bool(scores.min() >= 0 and abs(sums.min() - 1) < 1e-2 and abs(sums.max() - 1) < 1e-2)
        if are != self._source.probabilities and np.isfinite(sums).all():
            kind = "probabilities" if are else "no probabilities"
            expected = f"expected {str(are).lower()}, since {self._scores.name!r} holds {kind}"
            raise ModelError(f"decode.probabilities: {expected}")
        self._are_unchecked = False

    def _check(self, spec: TensorSpec, shape: Sequence[int], extent: Extent) -> None:
        """Raise ModelError unless an output may have this shape for inputs of `extent`."""
        boxes = spec is self._offsets
        least, kind = (4, "4") if boxes else (2, "1 + classes")
        if len(shape) != 3 or shape[2] < least or (boxes and shape[2] != 4):
            expected = f"expected [rows, anchors, {kind}] for {spec.name!r}"
            raise ModelError(f"decode.from: {expected}, got {list(shape)}")
        if not boxes:
            check_labels(self._labels, shape[2] - 1, spec)
        height, width = extent
        count = len(_anchors(self._source.anchors, self._source.strides, extent))
        if min(extent) > 0 and shape[1] != count:
            expected = f"{count} anchors for {height} × {width} pixels"
            raise ModelError(f"decode.anchors: {expected}, but {spec.name!r} has {shape[1]}")


@lru_cache(maxsize=_MOST_CACHED)
def _anchors(sizes: Sizes, strides: Sequence[int], extent: Extent) -> NDArray[np.float32]:
    """Centre and size of each anchor [anchors, 4], in pixels."""
    grids = [np.empty((0, 4))]
    for stride, boxes in zip(strides, sizes, strict=True):
        down, across = (math.ceil(side / stride) for side in extent)
        y, x, box = np.meshgrid(
            np.arange(down), np.arange(across), range(len(boxes)), indexing="ij"
        )
        centres = (np.stack((x, y), -1).reshape(-1, 2) + 0.5) * stride
        grids.append(np.concatenate((centres, np.array(boxes)[box.ravel()]), 1))
    return np.concatenate(grids).astype(np.float32)
