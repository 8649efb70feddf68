"""Reading a model's interface: names, datatypes, shapes, and whether it has a batch axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.model_file import Shapes
from slacktide.executors.providers import ModelError

DEFAULT_MAX_BATCH = 32
"""Rows, for a model with a batch axis whose configuration states no limit."""

_DATATYPES = {
    "tensor(bool)": Datatype.BOOL,
    "tensor(uint8)": Datatype.UINT8,
    "tensor(uint16)": Datatype.UINT16,
    "tensor(uint32)": Datatype.UINT32,
    "tensor(uint64)": Datatype.UINT64,
    "tensor(int8)": Datatype.INT8,
    "tensor(int16)": Datatype.INT16,
    "tensor(int32)": Datatype.INT32,
    "tensor(int64)": Datatype.INT64,
    "tensor(float16)": Datatype.FP16,
    "tensor(float)": Datatype.FP32,
    "tensor(double)": Datatype.FP64,
    "tensor(bfloat16)": Datatype.BF16,
    "tensor(string)": Datatype.BYTES,
}


def read_interface(
    inputs: Sequence[Any], outputs: Sequence[Any], declared: Shapes, max_batch: int | None
) -> ModelInterface:
    """The interface of a session with these `NodeArg`s.

    The batch axis is a free first axis of every input and every output. `declared` tells a scalar
    from an unknown shape, which ONNX Runtime shows alike; an output of unknown shape is taken to
    have the axis (the warm-up checks it) and shown as one free axis. `max_batch` as in
    ModelSource. Raises ModelError if a limit is stated and there is no batch axis, or if a
    datatype cannot be served.
    """
    input_specs = tuple(_spec(argument, "input", declared) for argument in inputs)
    output_specs = tuple(_spec(argument, "output", declared) for argument in outputs)
    fixed = [spec.name for spec in (*input_specs, *output_specs) if spec.shape[:1] != (-1,)]
    if max_batch is None:
        max_batch = DEFAULT_MAX_BATCH if input_specs and not fixed else 0
    elif max_batch > 0 and (fixed or not input_specs):
        which = f"the first axis of {fixed[0]!r} is not free" if fixed else "it has no inputs"
        raise ModelError(f"max_batch is {max_batch}, but the model has no batch axis: {which}")
    return ModelInterface(input_specs, output_specs, max_batch)


def _spec(argument: Any, role: str, declared: Shapes) -> TensorSpec:
    datatype = _DATATYPES.get(argument.type)
    if datatype is None:
        raise ModelError(f"{role} {argument.name!r} is a {argument.type}, which cannot be served")
    shape = tuple(
        axis if isinstance(axis, int) and axis >= 0 else -1 for axis in argument.shape or ()
    )
    if not shape and declared.get(argument.name) is None:
        shape = (-1,)
    return TensorSpec(argument.name, datatype, shape)
