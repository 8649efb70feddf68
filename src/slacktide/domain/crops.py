"""Selects the boxes that a pipeline passes from stage to stage, and computes their crops.

Boxes are x0, y0, x1, y1 as fractions of the frame, from its upper left corner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, log2
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BOXES = 100
"""Default limit on the boxes of a frame that go on to one stage."""
FEW = 64
"""Up to this many boxes above the score limit are filtered one by one; more are filtered as
arrays."""
PLAIN = 256
"""Up to this many boxes of a frame are filtered one by one; more are filtered as arrays."""
_SINGLE, _BOX = Struct("f"), Struct("4f")
BOX_BYTES, QUAD_BYTES = _BOX.size, 2 * _BOX.size
_TRIED = 4
_BLOCK = 128
"""Number of boxes that are compared with each other at a time."""
WIDEST = 8.0
"""Default limit on the ratio of width and height of a crop that keeps its shape."""
HIGH = 1.5
"""Height ÷ width from which the crop of a quad is turned by 90 degrees."""
_SHORT, _STEPS = 4, 4
"""`_SHORT`: width ÷ height up to which all crops are padded to one width. `_STEPS`: number of steps
in which the width doubles beyond that."""
_LEAST_AREA = 1e-9
"""A quad is degenerate if its area is below this share of the frame's area."""
_INEXACT = 1e-3
"""Tolerance in pixels: the rounding of a fraction to 32 bits must not add a pixel to a crop."""


@dataclass(frozen=True, slots=True)
class Glue:
    """How a worker prepares crops for its model. The model's input alone decides whether the worker
    decodes, crops and resizes images."""

    margin: float = 0.0
    """Added to each box on every side, as a share of its width and height."""
    function: str = ""
    """A function, as `module:name`, that is called with each crop before it is resized: pixels
    [height, width, 3] of uint8. It returns pixels of any size. Empty: none."""
    takes: tuple[str, ...] = ()
    """Outputs of other stages. The function gets their values for the crop as further arguments."""
    datatypes: tuple[str, ...] = ()
    """Datatype of each output in `takes`, by its wire name; empty until the stages' models are
    known."""
    max_aspect: float | None = WIDEST
    """Limit on width ÷ height; wider crops are squeezed. None: no limit."""


@dataclass(frozen=True, slots=True)
class BoxChoice:
    """Selects which boxes of a detector go on to the next stage."""

    classes: tuple[int, ...] = ()
    """Classes of boxes that may go on; empty: all."""
    score: float = 0.0
    """Minimum score of a box."""
    overlap: float = 1.0
    """Non-maximum suppression: if the intersection of two boxes of one class is more than this
    share of their union, the box with the lower score is dropped."""
    most: int = MOST_BOXES
    """Maximum number of boxes that go on, highest scores first. Overlaps are checked among up to
    four times as many."""
    height: float = 0.0
    """Minimum height of a box, as a share of the frame's height."""

    def choose(
        self,
        boxes: NDArray[np.float32],
        scores: NDArray[np.float32] | None = None,
        classes: NDArray[np.int64] | None = None,
    ) -> NDArray[np.intp]:
        """Indices of the boxes that go on, highest score first.

        `boxes` [n, 4], `scores` and `classes` [n] of one frame; None if the detector has no such
        output. Boxes never go on if they are inverted, not finite, or outside the frame. Raises
        ValueError if the shapes do not match.
        """
        count = len(boxes)
        columns = [column for column in (scores, classes) if column is not None]
        if boxes.shape != (count, 4) or any(column.shape != (count,) for column in columns):
            shapes = " and ".join(str(list(array.shape)) for array in (boxes, *columns))
            raise ValueError(f"expected [n, 4] and [n] of boxes, got {shapes}")
        chosen = np.arange(count) if scores is None else np.flatnonzero(scores >= self.score)
        if len(chosen) <= FEW:
            ranks = None if scores is None else scores[chosen].tolist()
            kinds = None if classes is None else classes[chosen].tolist()
            chosen_of_few = self._of_few(range(len(chosen)), boxes[chosen].tobytes(), ranks, kinds)
            return chosen[np.array(chosen_of_few, np.intp)]
        chosen = self._of_many(chosen, boxes, scores, classes)
        if self.overlap < 1 and len(chosen) > 1:
            chosen = chosen[: _TRIED * self.most]
            kinds = None if classes is None else classes[chosen]
            inside = np.minimum(np.maximum(boxes[chosen], 0.0), 1.0)
            chosen = chosen[apart(inside, kinds, self.overlap, self.most)]
        return chosen[: self.most]

    def choose_plain(
        self,
        boxes: bytes | memoryview,
        scores: Sequence[float] | None,
        classes: Sequence[float] | None,
    ) -> list[int] | None:
        """Like `choose`, for plain numbers instead of arrays; None if more than `FEW` boxes reach
        `score`. `boxes` holds 32-bit floats. For a few boxes this is faster than array operations,
        ten times as fast if a model has just filled the caches."""
        if scores is None:
            places = [*range(len(boxes) // BOX_BYTES)]
        else:
            least = _single(self.score)
            places = [at for at, score in enumerate(scores) if score >= least]
        return None if len(places) > FEW else self._of_few(places, boxes, scores, classes)

    def _of_many(
        self,
        chosen: NDArray[np.intp],
        boxes: NDArray[np.float32],
        scores: NDArray[np.float32] | None,
        classes: NDArray[np.int64] | None,
    ) -> NDArray[np.intp]:
        """Filter many boxes with arrays; return the chosen indices, highest score first."""
        boxes = boxes[chosen]
        with np.errstate(invalid="ignore"):
            inside = np.minimum(np.maximum(boxes, 0.0), 1.0)
            sides = inside[:, 2:] - inside[:, :2]
            good = (sides.min(1) > 0) & np.isfinite(boxes).all(1) & (sides[:, 1] >= self.height)
        if classes is not None and self.classes:
            kinds = classes[chosen]
            good &= np.logical_or.reduce([kinds == class_number for class_number in self.classes])
        chosen = chosen[good]
        return chosen if scores is None else chosen[np.argsort(-scores[chosen], kind="stable")]

    def _of_few(
        self,
        places: Iterable[int],
        boxes: bytes | memoryview,
        scores: Sequence[float] | None,
        classes: Sequence[float] | None,
    ) -> list[int]:
        """Filter the few boxes at `places`; return the chosen indices, highest score first."""
        if scores is not None:  # ties keep their order
            places = sorted(places, key=scores.__getitem__, reverse=True)
        classes_chosen: tuple[float, ...] = self.classes
        lowest = _single(self.height) if self.height else 0.0
        suppresses = self.overlap < 1
        enough = _TRIED * self.most if suppresses else self.most
        chosen: list[int] = []
        for at in places:
            if len(chosen) == enough:
                break
            x0, y0, x1, y1 = _BOX.unpack_from(boxes, BOX_BYTES * at)
            if not (-inf < x0 < x1 < inf and -inf < y0 < y1 < inf):  # also false for NaN
                continue
            if x0 >= 1 or y0 >= 1 or x1 <= 0 or y1 <= 0:
                continue
            if classes_chosen and classes is not None and classes[at] not in classes_chosen:
                continue
            if lowest and _single(min(y1, 1.0) - max(y0, 0.0)) < lowest:
                continue
            chosen.append(at)
        if suppresses and len(chosen) > 1:
            inside = np.array([_BOX.unpack_from(boxes, BOX_BYTES * at) for at in chosen])
            inside = np.minimum(np.maximum(inside, 0.0), 1.0).astype(np.float32)
            kinds = None if classes is None else np.array([classes[at] for at in chosen])
            spread = apart(inside, kinds, self.overlap, self.most)
            chosen = [chosen[at] for at in spread]
        return chosen[: self.most]


def _single(value: float) -> float:
    """`value` rounded to a 32-bit float, so that it compares as in arrays."""
    try:
        return _SINGLE.unpack(_SINGLE.pack(value))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return inf if value > 0 else -inf


def apart(
    boxes: NDArray[np.float32], kinds: NDArray[np.int64] | None, overlap: float, most: int
) -> list[int]:
    """Non-maximum suppression: return the indices of at most `most` boxes, leaving out each box
    that overlaps too much with a better box of its kind. `boxes` [n, 4] come sorted, best first.
    Pure."""
    chosen: list[int] = []
    for start in range(0, len(boxes), _BLOCK):
        block = slice(start, start + _BLOCK)
        inner, inner_kinds = boxes[block], None if kinds is None else kinds[block]
        hides = _hides(inner, inner_kinds, inner, inner_kinds, overlap)
        hidden: NDArray[np.bool_] = np.zeros(len(inner), np.bool_)
        if chosen:
            better_kinds = None if kinds is None else kinds[chosen]
            better = _hides(boxes[chosen], better_kinds, inner, inner_kinds, overlap)
            hidden = np.logical_or.reduce(better, axis=0)
        for at in range(len(inner)):
            if not hidden[at]:
                chosen.append(start + at)
                if len(chosen) == most:
                    return chosen
                hidden |= hides[at]
    return chosen


def _hides(
    better: NDArray[np.float32],
    better_kinds: NDArray[np.int64] | None,
    boxes: NDArray[np.float32],
    kinds: NDArray[np.int64] | None,
    overlap: float,
) -> NDArray[np.bool_]:
    """Array [n, m]: whether each of n better boxes overlaps too much with each of m boxes, and is
    of the same kind."""
    sides = np.minimum(better[:, None, 2:], boxes[:, 2:])
    sides -= np.maximum(better[:, None, :2], boxes[:, :2])
    shared = np.maximum(sides[..., 0], 0) * np.maximum(sides[..., 1], 0)
    better_areas, areas = (
        (array[:, 2] - array[:, 0]) * (array[:, 3] - array[:, 1]) for array in (better, boxes)
    )
    hides: NDArray[np.bool_] = shared > overlap * (better_areas[:, None] + areas - shared)
    if better_kinds is not None and kinds is not None:
        hides &= better_kinds[:, None] == kinds
    return hides


def crop_extent(
    box: NDArray[np.float32], width: int, height: int, margin: float = 0.0
) -> tuple[int, int, int, int] | None:
    """Pixels x0, y0, x1, y1 of a frame that a box covers at least in part, clipped to the frame;
    None if the box is invalid or outside."""
    x0, y0, x1, y1 = box.tolist()
    if not (x0 < x1 and y0 < y1) or x1 - x0 == float("inf") or y1 - y0 == float("inf"):
        return None  # NaN included
    across, down = margin * (x1 - x0), margin * (y1 - y0)
    if x0 - across >= 1 or y0 - down >= 1 or x1 + across <= 0 or y1 + down <= 0:
        return None
    left, right = _covered(x0 - across, x1 + across, width)
    top, bottom = _covered(y0 - down, y1 + down, height)
    return left, top, right, bottom


def _covered(low: float, high: float, size: int) -> tuple[int, int]:
    """Pixels between two fractions of an axis, as (first, one past the last); never empty."""
    last = max(1, min(size, ceil(high * size - _INEXACT)))
    return max(0, min(floor(low * size + _INEXACT), last - 1)), last


def crop_width(
    extent: tuple[int, int, int, int], height: int, max_aspect: float | None = WIDEST
) -> int:
    """Width of a crop that is resized to this height. The aspect ratio is kept up to `max_aspect`;
    wider crops are squeezed."""
    left, top, right, bottom = extent
    width = max(1, round(height * (right - left) / (bottom - top)))
    return width if max_aspect is None else min(width, max(1, int(max_aspect * height)))


def bounds(quads: NDArray[np.float32]) -> NDArray[np.float32]:
    """The boxes [..., 4] around quads [..., 4, 2]; empty for quads without area."""
    x, y = quads[..., 0], quads[..., 1]
    with np.errstate(invalid="ignore", over="ignore"):
        boxes = np.concatenate((quads.min(-2), quads.max(-2)), axis=-1)
        twice = x * np.roll(y, -1, -1) - y * np.roll(x, -1, -1)
        boxes[~(np.abs(twice.sum(-1)) > 2 * _LEAST_AREA)] = 0
    return np.asarray(boxes, np.float32)


def crop_aspects(boxes: bytes, rows: int, height: int, width: int) -> NDArray[np.float64]:
    """Width ÷ height of the crops of boxes or quads in a frame of this size; shape [rows]."""
    array = np.frombuffer(boxes, np.float32).reshape(rows, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        if array.shape[1] == 4:
            sides = (array[:, 2:].clip(0, 1) - array[:, :2].clip(0, 1)) * (width, height)
        else:
            sides = quad_sides(array.reshape(rows, 4, 2).clip(0, 1) * (width, height))
        return np.asarray(np.nan_to_num(sides[:, 0] / np.maximum(sides[:, 1], 1e-6)))


def part_ends(aspects: Sequence[float]) -> list[int]:
    """Divide crops, sorted by width ÷ height, into parts that are padded to one width each; return
    the end of each part."""
    steps = [max(0, ceil(_STEPS * log2(max(aspect, 1) / _SHORT))) for aspect in aspects]
    changes = [at for at in range(1, len(steps)) if steps[at] != steps[at - 1]]
    return [*changes, len(steps)]


def quad_sides(points: NDArray[Any]) -> NDArray[np.float64]:
    """Width and height [..., 2] of the crops of quads [..., 4, 2] in pixels: the longer of two
    opposite sides. High crops are turned upright."""
    sides = np.hypot(*np.moveaxis(points - np.roll(points, -1, -2), -1, 0))
    lengths = np.maximum(sides[..., :2], sides[..., 2:])
    is_high = lengths[..., 1] >= HIGH * lengths[..., 0]
    return np.asarray(np.where(is_high[..., None], lengths[..., ::-1], lengths))
