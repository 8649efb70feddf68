"""Pixels: resized as workers resize them, and encoded as JPEG.

OpenCV resizes (the extra `images`): area means where an image shrinks, linear where it grows.
Without OpenCV, NumPy resizes in the same ways: each value is within one of OpenCV's. The client
library takes this along, so it imports nothing else of Slacktide.
"""

from __future__ import annotations

from enum import Enum
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        summed = _added(rows, 1, columns, their_parts)
        np.rint(summed.reshape(out[block].shape), out=out[block], casting="unsafe")


def _added(
    values: NDArray[Any], axis: int, places: NDArray[np.intp], parts: NDArray[np.float32]
) -> NDArray[np.float32]:
    total: NDArray[np.float32] | None = None
    for place, part in zip(places, parts, strict=True):
        weighted = np.multiply(values.take(place, axis), part, dtype=np.float32)
        total = weighted if total is None else np.add(total, weighted, out=total)
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


def encode_jpeg(image: Pixels, quality: int = _QUALITY, *, rgb: bool = True) -> bytes:
    """A JPEG of it. `rgb`: red comes first in it, not blue. Only with OpenCV. Raises ValueError."""
    cv2 = load_opencv()
    ordered = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if rgb else image
    done, jpeg = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError("the image could not be encoded as JPEG")
    return bytes(jpeg)
