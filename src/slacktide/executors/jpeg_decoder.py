"""Decodes JPEGs, and refuses damaged ones.

libjpeg decodes any data, fills gaps with grey, and warns. `simplejpeg` raises the first warning of
a picture. Warnings that pictures of ordinary cameras cause are accepted, and counted if damage may
cause them too.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slacktide.executors.hand_over.tensor_io import TensorError
from slacktide.executors.jpeg_header import WholePicture, whole_picture, with_usual_fields

_REDUCTIONS = (4, 2)
"""Factors of reduction. Not 8: means of whole blocks differ visibly from a resized picture."""
_EXTRANEOUS = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd([0-79])")
_MOST_EXTRANEOUS = 4
"""Bytes that some webcams leave after the data of a scan. Damage leaves more in 99 of 100 cases."""
_UNUSED_FIELDS = "Invalid SOS parameters for sequential JPEG"
"""Warning about fields that only progressive pictures use; some encoders leave them 0. It hides
later warnings, so the fields are corrected."""


class DecodedDamage:
    """Number of pictures decoded in this process although libjpeg found their data corrupt."""

    def __init__(self) -> None:
        self.count = 0


DAMAGED: Final = DecodedDamage()


def decodes_jpeg() -> bool:
    """Whether JPEGs can be decoded here. Loads nothing."""
    return find_spec("simplejpeg") is not None


@cache
def load_decoder() -> Any:
    """The module `simplejpeg`. Raises TensorError if it is not installed."""
    try:
        return import_module("simplejpeg")
    except ImportError:
        message = "decoding JPEG needs simplejpeg: pip install 'slacktide[images]'"
        raise TensorError(message) from None


def decode(jpeg: memoryview | bytes, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Pixels [height, width, 3] of a JPEG, upright, red first.

    With `out`, the picture is reduced to a half or a quarter if no side becomes smaller than that
    of `out`. If the size then equals that of `out`, the result is `out` itself. Raises ValueError,
    which says what the data are if not a JPEG, and TensorError without the library.
    """
    picture = whole_picture(jpeg)
    header, factor, buffer = picture.header, 1, None
    if out is not None:
        shorter, longest = min(header.width, header.height), max(out.shape[:2])
        factor = next((n for n in _REDUCTIONS if shorter // n >= longest), 1)
        size = (-(-header.height // factor), -(-header.width // factor))
        if size == out.shape[:2] and picture.orientation == 1 and out.flags.c_contiguous:
            buffer = out
    pixels = _pixels(picture, factor, buffer)
    return pixels if picture.orientation == 1 else _upright(pixels, picture.orientation)


def _pixels(
    picture: WholePicture, factor: int, buffer: NDArray[np.uint8] | None
) -> NDArray[np.uint8]:
    library, data, header = load_decoder(), picture.data, picture.header
    least = {
        "min_height": -(-header.height // factor),
        "min_width": -(-header.width // factor),
        "min_factor": factor,
    }
    pixels: NDArray[np.uint8]
    try:
        try:
            pixels = library.decode_jpeg(data, "RGB", buffer=buffer, strict=True, **least)
        except ValueError as error:
            if str(error).startswith(_UNUSED_FIELDS) and not picture.mended:
                return _pixels(with_usual_fields(picture), factor, buffer)
            may_be_damage = _may_be_damage(str(error), data)
            if may_be_damage is None:
                raise
            DAMAGED.count += may_be_damage
            pixels = library.decode_jpeg(data, "RGB", buffer=buffer, strict=False, **least)
    except ValueError as error:
        if "subsampling" in str(error):
            raise ValueError("a damaged one, or one with an unsupported subsampling") from None
        raise ValueError("a damaged one") from None
    return pixels if buffer is None else buffer


def _may_be_damage(warning: str, data: memoryview | bytes) -> bool | None:
    """Whether a picture with this warning may be damaged. False: it is intact; None: it is
    certainly damaged."""
    match = _EXTRANEOUS.match(warning)
    if match is None:
        return None
    count, marker = int(match[1]), match[2]
    if marker == "9" and not any(data[-2 - count : -2]):
        return False  # padded with zeros, as by some cameras
    return True if count <= _MOST_EXTRANEOUS else None


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Rotate and flip pixels by their EXIF orientation, 2 to 8."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
