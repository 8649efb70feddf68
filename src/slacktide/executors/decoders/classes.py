"""`ClassDecoder`: the best classes of a classifier, from its logits or probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements, check_labels
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource

_FEW = 16
"""Maximum number of best classes to find one after the other, which is faster than sorting."""


class ClassDecoder:
    """Outputs `scores` [rows, top] and `classes` [rows, top], best first."""

    def __init__(
        self, source: DecodeSource, index: int, spec: TensorSpec, labels: int | None
    ) -> None:
        """`spec`: an output [rows, classes], perhaps with further axes of 1. Raises ModelError."""
        self._index, self._spec = index, spec
        self.reads = (index,)
        self._kind = "" if source.probabilities else source.name
        self._labels, self._top = labels, source.top
        rows, top = -1, source.top
        if len(spec.shape) > 1 and -1 not in spec.shape[1:]:
            top = min(top, self._check(spec.shape))
            rows = spec.shape[0]
        elif labels is not None:
            top = min(top, labels)
        elif len(spec.shape) > 1:
            top = -1  # there may be fewer classes than `top`
        self.outputs: tuple[TensorSpec, ...] = (
            TensorSpec("scores", Datatype.FP32, (rows, top)),
            TensorSpec("classes", Datatype.INT64, (rows, top)),
        )

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`."""
        raw = arrays[self._index]
        count = self._check(raw.shape)
        values = raw.reshape(len(raw), count).astype(np.float32)  # a copy
        if self._kind == "softmax":
            values -= values.max(1, keepdims=True)
            np.exp(values, out=values)
            values /= values.sum(1, keepdims=True)
        classes = best_classes(values, min(self._top, count))
        scores = np.take_along_axis(values, classes, 1)
        if self._kind == "sigmoid":  # a sigmoid keeps the order: convert only the best
            with np.errstate(over="ignore"):
                scores = np.asarray(1 / (1 + np.exp(-scores)), np.float32)
        return [scores, classes]

    def _check(self, shape: Sequence[int]) -> int:
        """Number of classes in an output of this shape. Raises ModelError."""
        if len(shape) < 2 or max(shape[2:], default=1) > 1 or shape[1] == 0:
            expected = f"expected [rows, classes] for {self._spec.name!r}"
            raise ModelError(f"decode.as: {expected}, got {list(shape)}")
        check_labels(self._labels, shape[1], self._spec)
        return int(shape[1])


def best_classes(values: NDArray[np.floating[Any]], count: int) -> NDArray[np.int64]:
    """Indices [rows, count] of the highest values of each row, highest first. Equal values keep
    their order."""
    if count > _FEW:
        order: NDArray[np.int64] = np.argsort(-values, axis=1, kind="stable")[:, :count]
        return order
    values = values.copy()
    classes = np.empty((len(values), count), np.int64)
    rows = np.arange(len(values))
    for place in range(count):
        classes[:, place] = values.argmax(1)
        values[rows, classes[:, place]] = -np.inf
    return classes
