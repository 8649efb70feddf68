"""Inputs for a model that has not had a request yet: random tensors in an arena."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.arena import Arena
from slacktide.executors.ports import ModelSource, Payload, TensorRef
from slacktide.executors.tensor_io import encode_strings

_WORDS = ("slack", "tide", "ebb", "flow")
_MOST_ROWS = 16
_MOST_BYTES = 64 << 20
_MOST_ROW_BYTES = 1 << 30


def row_shapes(
    interface: ModelInterface, source: ModelSource, length: int | None = None
) -> dict[str, tuple[int, ...]]:
    """Shape of each input without the batch axis; free axes as `warmup_shapes` says, else 1.

    Padded axes all get `length`; without it what is stated for one of them, or what is typical.
    Raises ValueError if a stated shape is not one that the model can have, if it leaves nothing to
    send, or if one row of it would take more than a gibibyte.
    """
    shapes = {}
    for spec in interface.inputs:
        axes = spec.shape[1:] if interface.batches else spec.shape
        stated = source.warmup_shapes.get(spec.name)
        if stated is not None and len(stated) != len(axes):
            raise ValueError(
                f"the warm-up shape of input {spec.name!r} has {len(stated)} axes, "
                f"the model has {len(axes)}"
            )
        if any(axis not in (-1, size) for axis, size in zip(axes, stated or axes, strict=True)):
            raise ValueError(
                f"input {spec.name!r} has shape {list(axes)}, not {list(stated or ())}"
            )
        shape = shapes[spec.name] = stated or tuple(1 if axis < 0 else axis for axis in axes)
        nbytes = math.prod(shape) * (spec.datatype.itemsize or 1)
        if not 0 < nbytes <= _MOST_ROW_BYTES:
            found = "is empty" if nbytes == 0 else f"takes {nbytes} bytes, above {_MOST_ROW_BYTES}"
            raise ValueError(f"input {spec.name!r}: a row of shape {list(shape)} {found}")
    padding = None if source.padding is None else source.padding.fitting(interface)
    if padding is None:
        return shapes
    stated_lengths = [
        shapes[name][one.axis - 1]
        for name, one in padding.inputs.items()
        if name in source.warmup_shapes
    ]
    length = length or next(iter(stated_lengths), padding.typical or 1)
    for name, one in padding.inputs.items():
        shape = shapes[name]
        shapes[name] = (*shape[: one.axis - 1], length, *shape[one.axis :])
    return shapes


def payloads(
    interface: ModelInterface,
    shapes: Mapping[str, tuple[int, ...]],
    arena: Arena,
    *,
    generator: np.random.Generator,
) -> list[Payload]:
    """Requests of one row each, written to `arena`, at most 16 of them and 64 MiB (but one).

    They differ, so that a batch reads as much memory as a live one would. The slots live as long
    as the arena. Raises MemoryLimitExceeded if not even one fits.
    """
    made: list[Payload] = []
    used = 0
    while len(made) < _MOST_ROWS:
        tensors = [_tensor(spec, shapes[spec.name], generator) for spec in interface.inputs]
        nbytes = sum(len(data) for data in tensors)
        if made and used + nbytes > _MOST_BYTES:
            break
        used += nbytes
        refs = []
        for spec, data in zip(interface.inputs, tensors, strict=True):
            slot = arena.allocate(len(data))
            arena.view(slot)[:] = data
            lead = (1,) if interface.batches else ()
            refs.append(TensorRef(slot.offset, len(data), (*lead, *shapes[spec.name])))
        made.append(Payload(1, tuple(refs)))
    return made


def batch_of(rows: int, singles: Sequence[Payload]) -> list[Payload]:
    """`rows` members of one row each, as live batches have them; repeats beyond `singles`."""
    return [singles[index % len(singles)] for index in range(rows)]


def _tensor(spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> bytes:
    """Standard normal floats, bits for whole numbers (they may be indices or masks), words."""
    count = math.prod(shape)
    if spec.datatype is Datatype.BYTES:
        words = np.empty(count, object)
        words[:] = [_WORDS[pick] for pick in generator.integers(len(_WORDS), size=count)]
        return encode_strings(words)
    if spec.datatype is Datatype.BF16:
        # The upper half of a float32 is a bfloat16, rounded towards zero.
        wide = generator.standard_normal(count, np.float32).view("<u4")
        return (wide >> 16).astype("<u2").tobytes()
    if spec.datatype.is_float:
        return generator.standard_normal(count, np.float32).astype(spec.datatype.dtype).tobytes()
    return generator.integers(2, size=count).astype(spec.datatype.dtype).tobytes()
