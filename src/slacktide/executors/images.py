"""Image inputs: JPEGs or pixels of any size, resized to the size of the batch (pictures.py).

A JPEG of twice that size or more is decoded at half or quarter scale, which the format makes cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.hand_over.tensor_io import InputGatherer, TensorError
from slacktide.executors.jpeg_decoder import decode
from slacktide.executors.jpeg_elements import element_jpeg, jpeg_elements
from slacktide.executors.pictures import Pixels, resize_into
from slacktide.executors.ports import MemberFault, TensorRef


class ImageGatherer:
    """Makes the image input of a model, with the members' rows along axis 0.

    A tensor with four axes is pixels; others are BYTES, a JPEG for each row.
    """

    def __init__(self, spec: TensorSpec, stated: Sequence[int] | None) -> None:
        """`stated`: the row shape that JPEGs get if the model leaves the size free."""
        self._plain = InputGatherer(spec)
        self.name = spec.name
        self._fixed = spec.shape[1:3] if spec.shape[1] > 0 else None
        self._default = None if stated is None else tuple(stated[:2])
        self.size = 0
        """Side of the square that the next batch's images are resized to; 0: the size that the
        model fixes, or their own."""
        self.faults: dict[int, MemberFault] = {}
        """Members of the last batch with images that could not be decoded, by their place. Their
        rows are black."""

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """Join the images. The array is valid until the next call. Raises TensorError."""
        if self.faults:
            self.faults = {}
        extent = (self.size, self.size) if self.size else self._fixed
        tail = extent or tensors[0].shape[1:3]
        if all(len(ref.shape) == 4 and ref.shape[1:3] == tail for ref in tensors):
            return self._plain.gather(tensors, arena)
        extent = extent or self._default
        if extent is None:
            raise TensorError(f"input {self.name!r}: unlike shapes in one batch")
        height, width = extent
        rows = sum([ref.shape[0] for ref in tensors])
        joined = self._plain.room(rows * height * width * 3).reshape(rows, height, width, 3)
        end = 0
        for member, tensor in enumerate(tensors):
            start, end = end, end + tensor.shape[0]
            data = arena[tensor.offset : tensor.offset + tensor.nbytes]
            if len(data) != tensor.nbytes:
                raise TensorError(f"input {self.name!r} lies outside the arena")
            into = joined[start:end]
            if len(tensor.shape) == 4:
                if len(data) != np.prod(tensor.shape):
                    raise TensorError(f"input {self.name!r}: its bytes do not fill its shape")
                pixels = np.frombuffer(data, np.uint8).reshape(tensor.shape)
                for row, out in zip(pixels, into, strict=True):
                    resize_into(row, out)
                continue
            try:
                self._decode(data, into)
            except ValueError as error:
                into.fill(0)
                self.faults[member] = MemberFault(f"input {self.name!r}: {error}")
        return joined

    def _decode(self, data: memoryview, into: NDArray[np.uint8]) -> None:
        """Decode a member's JPEGs. Raises ValueError if one of them cannot be decoded."""
        elements = list(jpeg_elements(data))
        if len(elements) != len(into):
            raise TensorError(f"input {self.name!r}: its elements do not fill its shape")
        for index, (element, out) in enumerate(zip(elements, into, strict=True)):
            try:
                decode_into(element_jpeg(element), out)
            except ValueError as error:
                raise ValueError(f"expected a JPEG as element {index}, got {error}") from None


def decode_into(jpeg: memoryview | bytes, out: Pixels) -> None:
    """Decode a JPEG and resize it to `out`. Raises the errors of `decode`."""
    pixels = decode(jpeg, out)
    if pixels is not out:
        resize_into(pixels, out)


def made_up_image(height: int, width: int, generator: np.random.Generator) -> Pixels:
    """An image of soft colours with some grain, about as hard to decode as a photograph."""
    patches = generator.integers(256, size=(height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    image = np.empty((height, width, 3), np.uint8)
    resize_into(patches, image)
    grain = generator.integers(16, size=image.shape, dtype=np.uint8)
    return np.asarray(image // 2 + 64 + grain, np.uint8)
