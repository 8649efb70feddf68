"""PNG and WebP: sizes from their headers, and pixels as OpenCV decodes them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from slacktide.executors import other_pictures
from slacktide.executors.jpeg_elements import element_header, is_bare
from slacktide.executors.other_pictures import decode_other, is_other, other_header

KINDS = [("PNG", {}), ("WEBP", {"lossless": True}), ("WEBP", {"quality": 90})]
PIXELS = np.dstack([np.full((30, 50), colour, np.uint8) for colour in (200, 100, 20)])


def encoded(
    kind: str, mode: str = "RGB", size: tuple[int, int] = (50, 30), **options: Any
) -> bytes:
    image = Image.fromarray(PIXELS).convert(mode).resize(size)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "options"), KINDS)
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_sizes_and_pixels_are_those_of_the_file(kind: str, options: Any, mode: str) -> None:
    data = encoded(kind, mode, **options)
    assert is_other(data)
    assert is_bare(data)
    assert element_header(data)[:2] == (50, 30)
    pixels = decode_other(data)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.abs(pixels.astype(int) - expected).max() <= 3


def test_animations_state_the_size_of_their_canvas() -> None:
    frames = [Image.new("RGB", (40, 20), colour) for colour in ("red", "blue")]
    file = io.BytesIO()
    frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:])
    assert other_header(file.getvalue())[:2] == (40, 20)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_files_that_are_cut_short_are_refused(kind: str, options: Any) -> None:
    data = encoded(kind, **options)
    for end in (16, 24, 29):
        with pytest.raises(ValueError, match="damaged"):
            decode_other(data[:end])


@given(st.sampled_from(KINDS), st.integers(0, 200), st.integers(0, 255))
def test_damage_raises_nothing_but_what_is_declared(
    kind: tuple[str, Any], place: int, byte: int
) -> None:
    data = bytearray(encoded(kind[0], **kind[1]))
    data[12 + place % (len(data) - 12)] = byte
    try:
        header, pixels = other_header(bytes(data)), decode_other(bytes(data))
    except ValueError:
        return
    assert sorted(pixels.shape[:2]) == sorted((header.height, header.width))


def test_without_opencv_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_pictures, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"PNG, which needs OpenCV \(pip install 'slacktide"):
        other_header(encoded("PNG"))
