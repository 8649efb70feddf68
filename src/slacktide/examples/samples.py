"""Inputs for an example model, with the answers a perfect model would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """Requests of one row each. Free axes may differ between requests, datatypes may not."""

    requests: tuple[Mapping[str, Array], ...]
    """For each request, by input name, a tensor whose first axis is the batch axis, of size 1."""
    labels: NDArray[np.int64] | None
    """Class of each request, exact because we drew it; None where a model has no classes."""

    def __len__(self) -> int:
        return len(self.requests)

    def batch(self, start: int = 0, stop: int | None = None) -> dict[str, Array]:
        """Requests `start` to `stop` as one batch, zero-padded to the longest along free axes.

        Padding with zeros is right for every example model: its inputs are of fixed shape or come
        with a mask in which zero says "not there". Raises ValueError if the range is empty.
        """
        chosen = self.requests[start:stop]
        if not chosen:
            raise ValueError(f"no requests from {start} to {stop} among {len(self)}")
        return {name: _stack([request[name] for request in chosen]) for name in chosen[0]}

    def write(self, path: Path) -> None:
        """Write a compressed .npz.

        For each input NAME there are `NAME`, all requests padded into one batch, and `NAME.shapes`
        of shape (count, axes), their shapes before padding; and `labels` where known.
        """
        arrays: dict[str, Array] = dict(self.batch())
        for name in tuple(arrays):
            shapes = [request[name].shape[1:] for request in self.requests]
            arrays[f"{name}.shapes"] = np.array(shapes, dtype=np.int64)
        if self.labels is not None:
            arrays["labels"] = self.labels
        # NumPy's annotation lets keywords clash with its own flags; ours are input names.
        np.savez_compressed(path, allow_pickle=False, **arrays)

    @classmethod
    def read(cls, path: Path) -> Samples:
        """Read what `write` wrote; requests get their own shapes back."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        labels = arrays.pop("labels", None)
        shapes = {name: arrays.pop(f"{name}.shapes") for name in tuple(arrays) if "." not in name}
        count = len(next(iter(arrays.values())))
        requests = tuple(
            {
                name: rows[i : i + 1][(slice(None), *map(slice, shapes[name][i]))]
                for name, rows in arrays.items()
            }
            for i in range(count)
        )
        return cls(requests, labels)


def _stack(tensors: list[Array]) -> Array:
    """Concatenate along axis 0, zero-padding the other axes to the largest."""
    largest = tuple(max(sizes) for sizes in zip(*(t.shape[1:] for t in tensors), strict=True))
    batch = np.zeros((len(tensors), *largest), tensors[0].dtype)
    for row, tensor in zip(batch, tensors, strict=True):
        row[tuple(map(slice, tensor.shape[1:]))] = tensor[0]
    return batch
