"""`YoloDecoder`: boxes from the raw head of a YOLO model.

A head of version 8 (and 9, 11, 12) is [rows, 4 + classes, anchors]. A head of version 5 (and 7) is
[rows, anchors, 5 + classes], where the fifth value says whether there is an object at all. Boxes
are centre and size in pixels of the model's input. Each cell of the grids with strides of 8, 16 and
32 pixels has one anchor, or three in version 5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements, check_labels
from slacktide.executors.decoders.suppression import Candidates, best_boxes, box_outputs
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource

_HEADS = {"v8": "[rows, 4 + classes, anchors]", "v5": "[rows, anchors, 5 + classes]"}
_STRIDES = (8, 16, 32)
_DECODED = 300
"""Boxes in the output of models that suppress overlaps themselves: [rows, 300, 6]."""


class YoloDecoder:
    """Outputs `boxes` [rows, K, 4], `scores` [rows, K] and `classes` [rows, K], best first. Places
    without a box have a score of 0 and the class -1. Boxes are left, top, right and bottom as
    fractions of the picture."""

    def __init__(
        self,
        source: DecodeSource,
        index: int,
        spec: TensorSpec,
        labels: int | None,
        extent: Extent,
    ) -> None:
        """Raises ModelError if the output or the labels do not fit."""
        self._source, self._index, self._spec, self._labels = source, index, spec, labels
        self.reads = (index,)
        self._versions: dict[tuple[int, int, int, int], str] = {}
        """Version of the head by its shape and the model's extent."""
        if len(spec.shape) != 3 and spec.shape != (-1,):
            raise self._unfit(spec.shape)
        if -1 not in spec.shape[1:] and len(spec.shape) == 3:
            self._read(spec.shape[1], spec.shape[2], *extent)
        self.outputs = box_outputs(source, spec.shape[0])

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`."""
        raw = arrays[self._index]
        if raw.ndim != 3:
            raise self._unfit(raw.shape)
        key = (raw.shape[1], raw.shape[2], *extent)
        version = self._versions.get(key)
        if version is None:
            version = self._versions[key] = self._read(*key, final=True)
        raw = np.asarray(raw, np.float32)
        candidates = _version_8 if version == "v8" else _version_5
        with np.errstate(invalid="ignore", over="ignore"):
            boxes = candidates(raw, self._source.confidence)
        return best_boxes(self._source, boxes, placements, len(raw))

    def _read(
        self, first: int, second: int, height: int, width: int, *, final: bool = False
    ) -> str:
        """The version of a head [rows, first, second]; empty if both fit and `final` is false.
        Unknown sides are 0. Raises ModelError if no version fits, or if both do and `final` is
        true."""
        stated = self._source.version
        versions = {stated} if stated else _plausible(first, second, height, width)
        fitting = {
            version: classes
            for version, classes in (("v8", first - 4), ("v5", second - 5))
            if version in versions and classes > 0
        }
        if not fitting:
            raise self._unfit((-1, first, second))
        by_labels = {version for version, classes in fitting.items() if classes == self._labels}
        if len(by_labels) == 1:
            return by_labels.pop()
        if len(fitting) == 1:
            ((version, classes),) = fitting.items()
            check_labels(self._labels, classes, self._spec)
            return version
        if not final:
            return ""
        raise ModelError(
            f"decode.version: expected v5 or v8, since both fit {self._spec.name!r}, "
            f"[-1, {first}, {second}]"
        )

    def _unfit(self, shape: Sequence[int]) -> ModelError:
        heads = _HEADS.get(self._source.version or "", " or ".join(_HEADS.values()))
        got = f"got {list(shape)} of {self._spec.name!r}"
        return ModelError(f"decode.as: expected the head of a yolo, {heads}, {got}")


def _plausible(first: int, second: int, height: int, width: int) -> set[str]:
    """Versions for which a head [rows, first, second] is plausible: those whose number of anchors
    fits the size of the image, or else those with fewer channels than anchors."""
    cells = sum((height // stride) * (width // stride) for stride in _STRIDES)
    if cells and cells in (second, first / 3):
        return {"v8"} if second == cells else {"v5"}
    if first == cells or (first, second) == (_DECODED, 6):
        return set()  # coordinates relative to cells, or no raw head
    return {"v8", "v5"} if first == second else {"v8" if first < second else "v5"}


def _version_8(raw: NDArray[np.float32], confidence: float) -> Candidates:
    best = raw[:, 4:].max(1)
    rows, places = np.nonzero(best >= np.float32(confidence))
    classes = raw[rows, 4:, places].argmax(1)
    return Candidates(rows, raw[rows, :4, places], best[rows, places], classes)


def _version_5(raw: NDArray[np.float32], confidence: float) -> Candidates:
    rows, places = np.nonzero(raw[:, :, 4] >= np.float32(confidence))  # scores are no higher
    candidates = raw[rows, places]
    classes = candidates[:, 5:].argmax(1)
    scores = candidates[:, 4] * candidates[np.arange(len(rows)), classes + 5]
    good = scores >= np.float32(confidence)
    return Candidates(rows[good], candidates[good, :4], scores[good], classes[good])
