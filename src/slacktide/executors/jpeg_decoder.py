"""Decodes JPEGs, and refuses damaged ones.

libjpeg decodes whatever it is given, fills up what is missing with grey, and says so in a warning.
`simplejpeg` raises the first warning of a picture. Those that pictures of ordinary cameras cause
are let pass, and counted where damage causes them too.
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
"""An eighth is the means of whole blocks, which lie visibly beside the pixels they are to make."""
_EXTRANEOUS = re.compile(r"Corrupt JPEG data: (\d+) extraneous bytes before marker 0xd([0-79])")
_MOST_EXTRANEOUS = 4
"""Bytes that some webcams leave behind the data of a scan. Damage leaves more, but for one case in
a hundred."""
_UNUSED_FIELDS = "Invalid SOS parameters for sequential JPEG"
"""Fields that only progressive pictures use; some encoders leave them 0. A later warning would not
be seen, so they are mended."""


class DecodedDamage:
    """Pictures of this process that were decoded although libjpeg found their data corrupt."""

    def __init__(self) -> None:
        self.count = 0


DAMAGED: Final = DecodedDamage()


def decodes_jpeg() -> bool:
    """Whether JPEGs can be decoded here; loads nothing."""
    return find_spec("simplejpeg") is not None


@cache
def load_decoder() -> Any:
    """The module `simplejpeg`. Raises TensorError if it is not there."""
    try:
        return import_module("simplejpeg")
    except ImportError:
        message = "decoding JPEG needs simplejpeg: pip install 'slacktide[images]'"
        raise TensorError(message) from None


def decode(jpeg: memoryview | bytes, out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """Pixels [height, width, 3] of a JPEG, upright, red first.

    With `out`: reduced to a half or a quarter where that leaves no side smaller than those of
    `out`; and `out` itself if the size is right. Raises ValueError, with what it is instead, and
    TensorError without the library.
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
                return _pixels(with_usual_fields(picture), factor, buffer)  # it may hide damage
            if not _is_harmless(str(error), data):
                raise
            DAMAGED.count += _may_be_damage(str(error), data)
            pixels = library.decode_jpeg(data, "RGB", buffer=buffer, strict=False, **least)
    except ValueError as error:
        if "subsampling" in str(error):
            raise ValueError(
                "one that is damaged, or of a subsampling that is not supported"
            ) from None
        raise ValueError("one that is damaged") from None
    return pixels if buffer is None else buffer


def _is_harmless(warning: str, data: memoryview | bytes) -> bool:
    """Whether pictures that are whole cause this warning."""
    match = _EXTRANEOUS.match(warning)
    if match is None:
        return False
    return int(match[1]) <= _MOST_EXTRANEOUS or _is_filled_up(match, data)


def _may_be_damage(warning: str, data: memoryview | bytes) -> bool:
    """Whether damage causes this harmless warning as well."""
    match = _EXTRANEOUS.match(warning)
    return match is not None and not _is_filled_up(match, data)


def _is_filled_up(match: re.Match[str], data: memoryview | bytes) -> bool:
    """Whether the end of a picture is filled up with zeros, as some cameras do."""
    count, marker = int(match[1]), match[2]
    return marker == "9" and not any(data[-2 - count : -2])


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """As EXIF says: 2 to 4 are flipped, 5 to 8 lie on their side."""
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
