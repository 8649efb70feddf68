"""Joins the bytes of a batch's members into one array per input, and cuts outputs by member.

BYTES tensors, on the wire and in arenas, are elements of u32 length (little-endian) and content.
Content that is not UTF-8 is refused, because ONNX strings must be UTF-8.

Inputs of members of unequal length are padded, and their outputs cut back: one fill for the batch
and one copy per member, nothing per element. Members of equal length are neither padded nor cut.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding, pad_element
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.hand_over.arena import ALIGNMENT
from slacktide.executors.ports import OutputRun, Outputs, OutputTensor, Payload, TensorRef

_LENGTH = struct.Struct("<I")


class TensorError(Exception):
    """The bytes are not the declared tensor, or the members do not fit together."""


class RowCountError(TensorError):
    """An output does not have one row for each row of the batch."""


class InputGatherer:
    """Makes one input of a model, with the members' rows along axis 0.

    It reuses its buffer, so an array is valid until the next `gather`.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._buffer = np.empty(0, np.uint8)

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """Join the tensors, one per member. Raises TensorError.

        A single tensor at an aligned offset is used in place; all others are copied once.
        """
        first = tensors[0]
        tail = first.shape[1:]
        shape = first.shape
        if len(tensors) > 1:
            rows = 0
            for tensor in tensors:
                if not tensor.shape or tensor.shape[1:] != tail:
                    raise TensorError(f"input {self._spec.name!r}: different shapes in one batch")
                rows += tensor.shape[0]
            shape = (rows, *tail)
        if self._spec.datatype is Datatype.BYTES:
            return self._gather_strings(tensors, shape, arena)
        dtype = self._spec.datatype.dtype
        expected = math.prod(shape) * dtype.itemsize
        if sum([tensor.nbytes for tensor in tensors]) != expected:
            raise TensorError(f"input {self._spec.name!r}: its size does not match its shape")
        end = max([tensor.offset + tensor.nbytes for tensor in tensors])
        if end > len(arena):
            raise TensorError(f"input {self._spec.name!r} lies outside the arena")
        if len(tensors) == 1 and first.offset % ALIGNMENT == 0:
            flat = np.frombuffer(arena, dtype, math.prod(shape), first.offset)
            return flat.reshape(shape)
        into = self.room(expected)
        target = into.data
        at = 0
        for tensor in tensors:
            nbytes = tensor.nbytes
            target[at : at + nbytes] = arena[tensor.offset : tensor.offset + nbytes]
            at += nbytes
        return into.view(dtype).reshape(shape)

    def room(self, nbytes: int) -> NDArray[np.uint8]:
        """`nbytes` aligned bytes of the buffer, which grows to fit the largest batch."""
        if self._buffer.nbytes < nbytes:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            self._buffer = raw[start : start + nbytes]
        return self._buffer[:nbytes]

    def _gather_strings(
        self, tensors: Sequence[TensorRef], shape: tuple[int, ...], arena: memoryview
    ) -> NDArray[Any]:
        elements: list[str] = []
        for tensor in tensors:
            strings = decode_strings(arena[tensor.offset : tensor.offset + tensor.nbytes])
            if len(strings) != math.prod(tensor.shape):
                raise TensorError(f"input {self._spec.name!r}: its elements do not match its shape")
            elements += strings
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(shape)


def decode_strings(data: memoryview | bytes) -> list[str]:
    """The elements of a BYTES tensor as text. Raises TensorError if it is malformed."""
    try:
        return [str(element, "utf-8") for element in split_elements(data)]
    except UnicodeDecodeError:
        raise TensorError("a BYTES element is not UTF-8, which ONNX strings must be") from None


def split_elements(data: memoryview | bytes) -> Iterator[memoryview | bytes]:
    """The elements of a BYTES tensor as bytes. Raises TensorError if lengths are wrong."""
    at, size = 0, len(data)
    while at < size:
        start = at + _LENGTH.size
        if start > size:
            raise TensorError("a BYTES element is truncated within its length")
        at = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if at > size:
            raise TensorError("a BYTES element is longer than its tensor")
        yield data[start:at]


def encode_strings(array: NDArray[Any]) -> bytes:
    """The bytes of a BYTES tensor with the elements of `array`, in C order."""
    pieces: list[bytes] = []
    for element in array.ravel():
        content = element if isinstance(element, bytes) else str(element).encode()
        pieces += (_LENGTH.pack(len(content)), content)
    return b"".join(pieces)


def lay_out(
    array: NDArray[Any],
    spec: TensorSpec,
    rows: Sequence[int],
    batches: bool,
    lengths: MemberLengths | None = None,
    at: int = 0,
) -> tuple[bytes | memoryview, list[OutputRun]]:
    """The bytes of one output, to be written at offset `at`, and the place of each member's part.

    `rows[i]` rows belong to member i; a single member gets all rows. A padded output is
    cut to each member's length. The bytes are a view of `array` if its layout allows it.
    """
    batches = batches and len(rows) > 1
    cut = None if lengths is None else lengths.outputs.get(spec.name)
    if cut is None and spec.datatype is not Datatype.BYTES:
        data = as_bytes(array)
        if not batches:
            return data, [OutputRun(1, at, len(data), array.shape)]
        tail = array.shape[1:]
        row_bytes = math.prod(tail) * array.itemsize
        runs = []
        for count, group in groupby(rows):
            members = len(list(group))
            runs.append(OutputRun(members, at, count * row_bytes, (count, *tail)))
            at += members * count * row_bytes
        return data, runs
    parts, runs = [], []
    for index, end in enumerate(accumulate(rows)):
        part = array[end - rows[index] : end] if batches else array
        if lengths is not None and cut is not None:
            length = cut.length(lengths.by_member[index])
            part = part[(*(slice(None),) * cut.axis, slice(length))]
        strings = spec.datatype is Datatype.BYTES
        parts.append(encode_strings(part) if strings else as_bytes(part))
        runs.append(OutputRun(1, at, len(parts[-1]), part.shape))
        at += len(parts[-1])
    return b"".join(parts), runs


def cut_outputs(columns: Iterable[tuple[bytes | mmap, Iterable[OutputRun]]]) -> list[Outputs]:
    """A copy of each member's part of every output. The inverse of `lay_out`."""
    outputs = []
    for data, runs in columns:
        parts = []
        for run in runs:
            at, nbytes, shape = run.offset, run.nbytes, run.shape
            for _ in range(run.members):
                parts.append((shape, data[at : at + nbytes]))
                at += nbytes
        outputs.append(parts)
    return list(zip(*outputs, strict=True))


def copy_outputs(
    data: bytes | mmap, columns: Iterable[Iterable[OutputRun]], step: int
) -> Generator[None, None, list[Outputs]]:
    """Like `cut_outputs`, but yields after each `step` bytes and returns the outputs at the end.
    Parts longer than a step are views, each with memory of its own; all others are bytes."""
    source, budget = memoryview(data), step
    outputs: list[list[OutputTensor]] = []
    for runs in columns:
        parts: list[OutputTensor] = []
        for run in runs:
            at, nbytes, shape = run.offset, run.nbytes, run.shape
            for _ in range(run.members):
                if budget < min(nbytes, step):
                    yield
                    budget = step
                if nbytes <= step:
                    parts.append((shape, data[at : at + nbytes]))
                    budget -= nbytes
                else:
                    part = np.empty(nbytes, np.uint8).data  # not zeroed, unlike a bytearray
                    for start in range(0, nbytes, step):
                        if start:
                            yield
                        end = min(start + step, nbytes)
                        part[start:end] = source[at + start : at + end]
                    budget = start + step - nbytes
                    parts.append((shape, part.toreadonly()))
                at += nbytes
        outputs.append(parts)
    return list(zip(*outputs, strict=True))


def as_bytes(array: NDArray[Any]) -> memoryview:
    """The array's bytes in C order, without a copy if it has that layout."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data


class PaddedGatherer:
    """Makes one input that is padded along an axis. Creates masks that clients omitted."""

    def __init__(self, spec: TensorSpec, padded: PaddedInput) -> None:
        self._plain = InputGatherer(spec)
        self._name = spec.name
        self._dtype = spec.datatype.dtype
        self._axis = padded.axis
        self._pad = pad_element(spec.datatype, padded.value)
        self._mask_element = pad_element(spec.datatype, 1) if padded.mask else None
        self._before = (slice(None),) * (padded.axis - 1)

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """Join the tensors, one per member, along axis 0, and pad them to the longest. The array
        is valid until the next call. Raises TensorError.
        """
        tail = tensors[0].shape[1:]
        if all(tensor.shape[1:] == tail and not self._is_omitted(tensor) for tensor in tensors):
            return self._plain.gather(tensors, arena)
        axis, dtype = self._axis, self._dtype
        longest = max([tensor.shape[axis] for tensor in tensors])
        rows = sum([tensor.shape[0] for tensor in tensors])
        shape = (rows, *tail[: axis - 1], longest, *tail[axis:])
        room = self._plain.room(math.prod(shape) * dtype.itemsize)
        joined = room.view(dtype).reshape(shape)
        joined.fill(self._pad)  # cheap, although most of it is overwritten
        target, row_bytes, inner = room.data, room.nbytes // max(rows, 1), shape[2:]
        end = 0
        for tensor in tensors:
            start, end = end, end + tensor.shape[0]
            if axis == 1 and tensor.shape[2:] == inner and end - start == 1 and tensor.nbytes:
                # The usual request: one contiguous piece in the arena and in the batch.
                content = self._bytes(tensor, arena)
                target[start * row_bytes : start * row_bytes + tensor.nbytes] = content
                continue
            part = joined[(slice(start, end), *self._before, slice(tensor.shape[axis]))]
            if part.shape != tensor.shape:
                raise TensorError(f"input {self._name!r}: different shapes in one batch")
            if self._is_omitted(tensor):
                part[...] = self._mask_element
            else:
                content = self._bytes(tensor, arena)
                part[...] = np.frombuffer(content, dtype).reshape(tensor.shape)
        return joined

    def _is_omitted(self, tensor: TensorRef) -> bool:
        return tensor.nbytes == 0 and self._mask_element is not None

    def _bytes(self, tensor: TensorRef, arena: memoryview) -> memoryview:
        if tensor.nbytes != math.prod(tensor.shape) * self._dtype.itemsize:
            raise TensorError(f"input {self._name!r}: its size does not match its shape")
        if tensor.offset + tensor.nbytes > len(arena):
            raise TensorError(f"input {self._name!r} lies outside the arena")
        return arena[tensor.offset : tensor.offset + tensor.nbytes]


class MemberLengths(NamedTuple):
    """Lengths of the members of a padded batch."""

    by_member: Sequence[int]
    outputs: Mapping[str, PaddedOutput]
    """Outputs to cut back, by name."""

    def check(self, arrays: Sequence[NDArray[Any]], names: Sequence[str]) -> None:
        """Raise TensorError unless padded outputs have the padded length."""
        longest = max(self.by_member)
        for array, name in zip(arrays, names, strict=True):
            cut = self.outputs.get(name)
            if cut is not None:
                length = cut.length(longest)
                if array.shape[cut.axis : cut.axis + 1] != (length,):
                    expected = f"{length} on axis {cut.axis} for inputs of length {longest}"
                    raise TensorError(
                        f"output {name!r} is {list(array.shape)}, expected {expected}"
                    )


class LengthReader:
    """Reads the lengths of members from their shapes."""

    def __init__(self, padding: Padding, interface: ModelInterface) -> None:
        """`padding` is already fitted to the model (`Padding.fitting`)."""
        self._outputs = padding.outputs
        self._index, self._axis = next(
            (index, padding.inputs[spec.name].axis)
            for index, spec in enumerate(interface.inputs)
            if spec.name in padding.inputs
        )

    def of(self, members: Sequence[Payload]) -> MemberLengths | None:
        """The members' lengths; None if all are equal, so that nothing was padded."""
        index, axis = self._index, self._axis
        lengths = [member.tensors[index].shape[axis] for member in members]
        return MemberLengths(lengths, self._outputs) if min(lengths) < max(lengths) else None


def zero_outputs(interface: ModelInterface, rows: int) -> Outputs:
    """Zeros of the declared shapes, with free axes of length 1. BYTES get empty elements: a length
    of zero is four zero bytes."""
    outputs = []
    for spec in interface.outputs:
        axes = [1 if axis < 0 else axis for axis in spec.shape]
        if interface.batches:
            axes[0] = rows
        outputs.append((tuple(axes), bytes(math.prod(axes) * (spec.datatype.itemsize or 4))))
    return tuple(outputs)
