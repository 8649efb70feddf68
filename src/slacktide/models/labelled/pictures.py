"""Reads labelled images from files: sizes from headers, and data as a client would send them.

Formats are recognised by the first bytes. Workers decode JPEG, PNG and WebP as in serving. A BMP is
decoded here.
"""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide._files import open_file
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.jpeg_header import upright_size
from slacktide.executors.other_pictures import is_other, other_header
from slacktide.executors.pictures import load_opencv
from slacktide.models.labelled.images import MISSING_DECODER, DataError, LabelledImage
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.paths import read_bounded, unreadable

_MOST_BYTES = 64 << 20
_MOST_PIXELS = 1 << 27
_HEADER = 1 << 20
"""Bytes to read for an image's size; only odd images state it later."""
_BMP = b"BM"


def picture_size(path: Path, where: str) -> tuple[int, int]:
    """Return width and height of an image, upright, from its header. Raises DataError."""
    if path.suffix.lower() == ".npy":
        height, width = _array(path, where).shape[:2]
        return width, height
    try:
        with open_file(path) as file:
            return _size(file.read(_HEADER), f"{where}: {path.name}")
    except OSError as error:
        raise DataError(f"{where}: {unreadable(path.name, error)}") from None


def load_picture(image: LabelledImage) -> tuple[bytes, tuple[int, ...]]:
    """Return an image's data and shape as a client would send them: a file, or pixels, red first.
    Raises DataError."""
    where = f"{image.where}: {image.path.name}"
    if image.path.suffix.lower() == ".npy":
        array = _array(image.path, image.where)
        return array.tobytes(), (1, *array.shape)
    data = _bytes_of(image.path, image.where)
    _size(data, where)
    if not data.startswith(_BMP):
        return encode_strings(np.array([data], object)), (1,)
    if (cv2 := load_opencv()) is None:
        raise DataError(f"{where}: {MISSING_DECODER}")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise DataError(f"{where}: cannot be decoded")
    return np.ascontiguousarray(pixels[..., ::-1]).tobytes(), (1, *pixels.shape)


def _bytes_of(path: Path, where: str) -> bytes:
    try:
        return read_bounded(path, _MOST_BYTES, where=path.name)
    except RepositoryError as error:
        raise DataError(f"{where}: {error}") from None


def _array(path: Path, where: str) -> NDArray[Any]:
    array: NDArray[Any] | None = None
    with suppress(ValueError, OSError, EOFError, MemoryError):
        array = np.load(BytesIO(_bytes_of(path, where)), allow_pickle=False)
    pixels = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 3
    if array is None or not pixels or array.shape[2] != 3 or not array.size:
        raise DataError(f"{where}: {path.name}: expected uint8 [height, width, 3]")
    return array


def _size(header: bytes, where: str) -> tuple[int, int]:
    """Return width and height of an image by its first bytes. Raises DataError."""
    if header.startswith(_BMP):
        sides = (int.from_bytes(header[at : at + 4], "little", signed=True) for at in (18, 22))
        width, height = map(abs, sides)  # the height is negative if the first line is the top one
    else:
        try:
            header_size = other_header(header) if is_other(header) else None
            width, height = upright_size(header) if header_size is None else header_size[:2]
        except ValueError as error:
            raise DataError(f"{where}: expected JPEG, PNG, WebP or BMP, got {error}") from None
    if not 0 < width * height <= _MOST_PIXELS:
        expected = f"expected 1 to {_MOST_PIXELS} pixels"
        raise DataError(f"{where}: {expected}, got {width} × {height}")
    return width, height
