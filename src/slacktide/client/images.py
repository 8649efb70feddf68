"""Frames as clients hand them over: checked, made smaller, encoded. Loads OpenCV when needed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slacktide.client.messages import ClientError

LONGEST_SIDE = 65_500
"""Pixels: JPEG has no more."""


class EncodedImage(NamedTuple):
    """A JPEG, or the pixels themselves, red first."""

    data: bytes
    width: int
    height: int


def require_extra() -> None:
    """Raises ClientError with the remedy if grpcio or OpenCV is missing."""
    missing = [name for name in ("grpc", "cv2") if find_spec(name) is None]
    if missing:
        named = " and ".join({"grpc": "grpcio", "cv2": "OpenCV"}[name] for name in missing)
        raise ClientError(f"{named} is missing; install it with: pip install 'slacktide[client]'")


def check_image(image: object) -> NDArray[np.uint8]:
    """The image as it came. Raises ValueError."""
    if not isinstance(image, np.ndarray):
        kind = type(image).__name__
        raise ValueError(f"image: expected a NumPy array of pixels, got {kind}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.dtype} {list(image.shape)}"
        raise ValueError(f"image: expected uint8 [height, width, 3], got {got}")
    if not 1 <= min(image.shape) <= max(image.shape) <= LONGEST_SIDE:
        raise ValueError(f"image: sides of 1 to {LONGEST_SIDE} pixels, got {list(image.shape)}")
    return image


def resized(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """As the server's workers resize: the mean of areas where it shrinks, else linear."""
    cv2 = import_module("cv2")
    if image.shape[:2] == (height, width):
        return image
    shrinks = width < image.shape[1] or height < image.shape[0]
    way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    found: NDArray[np.uint8] = cv2.resize(image, (width, height), interpolation=way)
    return found


def encode(
    image: NDArray[np.uint8],
    size: int,
    *,
    quality: int,
    rgb: bool,
    pixels: bool,
    exact: tuple[int, int] | None = None,
) -> EncodedImage:
    """`image` with sides of at most `size` (0: its own), or of `exact` (width, height), as JPEG of
    `quality`, or as `pixels`. `rgb`: red comes first in it, not blue. Raises ValueError."""
    cv2: Any = import_module("cv2")
    most = size or LONGEST_SIDE
    width, height = exact or (min(image.shape[1], most), min(image.shape[0], most))
    small = resized(image, width, height)
    if rgb != pixels:
        small = cv2.cvtColor(small, cv2.COLOR_RGB2BGR)
    if pixels:
        return EncodedImage(small.tobytes(), width, height)
    done, jpeg = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise ValueError("the image could not be encoded as JPEG")
    return EncodedImage(jpeg.tobytes(), width, height)
