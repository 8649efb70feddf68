"""Finds the pictures in a BYTES tensor. They are binary, or base64 if they came in JSON.

A tensor of one row may also be a bare picture, without the length prefix of BYTES elements. A
request body that is just a picture is therefore never copied.
"""

from __future__ import annotations

import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterator

from slacktide.executors.hand_over.tensor_io import split_elements
from slacktide.executors.jpeg_header import JPEG_BEGINS, JpegHeader, jpeg_header
from slacktide.executors.other_pictures import is_other, other_header

_BASE64 = (b"/9j/", b"iVBORw0K", b"UklGR")
"""The beginnings of JPEG, PNG and WebP in base64."""
_PREFIX, _LONG_PREFIX = 64 << 10, 1 << 20
"""Bytes to decode from base64 in order to find a JPEG's size. The second number is for files with
large colour profiles."""
_OTHER_KINDS = {
    "GIF": re.compile(rb"GIF8[79]a"),
    "BMP": re.compile(rb"BM"),
    "TIFF": re.compile(rb"II\*\0|MM\0\*"),
    "AVIF": re.compile(rb"....ftypavi", re.DOTALL),
    "HEIF": re.compile(rb"....ftyp(hei|mif)", re.DOTALL),
}
"""Beginnings of files that clients send instead of JPEG."""
_BROKEN_LINES = "base64 with white space; send it without line breaks or spaces"
_URL_SAFE = "base64 in the URL-safe alphabet; use + and / instead of - and _"
_CURE = "; send JPEG, or its pixels as UINT8 [rows, height, width, 3]"


def is_bare(data: memoryview | bytes | bytearray) -> bool:
    """Whether a BYTES tensor is one picture without the length prefix."""
    begins = bytes(data[:2]) == JPEG_BEGINS or is_other(data)
    return begins and int.from_bytes(data[:4], "little") + 4 != len(data)


def jpeg_elements(data: memoryview | bytes) -> Iterator[memoryview | bytes]:
    """The elements of a BYTES tensor, or the bare JPEG in it. Raises TensorError."""
    return iter((data,)) if is_bare(data) else split_elements(data)


def element_header(element: memoryview | bytes) -> JpegHeader:
    """The header of one element. Only the beginning of base64 is decoded. If the element is no
    picture, raises ValueError, which says what it is and what to send instead."""
    if not bytes(element[:8]).startswith(_BASE64):
        return _header(_picture(element))
    try:
        return _header(_decoded(element[: _PREFIX // 3 * 4]))
    except ValueError:
        if len(element) <= _PREFIX:
            raise
    return _header(_decoded(element[: _LONG_PREFIX // 3 * 4]))


def _header(picture: memoryview | bytes) -> JpegHeader:
    return other_header(picture) if is_other(picture) else jpeg_header(picture)


def element_picture(element: memoryview | bytes) -> memoryview | bytes:
    """The picture of one element. Raises the errors of `element_header`."""
    if bytes(element[:8]).startswith(_BASE64):
        return _decoded(element)
    return _picture(element)


def _picture(element: memoryview | bytes) -> memoryview | bytes:
    start = bytes(element[:18])
    if start[:2] != JPEG_BEGINS and not is_other(start):
        if start.startswith(b"data:"):
            raise ValueError("a data: URI; send only the part after the comma")
        if start.startswith(b"_9j_"):
            raise ValueError(_URL_SAFE)
        if start.lstrip().startswith(_BASE64):
            raise ValueError(_BROKEN_LINES)
        decoded = _from_base64(start[:16])
        for name, begins in _OTHER_KINDS.items():
            if begins.match(start):
                raise ValueError(name + _CURE)
            if begins.match(decoded):
                raise ValueError(f"{name} in base64{_CURE}")
    return element


def _from_base64(start: bytes) -> bytes:
    try:
        return a2b_base64(start, strict_mode=True)
    except Base64Error:
        return b""


def _decoded(element: memoryview | bytes) -> bytes:
    try:
        return a2b_base64(element, strict_mode=True)
    except Base64Error:
        text = bytes(element)
    if set(text) & set(b" \r\n"):
        raise ValueError(_BROKEN_LINES)
    if set(text) & set(b"-_"):
        raise ValueError(_URL_SAFE)
    raise ValueError("damaged base64")
