"""Image inputs: JPEGs or pixels of any size, placed into the size of the batch.

A JPEG of twice that size or more is decoded at half or quarter scale, which the format makes cheap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.preprocessing import PicturePlacement, Preprocessing
from slacktide.domain.tensors import TensorSpec
from slacktide.executors.hand_over.tensor_io import InputGatherer, TensorError
from slacktide.executors.image_placing import Picture
from slacktide.executors.jpeg_elements import element_picture, jpeg_elements
from slacktide.executors.other_pictures import is_other
from slacktide.executors.pictures import Pixels, resize_into
from slacktide.executors.ports import MemberFault, TensorRef


class ImageGatherer:
    """Makes the image input of a model, with the members' rows along axis 0.

    A tensor with four axes is pixels; others are BYTES, a JPEG, PNG or WebP for each row.
    """

    def __init__(
        self,
        spec: TensorSpec,
        stated: Sequence[int] | None,
        preprocessing: Preprocessing | None = None,
    ) -> None:
        """`stated`: the row shape that JPEGs get if the model leaves the size free.
        `preprocessing`: how pictures are placed; None: both sides are scaled to the model's."""
        self._plain = InputGatherer(spec)
        self.name = spec.name
        self._fixed = spec.shape[1:3] if min(spec.shape[1:3]) > 0 else None
        self._default = None if stated is None else tuple(stated[:2])
        self._preprocessing = preprocessing
        self.size = 0
        """Side of the square that the next batch's images are resized to; 0: the size that the
        model fixes, or their own."""
        self.placements: list[PicturePlacement] = []
        """Where each picture of the last batch lies in its row; empty without preprocessing."""
        self.faults: dict[int, MemberFault] = {}
        """Members of the last batch with images that could not be decoded, by their place. Their
        rows are black."""

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """Join the images. The array is valid until the next call. Raises TensorError."""
        if self.faults:
            self.faults = {}
        extent = (self.size, self.size) if self.size else self._fixed
        preprocessing = self._preprocessing
        if preprocessing is None:
            tail = extent or tensors[0].shape[1:3]
            if all(len(ref.shape) == 4 and ref.shape[1:3] == tail for ref in tensors):
                return self._plain.gather(tensors, arena)
            extent = extent or self._default
        members = [self._pictures(place, ref, arena) for place, ref in enumerate(tensors)]
        if extent is None and preprocessing is not None:
            extent = preprocessing.common_extent([(p.height, p.width) for m in members for p in m])
        if extent is None:
            raise TensorError(f"input {self.name!r}: unlike shapes in one batch")
        height, width = extent
        rows = sum([ref.shape[0] for ref in tensors])
        joined = self._plain.room(rows * height * width * 3).reshape(rows, height, width, 3)
        self.placements = [PicturePlacement(0, 0, width, height)] * rows
        end = 0
        for place, (tensor, pictures) in enumerate(zip(tensors, members, strict=True)):
            start, end = end, end + tensor.shape[0]
            self._draw(place, pictures, joined, start)
            if place in self.faults:
                joined[start:end] = 0
        return joined

    def _draw(
        self, place: int, pictures: Sequence[Picture], joined: NDArray[np.uint8], start: int
    ) -> None:
        """Draw a member's pictures into the rows from `start`, up to one that is faulty."""
        for index, picture in enumerate(pictures):
            out = joined[start + index]
            try:
                if self._preprocessing is None:
                    picture.resize_into(out)
                else:
                    placement = picture.place_into(out, self._preprocessing)
                    self.placements[start + index] = placement
            except ValueError as error:
                self._blame(place, index, error)
                return

    def _pictures(self, place: int, tensor: TensorRef, arena: memoryview) -> list[Picture]:
        """The pictures of a member; none if one of them is faulty. Raises TensorError."""
        data = arena[tensor.offset : tensor.offset + tensor.nbytes]
        if len(data) != tensor.nbytes:
            raise TensorError(f"input {self.name!r} lies outside the arena")
        if len(tensor.shape) == 4:
            if len(data) != math.prod(tensor.shape):
                raise TensorError(f"input {self.name!r}: its bytes do not fill its shape")
            height, width = tensor.shape[1:3]
            rows = np.frombuffer(data, np.uint8).reshape(tensor.shape)
            return [Picture(height, width, pixels) for pixels in rows]
        elements = list(jpeg_elements(data))
        if len(elements) != tensor.shape[0]:
            raise TensorError(f"input {self.name!r}: its elements do not fill its shape")
        pictures: list[Picture] = []
        for element in elements:
            try:
                picture = element_picture(element)
                sized = self._preprocessing is not None or is_other(picture)
                pictures.append(Picture.of(picture) if sized else Picture(0, 0, None, picture))
            except ValueError as error:
                self._blame(place, len(pictures), error)
                return []
        return pictures

    def _blame(self, place: int, index: int, error: ValueError) -> None:
        """Record the fault of a member's picture."""
        message = f"input {self.name!r}: expected a JPEG as element {index}, got {error}"
        self.faults[place] = MemberFault(message)


def made_up_image(height: int, width: int, generator: np.random.Generator) -> Pixels:
    """An image of soft colours with some grain, about as hard to decode as a photograph."""
    patches = generator.integers(256, size=(height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    image = np.empty((height, width, 3), np.uint8)
    resize_into(patches, image)
    grain = generator.integers(16, size=image.shape, dtype=np.uint8)
    return np.asarray(image // 2 + 64 + grain, np.uint8)
