"""What may come as a model's image input: JPEG, or pixels, of which families take any size.

A JPEG is judged by its header here, before anything is decoded. One that only its decoding shows to
be damaged fails alone, later.
"""

from __future__ import annotations

import math
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Sequence
from dataclasses import replace

from slacktide.domain import Reason
from slacktide.domain.tensors import Datatype, ModelInterface, fits
from slacktide.executors.images import has_opencv
from slacktide.executors.jpeg_header import jpeg_extent
from slacktide.models.repository.settings import ModelSettings
from slacktide.wire.calls import InputTensor
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.raw_tensors import encode_strings, split_strings, walk_strings

_BASE64 = b"/9j/"
"""How every JPEG begins in base64: JSON can hold no other bytes than text."""


class ImageInput:
    """The image input of one loaded version."""

    def __init__(
        self, interface: ModelInterface, settings: ModelSettings, index: int, *, any_size: bool
    ) -> None:
        """`index` of the input. `any_size`: pixels are resized like a JPEG."""
        spec = interface.inputs[index]
        self.index = index
        self.any_size = any_size
        self.name = spec.name
        self._field = f"input {spec.name!r}"
        self._free = spec.shape[1] < 0
        stated = settings.inputs.get(spec.name)
        shapes = () if stated is None else (stated.shape, *stated.shapes)
        known = (shape for shape in shapes if shape is not None and fits(shape, spec.shape[1:]))
        self._row = next(known, None) if self._free else spec.shape[1:]
        self._most_pixels = settings.limits.pixels
        self._decodes = has_opencv()

    def read(self, inputs: Sequence[InputTensor]) -> Sequence[InputTensor]:
        """`inputs`, with JPEGs as bytes where they came as base64. Raises BadField."""
        tensor = inputs[self.index]
        if tensor.datatype is not Datatype.BYTES or bytes(tensor.data[4:8]) != _BASE64:
            return inputs
        elements = split_strings(bytes(tensor.data), math.prod(tensor.shape))
        try:
            decoded = encode_strings(
                [a2b_base64(element, strict_mode=True) for element in elements]
            )
        except Base64Error:
            raise BadField(self._field, "JPEGs in base64", "text that is none") from None
        changed = list(inputs)
        changed[self.index] = replace(tensor, data=decoded)
        return changed

    def takes(self, tensor: InputTensor) -> bool:
        """Whether it is checked here: a JPEG, or pixels of any size."""
        return self.any_size or tensor.datatype is Datatype.BYTES

    def check(self, tensor: InputTensor) -> None:
        """All but its rows. Raises WireError."""
        shape, data = tensor.shape, tensor.data
        if tensor.datatype is Datatype.BYTES:
            self._check_jpegs(tensor)
        elif tensor.datatype is not Datatype.UINT8:
            name = tensor.datatype.wire_name
            raise BadField(f"{self._field} datatype", "UINT8, or BYTES for JPEG", name)
        elif len(shape) != 4 or shape[3] != 3 or 0 in shape[1:3]:
            raise BadField(f"{self._field} shape", "[rows, height, width, 3]", list(shape))
        elif len(data) != math.prod(shape):
            expected = f"{math.prod(shape)} bytes for shape {list(shape)}"
            raise BadField(f"{self._field} data", expected, f"{len(data)} bytes")
        else:
            self._check_pixels(shape[2], shape[1])

    def _check_jpegs(self, tensor: InputTensor) -> None:
        field, shape, data = self._field, tensor.shape, memoryview(tensor.data)
        if not self._decodes:
            raise WireError(
                Reason.BAD_INPUT,
                f"{field} datatype: expected UINT8, since this server cannot decode JPEG: that "
                "takes OpenCV, pip install 'slacktide[images]'",
            )
        if self._row is None and not self.any_size:
            raise WireError(
                Reason.BAD_INPUT,
                f"{field} datatype: expected UINT8, since the model leaves open which size a JPEG "
                f"is to have; inputs.{self.name}.shape in its configuration would state it",
            )
        if len(shape) != 1 and (len(shape) != 2 or shape[1] != 1):
            raise BadField(f"{field} shape", "[rows], a JPEG for each", list(shape))
        starts = walk_strings(data, math.prod(shape), field)
        ends = [*(start - 4 for start in starts[1:]), len(data)]
        for index, (start, end) in enumerate(zip(starts, ends, strict=False)):
            try:
                width, height = jpeg_extent(data[start:end])
            except ValueError as error:
                message = f"{field}: expected a JPEG as element {index}, got {error}"
                raise WireError(Reason.BAD_INPUT, message) from None
            self._check_pixels(width, height)

    def _check_pixels(self, width: int, height: int) -> None:
        most = self._most_pixels
        if width * height > most:
            raise WireError(
                Reason.BAD_INPUT,
                f"{self._field}: expected at most {most} pixels (limits.pixels), got {width} × "
                f"{height}",
            )

    def size(self, tensor: InputTensor) -> int:
        """The longer side of pixels that are to be resized; 0 of a JPEG, and where none is."""
        pixels = self.any_size and tensor.datatype is Datatype.UINT8
        return max(tensor.shape[1:3]) if pixels else 0

    def signature(
        self, shapes: Sequence[tuple[int, ...]], tensor: InputTensor
    ) -> tuple[tuple[int, ...], ...]:
        """The `shapes` of a request's rows, as they are when images have been resized; without this
        input's where the batch decides on that."""
        at, row = self.index, self._row
        if self.any_size and self._free:
            return (*shapes[:at], *shapes[at + 1 :])
        if tensor.datatype is Datatype.BYTES and row is not None:
            return (*shapes[:at], row, *shapes[at + 1 :])
        return tuple(shapes)
