"""What a model file says: may ONNX Runtime open it, and what are its names, datatypes and axes?

External data is resolved by ONNX Runtime relative to the model file. A location such as
`../../etc/secret`, or a symbolic link that leads out, would let a model read what it must not;
so every location is resolved here first, links and all, and must end within the version's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, tensors_of
from slacktide.executors.details import client_detail
from slacktide.executors.providers import ModelError

Shapes = dict[str, tuple[int, ...] | None]
"""By name of an input or output: its axes, free ones as −1; None if the model does not say."""


def inspect(path: Path, root: Path) -> Shapes:
    """Check the file and the places of its weights; the shapes it declares.

    Raises ModelError, with a reason that names no path.
    """
    import onnx

    home = root.resolve()
    if not path.resolve().is_relative_to(home):
        raise ModelError("the model file leads out of its folder")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except FileNotFoundError:
        raise ModelError("the model file is missing") from None
    except OSError as error:
        raise ModelError(f"the model file cannot be read: {error.strerror}") from None
    except Exception as error:  # protobuf's errors share no base that is worth naming
        raise ModelError(f"not an ONNX model: {client_detail(error, path, root)}") from None
    if not model.HasField("graph"):
        raise ModelError("not an ONNX model: it has no graph")
    for tensor in tensors_of(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_location(tensor, path.resolve().parent, home)
    return {value.name: _shape(value) for value in (*model.graph.input, *model.graph.output)}


def _check_location(tensor: Any, folder: Path, home: Path) -> None:
    fields = {entry.key: entry.value for entry in tensor.external_data}
    try:
        place = (folder / fields.get("location", "")).resolve()
        there = place.is_file()
    except (OSError, ValueError):  # a name that no file can have
        place, there = home, False
    if not place.is_relative_to(home):
        raise ModelError(f"the external data of tensor {tensor.name!r} leads out of the folder")
    if not there:
        raise ModelError(f"the external data of tensor {tensor.name!r} is missing")
    try:
        offset, length = (int(fields.get(key, 0)) for key in ("offset", "length"))
    except ValueError:
        offset = length = -1
    if min(offset, length) < 0 or offset + length > place.stat().st_size:
        raise ModelError(f"the external data of tensor {tensor.name!r} leads out of its file")


def _shape(value: Any) -> tuple[int, ...] | None:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else -1
        for axis in tensor.shape.dim
    )


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
