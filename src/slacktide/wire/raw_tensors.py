"""Converts tensor data between JSON or gRPC's typed contents and raw little-endian bytes.

JSON data may be flat or nested, row-major. Values must match the tensor's type exactly: 1.0 is not
an integer, true is not a number, 300 is not a UINT8. JSON integers are valid floats. JSON has no
NaN and infinity: they become null in answers, and null in a request is NaN. FP16 and BF16 are not
accepted as JSON; answers write them as numbers.

All work per element is done in C (NumPy, `set(map(type, …))`, `chain.from_iterable`), except for
strings of unequal length, whose layout must be walked.

A gRPC client without raw buffers may send values in `InferTensorContents`. One list serves several
datatypes, so values are checked against the range of the tensor's datatype.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import numpy.typing as npt

from slacktide._datatypes import BY_NAME, Datatype, encode_strings
from slacktide.domain import Reason
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, WireError

MAX_RANK: Final = 32
MAX_STRINGS: Final = 1 << 17
"""Maximum elements of a BYTES tensor, whose layout is walked twice on the event loop, at 0.1 µs per
element."""
MAX_ELEMENTS: Final = 1 << 48
"""Maximum elements of a tensor, which NumPy and shared memory can address."""

_BYTES, _FP16, _BF16 = Datatype.BYTES, Datatype.FP16, Datatype.BF16
# Bound to names because looking members up on the class is slower.
_U32 = struct.Struct("<I")
_FEW: Final = 8192
"""Number of floats up to which `struct` is faster than NumPy."""


def datatype_of(name: object, field: str) -> Datatype:
    """The datatype with a wire name. Raises BadField."""
    datatype = BY_NAME.get(name) if isinstance(name, str) else None
    if datatype is None:
        raise BadField(field, f"one of {' '.join(BY_NAME)}", name)
    return datatype


def check_shape(shape: object, field: str) -> tuple[int, ...]:
    """Check a shape and return it as a tuple of non-negative dimensions. Raises BadField."""
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_RANK:
        raise BadField(field, f"a list of at most {MAX_RANK} dimensions", shape)
    for dimension in shape:
        if type(dimension) is not int or not 0 <= dimension <= MAX_ELEMENTS:
            raise BadField(field, "integers of 0 or more", dimension)
    if math.prod(shape) > MAX_ELEMENTS:
        raise BadField(field, f"at most {MAX_ELEMENTS} elements", shape)
    return tuple(shape)


def check_raw(data: Buffer, datatype: Datatype, shape: tuple[int, ...], field: str) -> None:
    """Raise BadField unless `data` is exactly a tensor of this type and shape."""
    count = math.prod(shape)
    if datatype is _BYTES:
        walk_strings(data, count, field)
    elif len(data) != count * datatype.itemsize:
        expected = f"{count * datatype.itemsize} bytes for {datatype.wire_name} {list(shape)}"
        raise BadField(field, expected, len(data))


def walk_strings(data: Buffer, count: int, field: str) -> list[int]:
    """Offsets of the `count` elements of a BYTES tensor, each after its length. Raises BadField if
    the lengths do not add up to `data`."""
    size = len(data)
    if count > MAX_STRINGS:
        raise BadField(field, f"at most {MAX_STRINGS} strings", count)
    if count * 4 > size:
        raise BadField(field, f"{count} strings, each with its length", f"{size} bytes")
    if count == 0:
        if size:
            raise BadField(field, "0 bytes for 0 strings", size)
        return []
    unpack = _U32.unpack_from
    stride = 4 + int(unpack(data, 0)[0])
    if stride * count == size:
        # All have the same length, as in most batches: check all lengths in one step.
        table = np.frombuffer(data, np.uint8).reshape(count, stride)[:, :4]
        if not np.any(table != table[0]):
            return list(range(4, size + 4, stride))
    offsets = []
    offset = 0
    for index in range(count):
        if offset + 4 > size:
            raise BadField(field, f"{count} strings", f"data that ends in string {index}")
        length: int = unpack(data, offset)[0]
        offsets.append(offset + 4)
        offset += 4 + length
    if offset != size:
        raise BadField(field, f"string lengths that add up to {size} bytes", offset)
    return offsets


def check_utf8(data: Buffer, offsets: Sequence[int], field: str) -> None:
    """Raise WireError unless each element is UTF-8, as ONNX requires of strings."""
    if not offsets or np.frombuffer(data, np.uint8).max() < 0x80:  # all ASCII, even the lengths
        return
    view, ends = memoryview(data), (*offsets[1:], len(data) + 4)
    joined = b"\0".join([view[start : end - 4] for start, end in zip(offsets, ends, strict=True)])
    try:
        str(joined, "utf-8")  # in one step: no character can span a separator
    except UnicodeDecodeError as error:
        lengths = (end - start - 3 for start, end in zip(offsets, ends, strict=True))
        index = next(i for i, end in enumerate(accumulate(lengths)) if error.start < end)
        message = f"{field}: expected UTF-8, element {index} is not"
        raise WireError(Reason.BAD_INPUT, message) from None


def split_strings(data: Buffer, count: int) -> list[Buffer]:
    """The elements of a BYTES tensor. Raises BadField if the layout is wrong."""
    starts = walk_strings(data, count, "data")
    ends = [*(start - 4 for start in starts[1:]), len(data)][:count]
    return [data[start:end] for start, end in zip(starts, ends, strict=True)]


def from_json(data: object, datatype: Datatype, shape: tuple[int, ...], field: str) -> bytes:
    """Convert the JSON value of `data`, flat or nested, to raw bytes. Raises WireError naming
    `field`."""
    if datatype is _FP16 or datatype is _BF16:
        message = "cannot be sent as JSON; send binary data, with binary_data_size"
        raise WireError(Reason.BAD_INPUT, f"{field}: {datatype.wire_name} {message}")
    flat = _flatten(data, field)
    count = math.prod(shape)
    if len(flat) != count:
        raise BadField(field, f"{count} values for shape {list(shape)}", len(flat))
    if not flat:
        return b""
    kinds = set(map(type, flat))
    allowed, words = _JSON_TYPES[datatype]
    if not kinds <= allowed:
        stranger = next(value for value in flat if type(value) not in allowed)
        raise BadField(field, f"{words} for {datatype.wire_name}", stranger)
    if datatype is _BYTES:
        try:
            return encode_strings([text.encode() for text in flat])
        except UnicodeEncodeError as error:
            raise BadField(field, "a string without lone surrogates", ascii(error.object)) from None
    if allowed is _NUMBERS[0]:
        if type(None) in kinds:
            flat = [math.nan if value is None else value for value in flat]
        return _floats(flat, datatype, field)
    return _exact(flat, datatype, field)


def to_json(data: Buffer, datatype: Datatype, shape: tuple[int, ...]) -> object | None:
    """Convert a tensor to an object that orjson (with OPT_SERIALIZE_NUMPY) writes as a flat array.
    None for strings that are not UTF-8. Raises BadField for a broken BYTES layout."""
    if datatype is _BYTES:
        try:
            return [str(element, "utf-8") for element in split_strings(data, math.prod(shape))]
        except UnicodeDecodeError:
            return None
    array: npt.NDArray[np.generic] = np.frombuffer(data, datatype.dtype)
    if datatype is _BF16:
        # bfloat16 is the upper half of a float32.
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32) if datatype is _FP16 else array


def _flatten(data: object, field: str) -> list[Any]:
    if not isinstance(data, list):
        raise BadField(field, "a list of values", data)
    depth = 1
    while data and type(data[0]) is list:
        depth += 1
        if depth > MAX_RANK:
            raise BadField(field, f"at most {MAX_RANK} levels of lists", "more")
        if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
            raise BadField(field, "lists of equal length at each level", "unequal lists")
        data = list(chain.from_iterable(data))
    return data


def _floats(flat: list[Any], datatype: Datatype, field: str) -> bytes:
    try:
        if len(flat) <= _FEW:
            return struct.pack(f"<{len(flat)}{datatype.dtype.char}", *flat)
        with np.errstate(over="raise"):
            return np.array(flat, np.float64).astype(datatype.dtype, copy=False).tobytes()
    except (OverflowError, FloatingPointError, struct.error):
        # JSON has no infinity, so this is a value beyond the type's range.
        stranger = max(flat, key=abs)
        raise BadField(
            field, f"values within the range of {datatype.wire_name}", stranger
        ) from None


_INTEGERS = (frozenset((int,)), "integers")
_NUMBERS: tuple[frozenset[type], str] = (frozenset((int, float, type(None))), "numbers or null")
_JSON_TYPES: dict[Datatype, tuple[frozenset[type], str]] = {
    **dict.fromkeys(Datatype, _INTEGERS),
    Datatype.BOOL: (frozenset((bool,)), "true or false"),
    Datatype.FP32: _NUMBERS,
    Datatype.FP64: _NUMBERS,
    Datatype.BYTES: (frozenset((str,)), "strings"),
}

if TYPE_CHECKING:
    from slacktide.wire.proto.messages import InferTensorContents

CONTENTS_FIELD: dict[Datatype, str] = {
    Datatype.BOOL: "bool_contents",
    Datatype.INT8: "int_contents",
    Datatype.INT16: "int_contents",
    Datatype.INT32: "int_contents",
    Datatype.INT64: "int64_contents",
    Datatype.UINT8: "uint_contents",
    Datatype.UINT16: "uint_contents",
    Datatype.UINT32: "uint_contents",
    Datatype.UINT64: "uint64_contents",
    Datatype.FP32: "fp32_contents",
    Datatype.FP64: "fp64_contents",
    Datatype.BYTES: "bytes_contents",
}
"""The list that holds each datatype."""


def raw_contents(
    contents: InferTensorContents, datatype: Datatype, shape: tuple[int, ...], field: str
) -> bytes:
    """Convert typed `contents` to raw bytes. Raises BadField. `field` is the client's name of the
    tensor, such as `inputs[0]`."""
    contents_field = CONTENTS_FIELD.get(datatype)
    if contents_field is None:
        name = datatype.wire_name
        raise BadField(f"{field}.contents", f"raw_input_contents for {name}", "typed contents")
    for descriptor, _ in contents.ListFields():
        if descriptor.name != contents_field:
            expected = f"{contents_field} for {datatype.wire_name}"
            raise BadField(f"{field}.contents", expected, descriptor.name)
    values = getattr(contents, contents_field)
    elements = math.prod(shape)
    if len(values) != elements:
        raise BadField(f"{field}.contents.{contents_field}", f"{elements} values", len(values))
    if datatype is _BYTES:
        return encode_strings(values)
    return _exact(list(values), datatype, f"{field}.contents.{contents_field}")


def _exact(values: list[Any], datatype: Datatype, field: str) -> bytes:
    try:
        # NumPy refuses a Python integer that its type cannot hold.
        return np.array(values, datatype.dtype).tobytes()
    except OverflowError:
        limits = np.iinfo(cast("np.dtype[np.integer[Any]]", datatype.dtype))
        stranger = next(value for value in values if not limits.min <= value <= limits.max)
        expected = f"integers from {limits.min} to {limits.max} for {datatype.wire_name}"
        raise BadField(field, expected, stranger) from None
