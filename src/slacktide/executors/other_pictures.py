"""PNG and WebP, which OpenCV decodes where it is installed (the extra `images`).

The server reads width and height from the header before it admits a picture: PNG 11.2.2 (IHDR), and
RFC 9649 for WebP.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import numpy as np

from slacktide.executors.jpeg_header import JpegHeader
from slacktide.executors.pictures import Pixels, load_opencv

PNG, WEBP = b"\x89PNG\r\n\x1a\n", re.compile(rb"RIFF....WEBPVP8[ LX]", re.DOTALL)
_HEADER_BYTES = 32
_COSTS = {"PNG": 6, "WebP": 5}
"""Minimum decoding time of a sample by format, relative to that of a plain JPEG: decisions/0045."""


def is_other(data: memoryview | bytes | bytearray) -> bool:
    """Whether `data` begins like PNG or WebP."""
    start = bytes(data[:16])
    return start.startswith(PNG) or WEBP.match(start) is not None


def other_header(data: memoryview | bytes) -> JpegHeader:
    """The size of a PNG or WebP. Raises ValueError, which says why it cannot be decoded."""
    start = bytes(data[:_HEADER_BYTES])
    name = "PNG" if start.startswith(PNG) else "WebP"
    if find_spec("cv2") is None:
        raise ValueError(
            f"{name}, which needs OpenCV (pip install 'slacktide[images]'); send JPEG, or its "
            "pixels as UINT8 [rows, height, width, 3]"
        )
    width, height = _png_size(start) if name == "PNG" else _webp_size(start)
    if min(width, height) <= 0:
        raise ValueError(f"{name} whose header is damaged")
    return JpegHeader(width, height, 3, False, _COSTS[name])


def _png_size(start: bytes) -> tuple[int, int]:
    if len(start) < 24 or start[12:16] != b"IHDR":
        return 0, 0
    return int.from_bytes(start[16:20], "big"), int.from_bytes(start[20:24], "big")


def _webp_size(start: bytes) -> tuple[int, int]:
    if len(start) < 30:
        return 0, 0

    def number(at: int, size: int) -> int:
        return int.from_bytes(start[at : at + size], "little")

    match start[12:16]:
        case b"VP8X":
            return number(24, 3) + 1, number(27, 3) + 1
        case b"VP8L":
            bits = number(21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case _:
            return number(26, 2) & 0x3FFF, number(28, 2) & 0x3FFF


def decode_other(data: memoryview | bytes) -> Pixels:
    """Pixels [height, width, 3] of a PNG or WebP, upright, red first. Raises ValueError."""
    header, cv2 = other_header(data), load_opencv()
    pixels: Any = None
    if cv2 is not None:
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        except cv2.error:
            pixels = None
    if pixels is None or sorted(pixels.shape[:2]) != sorted((header.height, header.width)):
        raise ValueError("a damaged one")
    return np.ascontiguousarray(pixels[..., ::-1])
