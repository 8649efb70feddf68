"""Looking at a model file before ONNX Runtime opens it: may it be opened, and what are its axes?

External data is resolved by ONNX Runtime relative to the model file. A location such as
`../../etc/secret`, or a symbolic link that leads out, would let a model read what it must not;
so every location is resolved here first, links and all, and must end within the version's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slacktide.domain.tensors import tensors_of
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
