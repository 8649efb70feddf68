"""`LineDecoder`: lines of text from the map of a detector of the DB family (`as: db`).

The map [rows, 1, height, width] holds the probability that a pixel belongs to the shrunk core of a
line. Cores are cut out above a threshold, each is enclosed by a rotated rectangle, and the
rectangle is grown by area × `unclip` / perimeter on all sides, which undoes the shrinking of the
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.domain.tensors import Datatype, TensorSpec
from slacktide.executors.decoders.heads import Arrays, Extent, Placements
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.pictures import load_opencv
from slacktide.executors.ports import DecodeSource

_LEAST_CORE, _LEAST_LINE = 3, 5
"""Minimum shorter side, in pixels, of a core and of the line that grows from it."""
_MOST_CORES = 1000
"""Limit on the cores examined per page, largest first (more if `max_detections` needs it): dotted
patterns have many."""
_LEAST_SIDE = 3
"""A line is dropped if its shorter side has at most this many pixels."""
_SAME_LINE = 10
"""Distance in pixels below which the tops of two lines count as equally high in reading order."""
_ROUND = np.stack([f(np.linspace(0, 2 * np.pi, 32, endpoint=False)) for f in (np.cos, np.sin)], 1)
"""A circle of radius 1."""

Quad = NDArray[np.float32]
"""Corners [4, 2], x and y: upper left, upper right, lower right, lower left."""


class LineDecoder:
    """Outputs `boxes` [rows, K, 4], `quads` [rows, K, 4, 2] and `scores` [rows, K] in reading
    order, as fractions of the picture. K is the largest number of lines in the batch; places
    without a line are 0."""

    def __init__(self, source: DecodeSource, index: int, spec: TensorSpec) -> None:
        """Raises ModelError if the output does not fit, or OpenCV is absent."""
        self.reads = (index,)
        self._source, self._index, self._name = source, index, spec.name
        if load_opencv() is None:
            raise ModelError("decode.as: 'db' needs OpenCV: pip install 'slacktide[images]'")
        if len(spec.shape) != 4 or spec.shape[1] not in (-1, 1):
            raise self._unfit(spec.shape)
        rows = spec.shape[0]
        self.outputs: tuple[TensorSpec, ...] = (
            TensorSpec("boxes", Datatype.FP32, (rows, -1, 4)),
            TensorSpec("quads", Datatype.FP32, (rows, -1, 4, 2)),
            TensorSpec("scores", Datatype.FP32, (rows, -1)),
        )

    def decode(self, arrays: Arrays, placements: Placements, extent: Extent) -> Arrays:
        """See `Decoder`."""
        maps = arrays[self._index]
        if maps.ndim != 4 or maps.shape[1] != 1:
            raise self._unfit(maps.shape)
        pages = []
        for (core_map,), (left, top, width, height) in zip(maps, placements, strict=True):
            # Maps of some models are coarser than their input.
            scale = np.array(
                [maps.shape[3] / extent[1], maps.shape[2] / extent[0]]
                if min(extent)
                else [1.0, 1.0]
            )
            placed = np.array([[left, top], [width, height]]) * scale
            pages.append(self._lines(np.asarray(core_map, np.float32), placed))
        most = max(len(page) for page in pages)
        quads = np.zeros((len(pages), most, 4, 2), np.float32)
        scores = np.zeros((len(pages), most), np.float32)
        for row, page in enumerate(pages):
            for place, (quad, score) in enumerate(page):
                quads[row, place], scores[row, place] = quad, score
        return [np.concatenate((quads.min(2), quads.max(2)), axis=2), quads, scores]

    def _lines(
        self, core_map: NDArray[np.float32], placed: NDArray[np.float64]
    ) -> list[tuple[Quad, float]]:
        """Lines with their scores. `placed`: corner and size of the picture within the map."""
        cv2, source = load_opencv(), self._source
        mask = (core_map > source.threshold).astype(np.uint8)
        if source.dilate:
            mask = cv2.dilate(mask, np.ones((2, 2), np.uint8))
        contours = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]
        if len(contours) > (most := max(_MOST_CORES, 2 * source.max_detections)):
            contours = sorted(contours, key=cv2.contourArea, reverse=True)[:most]
        lines = []
        for contour in contours:
            core = cv2.minAreaRect(contour)
            if min(core[1]) < _LEAST_CORE:
                continue
            corners = cv2.boxPoints(core)
            score = _mean_within(core_map, corners)
            if score < source.confidence:
                continue
            line = cv2.minAreaRect(_grown(corners, core[1], source.unclip))
            if min(line[1]) < _LEAST_LINE:
                continue
            quad = _clockwise(((cv2.boxPoints(line) - placed[0]) / placed[1]).clip(0, 1))
            across, down = (abs(quad[1:4:2] - quad[0]) * placed[1]).astype(np.float32)
            if min(np.hypot(*across), np.hypot(*down)) > _LEAST_SIDE:
                lines.append((quad, score))
        lines.sort(key=lambda line: -line[1])
        return _in_reading_order(lines[: source.max_detections], placed[1, 1])

    def _unfit(self, shape: Sequence[int]) -> ModelError:
        expected = "expected the map of a text detector, [rows, 1, height, width]"
        return ModelError(f"decode.as: {expected}, got {list(shape)} of {self._name!r}")


def _mean_within(core_map: NDArray[np.float32], corners: Quad) -> float:
    """Mean of the map within a polygon."""
    cv2 = load_opencv()
    limits = np.array(core_map.shape[::-1]) - 1
    first = np.floor(corners.min(0)).clip(0, limits).astype(int)
    last = np.ceil(corners.max(0)).clip(0, limits).astype(int)
    mask = np.zeros((last - first + 1)[::-1], np.uint8)
    cv2.fillPoly(mask, [(corners - first).astype(np.int32)], 1)
    part = core_map[first[1] : last[1] + 1, first[0] : last[0] + 1]
    return float(cv2.mean(part, mask)[0])


def _grown(corners: Quad, sides: Sequence[float], unclip: float) -> NDArray[np.float32]:
    """Points around a rectangle at the distance by which it grows. Corners become whole pixels
    first, as in the family's own code."""
    distance = sides[0] * sides[1] * unclip / (2 * (sides[0] + sides[1]))
    around = np.trunc(corners)[:, None] + distance * _ROUND
    return np.asarray(np.rint(around).reshape(-1, 1, 2), np.float32)


def _clockwise(corners: NDArray[Any]) -> Quad:
    """The corners, beginning with the upper left. The two leftmost corners form the left side."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    (upper_left, lower_left), (upper_right, lower_right) = (
        side[np.argsort(side[:, 1], kind="stable")] for side in (by_x[:2], by_x[2:])
    )
    return np.array([upper_left, upper_right, lower_right, lower_left], np.float32)


def _in_reading_order(
    lines: Sequence[tuple[Quad, float]], height: float
) -> list[tuple[Quad, float]]:
    """Lines from top to bottom, and from left to right where their tops are about as high."""
    ordered: list[tuple[Quad, float]] = []
    for line in sorted(lines, key=lambda line: (line[0][0, 1], line[0][0, 0])):
        (x, y), place = line[0][0], len(ordered)
        while place:
            before_x, before_y = ordered[place - 1][0][0]
            if (y - before_y) * height >= _SAME_LINE or x >= before_x:
                break
            place -= 1
        ordered.insert(place, line)
    return ordered
