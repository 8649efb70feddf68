"""From the bytes of a batch's members to one array per input, and back from arrays to members.

BYTES tensors are, on the wire and in arenas, elements of u32 length (little-endian) and content.
ONNX strings are UTF-8: content that is not is refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.arena import ALIGNMENT
from slacktide.executors.ports import TensorRef

_LENGTH = struct.Struct("<I")


class TensorError(Exception):
    """Bytes that are not the tensor they are said to be, or members that do not fit together."""


class InputGatherer:
    """Makes one input of a model, with the members' rows along axis 0.

    Keeps a buffer between batches; so an array it returns is good until the next `gather`.
    """

    def __init__(self, spec: TensorSpec) -> None:
        self._spec = spec
        self._buffer = np.empty(0, np.uint8)

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """The tensors, one per member, joined. Raises TensorError.

        A single tensor at an aligned offset is used where it lies; all others are copied once.
        """
        first = tensors[0]
        tail = first.shape[1:]
        shape = first.shape
        if len(tensors) > 1:
            rows = 0
            for tensor in tensors:
                if not tensor.shape or tensor.shape[1:] != tail:
                    raise TensorError(f"input {self._spec.name!r}: unlike shapes in one batch")
                rows += tensor.shape[0]
            shape = (rows, *tail)
        if self._spec.datatype is Datatype.BYTES:
            return self._gather_strings(tensors, shape, arena)
        dtype = self._spec.datatype.dtype
        expected = math.prod(shape) * dtype.itemsize
        if sum([tensor.nbytes for tensor in tensors]) != expected:
            raise TensorError(f"input {self._spec.name!r}: its bytes do not fill its shape")
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
        """`nbytes` aligned bytes of the buffer, which grows to the largest batch seen."""
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
            found = decode_strings(arena[tensor.offset : tensor.offset + tensor.nbytes])
            if len(found) != math.prod(tensor.shape):
                raise TensorError(f"input {self._spec.name!r}: its elements do not fill its shape")
            elements += found
        array = np.empty(len(elements), object)
        array[:] = elements
        return array.reshape(shape)


def decode_strings(data: memoryview | bytes) -> list[str]:
    """The elements of a BYTES tensor. Raises TensorError if lengths or contents are wrong."""
    elements = []
    at, size = 0, len(data)
    while at < size:
        start = at + _LENGTH.size
        if start > size:
            raise TensorError("a BYTES element ends within its length")
        at = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if at > size:
            raise TensorError("a BYTES element is longer than its tensor")
        try:
            elements.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError:
            raise TensorError("a BYTES element is not UTF-8, as ONNX strings must be") from None
    return elements


def encode_strings(array: NDArray[Any]) -> bytes:
    """The bytes of a BYTES tensor with the elements of `array`, in C order."""
    pieces: list[bytes] = []
    for element in array.ravel():
        content = element if isinstance(element, bytes) else str(element).encode()
        pieces += (_LENGTH.pack(len(content)), content)
    return b"".join(pieces)


Piece = tuple[tuple[int, ...], memoryview]
"""Shape and bytes of one output of one member."""


def split_output(
    array: NDArray[Any], datatype: Datatype, rows: Sequence[int], batches: bool
) -> list[Piece]:
    """One output cut into its members: `rows[i]` rows for member i, or all for the only member of
    a model without a batch axis. Views of `array` where its layout allows it."""
    if datatype is Datatype.BYTES:
        if not batches:
            return [(array.shape, memoryview(encode_strings(array)))]
        pieces, at = [], 0
        for count in rows:
            part = array[at : at + count]
            pieces.append((part.shape, memoryview(encode_strings(part))))
            at += count
        return pieces
    data = as_bytes(array)
    if not batches:
        return [(array.shape, data)]
    tail = array.shape[1:]
    row_bytes = math.prod(tail) * array.itemsize
    pieces, at = [], 0
    for count in rows:
        end = at + count * row_bytes
        pieces.append(((count, *tail), data[at:end]))
        at = end
    return pieces


def as_bytes(array: NDArray[Any]) -> memoryview:
    """The array's bytes in C order, without a copy where it is laid out so."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data
