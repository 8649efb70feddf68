"""Checks, resizes and encodes frames. Loads OpenCV on first use."""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from slacktide.client.messages import ClientError
from slacktide.executors.pictures import Pixels, encode_jpeg, resize_into

LONGEST_SIDE = 65_500
"""Longest side of a JPEG in pixels."""


class EncodedImage(NamedTuple):
    """A JPEG, or raw pixels with red first."""

    data: bytes
    width: int
    height: int


def require_extra() -> None:
    """Raise ClientError, with the remedy, if grpcio or OpenCV is missing."""
    missing = [name for name in ("grpc", "cv2") if find_spec(name) is None]
    if missing:
        named = " and ".join({"grpc": "grpcio", "cv2": "OpenCV"}[name] for name in missing)
        advice = "is missing; install it" if len(missing) == 1 else "are missing; install them"
        raise ClientError(f"{named} {advice} with: pip install 'slacktide[client]'")


def check_image(image: object) -> Pixels:
    """Check and return an image. Raises ValueError."""
    if not isinstance(image, np.ndarray):
        kind = type(image).__name__
        raise ValueError(f"image: expected a NumPy array of pixels, got {kind}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        got = f"{image.dtype} {list(image.shape)}"
        raise ValueError(f"image: expected uint8 [height, width, 3], got {got}")
    if not 1 <= min(image.shape) <= max(image.shape) <= LONGEST_SIDE:
        raise ValueError(f"image: expected sides up to {LONGEST_SIDE}, got {list(image.shape)}")
    return image


def resized(image: Pixels, width: int, height: int) -> Pixels:
    """Resize an image as the server's workers do."""
    if image.shape[:2] == (height, width):
        return image
    small = np.empty((height, width, 3), np.uint8)
    resize_into(image, small)
    return small


def encode(
    image: Pixels,
    size: int,
    *,
    quality: int,
    rgb: bool,
    pixels: bool,
    exact: tuple[int, int] | None = None,
    keeps_shape: bool = False,
    short_side: float = 0.0,
) -> EncodedImage:
    """Resize an image to sides of at most `size` (0: unchanged), or to `exact` (width, height), and
    encode it as JPEG of `quality`, or as raw `pixels`. `rgb`: red comes first, not blue.
    `keeps_shape`: both sides shrink by the same factor, until the long side is `size`, or the
    short side is `short_side` × `size`. Raises ValueError."""
    most = size or LONGEST_SIDE
    width, height = exact or (min(image.shape[1], most), min(image.shape[0], most))
    if keeps_shape and exact is None:
        sides = image.shape[:2]
        scale = min(1.0, short_side * most / min(sides) if short_side else most / max(sides))
        height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    small = resized(image, width, height)
    if not pixels:
        return EncodedImage(encode_jpeg(small, quality, rgb=rgb), width, height)
    if not rgb:
        small = small[:, :, ::-1]
    return EncodedImage(small.tobytes(), width, height)
