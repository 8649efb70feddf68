"""Decoding JPEGs: whole ones as every decoder does, damaged ones not at all."""

from __future__ import annotations

import io
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from PIL import Image

from slacktide.executors import jpeg_decoder
from slacktide.executors.hand_over.tensor_io import TensorError
from slacktide.executors.image_placing import Picture
from slacktide.executors.images import made_up_image
from slacktide.executors.jpeg_decoder import DAMAGED, decode
from slacktide.executors.pictures import Pixels

IMAGE = made_up_image(240, 320, np.random.default_rng(5))


def pillow(image: Pixels = IMAGE, mode: str = "RGB", **options: object) -> bytes:
    written = io.BytesIO()
    Image.fromarray(image).convert(mode).save(written, "JPEG", **options)
    return written.getvalue()


def without(jpeg: bytes, marker: int) -> bytes:
    """A JPEG without its segments of one kind."""
    at, kept = 2, jpeg[:2]
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        if jpeg[at + 1] != marker:
            kept += jpeg[at:end]
        at = end
    return kept + jpeg[at:]


PLAIN = pillow()
RESTARTS = pillow(restart_marker_rows=1)
PROGRESSIVE = pillow(progressive=True)
UNUSED_FIELDS = PLAIN.replace(b"\3\x11\0\x3f\0", b"\3\x11\0\0\0")
EVERY_KIND = {
    "plain": PLAIN,
    "grey": pillow(mode="L"),
    "four colours": pillow(mode="CMYK"),
    "four colours, progressive": pillow(mode="CMYK", progressive=True),
    "progressive": PROGRESSIVE,
    "restarts by row": RESTARTS,
    "restarts by block": pillow(restart_marker_blocks=3, subsampling=0),
    "no subsampling": pillow(subsampling=0, quality=98),
    "as RGB": pillow(keep_rgb=True),
    "optimised tables": pillow(optimize=True),
    "no Huffman tables": without(PLAIN, 0xC4),
    "no JFIF segment": without(PLAIN, 0xE0),
    "unused fields of a scan left 0": UNUSED_FIELDS,
    "fill bytes": PLAIN.replace(b"\xff\xdb", b"\xff\xff\xff\xdb").replace(
        b"\xff\xc0", b"\xff\xff\xc0"
    ),
    "fill bytes at the end": PLAIN[:-2] + b"\xff\xff\xff\xd9",
    "stray bytes": PLAIN[:2] + b"\0" + PLAIN[2:].replace(b"\xff\xda", b"\0\xff\xda"),
    "stray bytes at the end of a scan": PLAIN[:-2] + b"\0\x5a" + PLAIN[-2:],
    "more stray bytes at the end of a scan": PLAIN[:-2]
    + b"\x5a" * 8
    + PLAIN[-2:],  # 7 are read ahead
    "stray bytes between intervals": RESTARTS.replace(b"\xff\xd3", b"\x5a\x5a\x5a\x5a\xff\xd3"),
    "zeros at the end of a scan": PLAIN[:-2] + bytes(500) + PLAIN[-2:],
    "two pictures": PLAIN + pillow(IMAGE[::-1].copy()),
    "a film": PLAIN + b"\0\0\0\x18ftypmp42" + bytes(range(256)) * 100,
    "a large colour profile": pillow(icc_profile=bytes(range(256)) * 2000),
    "a thumbnail": PLAIN[:2] + b"\xff\xe1\x20\x02" + RESTARTS[:0x2000] + PLAIN[2:],
}
NOT_FOR_PILLOW = {"stray bytes"}
LOOKS_DAMAGED = {"more stray bytes at the end of a scan", "stray bytes between intervals"}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_whole_pictures_of_every_kind_are_decoded(kind: str) -> None:
    jpeg, before = EVERY_KIND[kind], DAMAGED.count
    pixels = decode(memoryview(jpeg))
    assert DAMAGED.count - before == (kind in LOOKS_DAMAGED)
    with Image.open(io.BytesIO(PLAIN if kind in NOT_FOR_PILLOW else jpeg)) as image:
        expected = np.asarray(image.convert("RGB")).astype(int)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels - expected).max() <= (2 if image.mode == "CMYK" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("side", [None, 230, 100, 40])
def test_pictures_are_turned_upright_as_opencv_does(orientation: int, side: int | None) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg = pillow(exif=exif)
    whole = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
    if side is None:
        assert (decode(jpeg) == whole).all()
    else:
        out = np.empty((side, side, 3), np.uint8)
        Picture(0, 0, None, jpeg).resize_into(out)
        expected = cv2.resize(whole, (side, side), interpolation=cv2.INTER_AREA)
        assert np.abs(out.astype(int) - expected).mean() < 1.5


def test_a_picture_of_the_size_that_is_needed_is_decoded_in_its_place() -> None:
    room = np.zeros((3, 240, 320, 3), np.uint8)
    assert decode(PLAIN, room[1]) is not None
    assert (room[1] == decode(PLAIN)).all()
    assert not room[0].any()
    assert not room[2].any()
    narrow = np.zeros((240, 400, 3), np.uint8)  # its rows do not follow one another
    Picture(0, 0, None, PLAIN).resize_into(narrow[:, :320])
    assert (narrow[:, :320] == room[1]).all()
    assert not narrow[:, 320:].any()


Damage = Callable[[bytes, int, int, np.random.Generator], bytes]
DAMAGE: dict[str, Damage] = {
    "a hole": lambda jpeg, start, end, _: jpeg[:start] + jpeg[end:],
    "noise": lambda jpeg, start, end, rng: jpeg[:start] + rng.bytes(end - start) + jpeg[end:],
    "zeros": lambda jpeg, start, end, _: jpeg[:start] + bytes(end - start) + jpeg[end:],
    "twice": lambda jpeg, start, end, _: jpeg[:end] + jpeg[start:],
    "the end missing": lambda jpeg, start, end, _: jpeg[:start],
    "the end missing but its marker": lambda jpeg, start, end, _: jpeg[:start] + b"\xff\xd9",
    "half before a whole": lambda jpeg, start, end, _: jpeg[:start] + jpeg,
}
CERTAIN = {"the end missing", "half before a whole", "the end missing but its marker"}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("jpeg", [PLAIN, RESTARTS, PROGRESSIVE, UNUSED_FIELDS])
def test_damaged_pictures_are_refused(damage: str, jpeg: bytes) -> None:
    """bench/results/images.md states the shares."""
    rng, whole = np.random.default_rng(11), decode(jpeg).astype(int)
    first, last = jpeg.rindex(b"\xff\xda", 0, len(jpeg) // 3) + 14, len(jpeg) - 2
    refused = wrong = 0
    for length in [16, 64, 300, 1500] * 10:
        start = int(rng.integers(first, last - length))
        try:
            pixels = decode(DAMAGE[damage](jpeg, start, start + length, rng))
        except ValueError:
            refused += 1
        else:
            wrong += bool((np.abs(pixels - whole).max(2) > 24).mean() > 0.02)
    if damage in CERTAIN:
        assert (refused, wrong) == (40, 0)
    else:
        assert wrong <= 6, (refused, wrong)
        assert refused >= 25


@pytest.mark.parametrize(
    ("jpeg", "fault"),
    [
        (PLAIN[:-2] + b"\x5a" * 50 + PLAIN[-2:], "damaged"),
        (without(PLAIN, 0xDB), "damaged"),
        (PLAIN.replace(b"\xff\xda\0\x0c\3", b"\xff\xda\0\x0c\4"), "damaged"),
        (PLAIN.replace(b"\1\x22\0\2\x11", b"\1\x42\0\2\x11"), "subsampling"),
    ],
)
def test_faults_of_a_jpeg_are_named(jpeg: bytes, fault: str) -> None:
    before = DAMAGED.count
    with pytest.raises(ValueError, match=fault):
        decode(jpeg)
    assert DAMAGED.count == before, "it is not answered"


@pytest.mark.replaces_parts
def test_without_its_library_there_is_no_jpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(jpeg_decoder, "import_module", missing)
    jpeg_decoder.load_decoder.cache_clear()
    with pytest.raises(TensorError, match=r"slacktide\[images\]"):
        decode(PLAIN)
    jpeg_decoder.load_decoder.cache_clear()
