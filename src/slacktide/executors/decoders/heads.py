"""Types that decoders share, and functions that find the outputs to read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.suggestions import suggestion
from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import DecodeSource

Arrays = Sequence[NDArray[Any]]
Placements = NDArray[np.float64]
Extent = tuple[int, int]
"""Height and width in pixels; (0, 0) if there is no picture of fixed size."""


def extent_of(shapes: Iterable[Sequence[int]]) -> Extent:
    """The extent of the first picture among a model's inputs of these shapes."""
    for shape in shapes:
        if len(shape) == 4:
            height, width = shape[2:] if 0 < shape[1] <= 4 else shape[1:3]
            return (height, width) if min(height, width) > 0 else (0, 0)
    return 0, 0


def head_of(
    source: DecodeSource, outputs: Sequence[TensorSpec], *, rank: int
) -> tuple[int, TensorSpec]:
    """Index and spec of the output that `from` names. Without `from`: of the only output, or of the
    only output with `rank` axes. Raises ModelError."""
    if source.outputs:
        index = index_of(source.outputs[0], outputs)
    else:
        fitting = [at for at, spec in enumerate(outputs) if len(spec.shape) == rank]
        fitting = [0] if len(outputs) == 1 else fitting
        if len(fitting) != 1:
            names = ", ".join(repr(spec.name) for spec in outputs)
            raise ModelError(f"decode.from: expected the name of an output, one of {names}")
        index = fitting[0]
    return index, floats_at(index, outputs)


def floats_at(index: int, outputs: Sequence[TensorSpec]) -> TensorSpec:
    """The output at this index. Raises ModelError if it holds no floats."""
    spec = outputs[index]
    if not spec.datatype.is_float or spec.datatype is Datatype.BF16:
        kind = f"{spec.datatype.wire_name} {list(spec.shape)}"
        raise ModelError(f"decode.from: expected an output of floats, {spec.name!r} is {kind}")
    return spec


def index_of(name: str, outputs: Sequence[TensorSpec]) -> int:
    """Index of the output of this name. Raises ModelError."""
    names = [spec.name for spec in outputs]
    if name not in names:
        hint = suggestion(name, names)
        raise ModelError(f"decode.from: the model has no output {name!r}; {hint}")
    return names.index(name)


def check_labels(labels: int | None, classes: int, spec: TensorSpec) -> None:
    """Raise ModelError unless there are as many labels as classes, or none."""
    if labels is not None and labels != classes:
        expected = f"expected {classes} names, one for each class of output {spec.name!r}"
        raise ModelError(f"labels: {expected}, got {labels}")
