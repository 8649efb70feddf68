"""Members of unequal length in one batch: padded on the way in, cut back on the way out.

Per member one copy and one fill of whole slices; nothing is done per element. Where all members
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
        self._before = (slice(None),) * padded.axis

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
        end = 0
        for tensor in tensors:
            start, end = end, end + tensor.shape[0]
            length = tensor.shape[axis]
            part = joined[start:end]
            if part[(*self._before, slice(length))].shape != tensor.shape:
                raise TensorError(f"input {self._name!r}: unlike shapes in one batch")
            part[(*self._before, slice(length))] = self._content(tensor, arena)
            part[(*self._before, slice(length, None))] = self._pad
        return joined

    def _left_out(self, tensor: TensorRef) -> bool:
        return tensor.nbytes == 0 and self._one is not None

    def _content(self, tensor: TensorRef, arena: memoryview) -> NDArray[Any] | np.generic | None:
        if self._left_out(tensor):
            return self._one
        count = math.prod(tensor.shape)
        if tensor.nbytes != count * self._dtype.itemsize:
            raise TensorError(f"input {self._name!r}: its bytes do not fill its shape")
        if tensor.offset + tensor.nbytes > len(arena):
            raise TensorError(f"input {self._name!r} lies outside the arena")
        return np.frombuffer(arena, self._dtype, count, tensor.offset).reshape(tensor.shape)


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
