"""Datatypes of the Open Inference Protocol, and how BYTES tensors are laid out.

The client library takes this along, so it imports nothing else of Slacktide.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import chain
from struct import Struct

import numpy as np

_U32 = Struct("<I")


class Datatype(Enum):
    """An OIP datatype: its name on the wire, bytes per element, NumPy dtype. BYTES has no fixed
    size (element = u32 length + bytes, little-endian); in NumPy it is an object array of `bytes`.
    BF16 has no NumPy dtype: it travels as raw uint16."""

    _value_: tuple[str, int, np.dtype[np.generic]]
    wire_name: str
    itemsize: int
    """Bytes per element; 0 for BYTES."""
    dtype: np.dtype[np.generic]
    is_float: bool

    BOOL = ("BOOL", 1, np.dtype("?"))
    UINT8 = ("UINT8", 1, np.dtype("u1"))
    UINT16 = ("UINT16", 2, np.dtype("<u2"))
    UINT32 = ("UINT32", 4, np.dtype("<u4"))
    UINT64 = ("UINT64", 8, np.dtype("<u8"))
    INT8 = ("INT8", 1, np.dtype("i1"))
    INT16 = ("INT16", 2, np.dtype("<i2"))
    INT32 = ("INT32", 4, np.dtype("<i4"))
    INT64 = ("INT64", 8, np.dtype("<i8"))
    FP16 = ("FP16", 2, np.dtype("<f2"))
    FP32 = ("FP32", 4, np.dtype("<f4"))
    FP64 = ("FP64", 8, np.dtype("<f8"))
    BF16 = ("BF16", 2, np.dtype("<u2"))
    BYTES = ("BYTES", 0, np.dtype("O"))

    __hash__ = object.__hash__  # members are single; Enum's own hashes the name, in Python


for _datatype in Datatype:  # read for each tensor: attributes cost a third of properties
    _datatype.wire_name, _datatype.itemsize, _datatype.dtype = _datatype._value_
    _datatype.is_float = _datatype.wire_name in ("FP16", "FP32", "FP64", "BF16")

BY_NAME: dict[str, Datatype] = {datatype.wire_name: datatype for datatype in Datatype}
"""Datatypes by their names on the wire."""


def encode_strings(elements: Sequence[bytes]) -> bytes:
    """The BYTES layout of these elements: each behind its length."""
    lengths = map(_U32.pack, map(len, elements))
    return b"".join(chain.from_iterable(zip(lengths, elements, strict=True)))
