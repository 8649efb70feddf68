"""`ImageInput`: checks a request's image input, JPEG or pixels, which may be of any size.

A JPEG is checked by its header before anything is decoded, and its request is charged for the
decoding time. If a JPEG proves damaged later, only its request fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Reason
from slacktide.domain.preprocessing import rounded_extent, stated_resize
from slacktide.domain.tensors import Datatype, ModelInterface, fits
from slacktide.executors.jpeg_decoder import decodes_jpeg
from slacktide.executors.jpeg_elements import element_header, is_bare, jpeg_elements
from slacktide.models.repository.settings import ModelSettings
from slacktide.wire.calls import InputTensor
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.raw_tensors import walk_strings

_SAMPLE_S = 0.4e-9
"""Seconds to decode a sample (a component of a pixel) of a fast JPEG: decisions/0045."""
_SAMPLES_A_BYTE = 10
"""Decoding time of a byte of the file, in samples."""
_FREE_SAMPLES = 3 << 20
"""Samples beyond the model's own size that are free: the profile includes usual pictures."""


class ImageInput:
    """The image input of one loaded version."""

    def __init__(
        self, interface: ModelInterface, settings: ModelSettings, index: int, *, any_size: bool
    ) -> None:
        """`index`: number of the input. `any_size`: pixels are resized like a JPEG."""
        spec = interface.inputs[index]
        self.index = index
        self.any_size = any_size
        self.name = spec.name
        self._field = f"input {spec.name!r}"
        self._free = spec.shape[1] < 0
        stated = settings.inputs.get(spec.name)
        shapes = () if stated is None else (stated.shape, *stated.shapes)
        closed = (shape for shape in shapes if shape is not None and -1 not in shape)
        stated_rows = (shape for shape in closed if fits(shape, spec.shape[1:]))
        self._row = next(stated_rows, None) if self._free else spec.shape[1:]
        self._free_samples = _FREE_SAMPLES + (0 if self._row is None else math.prod(self._row))
        stated_image = settings.preprocessing
        self.resizing = None if stated_image is None else stated_resize(stated_image)
        """How pictures are resized if each batch decides the size; None if batches do not decide
        it, or if the settings do not say."""
        self._most_pixels = settings.limits.pixels
        self.most_bytes = 3 * settings.limits.pixels
        """Maximum bytes of a row of pixels if the model does not fix the number of pixels."""
        self._decodes = decodes_jpeg()

    def takes(self, tensor: InputTensor) -> bool:
        """Whether `check` is for this tensor: a JPEG, or pixels of any size."""
        return self.any_size or tensor.datatype is Datatype.BYTES

    def check(self, tensor: InputTensor) -> float:
        """Check everything but the number of rows. Returns a lower bound on the seconds of decoding
        that the profile does not include. Raises WireError."""
        shape, data = tensor.shape, tensor.data
        if tensor.datatype is Datatype.BYTES:
            return self._check_jpegs(tensor)
        if tensor.datatype is not Datatype.UINT8:
            name = tensor.datatype.wire_name
            raise BadField(f"{self._field} datatype", "UINT8, or BYTES for JPEG", name)
        if len(shape) != 4 or shape[3] != 3 or 0 in shape[1:3]:
            raise BadField(f"{self._field} shape", "[rows, height, width, 3]", list(shape))
        if len(data) != math.prod(shape):
            expected = f"{math.prod(shape)} bytes for shape {list(shape)}"
            raise BadField(f"{self._field} data", expected, f"{len(data)} bytes")
        self._check_pixels(shape[2], shape[1])
        return 0.0

    def _check_jpegs(self, tensor: InputTensor) -> float:
        field, shape, data = self._field, tensor.shape, memoryview(tensor.data)
        if not self._decodes:
            raise WireError(
                Reason.BAD_INPUT,
                f"{field} datatype: expected UINT8, since this server cannot decode JPEG without "
                "simplejpeg (pip install 'slacktide[images]')",
            )
        if self._row is None and not self.any_size:
            raise WireError(
                Reason.BAD_INPUT,
                f"{field} datatype: expected UINT8, since the size to which JPEGs are resized is "
                f"unknown; state inputs.{self.name}.shape in the model's slacktide.yaml",
            )
        if len(shape) != 1 and (len(shape) != 2 or shape[1] != 1):
            raise BadField(f"{field} shape", "[rows], a JPEG for each", list(shape))
        starts, ends = [0], [len(data)]
        if math.prod(shape) != 1 or not is_bare(data):
            starts = walk_strings(data, math.prod(shape), field)
            ends = [*(start - 4 for start in starts[1:]), len(data)]
        work = 0
        for index, (start, end) in enumerate(zip(starts, ends, strict=False)):
            try:
                header = element_header(data[start:end])
            except ValueError as error:
                message = f"{field}: expected a JPEG as element {index}, got {error}"
                raise WireError(Reason.BAD_INPUT, message) from None
            self._check_pixels(header.width, header.height)
            samples = header.samples * header.sample_cost
            samples += _SAMPLES_A_BYTE * (end - start)
            work += max(0, samples - self._free_samples)
        return work * _SAMPLE_S

    def no_jpeg(self, tensor: InputTensor) -> WireError:
        """Return the error for a raw body that is neither a JPEG nor pixels of the model's size."""
        kind = "one in base64; send its bytes"
        try:
            element_header(memoryview(tensor.data))
        except ValueError as error:
            kind = str(error)
        message = f"body: expected a JPEG, as there is no JSON header, got {kind}"
        return WireError(Reason.BAD_INPUT, message)

    def _check_pixels(self, width: int, height: int) -> None:
        most = self._most_pixels
        if width * height > most:
            raise WireError(
                Reason.BAD_INPUT,
                f"{self._field}: expected at most {most} pixels (limits.pixels), got {width} × "
                f"{height}",
            )

    def size(self, tensor: InputTensor) -> int:
        """Return the longer side of pixels to be resized; 0 for JPEG and fixed sizes."""
        pixels = self.any_size and tensor.datatype is Datatype.UINT8
        return max(tensor.shape[1:3]) if pixels else 0

    def signature(
        self, shapes: Sequence[tuple[int, ...]], tensor: InputTensor
    ) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of a request's rows after resizing; `shapes`: before resizing. If the
        batch decides the size of this input, its shape is rounded up, or left out."""
        at, row = self.index, self._row
        if self.any_size and self._free:
            extent = self._resized(tensor)
            resized_shapes = () if extent is None else ((*extent, 3),)
            return (*shapes[:at], *resized_shapes, *shapes[at + 1 :])
        if tensor.datatype is Datatype.BYTES and row is not None:
            return (*shapes[:at], row, *shapes[at + 1 :])
        return tuple(shapes)

    def _resized(self, tensor: InputTensor) -> tuple[int, int] | None:
        """Return the rounded extent of a request's pictures after resizing; None if the settings do
        not determine it."""
        if (about := self.resizing) is None:
            return None
        if tensor.datatype is not Datatype.BYTES:
            return rounded_extent(about, [(tensor.shape[1], tensor.shape[2])])
        headers = [element_header(picture) for picture in jpeg_elements(memoryview(tensor.data))]
        return rounded_extent(about, [(header.height, header.width) for header in headers])
