"""Draws pictures of any size into the image input of a model, and converts them to its numbers."""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.crops import HIGH
from slacktide.domain.preprocessing import PicturePlacement, Preprocessing
from slacktide.domain.tensors import TensorSpec
from slacktide.executors.jpeg_decoder import decode
from slacktide.executors.jpeg_header import whole_picture
from slacktide.executors.other_pictures import decode_other, is_other
from slacktide.executors.pictures import Pixels, load_opencv, resize_into

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in grey, as in ITU-R BT.601 and JPEG."""


_MOST_CUT = 8
"""Maximum pixels of a whole resized picture for each pixel of the model's input. If there would be
more, the picture is cut, at its own pixels, before it is resized."""
_MOST_RECTIFIED = 2
"""Maximum pixels of the crop of a quad for each pixel of the image; a larger crop shrinks. Only
crossed or acute quads have more."""


class Picture(NamedTuple):
    """One picture: either `pixels` or a whole `jpeg`."""

    height: int
    width: int
    pixels: Pixels | None
    jpeg: memoryview | bytes | None = None

    @classmethod
    def of(cls, jpeg: memoryview | bytes) -> Picture:
        """A JPEG, PNG or WebP, with its size when upright. Raises ValueError."""
        if is_other(jpeg):
            pixels = decode_other(jpeg)
            return cls(pixels.shape[0], pixels.shape[1], pixels)
        whole = whole_picture(jpeg)
        height, width = whole.header.height, whole.header.width
        if whole.orientation >= 5:
            height, width = width, height
        return cls(height, width, None, jpeg)

    def resize_into(self, out: Pixels, interpolation: str = "area") -> None:
        """Resize the whole picture to `out`. Raises the errors of `decode`."""
        if self.pixels is not None:
            resize_into(self.pixels, out, interpolation)
        elif self.jpeg is not None:
            # Reduced JPEGs look like means of pixels, so they suit only `area`.
            pixels = decode(self.jpeg, out if interpolation == "area" else None)
            if pixels is not out:
                resize_into(pixels, out, interpolation)

    def place_into(self, out: Pixels, preprocessing: Preprocessing) -> PicturePlacement:
        """Draw the picture where `preprocessing` places it in `out`, [height, width, 3], and pad
        the rest. Raises the errors of `decode`."""
        height, width = out.shape[:2]
        placement = preprocessing.place(self.height, self.width, (height, width))
        left, top, columns, rows = (int(side) for side in placement)
        shown = out[max(0, top) : top + rows, max(0, left) : left + columns]
        if shown.shape != out.shape:
            out.fill(preprocessing.pad_value)
        way = preprocessing.interpolation
        if shown.shape[:2] == (rows, columns):
            self.resize_into(shown, way)
            return placement
        if rows * columns <= _MOST_CUT * height * width:
            whole = np.empty((rows, columns, 3), np.uint8)
            self.resize_into(whole, way)
            first_row, first_column = max(0, -top), max(0, -left)
            shown[...] = whole[first_row:, first_column:][: shown.shape[0], : shown.shape[1]]
            return placement
        pixels = self.pixels
        if pixels is None:
            assert self.jpeg is not None
            pixels = decode(self.jpeg, np.broadcast_to(np.uint8(0), (rows, columns, 3)))
        high, wide = pixels.shape[:2]
        first_row, end_row = _source(top, rows, shown.shape[0], high)
        first_column, end_column = _source(left, columns, shown.shape[1], wide)
        resize_into(pixels[first_row:end_row, first_column:end_column], shown, way)
        return placement


def _source(start: int, resized: int, shown: int, size: int) -> tuple[int, int]:
    """Return the first pixel, and the end, of the part of an axis that is shown. All `size` pixels
    of the axis would become `resized` pixels, the first of them at `start`; only `shown` of these
    fit."""
    first = max(0, -start) / resized * size
    end = (max(0, -start) + shown) / resized * size
    return min(size - 1, round(first)), max(min(size - 1, round(first)) + 1, round(end))


def rectified(image: Pixels, quad: NDArray[np.float32], margin: float = 0.0) -> Pixels:
    """The part of an image within a quad [4, 2], x and y of corners in fractions, clockwise from
    the upper left of the part. `margin`: share of the part's sides that is added on each side. A
    high, narrow part is turned by a quarter. A quad without area becomes a black pixel. Needs
    OpenCV."""
    cv2, (height, width) = load_opencv(), image.shape[:2]
    points = np.rint(np.nan_to_num(quad.astype(np.float64)).clip(0, 1) * (width, height))
    points = np.minimum(points, (width - 1, height - 1))
    left = np.argsort(points[:, 0], kind="stable")[:2]
    start = int(left[points[left, 1].argmin()])
    points = np.roll(points, -start, axis=0)  # so that turned parts have the same pixels
    if margin:
        across, down = points - points[[1, 0, 3, 2]], points - points[[3, 2, 1, 0]]
        points = (points + margin * (across + down)).clip(0, (width - 1, height - 1))
    sides = np.hypot(*(points - points[[1, 2, 3, 0]]).T)
    columns, rows = int(max(sides[0], sides[2])), int(max(sides[1], sides[3]))
    if min(columns, rows) < 1:
        return np.zeros((1, 1, 3), np.uint8)
    if (excess := columns * rows / (_MOST_RECTIFIED * width * height)) > 1:
        columns, rows = (max(1, int(side / math.sqrt(excess))) for side in (columns, rows))
    corners = np.array([(0, 0), (columns, 0), (columns, rows), (0, rows)], np.float32)
    warp = cv2.getPerspectiveTransform(points.astype(np.float32), corners)
    edge, way = cv2.BORDER_REPLICATE, cv2.INTER_CUBIC
    part = cv2.warpPerspective(image, warp, (columns, rows), flags=way, borderMode=edge)
    part = np.rot90(part, start)
    return np.ascontiguousarray(np.rot90(part) if len(part) >= HIGH * part.shape[1] else part)


class ImageConverter:
    """Converts batches of pictures, uint8 [rows, height, width, 3], to a model's input."""

    def __init__(self, preprocessing: Preprocessing, spec: TensorSpec) -> None:
        """`spec`: the input as the model's file declares it."""
        self.preprocessing = preprocessing
        self._dtype = spec.datatype.dtype
        self._factors = np.array(preprocessing.factors, np.float32)
        self._offsets = np.array(preprocessing.offsets, np.float32)
        self._is_plain = self._dtype == np.uint8 and not self._offsets.any()
        self._is_plain = self._is_plain and bool((self._factors == 1).all())
        self._buffers: dict[int, NDArray[Any]] = {}
        """Buffers by thread: the thread that makes stages converts rows while batches run."""

    def convert(self, pictures: NDArray[np.uint8]) -> NDArray[Any]:
        """Return the model's input, valid until this thread's next call."""
        about = self.preprocessing
        channels = len(self._factors)
        rows, height, width = pictures.shape[:3]
        if about.colour == "grey":
            source: NDArray[Any] = (pictures @ _LUMA)[..., None]
        else:
            source = pictures if about.colour == "rgb" else pictures[..., ::-1]
        first = about.channels_first
        shape = (rows, channels, height, width) if first else (rows, height, width, channels)
        count = math.prod(shape)
        thread = threading.get_ident()
        buffer = self._buffers.get(thread)
        if buffer is None or buffer.size < count:
            buffer = self._buffers[thread] = np.empty(count, self._dtype)
        converted = buffer[:count].reshape(shape)
        for row in range(rows):  # a row's planes stay in the caches
            for channel in range(channels):
                plane = converted[row, channel] if first else converted[row, ..., channel]
                if self._is_plain:
                    np.copyto(plane, source[row, ..., channel], casting="unsafe")
                    continue
                samples, factor = source[row, ..., channel], self._factors[channel]
                if offset := self._offsets[channel]:
                    np.add(samples * factor, offset, out=plane, casting="unsafe")
                else:
                    np.multiply(samples, factor, out=plane, casting="unsafe")
        return converted
