"""What is read of a JPEG before it is decoded: its size, or what it is instead."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.executors.images import encode_jpeg, made_up_image
from slacktide.executors.jpeg_header import MOST_SCANS, MOST_SEGMENTS, jpeg_extent

JPEG = encode_jpeg(made_up_image(120, 160, np.random.default_rng(0)))
FRAME = JPEG.index(b"\xff\xc0")


def with_segments(count: int, content: bytes = b"") -> bytes:
    segment = b"\xff\xe1" + (2 + len(content)).to_bytes(2, "big") + content
    return JPEG[:2] + segment * count + JPEG[2:]


@pytest.mark.parametrize(("height", "width"), [(1, 1), (480, 640), (3000, 17)])
@pytest.mark.parametrize("way", [[], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]])
@pytest.mark.parametrize("colours", [1, 3])
def test_what_a_library_writes_is_read(height, width, way, colours) -> None:
    image = np.zeros((height, width, colours), np.uint8)
    assert jpeg_extent(cv2.imencode(".jpg", image, way)[1].tobytes()) == (width, height)


def test_what_stands_before_the_frame_is_passed_over() -> None:
    thumbnail = with_segments(1, JPEG)  # a whole JPEG in a segment, as cameras have it
    filled = JPEG[:FRAME] + b"\xff\xff" + JPEG[FRAME:]
    restart = JPEG[:2] + b"\xff\xd0" + JPEG[2:]
    trailing = JPEG + bytes(100_000)
    for data in (thumbnail, filled, restart, trailing, with_segments(300, bytes(50))):
        assert jpeg_extent(memoryview(data)) == (160, 120)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "something else"),
        (b"\x89PNG\r\n", "something else"),
        (JPEG[:2], "one that is cut short"),
        (JPEG[:FRAME], "one that is cut short"),
        (JPEG[: FRAME + 9], "one that is cut short"),
        (JPEG[: len(JPEG) // 2], "one that is cut short"),
        (with_segments(1, JPEG)[:-2], "one that is cut short"),
        (JPEG[:2] + b"\0" + JPEG[3:], "one whose header is damaged"),
        (JPEG[:2] + JPEG[JPEG.index(b"\xff\xda") :], "one whose header is damaged"),
        (JPEG.replace(b"\xff\xc0", b"\xff\xc3"), "a kind that is not supported"),
        (JPEG[: FRAME + 5] + b"\0\0" + JPEG[FRAME + 7 :], "one without a size"),
        (JPEG[: FRAME + 4] + b"\x0c" + JPEG[FRAME + 5 :], "3 colours with 12 bits"),
        (with_segments(MOST_SEGMENTS), f"more than {MOST_SEGMENTS} segments"),
        (
            JPEG.replace(b"\xff\xc0", b"\xff\xc2") + b"\xff\xda" * MOST_SCANS,
            f"more than {MOST_SCANS} scans",
        ),
    ],
)
def test_all_else_is_named(data: bytes, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        jpeg_extent(data)


@given(st.integers(2, FRAME + 10), st.binary(max_size=30))
def test_damage_is_refused_or_read(at: int, damage: bytes) -> None:
    try:
        extent = jpeg_extent(JPEG[:at] + damage + JPEG[at + len(damage) :])
    except ValueError:
        extent = (1, 1)
    assert min(extent) > 0
