"""The tensors of requests: drawn from the seed, or read from files and checked.

`Tensors` holds one request's inputs as raw little-endian bytes, ready for encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slacktide._datatypes import encode_strings
from slacktide.domain import Datatype, TensorSpec
from slacktide.domain.tensors import fits
from slacktide.lab.load.spec import LoadSpecError, RandomPayload, Shape, Stream
from slacktide.wire.calls import InputTensor

_MEMORY = 256 << 20
"""Limit for the random payloads of one stream, bytes. It is ignored for the first payload of each
combination of rows and shapes."""
_STRING_LENGTH = 16

_Array = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A server's description of a model that it serves."""

    name: str
    inputs: tuple[TensorSpec, ...]
    """Inputs with shapes as in the metadata. If the model batches, the first axis is the rows."""
    batches: bool


@dataclass(frozen=True, slots=True)
class Tensors:
    """One request's inputs."""

    rows: int
    inputs: tuple[InputTensor, ...]


def random_tensors(
    stream: Stream, model: RemoteModel, payload: RandomPayload, rng: np.random.Generator
) -> list[Tensors]:
    """Return `payload.variety` payloads for each combination of the stream's rows and shapes,
    or fewer if they are large. Raises LoadSpecError naming `shape` or `rows`."""
    names = [spec.name for spec in model.inputs]
    for name in stream.shapes:
        if name not in names:
            raise LoadSpecError("shape", f"{model.name!r} has no input {name!r} (one of {names})")
    if not model.batches and stream.rows != (1,):
        raise LoadSpecError("rows", f"model {model.name!r} has no batch axis")
    combinations = list(product(stream.rows, _shape_choices(stream, model)))
    payloads: list[Tensors] = []
    for copy in range(payload.variety):
        for rows, shapes in combinations:
            payloads.append(_draw(model, rows, shapes, payload.integers, rng))
        size = sum(len(tensor.data) for tensors in payloads for tensor in tensors.inputs)
        if copy and size * (copy + 2) / (copy + 1) > _MEMORY:
            break
    return payloads


def file_tensors(path: Path, model: RemoteModel) -> Tensors:
    """Read inputs from a `.npy` or `.npz` file. Raises LoadSpecError naming file and input."""
    arrays = _load(path, model)
    rows: int | None = None
    inputs = []
    for spec in model.inputs:
        if spec.name not in arrays:
            raise LoadSpecError("payload", f"{path.name} has no array named {spec.name!r}")
        array = arrays.pop(spec.name)
        where = f"{path.name}, input {spec.name!r}"
        if not fits(array.shape, spec.shape):
            message = f"{where}: expected shape {spec.shape}, got {array.shape}"
            raise LoadSpecError("payload", message)
        if model.batches:
            if rows not in (None, array.shape[0]):
                problem = f"expected {rows} rows, as in other inputs, got {array.shape[0]}"
                raise LoadSpecError("payload", f"{where}: {problem}")
            rows = int(array.shape[0])
            if rows < 1:
                raise LoadSpecError("payload", f"{where}: expected at least one row")
        data = _raw(array, spec.datatype, where)
        inputs.append(InputTensor(spec.name, spec.datatype, tuple(array.shape), data))
    if arrays:
        raise LoadSpecError("payload", f"{path.name}: unknown inputs {sorted(arrays)}")
    return Tensors(rows or 1, tuple(inputs))


def _shape_choices(stream: Stream, model: RemoteModel) -> Iterator[Sequence[Shape]]:
    """Yield the shapes of all inputs, without the batch axis, for each choice in turn."""
    choices = max((len(shapes) for shapes in stream.shapes.values()), default=1)
    for choice in range(choices):
        yield [_tail(spec, stream.shapes.get(spec.name), choice, model) for spec in model.inputs]


def _tail(spec: TensorSpec, shapes: tuple[Shape, ...] | None, choice: int, m: RemoteModel) -> Shape:
    declared = spec.shape[1:] if m.batches else spec.shape
    if shapes is None:
        return tuple(1 if axis < 0 else axis for axis in declared)
    shape = shapes[choice % len(shapes)]  # an input with a single shape keeps it
    if not fits(shape, declared):
        axes = "x".join("?" if axis < 0 else str(axis) for axis in declared) or "a scalar"
        got = "x".join(map(str, shape))
        raise LoadSpecError("shape", f"input {spec.name!r} of {m.name!r} is {axes}, got {got}")
    return shape


def _draw(
    model: RemoteModel, rows: int, shapes: Sequence[Shape], integers: int, rng: np.random.Generator
) -> Tensors:
    inputs = []
    for spec, tail in zip(model.inputs, shapes, strict=True):
        shape = (rows, *tail) if model.batches else tail
        inputs.append(
            InputTensor(
                spec.name, spec.datatype, shape, _contents(spec.datatype, shape, integers, rng)
            )
        )
    return Tensors(rows, tuple(inputs))


def _contents(datatype: Datatype, shape: Shape, integers: int, rng: np.random.Generator) -> bytes:
    """Return random raw bytes of a tensor."""
    if datatype is Datatype.BYTES:
        letters = rng.integers(97, 123, (int(np.prod(shape)), _STRING_LENGTH), dtype=np.uint8)
        return encode_strings([row.tobytes() for row in letters])
    if datatype is Datatype.BOOL:
        return rng.integers(0, 2, shape, dtype=np.uint8).tobytes()
    if datatype.is_float:
        return _floats(rng.standard_normal(shape, dtype=np.float32), datatype)
    limit = min(integers, int(np.iinfo(datatype.dtype.str).max))
    return rng.integers(0, limit, shape).astype(datatype.dtype).tobytes()


def _floats(values: NDArray[np.float32], datatype: Datatype) -> bytes:
    if datatype is Datatype.BF16:  # the upper half of a float32
        return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    return values.astype(datatype.dtype).tobytes()


def _load(path: Path, model: RemoteModel) -> dict[str, _Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if len(model.inputs) != 1:
                names = ", ".join(spec.name for spec in model.inputs)
                raise LoadSpecError(
                    "payload",
                    f"{path.name}: {model.name!r} has the inputs {names}; name them in a .npz file",
                )
            return {model.inputs[0].name: loaded}
        with loaded:
            return dict(loaded)
    except OSError as error:
        reason = error.strerror or error
        raise LoadSpecError("payload", f"cannot read {path}: {reason}") from None
    except ValueError as error:
        raise LoadSpecError("payload", f"{path.name} holds no arrays: {error}") from None


def _raw(array: _Array, datatype: Datatype, where: str) -> bytes:
    if datatype is Datatype.BYTES:
        if array.dtype.kind not in "SU":
            raise LoadSpecError("payload", f"{where}: expected strings, got {array.dtype}")
        texts = array.reshape(-1).tolist()
        return encode_strings([t.encode() if isinstance(t, str) else t for t in texts])
    if array.dtype != datatype.dtype:
        expected = f"expected {datatype.dtype} ({datatype.wire_name})"
        raise LoadSpecError("payload", f"{where}: {expected}, got {array.dtype}")
    return np.ascontiguousarray(array).tobytes()
