"""Elements of a BYTES tensor: JPEGs as they are, in base64 or bare, and what is none."""

from __future__ import annotations

import base64
import struct

import numpy as np
import pytest

from slacktide.executors.images import made_up_image
from slacktide.executors.jpeg_elements import (
    element_header,
    element_picture,
    is_bare,
    jpeg_elements,
)
from slacktide.executors.pictures import encode_jpeg

JPEG = encode_jpeg(made_up_image(60, 80, np.random.default_rng(0)))
TEXT = base64.b64encode(JPEG)
SEGMENT = b"\xff\xe2\xff\xff" + bytes(65_533)
LONG = JPEG[:2] + SEGMENT * 5 + JPEG[2:]


def tensor(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize("element", [JPEG, TEXT, base64.b64encode(LONG), LONG])
def test_jpegs_are_read_as_they_are_and_in_base64(element: bytes) -> None:
    view = memoryview(element)
    assert element_header(view)[:2] == (80, 60)
    assert element_picture(view) in (JPEG, LONG)


def test_a_tensor_may_be_one_bare_jpeg() -> None:
    assert [*jpeg_elements(memoryview(JPEG))] == [JPEG]
    assert [*jpeg_elements(tensor(JPEG, TEXT))] == [JPEG, TEXT]
    assert [*jpeg_elements(b"")] == []
    like_one = tensor(bytes(0xD8FF))  # its length is written as a JPEG begins
    assert like_one[:2] == JPEG[:2]
    assert not is_bare(like_one)
    assert [*jpeg_elements(like_one)] == [bytes(0xD8FF)]


@pytest.mark.parametrize(
    ("element", "fault"),
    [
        (b"", "something else"),
        (b"text", "something else"),
        (b"GIF89a", r"GIF; send JPEG, or its pixels as UINT8 \[rows"),
        (base64.b64encode(b"GIF89a\0\0\0"), "GIF in base64; send JPEG"),
        (b"\x89PNG\r\n\x1a\n", "PNG whose header is damaged"),
        (base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0"), "PNG whose header is damaged"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP whose header is damaged"),
        (base64.b64encode(b"RIFF\0\0\0\0WEBPVP8 "), "WebP whose header is damaged"),
        (b"RIFF\0\0\0\0AVI LIST", "something else"),
        (b"GIF89a", "GIF; send JPEG"),
        (base64.b64encode(b"GIF89a\0\0\0"), "GIF in base64"),
        (b"BM\x36\0\0\0\0\0\0\0", "BMP; send JPEG"),
        (b"II*\0\x08\0\0\0", "TIFF; send JPEG"),
        (b"\0\0\0\x1cftypavif\0\0", "AVIF; send JPEG"),
        (base64.b64encode(b"\0\0\0\x1cftypheic\0\0"), "HEIF in base64; send JPEG"),
        (base64.b64encode(b"BM\x36\0\0\0\0\0\0\0\0\0"), "BMP in base64; send JPEG"),
        (b"\0\0\0\x1cftypheic\0\0", "HEIF; send JPEG"),
        (b"data:image/jpeg;base64," + TEXT, "a data: URI; send only the part after the comma"),
        (TEXT.replace(b"/", b"_").replace(b"+", b"-"), r"URL-safe alphabet; use \+ and /"),
        (TEXT[:4] + TEXT[4:].replace(b"/", b"_").replace(b"+", b"-"), "URL-safe alphabet"),
        (base64.encodebytes(JPEG), "base64 with white space; send"),
        (TEXT[:76] + b"\r\n" + TEXT[76:], "base64 with white space; send"),
        (b"\n" + TEXT, "white space; send it without"),
        (b"  " + TEXT, "white space; send it without"),
        (TEXT[:100] + b"*" + TEXT[101:], "damaged base64"),
        (TEXT[:-5], "damaged base64"),
    ],
)
def test_other_files_than_jpeg_are_named_with_a_cure(element: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        element_header(memoryview(element))
    with pytest.raises(ValueError, match=fault):
        element_header(element_picture(memoryview(element)))


def test_the_end_of_a_long_base64_is_not_looked_at_for_its_header() -> None:
    text = base64.b64encode(JPEG + bytes(300_000))[:-9] + b"*"
    assert element_header(text)[:2] == (80, 60)
    with pytest.raises(ValueError, match="damaged"):
        element_picture(text)
    unending = base64.b64encode(JPEG[:2] + SEGMENT * 40)
    with pytest.raises(ValueError, match="a truncated one"):
        element_header(unending)
