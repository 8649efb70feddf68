"""`Padding`: how requests of unequal length share a batch.

A request has one *length*: the size of its padded axes, which all of its tensors agree on. In a
batch every padded input is filled up to the longest member, and padded outputs are cut back to
each member's own length, so no client sees the others. What that costs: `profiles.BatchLatency`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec

BATCH_BYTES = 64 << 20
"""Bytes that the inputs of a padded batch may take. Without a bound, one long request among short
ones would be multiplied by the rows of the batch, beyond what the clients sent."""


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """The axis along which an input is padded, and with what."""

    axis: int
    """From 1: the batch axis is 0."""
    value: float = 0
    """Of the elements that are filled in."""
    mask: bool = False
    """1 where there is something, 0 where there is padding. Clients may leave it out."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Which axes of a model are padded. Lengths are counted in elements."""

    inputs: Mapping[str, PaddedInput]
    outputs: Mapping[str, int]
    """Axis by name of an output."""
    lengths: tuple[int, ...] = ()
    """Typical lengths, ascending: what is warmed up and profiled."""

    def fitting(self, interface: ModelInterface) -> Padding | None:
        """What of it the model has; None if that is no input. What does not fit is an error of its
        own, reported where its file is known."""
        if not interface.batches:
            return None
        takes = {spec.name: spec for spec in interface.inputs}
        gives = {spec.name: spec for spec in interface.outputs}
        inputs = {
            name: padded_input
            for name, padded_input in self.inputs.items()
            if name in takes and unfit(takes[name], padded_input.axis) is None
        }
        outputs = {
            name: axis
            for name, axis in self.outputs.items()
            if name in gives and unfit(gives[name], axis) is None
        }
        return Padding(inputs, outputs, self.lengths) if inputs else None

    @property
    def typical(self) -> int | None:
        """The length in the middle; None if none is stated."""
        return self.lengths[len(self.lengths) // 2] if self.lengths else None


def unfit(spec: TensorSpec, axis: int) -> str | None:
    """Why this tensor cannot be padded along this axis; None if it can."""
    if spec.datatype is Datatype.BYTES:
        return "BYTES cannot be padded"
    if axis >= len(spec.shape):
        last = len(spec.shape) - 1
        if last < 1:
            return "it has no axis besides the rows"
        return f"expected 1 to {last} (axis 0 is the rows), got {axis}"
    if spec.shape[axis] >= 0:
        return f"axis {axis} is always {spec.shape[axis]} long"
    return None


def pad_element(datatype: Datatype, value: int | float) -> np.generic | None:
    """`value` as an element of this type; None if it is not one, exactly where types are whole."""
    if datatype is Datatype.BYTES:
        return None
    if datatype is Datatype.BF16:  # the upper half of a float32
        return np.uint16(np.float32(value).view(np.uint32) >> np.uint32(16))
    if datatype is Datatype.BOOL:
        return np.bool_(value) if value in (0, 1) else None
    if datatype.is_float:
        with np.errstate(over="ignore"):
            element = datatype.dtype.type(value)
        return element if np.isfinite(element) else None
    bounds = np.iinfo(datatype.dtype.str)
    if value != int(value) or not bounds.min <= value <= bounds.max:
        return None
    return datatype.dtype.type(int(value))
