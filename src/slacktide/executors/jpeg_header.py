"""Reads the markers of a JPEG, without a library.

The server reads the header before it admits a picture: a few bytes of each segment. A worker walks
all markers before it decodes, so that no file takes longer than its size suggests.

The source is ITU-T T.81, annex B: a marker is 0xFF and a byte. All but a few begin a segment whose
length follows in two bytes. SOF, the frame header, has the size; SOS begins a scan, whose data end
at the next marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

JPEG_BEGINS = b"\xff\xd8"
MOST_SEGMENTS = 1024
"""Maximum segments, fill bytes and stray bytes before the frame header. Colour profiles and
thumbnails take a few hundred."""
MOST_SCANS = 64
"""Maximum scans of a progressive JPEG, which may refine coefficients many times. Ten are usual, 18
with four components."""
_ALWAYS_SCANS = 20
_MOST_SCANNED = 1 << 31
"""Limit on samples × scans if there are more than `_ALWAYS_SCANS` scans: about a second."""
_MOST_BETWEEN = 16 * MOST_SEGMENTS
"""Maximum segments, fill bytes and stray bytes in the whole picture."""
_SOF, _PROGRESSIVE, _SOI, _EOI, _SOS, _APP1 = (0xC0, 0xC1, 0xC2), 0xC2, 0xD8, 0xD9, 0xDA, 0xE1
_UNSUPPORTED_SOF = {*range(0xC3, 0xD0)} - {0xC4, 0xC8, 0xCC}
_WITHOUT_SEGMENT = {0x01, *range(0xD0, 0xD8)}
_KNOWN = {0xC4, 0xCC, *range(0xDA, 0xF0), 0xFE}
"""Markers of segments that a decoder reads or skips."""
_SCAN_ENDS = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""The next marker after a scan. Within a scan 0xFF is followed by 0, a fill byte or a restart."""
_EXIF = b"Exif\0\0"
_MOST_ENTRIES = 256
"""Maximum entries of an EXIF directory to read."""


class JpegHeader(NamedTuple):
    """The size of a JPEG in pixels, as its frame header states it."""

    width: int
    height: int
    components: int
    progressive: bool
    sample_cost: int = 1
    """Minimum decoding time of a sample, relative to that of a plain JPEG."""

    @property
    def samples(self) -> int:
        """Pixels × components."""
        return self.width * self.height * self.components

    @property
    def most_scans(self) -> int:
        """Maximum scans of a picture of this size."""
        if not self.progressive:
            return self.components
        return min(MOST_SCANS, max(_ALWAYS_SCANS, _MOST_SCANNED // self.samples))


class WholePicture(NamedTuple):
    """A JPEG with all its markers."""

    data: memoryview | bytes
    """Data from the first marker to the first end marker, without stray bytes between segments."""
    header: JpegHeader
    orientation: int
    """EXIF orientation, 1 to 8; 1: upright."""
    mended: bool = False
    """Whether `with_usual_fields` has corrected the picture."""


def jpeg_header(data: memoryview | bytes) -> JpegHeader:
    """Read the frame header. Looks at no more than 1,024 places of `data`.

    Raises ValueError, which says what `data` is instead of a JPEG.
    """
    for marker, start, _ in _markers(data, MOST_SEGMENTS):
        if marker in (_SOI, _EOI, _SOS):
            break
        if marker in _SOF:
            return _frame(data, start)
        if marker in _UNSUPPORTED_SOF:
            raise ValueError(f"one of an unsupported kind (frame 0x{marker:x})")
    raise ValueError("one with a damaged header")


def upright_size(data: memoryview | bytes) -> tuple[int, int]:
    """Return width and height, turned by the EXIF orientation if that precedes the frame header.
    Raises the errors of `jpeg_header`."""
    header = jpeg_header(data)
    for marker, start, end in _markers(data, MOST_SEGMENTS):
        if marker in _SOF:
            break
        if marker == _APP1 and data[start + 4 : start + 10] == _EXIF:
            if _orientation(bytes(data[start + 4 : end])) >= 5:
                return header.height, header.width
            break
    return header.width, header.height


def whole_picture(data: memoryview | bytes) -> WholePicture:
    """Walk the markers up to the first end of a picture; anything after it is ignored.

    Raises ValueError if a marker is missing or misplaced, or if there are more scans than a picture
    can need. Time depends only on the length of `data`.
    """
    header = jpeg_header(data)
    frames = scans = 0
    orientation = 0
    parts = [(0, 2)]
    for marker, start, end in _markers(data, _MOST_BETWEEN):
        parts.append((start, end))
        if marker == _EOI and scans:
            view = memoryview(data)
            whole = sum(end - start for start, end in parts) == end
            joined = view[:end] if whole else b"".join([view[slice(*part)] for part in parts])
            return WholePicture(joined, header, orientation or 1)
        if marker == _SOI and scans:
            raise ValueError("a truncated one, followed by another")
        if marker == _SOS:
            scans += 1
            if scans > header.most_scans:
                raise ValueError(f"one with more than {header.most_scans} scans")
        elif marker in _SOF:
            frames += 1
        elif marker not in _KNOWN or marker in (_SOI, _EOI):
            break
        if frames != 1 and (frames or scans):
            break
        if marker == _APP1 and not orientation and data[start + 4 : start + 10] == _EXIF:
            orientation = _orientation(bytes(data[start + 4 : end]))
    raise ValueError("a damaged one")


def with_usual_fields(picture: WholePicture) -> WholePicture:
    """Correct the scan fields of a sequential picture that matter only in progressive ones: first
    and last coefficient, and bits. Each has one valid value (T.81, table B.3)."""
    data = bytearray(picture.data)
    for marker, start, _ in _markers(picture.data, _MOST_BETWEEN):
        if marker == _EOI:
            break
        if marker == _SOS:
            end = start + 2 + (data[start + 2] << 8 | data[start + 3])
            data[end - 3 : end] = b"\0\x3f\0"
    return picture._replace(data=bytes(data), mended=True)


def _markers(data: memoryview | bytes, most: int) -> Iterator[tuple[int, int, int]]:
    """Every marker but the first, with its start and the end of its segment, including the data of
    a scan. Raises ValueError at the end of `data`, and after `most` steps."""
    size = len(data)
    if bytes(data[:2]) != JPEG_BEGINS:
        raise ValueError("something else")
    at = 2
    for _ in range(most):
        if at + 2 > size:
            raise ValueError("a truncated one")
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xFF):  # a stray byte or a fill byte
            at += 1
            continue
        end = at + 2
        if marker not in _WITHOUT_SEGMENT:
            if marker not in (_SOI, _EOI):
                if at + 4 > size:
                    raise ValueError("a truncated one")
                end += max(2, data[at + 2] << 8 | data[at + 3])
            if marker == _SOS:
                scan_end = _SCAN_ENDS.search(data, end)
                end = size if scan_end is None else scan_end.start()
            yield marker, at, end
        at = end
    raise ValueError(f"one with more than {most} segments")


def _frame(data: memoryview | bytes, at: int) -> JpegHeader:
    if at + 10 > len(data):
        raise ValueError("a truncated one")
    bits, components = data[at + 4], data[at + 9]
    height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
    if bits != 8 or components not in (1, 3, 4):
        raise ValueError(f"one with {components} colours of {bits} bits")
    if not height or not width:
        raise ValueError("one without a size")
    progressive = data[at + 1] == _PROGRESSIVE
    return JpegHeader(width, height, components, progressive, 4 if progressive else 1)


def _orientation(segment: bytes) -> int:
    """The orientation in an EXIF segment, 1 to 8; 1 if there is none.

    The source is the Exif specification 2.3, 4.6: a TIFF header, then a directory of entries of 12
    bytes; tag 0x112 is a 16-bit number.
    """
    tiff = segment[len(_EXIF) :]
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(tiff[at : at + size], order)

    directory = number(4, 4)
    entries = min(number(directory, 2), _MOST_ENTRIES)
    for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
        if number(entry, 2) == 0x112:
            stated = number(entry + 8, 2)
            return stated if 1 <= stated <= 8 else 1
    return 1
