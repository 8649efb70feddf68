"""`Padding`: how requests of unequal length share a batch.

A request has one *length*: the size of its padded axes, equal in all of its tensors. In a batch
every padded input is filled up to the longest member, and padded outputs are cut back to the length
of each member, so no client sees another's data. See `profiles.BatchLatency` for the cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec

BATCH_BYTES = 64 << 20
"""Maximum bytes of the inputs of a padded batch. Without this bound, a long request in a batch of
short ones would multiply the bytes that clients sent by the number of rows in the batch."""


@dataclass(frozen=True, slots=True)
class PaddedInput:
    """The axis along which an input is padded, and the value to pad with."""

    axis: int
    """From 1: the batch axis is 0."""
    value: float = 0
    """Value of the padding elements."""
    mask: bool = False
    """Whether it is a mask: 1 for an element, 0 for padding. Clients may leave it out."""


@dataclass(frozen=True, slots=True)
class PaddedOutput:
    """The axis of an output that grows with the padded inputs, and how."""

    axis: int
    """From 1: the batch axis is 0."""
    stride: int | None = None
    """Input elements for each element along the axis; None: the warm-up finds it."""
    added: int = 0
    """Added to the inputs' length before it is divided by `stride`: 0 rounds down, `stride` − 1
    rounds up."""

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PaddedOutput:
        """Read the fields of an output whose stride was found. Raises ValueError, TypeError or
        KeyError."""
        axis, stride, added = (int(fields[name]) for name in ("axis", "stride", "added"))
        if not (axis >= 1 and stride >= 1 and 0 <= added < stride):
            raise ValueError(f"an axis that grows in an impossible way: {fields}")
        return cls(axis, stride, added)

    def length(self, inputs: int) -> int:
        """Length of the axis for inputs of this length."""
        return (inputs + self.added) // (self.stride or 1)


@dataclass(frozen=True, slots=True)
class Padding:
    """Which axes of a model are padded. Lengths are counted in elements."""

    inputs: Mapping[str, PaddedInput]
    outputs: Mapping[str, PaddedOutput]
    """Outputs that are cut back, by name."""
    lengths: tuple[int, ...] = ()
    """Typical lengths, ascending, which are warmed up and profiled."""
    detected_outputs: Mapping[str, PaddedOutput] = field(default_factory=dict)
    """Outputs to cut back that an earlier search found for this file. They are checked; the search
    is repeated only if they do not fit."""

    def fitting(self, interface: ModelInterface) -> Padding | None:
        """Return the padding of those inputs and outputs that fit the model; None if no input does.
        Names that do not fit are reported elsewhere, as errors of the file."""
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
            name: output
            for name, output in self.outputs.items()
            if name in gives and unfit(gives[name], output.axis) is None
        }
        return Padding(inputs, outputs, self.lengths, self.detected_outputs) if inputs else None

    @property
    def typical(self) -> int | None:
        """The middle of the typical lengths; None if there are none."""
        return self.lengths[len(self.lengths) // 2] if self.lengths else None


def unfit(spec: TensorSpec, axis: int) -> str | None:
    """Why this tensor cannot be padded along this axis; None if it can be."""
    if spec.datatype is Datatype.BYTES:
        return "BYTES cannot be padded"
    if axis >= len(spec.shape):
        last = len(spec.shape) - 1
        if last < 1:
            return "it has no axis besides that of rows"
        return f"expected 1 to {last} (axis 0 is the rows), got {axis}"
    if spec.shape[axis] >= 0:
        return f"axis {axis} has the fixed length {spec.shape[axis]}"
    return None


def pad_element(datatype: Datatype, value: int | float) -> np.generic | None:
    """`value` as an element of this type; None if the type cannot hold it (integers: exactly)."""
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
