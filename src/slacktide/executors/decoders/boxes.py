"""`BoxDecoder`: maps the boxes of a detector back to the pictures that clients sent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements

BOXES = "boxes"
"""Output [rows, K, 4]: left, top, right and bottom as fractions of the model's input."""


class BoxDecoder:
    """Converts boxes from fractions of the model's input, padding included, to fractions of the
    picture. All other outputs stay as they are."""

    def __init__(self, outputs: Sequence[TensorSpec]) -> None:
        self.outputs = tuple(outputs)
        self._index = index_of_boxes(outputs)
        self.reads = (self._index,)

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`."""
        decoded, boxes = list(arrays), arrays[self._index]
        if boxes.ndim == 3 and boxes.shape[2] == 4:
            height, width = extent
            corner = placements[:, None, [0, 1, 0, 1]]
            side = placements[:, None, [2, 3, 2, 3]]
            mapped = (boxes * np.array([width, height, width, height]) - corner) / side
            decoded[self._index] = mapped.clip(0, 1).astype(boxes.dtype)
        return decoded


def index_of_boxes(outputs: Sequence[TensorSpec]) -> int:
    """Index of the output that holds boxes as fractions; −1 if there is none."""
    for index, spec in enumerate(outputs):
        if spec.name == BOXES and spec.datatype.is_float and spec.shape[2:] in ((4,), (-1,)):
            return index
    return -1
