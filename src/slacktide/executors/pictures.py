"""Resizes pixels as workers do, and encodes them as JPEG.

OpenCV (the extra `images`) resizes by area means if an image shrinks, and linearly if it grows.
Without OpenCV, NumPy does the same, with values that differ from OpenCV's by at most 1. Other ways
than these two need OpenCV. The client library includes this file, so it imports nothing else of
Slacktide.
"""

from __future__ import annotations

from enum import Enum
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""[height, width, 3]; red comes first if the source was a JPEG."""

_QUALITY = 80
"""Quality of synthetic JPEGs: the usual default of cameras and libraries."""


@cache
def load_opencv() -> Any:
    """The module `cv2`; None if it is not installed."""
    try:
        return import_module("cv2")
    except ImportError:
        return None


_OPENCV_WAYS = {"linear": "INTER_LINEAR", "cubic": "INTER_CUBIC", "lanczos": "INTER_LANCZOS4"}
"""OpenCV's flags by name, without `area`, which is linear for growing images."""


def resize_into(image: Pixels, out: Pixels, interpolation: str = "area") -> None:
    """Resize pixels to `out`. `interpolation`: `area`, `linear`, `cubic` or `lanczos`; the last
    two need OpenCV."""
    height, width = out.shape[:2]
    cv2 = load_opencv()
    if image.shape == out.shape:
        out[...] = image
    elif cv2 is not None:
        shrinks = image.shape[0] > height or image.shape[1] > width
        area = "INTER_AREA" if shrinks else "INTER_LINEAR"
        way = getattr(cv2, _OPENCV_WAYS.get(interpolation, area))
        cv2.resize(image, (width, height), dst=out, interpolation=way)
    else:
        _resize_with_numpy(image, out, linear=interpolation != "area")


class _Way(Enum):
    """OpenCV's ways of resizing along one axis."""

    MEANS = "means of the pixels that a new pixel covers"
    LINES = "lines between centres"
    STEPS = "the pixel; on a border between pixels, a line"
    """INTER_AREA does this if an image grows along one axis and shrinks along the other."""


_TOGETHER = 32
"""Rows resized at a time, so that intermediate values stay in the caches."""
_Sources = tuple[NDArray[np.intp], NDArray[np.float32]]
"""For each resized pixel, the indices of its n sources and their weights: [n, pixels] each."""


def _resize_with_numpy(image: Pixels, out: Pixels, *, linear: bool = False) -> None:
    """Resize with NumPy, first rows, then columns: each new one is a weighted sum of a few old
    ones."""
    (height, width, colours), (down, across, _) = image.shape, out.shape
    if linear:
        way = _Way.LINES
    elif down <= height and across <= width:
        way = _Way.MEANS
    else:
        way = _Way.LINES if down >= height and across >= width else _Way.STEPS
    places, parts = _sources(height, down, way)
    columns, column_parts = _sources(width, across, way, colours)
    lines = np.ascontiguousarray(image).reshape(height, width * colours)
    for start in range(0, down, _TOGETHER):
        block = slice(start, start + _TOGETHER)
        rows = _added(lines, 0, places[:, block], parts[:, block, None])
        summed = _added(rows, 1, columns, column_parts)
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
    """The sources of each of `after` pixels among `before`, with `colours` values per pixel."""
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
    """Encode pixels as JPEG, with OpenCV. `rgb`: red comes first, not blue. Raises ValueError."""
    cv2 = load_opencv()
    ordered = cv2.cvtColor(image, cv2.COLOR_RGB2BGR) if rgb else image
    is_encoded, jpeg = cv2.imencode(".jpg", ordered, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not is_encoded:
        raise ValueError("the image could not be encoded as JPEG")
    return bytes(jpeg)
