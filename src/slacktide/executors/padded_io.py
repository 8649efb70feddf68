"""Members of unequal length in one batch: padded on the way in, cut back on the way out.

One fill for the batch and one copy per member; nothing is done per element. Where all members
are of one length, nothing is padded and nothing is cut: that is the way of every other model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.padding import PaddedInput, Padding, pad_element
from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.executors.ports import Payload, TensorRef
from slacktide.executors.tensor_io import (
    InputGatherer,
    Piece,
    TensorError,
    as_bytes,
    split_output,
)


class PaddedGatherer:
    """Makes one input that is padded along an axis; a mask that a client left out is made."""

    def __init__(self, spec: TensorSpec, padded: PaddedInput) -> None:
        self._plain = InputGatherer(spec)
        self._name = spec.name
        self._dtype = spec.datatype.dtype
        self._axis = padded.axis
        self._pad = pad_element(spec.datatype, padded.value)
        self._one = pad_element(spec.datatype, 1) if padded.mask else None
        self._before = (slice(None),) * (padded.axis - 1)

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """The tensors, one per member, joined along axis 0 and padded to the longest.

        Good until the next `gather`. Raises TensorError.
        """
        tail = tensors[0].shape[1:]
        if all(tensor.shape[1:] == tail and not self._left_out(tensor) for tensor in tensors):
            return self._plain.gather(tensors, arena)
        axis, dtype = self._axis, self._dtype
        longest = max([tensor.shape[axis] for tensor in tensors])
        rows = sum([tensor.shape[0] for tensor in tensors])
        shape = (rows, *tail[: axis - 1], longest, *tail[axis:])
        room = self._plain.room(math.prod(shape) * dtype.itemsize)
        joined = room.view(dtype).reshape(shape)
        joined.fill(self._pad)  # at once: most of it is overwritten, and that is cheap
        target, row_bytes, rest = room.data, room.nbytes // max(rows, 1), shape[2:]
        end = 0
        for tensor in tensors:
            start, end = end, end + tensor.shape[0]
            if axis == 1 and tensor.shape[2:] == rest and end - start == 1 and tensor.nbytes:
                # The usual request: what it has lies in one piece, here as there.
                content = self._bytes(tensor, arena)
                target[start * row_bytes : start * row_bytes + tensor.nbytes] = content
                continue
            part = joined[(slice(start, end), *self._before, slice(tensor.shape[axis]))]
            if part.shape != tensor.shape:
                raise TensorError(f"input {self._name!r}: unlike shapes in one batch")
            if self._left_out(tensor):
                part[...] = self._one
            else:
                content = self._bytes(tensor, arena)
                part[...] = np.frombuffer(content, dtype).reshape(tensor.shape)
        return joined

    def _left_out(self, tensor: TensorRef) -> bool:
        return tensor.nbytes == 0 and self._one is not None

    def _bytes(self, tensor: TensorRef, arena: memoryview) -> memoryview:
        if tensor.nbytes != math.prod(tensor.shape) * self._dtype.itemsize:
            raise TensorError(f"input {self._name!r}: its bytes do not fill its shape")
        if tensor.offset + tensor.nbytes > len(arena):
            raise TensorError(f"input {self._name!r} lies outside the arena")
        return arena[tensor.offset : tensor.offset + tensor.nbytes]


class Lengths(NamedTuple):
    """How long each member of a padded batch is, and which axis of which output shows it."""

    of: Sequence[int]
    axes: Mapping[str, int]

    def check(self, arrays: Sequence[NDArray[Any]], names: Sequence[str]) -> None:
        """Raises TensorError if a padded output is not as long as the batch was padded."""
        longest = max(self.of)
        for array, name in zip(arrays, names, strict=True):
            axis = self.axes.get(name)
            if axis is not None and array.shape[axis : axis + 1] != (longest,):
                raise TensorError(f"output {name!r} is not as long as its inputs on axis {axis}")


class LengthReader:
    """Reads the members' lengths off their shapes."""

    def __init__(self, padding: Padding, interface: ModelInterface) -> None:
        """`padding` fits the model (`Padding.fitting`)."""
        self._axes = padding.outputs
        self._index, self._axis = next(
            (index, padding.inputs[spec.name].axis)
            for index, spec in enumerate(interface.inputs)
            if spec.name in padding.inputs
        )

    def of(self, members: Sequence[Payload]) -> Lengths | None:
        """None if all are of one length: then nothing has been padded."""
        index, axis = self._index, self._axis
        lengths = [member.tensors[index].shape[axis] for member in members]
        return Lengths(lengths, self._axes) if min(lengths) < max(lengths) else None


def split_padded(
    array: NDArray[Any],
    spec: TensorSpec,
    rows: Sequence[int],
    batches: bool,
    lengths: Lengths | None,
) -> list[Piece]:
    """`split_output`, where a padded output is also cut to each member's own length."""
    axis = None if lengths is None else lengths.axes.get(spec.name)
    if lengths is None or axis is None:
        return split_output(array, spec.datatype, rows, batches)
    pieces, end = [], 0
    before = (slice(None),) * (axis - 1)
    for count, length in zip(rows, lengths.of, strict=True):
        start, end = end, end + count
        part = array[(slice(start, end), *before, slice(length))]
        pieces.append((part.shape, as_bytes(part)))
    return pieces
