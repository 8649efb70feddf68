"""Images as an input: JPEG or pixels of any size, resized to what the batch runs at.

OpenCV decodes and resizes (the extra `images`): area means where an image shrinks, linear where it
grows; a JPEG of twice the size or more is decoded at a half or a quarter, which the format makes
cheap. Without OpenCV there is no JPEG, and pixels are resized by NumPy: area means for whole
ratios, else lines between neighbours, so that answers may differ a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import TensorSpec
from slacktide.executors.jpeg_header import jpeg_extent
from slacktide.executors.ports import TensorRef
from slacktide.executors.tensor_io import InputGatherer, TensorError, split_elements

Pixels = NDArray[np.uint8]
"""[height, width, 3], red first where it was a JPEG."""

_REDUCTIONS = ((4, "IMREAD_REDUCED_COLOR_4"), (2, "IMREAD_REDUCED_COLOR_2"))
"""An eighth is the means of whole blocks, which lie visibly beside the pixels they are to make."""
_QUALITY = 80
"""Of JPEGs that are made up: what cameras and libraries use unless told otherwise."""


def has_opencv() -> bool:
    """Whether OpenCV is installed; does not load it."""
    return find_spec("cv2") is not None


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
        self.faults: dict[int, str] = {}
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
                self.faults[member] = f"input {self.name!r}: {error}"
        return joined

    def _decode(self, data: memoryview, into: NDArray[np.uint8]) -> None:
        """Raises ValueError if one of the images cannot be decoded."""
        jpegs = list(split_elements(data))
        if len(jpegs) != len(into):
            raise TensorError(f"input {self.name!r}: its elements do not fill its shape")
        for index, (jpeg, out) in enumerate(zip(jpegs, into, strict=True)):
            try:
                decode_into(jpeg, out)
            except ValueError as error:
                raise ValueError(f"expected a JPEG as element {index}, got {error}") from None


def decode_into(jpeg: memoryview | bytes, out: Pixels) -> None:
    """Decode a JPEG and resize it to `out`. Raises ValueError, with what it is instead, and
    TensorError without OpenCV."""
    height, width = out.shape[:2]
    shorter = min(jpeg_extent(jpeg))
    ways = (flag for factor, flag in _REDUCTIONS if shorter // factor >= max(height, width))
    cv2, image = _decoded(jpeg, next(ways, "IMREAD_COLOR"))
    if image.shape[:2] != (height, width):
        image = cv2.resize(image, (width, height), interpolation=_way(cv2, image, out))
    cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=out)


def decode_whole(jpeg: memoryview | bytes) -> Pixels:
    """A JPEG at its own size. Raises as `decode_into`."""
    cv2, image = _decoded(jpeg, "IMREAD_COLOR")
    pixels: Pixels = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    return pixels


def _decoded(jpeg: memoryview | bytes, flag: str) -> tuple[Any, Any]:
    """OpenCV, and the image, blue first."""
    cv2 = load_opencv()
    if cv2 is None:
        raise TensorError("decoding JPEG needs OpenCV: pip install 'slacktide[images]'")
    try:
        image = cv2.imdecode(np.frombuffer(jpeg, np.uint8), getattr(cv2, flag))
    except cv2.error:
        image = None
    if image is None:
        raise ValueError("one that is damaged")
    return cv2, image


def resize_into(image: Pixels, out: Pixels) -> None:
    """Resize pixels to `out`."""
    height, width = out.shape[:2]
    cv2 = load_opencv()
    if image.shape == out.shape:
        out[...] = image
    elif cv2 is not None:
        cv2.resize(image, (width, height), dst=out, interpolation=_way(cv2, image, out))
    else:
        down, across = _weights(image.shape[0], height), _weights(image.shape[1], width)
        resized = np.einsum("yh,hwc,xw->yxc", down, image, across, optimize=True)
        np.rint(resized, out=out, casting="unsafe")


def _way(cv2: Any, image: Pixels, out: Pixels) -> Any:
    shrinks = image.shape[0] > out.shape[0] or image.shape[1] > out.shape[1]
    return cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR


def _weights(before: int, after: int) -> NDArray[np.float32]:
    """[after, before]: the part of each pixel before in each one after. Where the ratio is whole
    these are means, else lines between the two pixels that a centre lies between."""
    if before % after == 0:
        return np.repeat(np.eye(after, dtype=np.float32), before // after, 1) * (after / before)
    centre = np.clip((np.arange(after) + 0.5) * before / after - 0.5, 0, before - 1)
    distance = np.abs(np.arange(before) - centre[:, None])
    return np.asarray(np.maximum(1 - distance, 0), np.float32)


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
