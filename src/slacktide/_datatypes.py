"""Datatypes of the Open Inference Protocol, and the layout of BYTES tensors.

The client library uses this module, so it imports nothing else of Slacktide.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import chain
from struct import Struct

import numpy as np

_U32 = Struct("<I")


class Datatype(Enum):
    """A datatype: its wire name, bytes per element and NumPy dtype. BYTES elements have no fixed
    size (u32 length, little-endian, then the bytes) and are objects in NumPy. NumPy has no BF16, so
    its dtype is uint16."""

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

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python


for _datatype in Datatype:  # attributes, because properties are three times slower
    _datatype.wire_name, _datatype.itemsize, _datatype.dtype = _datatype._value_
    _datatype.is_float = _datatype.wire_name in ("FP16", "FP32", "FP64", "BF16")

BY_NAME: dict[str, Datatype] = {datatype.wire_name: datatype for datatype in Datatype}
"""Datatypes by wire name."""


def encode_strings(elements: Sequence[bytes]) -> bytes:
    """Encode elements as a BYTES tensor, each after its length."""
    lengths = map(_U32.pack, map(len, elements))
    return b"".join(chain.from_iterable(zip(lengths, elements, strict=True)))
