"""Markers of a JPEG: its header as the server reads it, and all of them as a worker does."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from slacktide.executors.images import made_up_image
from slacktide.executors.jpeg_header import (
    MOST_SCANS,
    MOST_SEGMENTS,
    jpeg_header,
    whole_picture,
)
from slacktide.executors.pictures import encode_jpeg

JPEG = encode_jpeg(made_up_image(120, 160, np.random.default_rng(0)))
FRAME = JPEG.index(b"\xff\xc0")
SCAN = JPEG.index(b"\xff\xda")


def pillow(**options: object) -> bytes:
    written = io.BytesIO()
    image = Image.fromarray(made_up_image(120, 160, np.random.default_rng(1)))
    image.save(written, "JPEG", **options)
    return written.getvalue()


def with_segments(count: int, content: bytes = b"") -> bytes:
    segment = b"\xff\xe1" + (2 + len(content)).to_bytes(2, "big") + content
    return JPEG[:2] + segment * count + JPEG[2:]


class CountedBytes(bytes):
    """Counts the bytes that are looked at."""

    touched = 0

    def __getitem__(self, place):  # type: ignore[no-untyped-def, override]
        part = super().__getitem__(place)
        CountedBytes.touched += len(part) if isinstance(part, bytes) else 1
        return part


@pytest.mark.parametrize(("height", "width"), [(1, 1), (480, 640), (3000, 17)])
@pytest.mark.parametrize("way", [[], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]])
@pytest.mark.parametrize("colours", [1, 3])
def test_headers_that_a_library_writes_are_read(height, width, way, colours) -> None:
    image = np.zeros((height, width, colours), np.uint8)
    data = cv2.imencode(".jpg", image, way)[1].tobytes()
    header = jpeg_header(data)
    assert header == (width, height, colours, bool(way), 4 if way else 1)
    assert header.samples == width * height * colours
    assert whole_picture(memoryview(data)).data == data


def test_segments_before_the_frame_are_passed_over() -> None:
    thumbnail = with_segments(1, JPEG)  # a whole JPEG in a segment, as cameras have it
    filled = JPEG[:FRAME] + b"\xff\xff" + JPEG[FRAME:]
    restart = JPEG[:2] + b"\xff\xd0" + JPEG[2:]
    trailing = JPEG + bytes(100_000)
    for data in (thumbnail, filled, restart, trailing, with_segments(300, bytes(50))):
        assert jpeg_header(memoryview(data))[:2] == (160, 120)
        assert whole_picture(memoryview(data)).header[:2] == (160, 120)


@pytest.mark.parametrize("data", [with_segments(100, bytes(60_000)), JPEG + bytes(4 << 20)])
def test_little_of_a_long_file_is_looked_at_for_its_header(data: bytes) -> None:
    CountedBytes.touched = 0
    assert jpeg_header(CountedBytes(data))[:2] == (160, 120)
    assert CountedBytes.touched < 8 * 110


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "something else"),
        (b"\x89PNG\r\n", "something else"),
        (JPEG[:2], "a truncated one"),
        (JPEG[:FRAME], "a truncated one"),
        (JPEG[: FRAME + 9], "a truncated one"),
        (JPEG[:2] + JPEG[SCAN:], "one with a damaged header"),
        (JPEG[:2] + JPEG, "one with a damaged header"),
        (JPEG.replace(b"\xff\xc0", b"\xff\xc3"), "an unsupported kind"),
        (JPEG[: FRAME + 5] + b"\0\0" + JPEG[FRAME + 7 :], "one without a size"),
        (JPEG[: FRAME + 4] + b"\x0c" + JPEG[FRAME + 5 :], "3 colours of 12 bits"),
        (with_segments(MOST_SEGMENTS), f"more than {MOST_SEGMENTS} segments"),
        (JPEG[:2] + bytes(MOST_SEGMENTS) + JPEG[2:], f"more than {MOST_SEGMENTS} segments"),
    ],
)
def test_a_header_that_is_none_is_named(data: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        jpeg_header(data)
    with pytest.raises(ValueError, match=fault):
        whole_picture(data)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (JPEG[: len(JPEG) // 2], "a truncated one"),
        (JPEG[:-2], "a truncated one"),
        (with_segments(1, JPEG)[:-2], "a truncated one"),
        (JPEG[: len(JPEG) // 2] + JPEG, "truncated one, followed by another"),
        (JPEG[:-2] + JPEG[SCAN:-2] * 3 + JPEG[-2:], "more than 3 scans"),
        (JPEG[:-2] + JPEG[SCAN:-2] * 600 + JPEG[-2:], "more than 3 scans"),
        (
            pillow(progressive=True)[:-2] + JPEG[SCAN:-2] * MOST_SCANS + JPEG[-2:],
            f"more than {MOST_SCANS} scans",
        ),
        (JPEG[:SCAN] + b"\xff\xd9" + JPEG[SCAN:], "damaged"),
        (JPEG[:SCAN] + JPEG[FRAME:], "damaged"),
        (JPEG[:-2] + b"\xff\x05" + JPEG[-2:], "damaged"),
    ],
)
def test_markers_that_are_missing_or_out_of_place_are_named(data: bytes, fault: str) -> None:
    assert jpeg_header(data)[:2] == (160, 120)  # its header is fine
    with pytest.raises(ValueError, match=fault):
        whole_picture(data)


def test_large_progressive_pictures_may_have_fewer_scans() -> None:
    data = bytearray(pillow(progressive=True))
    at = data.index(b"\xff\xc2") + 5
    limits = []
    for side in (1000, 4000, 7000, 60_000):
        data[at : at + 4] = side.to_bytes(2, "big") * 2
        limits.append(jpeg_header(bytes(data)).most_scans)
    assert limits[0] == MOST_SCANS
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] >= 18  # as libjpeg writes pictures of four components


def test_bytes_behind_the_first_end_are_left_out() -> None:
    film = JPEG + b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 40 + b"\xff\xd8\xff\xda" * 99
    for data in (film, JPEG + JPEG, JPEG + b"\xff", JPEG + b"\xff\xd9"):
        assert whole_picture(data).data == JPEG


def test_stray_bytes_between_segments_are_left_out() -> None:
    places = [2, FRAME, SCAN]
    for stray in (b"\0", b"\x80\0", b"\xff\0", b"\xff\xff"):
        for place in places:
            data = JPEG[:place] + stray + JPEG[place:]
            assert whole_picture(memoryview(data)).data == JPEG
    between = b"\0".join((JPEG[:2], JPEG[2:FRAME], JPEG[FRAME:SCAN], JPEG[SCAN:]))
    assert whole_picture(between).data == JPEG


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("order", ["little", "big"])
def test_the_orientation_is_read(orientation: int, order) -> None:
    exif = Image.Exif()
    exif.endian = "<" if order == "little" else ">"
    exif[0x010F] = "a maker"
    exif[0x0112] = orientation
    stated = whole_picture(pillow(exif=exif)).orientation
    assert stated == (orientation if 1 <= orientation <= 8 else 1)


@pytest.mark.parametrize("exif", [b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"XX", b""])
def test_exif_data_that_are_damaged_leave_it_upright(exif: bytes) -> None:
    assert whole_picture(with_segments(1, b"Exif\0\0" + exif)).orientation == 1


@given(st.integers(2, len(JPEG)), st.binary(max_size=30))
def test_damage_is_refused_or_read(at: int, damage: bytes) -> None:
    data = JPEG[:at] + damage + JPEG[at + len(damage) :]
    for read in (jpeg_header, lambda data: whole_picture(data).header):
        try:
            header = read(data)
        except ValueError:
            continue
        assert header.samples > 0
