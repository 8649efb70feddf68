"""An ONNX model as every peer runs it: one thread, no spinning, raw bodies in, raw bytes out.

Runs inside the peers' own environments: numpy and onnxruntime are all it may import.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Row = tuple[NDArray[np.generic], ...]
"""One request: its input tensors, each with a batch axis of one row."""

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}


class RawModel:
    """A session with one thread, as ours has on a lane of one core."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self._names = [given.name for given in self._session.get_inputs()]
        self._types = [np.dtype(_TYPES[given.type]) for given in self._session.get_inputs()]
        self._axes = [
            [axis if isinstance(axis, int) else None for axis in given.shape[1:]]
            for given in self._session.get_inputs()
        ]

    def read(self, body: bytes) -> Row:
        """The tensors of one row. Every free axis of a model has the same length."""
        fixed = [
            dtype.itemsize * prod(axis for axis in axes if axis is not None)
            for dtype, axes in zip(self._types, self._axes, strict=True)
        ]
        free = [axes.count(None) for axes in self._axes]
        length = 1
        if any(free):
            length = len(body) // sum(fixed)
        row, offset = [], 0
        for dtype, axes, size, count in zip(self._types, self._axes, fixed, free, strict=True):
            nbytes = size * length**count
            shape = [1, *(length if axis is None else axis for axis in axes)]
            flat = np.frombuffer(body, dtype, nbytes // dtype.itemsize, offset)
            row.append(flat.reshape(shape))
            offset += nbytes
        if offset != len(body):
            raise ValueError(f"expected {offset} bytes, got {len(body)}")
        return tuple(row)

    def run(self, rows: Sequence[Row]) -> list[bytes]:
        """The first output of each row, as bytes.

        Rows of unequal length are padded with zeros to the longest along their first axis, as
        tokenizers do: their masks say what is padding. The output must not grow with the length.
        """
        columns = zip(*rows, strict=True)
        feeds = {
            name: column[0] if len(rows) == 1 else _joined(column)
            for name, column in zip(self._names, columns, strict=True)
        }
        (first, *_) = self._session.run(None, feeds)
        return [row.tobytes() for row in np.asarray(first)]

    def run_arrays(self, tensors: Row) -> NDArray[np.generic]:
        """The first output for tensors that are a batch already."""
        feeds = dict(zip(self._names, tensors, strict=True))
        return np.asarray(self._session.run(None, feeds)[0])


def _joined(column: Sequence[NDArray[np.generic]]) -> NDArray[np.generic]:
    shapes = {part.shape for part in column}
    if len(shapes) == 1:
        return np.concatenate(column)
    longest = max(shape[1] for shape in shapes)
    joined = np.zeros((len(column), longest, *column[0].shape[2:]), column[0].dtype)
    for row, part in zip(joined, column, strict=True):
        row[: part.shape[1]] = part[0]
    return joined
