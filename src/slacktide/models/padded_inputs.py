"""Requests of unequal length at the door: which may share a batch, and how much work they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slacktide.domain import Signature
from slacktide.domain.padding import BATCH_BYTES, Padding
from slacktide.domain.tensors import ModelInterface, TensorSpec
from slacktide.models.repository.settings import ModelSettings, WorkHint
from slacktide.wire.calls import Buffer, InputTensor
from slacktide.wire.errors import BadField

LEFT_OUT: Buffer = memoryview(b"")
"""Data of a mask that its client did not send: the worker makes it."""


class PaddedInputs:
    """The padded inputs of one loaded version."""

    def __init__(
        self, padding: Padding, settings: ModelSettings, interface: ModelInterface
    ) -> None:
        """`padding` fits the model (`Padding.fitting`)."""
        names = [spec.name for spec in interface.inputs]
        self._axes = {
            index: padding.inputs[name].axis
            for index, name in enumerate(names)
            if name in padding.inputs
        }
        self._names = names
        self._masks = {
            pad.mask: (name, pad.axis)
            for name, one in settings.inputs.items()
            if (pad := one.pad) is not None and pad.mask is not None and name in padding.inputs
        }
        self._first = next(iter(self._axes))
        self._longest = settings.limits.length
        self._row_bytes = BATCH_BYTES // interface.max_batch

    def left_out(self, spec: TensorSpec, sent: Mapping[str, InputTensor]) -> InputTensor | None:
        """A mask that was not sent, as long as what it masks; None if `spec` is none.

        Nor is one made for a tensor without elements: its length costs its client nothing.
        """
        masked = self._masks.get(spec.name)
        of = None if masked is None else sent.get(masked[0])
        if masked is None or of is None or len(of.shape) <= masked[1]:
            return None
        shape = (of.shape[0], of.shape[masked[1]])
        if math.prod(shape) > math.prod(of.shape):
            return None
        return InputTensor(spec.name, spec.datatype, shape, LEFT_OUT)

    def signature(self, tensors: Sequence[InputTensor], rows: int, nbytes: int) -> Signature:
        """Shapes without the rows and the padded axes. Raises BadField for lengths that are
        unequal or too long.

        A request that is too large to be multiplied by the rows of a whole batch keeps its shapes:
        it is batched with its equals only.
        """
        axes = self._axes
        length = tensors[self._first].shape[axes[self._first]]
        if self._longest is not None and length > self._longest:
            raise self._wrong(self._first, f"at most {self._longest}", length)
        for index, axis in axes.items():
            if tensors[index].shape[axis] != length:
                expected = f"{length} as in {self._names[self._first]!r}"
                raise self._wrong(index, expected, tensors[index].shape[axis])
        shapes = [tensor.shape[1:] for tensor in tensors]
        if self._masks:  # those that were left out are made, and take memory as well
            nbytes += sum(_made(tensor) for tensor in tensors if tensor.data is LEFT_OUT)
        if nbytes <= self._row_bytes * rows:
            for index, axis in axes.items():
                shapes[index] = shapes[index][: axis - 1] + shapes[index][axis:]
        return tuple(shapes)

    def _wrong(self, index: int, expected: str, got: int) -> BadField:
        return BadField(f"input {self._names[index]!r} shape[{self._axes[index]}]", expected, got)


def _made(mask: InputTensor) -> int:
    """Bytes of a mask that the worker makes."""
    return math.prod(mask.shape) * mask.datatype.itemsize


class HintReader:
    """Reads the declared work hint off a request."""

    def __init__(self, hint: WorkHint, names: Sequence[str]) -> None:
        """`names` of the model's inputs, in order."""
        self._of = hint.of
        self._index = names.index(hint.input) if hint.input in names else None
        self._axis = 1 if hint.axis is None else hint.axis

    def read(self, tensors: Sequence[InputTensor], rows: int, nbytes: int) -> float | None:
        """None if the model has no such input or axis."""
        if self._of is not None:
            return float(rows if self._of == "rows" else nbytes)
        if self._index is None or self._axis >= len(tensors[self._index].shape):
            return None
        return float(tensors[self._index].shape[self._axis])
