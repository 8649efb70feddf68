"""gRPC's typed tensor contents ↔ raw bytes.

A client without raw buffers (curl-like tools, other implementations' clients) may list values in
`InferTensorContents`; there is one list for several datatypes, so values are checked against the
range of the one that was named. FP16 and BF16 have no list: they travel raw only.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from slacktide.domain.tensors import Datatype
from slacktide.wire.errors import BadField
from slacktide.wire.raw_tensors import encode_strings

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
"""The list that carries each datatype."""

_LIMITS: dict[Datatype, tuple[int, int]] = {
    Datatype.INT8: (-(2**7), 2**7 - 1),
    Datatype.INT16: (-(2**15), 2**15 - 1),
    Datatype.UINT8: (0, 2**8 - 1),
    Datatype.UINT16: (0, 2**16 - 1),
}
"""Least and greatest value of the datatypes whose list holds wider integers."""


def raw_contents(
    contents: InferTensorContents, datatype: Datatype, shape: tuple[int, ...], field: str
) -> bytes:
    """The raw bytes of typed `contents`. Raises BadField naming `field`.

    `field` is how the client knows this tensor, such as `inputs[0]`.
    """
    wanted = CONTENTS_FIELD.get(datatype)
    if wanted is None:
        name = datatype.wire_name
        raise BadField(f"{field}.contents", f"raw_input_contents for {name}", "typed contents")
    for descriptor, _ in contents.ListFields():
        if descriptor.name != wanted:
            expected = f"{wanted} for {datatype.wire_name}"
            raise BadField(f"{field}.contents", expected, descriptor.name)
    values = getattr(contents, wanted)
    elements = prod(shape)
    if len(values) != elements:
        raise BadField(f"{field}.contents.{wanted}", f"{elements} values", len(values))
    if datatype is Datatype.BYTES:
        return encode_strings(values)
    if datatype in _LIMITS:
        return _narrowed(values, datatype, f"{field}.contents.{wanted}")
    return np.array(values, dtype=datatype.dtype).tobytes()


def _narrowed(values: Sequence[int], datatype: Datatype, field: str) -> bytes:
    try:
        # NumPy refuses a Python integer that its type cannot hold.
        return np.array(list(values), dtype=datatype.dtype).tobytes()
    except OverflowError:
        lowest, highest = _LIMITS[datatype]
        stranger = next(value for value in values if not lowest <= value <= highest)
        expected = f"{lowest} to {highest} for {datatype.wire_name}"
        raise BadField(field, expected, stranger) from None
