"""Triton's classification extension: the best classes of an output instead of its values.

Each element of the answer is `value:index`, or `value:index:label` for a model with labels. Only
calls that request it use this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype
from slacktide.executors.decoders.classes import best_classes
from slacktide.executors.ports import OutputTensor
from slacktide.wire.calls import Buffer, OutputValue
from slacktide.wire.errors import BadField

if TYPE_CHECKING:
    from slacktide.models.versions import LoadedVersion

MOST_ELEMENTS: Final = 1 << 18
"""Maximum elements of an output, since it is sorted on the server's loop."""
_UNORDERED: Final = (Datatype.BYTES, Datatype.BOOL, Datatype.BF16)
_DECODED: Final = ("scores", "classes")
"""Outputs of a built-in decoder: each score, and the number of its class."""


def check_classification(requested: Mapping[str, int], version: LoadedVersion, rows: int) -> None:
    """Raise BadField unless the requested outputs may be classified."""
    for spec in version.interface.outputs:
        if spec.name in requested:
            field = f"classification of output {spec.name!r}"
            if spec.datatype in _UNORDERED:
                raise BadField(field, "an output of numbers", spec.datatype.wire_name)
            elements = rows * prod([max(1, axis) for axis in version.interface.row_axes(spec)])
            if elements > MOST_ELEMENTS:
                raise BadField(field, f"at most {MOST_ELEMENTS} elements", elements)


def classified(
    output: OutputValue, count: int, version: LoadedVersion, outputs: Sequence[OutputTensor | None]
) -> OutputValue:
    """The `count` best classes of each row of an output, as BYTES [rows, count] (without a batch
    axis [count]); fewer if a row has fewer. `outputs`: all outputs of the call, in the model's
    order. Empty outputs, and outputs that turn out longer than `MOST_ELEMENTS`, give no classes."""
    batches, shape = version.interface.batches, output.shape
    rows = shape[0] if batches and shape else 1
    if not 0 < prod(shape) <= MOST_ELEMENTS:
        return _strings(output.name, [[] for _ in range(rows)], batches)
    values = _array(output.datatype, shape, output.data).reshape(rows, -1)
    pair = _decoded_pair(version, outputs) if output.name in _DECODED else None
    if pair is not None:
        values, classes = (array.reshape(rows, -1)[:, :count] for array in pair)
    else:
        ranks = values if values.dtype.kind == "f" else values.astype(np.float64)
        classes = best_classes(ranks, min(count, values.shape[1]))
        values = np.take_along_axis(values, classes, 1)
    style, names = "%f" if values.dtype.kind == "f" else "%d", version.labels
    strings = []
    for row_values, row_classes in zip(values.tolist(), classes.tolist(), strict=True):
        row = []
        for value, number in zip(row_values, row_classes, strict=False):
            text = f"{style % value}:{number}"
            row.append(f"{text}:{names[number]}" if 0 <= number < len(names) else text)
        strings.append(row)
    return _strings(output.name, strings, batches)


def _decoded_pair(
    version: LoadedVersion, outputs: Sequence[OutputTensor | None]
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Scores and classes of a model with a built-in decoder; None for other models."""
    owner = version.pools[0] if version.pools else version  # variants may have decoders
    decode = owner.definition.settings.decode
    if decode is None or decode.gives:
        return None
    arrays = {
        spec.name: _array(spec.datatype, *tensor)
        for spec, tensor in zip(version.interface.outputs, outputs, strict=True)
        if tensor is not None and spec.name in _DECODED
    }
    return (arrays["scores"], arrays["classes"]) if len(arrays) == 2 else None


def _array(datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> NDArray[Any]:
    return np.frombuffer(data, datatype.dtype).reshape(shape)


def _strings(name: str, rows: Sequence[Sequence[str]], batches: bool) -> OutputValue:
    """An output of BYTES: each string follows its length."""
    encoded = [text.encode() for row in rows for text in row]
    data = b"".join([len(text).to_bytes(4, "little") + text for text in encoded])
    shape = (len(rows), len(rows[0]) if rows else 0)
    return OutputValue(name, Datatype.BYTES, shape if batches else shape[1:], data)
