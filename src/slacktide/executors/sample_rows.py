"""Reads sample rows that a model's owner supplies: an .npz archive, or the raw bytes of a row.

The files are as untrusted as the model: sizes are limited before anything is read, pickled arrays
are refused, and every array is checked against the model. Errors name the key that is wrong.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide._files import open_file
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, fits
from slacktide.executors.file_kinds import misplaced_kind
from slacktide.executors.hand_over.tensor_io import TensorError, decode_strings
from slacktide.exits.archives import read_npz

MOST_BYTES = 64 << 20
"""Maximum bytes of a file of samples, both packed and unpacked."""
_MOST_REQUEST_BYTES = 4 << 30


def read_archive(path: Path, interface: ModelInterface) -> dict[str, NDArray[Any]]:
    """Rows by input, [n, *shape of a row], from an .npz file with arrays for some or all inputs.

    Arrays have the batch axis first, and the same number of rows. For a model without a batch axis
    an array is one request, n = 1. `labels` are ignored, and `NAME.shapes` (see `read_requests`) if
    all rows have one shape. Raises ValueError, which names `samples`.
    """
    content = _bounded(path, f"samples: {path.name}")
    arrays = _arrays(content, path, MOST_BYTES)
    for spec in interface.inputs:
        shapes = arrays.pop(f"{spec.name}.shapes", None)
        full = arrays[spec.name].shape[1:] if spec.name in arrays else ()
        if shapes is not None and not (shapes == np.array(full, np.int64)).all():
            raise ValueError(f"samples: expected rows of {spec.name!r} of one shape")
    if "labels" not in {spec.name for spec in interface.inputs}:
        arrays.pop("labels", None)
    return _fitting(arrays, path, interface)


def read_requests(path: Path, interface: ModelInterface) -> Iterator[dict[str, NDArray[Any]]]:
    """Requests of one row, [1, *shape of a row] by input, in the order of the file.

    Like `read_archive`, but for up to 4 GiB and a model with a batch axis, and every input needs an
    array. If the rows of an input were padded to one shape, an array `NAME.shapes` [n, axes] has
    their original shapes. `labels` are ignored. Raises ValueError, which names the array, before
    the first request.
    """
    arrays = _arrays(path, path, _MOST_REQUEST_BYTES)
    names = [spec.name for spec in interface.inputs]
    shapes = {name: arrays.pop(f"{name}.shapes") for name in names if f"{name}.shapes" in arrays}
    if "labels" not in names:
        arrays.pop("labels", None)
    rows = _fitting(arrays, path, interface)
    if missing := [name for name in names if name not in rows]:
        raise ValueError(f"samples: {path.name} has no array {missing[0]!r}")
    for name, row_shapes in shapes.items():
        full = np.array(rows[name].shape[1:])
        fine = row_shapes.dtype.kind in "iu" and row_shapes.shape == (len(rows[name]), len(full))
        if not fine or (row_shapes < 0).any() or (row_shapes > full).any():
            expected = f"whole numbers [{len(rows[name])}, {len(full)}], at most {full.tolist()}"
            raise ValueError(f"samples: array '{name}.shapes' of {path.name}: expected {expected}")
    return (
        {
            name: array[at : at + 1][(slice(None), *map(slice, shapes[name][at]))]
            if name in shapes
            else array[at : at + 1]
            for name, array in rows.items()
        }
        for at in range(len(rows[names[0]]))
    )


def _arrays(source: bytes | Path, path: Path, most_bytes: int) -> dict[str, NDArray[Any]]:
    """The arrays of the archive at `path`. Raises ValueError, which says if the file is a pointer
    or a web page."""
    if isinstance(source, Path):
        try:
            open_file(source).close()
        except OSError as error:
            why = error.strerror
            raise ValueError(f"samples: {path.name}: expected an .npz file: {why}") from None
    try:
        return read_npz(source, most_bytes=most_bytes, where=f"samples: {path.name}")
    except ValueError:
        if (kind := misplaced_kind(path)) and not zipfile.is_zipfile(path):
            raise ValueError(f"samples: {path.name}: expected an .npz file, got {kind}") from None
        raise


def _fitting(
    arrays: Mapping[str, NDArray[Any]], path: Path, interface: ModelInterface
) -> dict[str, NDArray[Any]]:
    """Check the arrays against the model's inputs; rows by input. Raises ValueError."""
    inputs = {spec.name: spec for spec in interface.inputs}
    rows: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        where = f"samples: array {name!r} of {path.name}"
        spec = inputs.get(name)
        if spec is None:
            raise ValueError(f"{where}: no such input; the model has {', '.join(inputs)}")
        typed = _as_datatype(array, spec.datatype)
        if typed is None:
            expected = "text" if spec.datatype is Datatype.BYTES else spec.datatype.dtype.name
            raise ValueError(f"{where}: expected {expected}, got {array.dtype}")
        if not fits(typed.shape, spec.shape):
            expected = f"a shape that fits {list(spec.shape)}"
            raise ValueError(f"{where}: expected {expected}, got {list(typed.shape)}")
        if typed.size == 0:
            raise ValueError(f"{where}: expected at least one row, got shape {list(typed.shape)}")
        rows[name] = typed if interface.batches else typed[None]
    counts = {name: len(array) for name, array in rows.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"samples: expected as many rows for each input in {path.name}, got {counts}"
        )
    return rows


def read_row(path: Path, spec: TensorSpec, shape: tuple[int, ...]) -> NDArray[Any]:
    """One row, [1, *shape], from a file of its bytes: little-endian, in row-major order; BYTES as
    on the wire. Ignores the rest of the file, as Triton does. Raises ValueError."""
    where = f"samples.rows.{spec.name}: {path.name}"
    data = _bounded(path, where)
    if spec.datatype is Datatype.BYTES:
        try:
            words = decode_strings(data)
        except TensorError as error:
            raise ValueError(f"{where}: {error}") from None
        if len(words) != math.prod(shape):
            raise ValueError(f"{where}: expected {math.prod(shape)} elements, got {len(words)}")
        texts = np.empty(len(words), object)
        texts[:] = words
        return texts.reshape(1, *shape)
    expected = math.prod(shape) * spec.datatype.itemsize
    if len(data) < expected:
        shape_text = f"shape {list(shape)} of {spec.datatype.wire_name}, got {len(data)}"
        kind = misplaced_kind(path)
        advice = f"; the file is {kind}" if kind else ""
        raise ValueError(f"{where}: expected {expected} bytes for {shape_text}{advice}")
    return np.frombuffer(data[:expected], spec.datatype.dtype).reshape(1, *shape)


def _bounded(path: Path, where: str) -> bytes:
    try:
        with open_file(path) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{where}: cannot be read: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ValueError(f"{where}: expected at most {MOST_BYTES} bytes")
    return data


def _as_datatype(array: NDArray[Any], datatype: Datatype) -> NDArray[Any] | None:
    """`array` in the form of the datatype; None if it has another type."""
    if datatype is not Datatype.BYTES:
        is_equal = array.dtype.newbyteorder("=") == datatype.dtype.newbyteorder("=")
        return array.astype(datatype.dtype) if is_equal else None
    if array.dtype.kind not in "SU":
        return None
    texts = np.empty(array.shape, object)
    try:
        texts[...] = np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array
    except UnicodeDecodeError:
        return None
    return texts
