"""The inputs and outputs of a model, with the tensor types of the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slacktide._datatypes import Datatype as Datatype


def fits(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a tensor of this shape has these axes; −1 is an axis of any size."""
    return len(shape) == len(axes) and all(
        axis in (-1, size) for axis, size in zip(axes, shape, strict=True)
    )


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model. −1 in `shape` is any size; a batch axis comes first."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """Inputs and outputs of a loaded model. `max_batch` 0: no batch axis, one request per run."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int

    @property
    def batches(self) -> bool:
        return self.max_batch > 0

    def row_axes(self, spec: TensorSpec) -> tuple[int, ...]:
        """The axes of one row of an input or output, without a batch axis."""
        return spec.shape[1:] if self.batches else spec.shape

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON-ready data, for profiles and messages from workers."""

        def specs(tensors: Sequence[TensorSpec]) -> list[dict[str, Any]]:
            return [
                {"name": t.name, "datatype": t.datatype.wire_name, "shape": list(t.shape)}
                for t in tensors
            ]

        inputs, outputs = specs(self.inputs), specs(self.outputs)
        return {"inputs": inputs, "outputs": outputs, "max_batch": self.max_batch}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelInterface:
        """Read what `to_dict` wrote. Raises KeyError, TypeError or ValueError for anything else."""

        def specs(tensors: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
            return tuple(
                TensorSpec(
                    str(tensor["name"]),
                    Datatype[str(tensor["datatype"])],
                    tuple(int(size) for size in tensor["shape"]),
                )
                for tensor in tensors
            )

        return cls(specs(data["inputs"]), specs(data["outputs"]), int(data["max_batch"]))


def image_input(interface: ModelInterface) -> int | None:
    """Index of the image input: the only one of uint8 [rows, height, width, 3] with height and
    width both fixed or both free. None if there is none, or several."""
    indices = [
        index for index, spec in _pictures(interface) if (spec.shape[1] < 0) == (spec.shape[2] < 0)
    ]
    return indices[0] if len(indices) == 1 else None


def crop_input(interface: ModelInterface) -> int | None:
    """Index of an input for crops: the model's only input of images, with height and width fixed,
    both free, or only the width free. None if there is none, or several."""
    indices = [
        index for index, spec in _pictures(interface) if spec.shape[1] > 0 or spec.shape[2] < 0
    ]
    return indices[0] if len(indices) == 1 else None


def _pictures(interface: ModelInterface) -> list[tuple[int, TensorSpec]]:
    return [
        (index, spec)
        for index, spec in enumerate(interface.inputs)
        if spec.datatype is Datatype.UINT8
        and interface.batches
        and len(spec.shape) == 4
        and spec.shape[3] == 3
        and 0 not in spec.shape
    ]


def any_size(interface: ModelInterface) -> ModelInterface:
    """Return `interface` with height and width of its image input free, if it has one."""
    index = image_input(interface)
    if index is None:
        return interface
    specs = list(interface.inputs)
    specs[index] = replace(specs[index], shape=(specs[index].shape[0], -1, -1, 3))
    return replace(interface, inputs=tuple(specs))


def named_like(interface: ModelInterface, peer: ModelInterface) -> ModelInterface:
    """Return `interface`; a single input or output gets its name from `peer`."""

    def named(
        specs: tuple[TensorSpec, ...], like: tuple[TensorSpec, ...]
    ) -> tuple[TensorSpec, ...]:
        alone = len(specs) == len(like) == 1
        return (replace(specs[0], name=like[0].name),) if alone else specs

    inputs, outputs = named(interface.inputs, peer.inputs), named(interface.outputs, peer.outputs)
    return replace(interface, inputs=inputs, outputs=outputs)
