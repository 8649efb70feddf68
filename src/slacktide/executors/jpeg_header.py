"""What a JPEG says of itself, read before anything is decoded: a few bytes, and no library.

The source is ITU-T T.81, annex B: markers are 0xFF and a byte; all but a few begin a segment whose
length stands behind them, in two bytes. The frame header (SOF) has the size.
"""

from __future__ import annotations

JPEG_BEGINS = b"\xff\xd8"
MOST_SEGMENTS = 1024
"""Looked at before the frame header: colour profiles and thumbnails take a few hundred at most."""
MOST_SCANS = 64
"""Of a progressive JPEG, which may name each coefficient many times; the usual ones have ten."""
_FRAMES = {0xC0: "baseline", 0xC1: "extended", 0xC2: "progressive"}
_OTHER_FRAMES = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
_ALONE = {0x01, *range(0xD0, 0xD8)}
"""Markers without a segment."""


def jpeg_extent(data: memoryview | bytes) -> tuple[int, int]:
    """Width and height in pixels of a JPEG that looks whole.

    Copies the rest once, and searches it where its end is not at the end, or it is progressive.
    Raises ValueError, with what it is instead.
    """
    size = len(data)
    if bytes(data[:2]) != JPEG_BEGINS:
        raise ValueError("something else")
    at = 2
    for _ in range(MOST_SEGMENTS):
        if at + 4 > size:
            raise ValueError("one that is cut short")
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xD8, 0xD9, 0xDA):
            raise ValueError("one whose header is damaged")
        if marker == 0xFF or marker in _ALONE:  # filled up, or nothing behind it
            at += 1 if marker == 0xFF else 2
            continue
        if marker in _OTHER_FRAMES:
            raise ValueError(f"one of a kind that is not supported (frame 0x{marker:x})")
        if marker in _FRAMES:
            return _frame(data, at, progressive=marker == 0xC2)
        at += 2 + max(2, data[at + 2] << 8 | data[at + 3])
    raise ValueError(f"one with more than {MOST_SEGMENTS} segments before its frame")


def _frame(data: memoryview | bytes, at: int, *, progressive: bool) -> tuple[int, int]:
    if at + 10 > len(data):
        raise ValueError("one that is cut short")
    bits, components = data[at + 4], data[at + 9]
    height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
    if bits != 8 or components not in (1, 3, 4):
        raise ValueError(f"one of {components} colours with {bits} bits")
    if not height or not width:
        raise ValueError("one without a size")
    rest = bytes(data[at:])
    if rest.rfind(b"\xff\xd9") < 0:
        raise ValueError("one that is cut short")
    if progressive and rest.count(b"\xff\xda") > MOST_SCANS:
        raise ValueError(f"one with more than {MOST_SCANS} scans")
    return width, height
