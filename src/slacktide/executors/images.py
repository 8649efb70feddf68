"""Images as an input: JPEG or pixels of any size, resized to what the batch runs at.

OpenCV resizes (the extra `images`): area means where an image shrinks, linear where it grows; a
JPEG of twice the size or more is decoded at a half or a quarter, which the format makes cheap.
Without OpenCV, NumPy resizes in the same ways: each value is within one of OpenCV's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.jpeg_decoder import decode
from slacktide.executors.jpeg_elements import element_jpeg, jpeg_elements
from slacktide.executors.ports import MemberFault, TensorRef
from slacktide.executors.tensor_io import InputGatherer, TensorError

Pixels = NDArray[np.uint8]
"""[height, width, 3], red first where it was a JPEG."""

_QUALITY = 80
"""Of JPEGs that are made up: what cameras and libraries use unless told otherwise."""


@cache
def load_opencv() -> Any:
    """The module `cv2`; None if it is not there."""
    try:
        return import_module("cv2")
    except ImportError:
        return None


class ImageGatherer:
    """Makes the image input of a model, with the members' rows along axis 0.

    A tensor of four axes is pixels; another is BYTES, a JPEG for each row.
    """

    def __init__(self, spec: TensorSpec, stated: Sequence[int] | None) -> None:
        """`stated`: the shape of a row, for JPEGs where the model leaves it free."""
        self._plain = InputGatherer(spec)
        self.name = spec.name
        self._fixed = spec.shape[1:3] if spec.shape[1] > 0 else None
        self._stated = None if stated is None else tuple(stated[:2])
        self.size = 0
        """Side of the square that the next batch's images are resized to; 0: they keep the size
        that the model fixes, or their own."""
        self.faults: dict[int, MemberFault] = {}
        """Members of the last batch whose images could not be decoded, by their place, and why.
        Their rows are black."""

    def gather(self, tensors: Sequence[TensorRef], arena: memoryview) -> NDArray[Any]:
        """The images, joined; good until the next `gather`. Raises TensorError."""
        if self.faults:
            self.faults = {}
        wanted = (self.size, self.size) if self.size else self._fixed
        tail = wanted or tensors[0].shape[1:3]
        if all(len(each.shape) == 4 and each.shape[1:3] == tail for each in tensors):
            return self._plain.gather(tensors, arena)
        wanted = wanted or self._stated
        if wanted is None:
            raise TensorError(f"input {self.name!r}: unlike shapes in one batch")
        height, width = wanted
        rows = sum([each.shape[0] for each in tensors])
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
                for row, out in zip(
                    np.frombuffer(data, np.uint8).reshape(tensor.shape), into, strict=True
                ):
                    resize_into(row, out)
                continue
            try:
                self._decode(data, into)
            except ValueError as error:
                into.fill(0)
                self.faults[member] = MemberFault(f"input {self.name!r}: {error}")
        return joined

    def _decode(self, data: memoryview, into: NDArray[np.uint8]) -> None:
        """Raises ValueError if one of the images cannot be decoded."""
        elements = list(jpeg_elements(data))
        if len(elements) != len(into):
            raise TensorError(f"input {self.name!r}: its elements do not fill its shape")
        for index, (element, out) in enumerate(zip(elements, into, strict=True)):
            try:
                decode_into(element_jpeg(element), out)
            except ValueError as error:
                raise ValueError(f"expected a JPEG as element {index}, got {error}") from None


def decode_into(jpeg: memoryview | bytes, out: Pixels) -> None:
    """Decode a JPEG and resize it to `out`. Raises as `decode`."""
    pixels = decode(jpeg, out)
    if pixels is not out:
        resize_into(pixels, out)


def resize_into(image: Pixels, out: Pixels) -> None:
    """Resize pixels to `out`."""
    height, width = out.shape[:2]
    cv2 = load_opencv()
    if image.shape == out.shape:
        out[...] = image
    elif cv2 is not None:
        cv2.resize(image, (width, height), dst=out, interpolation=_way(cv2, image, out))
    else:
        _resize_here(image, out)


def _way(cv2: Any, image: Pixels, out: Pixels) -> Any:
    shrinks = image.shape[0] > out.shape[0] or image.shape[1] > out.shape[1]
    return cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR


class _Way(Enum):
    """How values before make those after, along one axis; as OpenCV does it."""

    MEANS = "means of the pixels that each one covers"
    LINES = "lines between centres"
    STEPS = "lines in the pixels that lie on a border, else the pixel"
    """INTER_AREA does this where an image grows along one axis and shrinks along the other."""


_TOGETHER = 32
"""Rows that are made at a time: what lies in between stays in the caches."""
_Sources = tuple[NDArray[np.intp], NDArray[np.float32]]
"""[n, after] each: places before, and their parts in each one after."""


def _resize_here(image: Pixels, out: Pixels) -> None:
    """With NumPy: for each row, then each column, the few that it is made of are added."""
    (height, width, colours), (down, across, _) = image.shape, out.shape
    if down <= height and across <= width:
        way = _Way.MEANS
    else:
        way = _Way.LINES if down >= height and across >= width else _Way.STEPS
    places, parts = _sources(height, down, way)
    columns, their_parts = _sources(width, across, way, colours)
    lines = np.ascontiguousarray(image).reshape(height, width * colours)
    for start in range(0, down, _TOGETHER):
        block = slice(start, start + _TOGETHER)
        rows = _added(lines, 0, places[:, block], parts[:, block, None])
        made = _added(rows, 1, columns, their_parts)
        np.rint(made.reshape(out[block].shape), out=out[block], casting="unsafe")


def _added(
    values: NDArray[Any], axis: int, places: NDArray[np.intp], parts: NDArray[np.float32]
) -> NDArray[np.float32]:
    total: NDArray[np.float32] | None = None
    for place, part in zip(places, parts, strict=True):
        taken = np.multiply(values.take(place, axis), part, dtype=np.float32)
        total = taken if total is None else np.add(total, taken, out=total)
    assert total is not None
    return total


@lru_cache(maxsize=256)
def _sources(before: int, after: int, way: _Way, colours: int = 1) -> _Sources:
    """What so many pixels are made of; of each, so many values follow one another."""
    ratio, places = 1 / (after / before), np.arange(after)  # rounded as OpenCV does
    if way is _Way.MEANS:
        start, end = places * ratio, (places + 1) * ratio
        first = np.floor(start + 1e-6).astype(np.intp)
        near = first + np.arange(np.ceil((end - first).max() - 1e-6))[:, None].astype(np.intp)
        parts = (np.minimum(near + 1, end) - np.maximum(near, start)).clip(0) / ratio
    else:
        if way is _Way.LINES:
            centre = ((places + 0.5) * ratio - 0.5).clip(0)
            first = np.floor(centre).astype(np.intp)
            beyond = centre - first
        else:
            first = np.floor(places * ratio).astype(np.intp)
            beyond = (places + 1 - (first + 1) * (after / before)).astype(np.float32).clip(0)
            beyond -= np.floor(beyond)
        near, parts = np.array([first, first + 1]), np.array([1 - beyond, beyond])
    near = np.minimum(near, before - 1)
    values = near[:, :, None] * colours + np.arange(colours)
    return values.reshape(len(near), -1), np.repeat(parts, colours, 1).astype(np.float32)


def made_up_image(height: int, width: int, generator: np.random.Generator) -> Pixels:
    """Soft patches of colour with a little grain: about as hard to decode as a photograph."""
    patches = generator.integers(256, size=(height // 16 + 2, width // 16 + 2, 3), dtype=np.uint8)
    image = np.empty((height, width, 3), np.uint8)
    resize_into(patches, image)
    grain = generator.integers(16, size=image.shape, dtype=np.uint8)
    return np.asarray(image // 2 + 64 + grain, np.uint8)


def encode_jpeg(image: Pixels, quality: int = _QUALITY, *, rgb: bool = True) -> bytes:
    """A JPEG of it. `rgb`: red comes first in it, not blue. Only with OpenCV. Raises ValueError."""
    cv2 = load_opencv()
    ordered = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if rgb else image
    done, jpeg = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError("the image could not be encoded as JPEG")
    return bytes(jpeg)
