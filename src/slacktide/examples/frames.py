"""Rendered street scenes, for the residual classifier.

One roadside camera: sky, houses, a road, and at most one road user in the foreground, by day or
night, in fog, with cars far away and a post in the way. The label is the kind of road user in
front, exact because we drew it. Night, fog and distance make some frames much harder than others,
as in real video. Everything is NumPy on a small canvas: about a millisecond a frame.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from slacktide.examples._canvas import DRAW, Canvas, houses

SIZE: Final = 96
"""Height and width of a frame, pixels."""

KINDS: tuple[str, ...] = ("empty", *DRAW)
"""Class names; a label is an index into them."""

_LEFT, _RIGHT = 20.0, 76.0
"""Between these a road user's middle stands, so that most of it can be seen (pixels)."""

Frame = NDArray[np.uint8]


def frames(count: int, rng: np.random.Generator) -> tuple[Frame, NDArray[np.int64]]:
    """Unrelated frames (count, 3, SIZE, SIZE), RGB, kinds in equal parts, and labels (count,)."""
    labels = rng.permutation(np.arange(count, dtype=np.int64) % len(KINDS))
    out = np.empty((count, 3, SIZE, SIZE), np.uint8)
    for i, kind in enumerate(labels):
        out[i] = _frame(int(kind), rng).transpose(2, 0, 1)
    return out, labels


def _frame(kind: int, rng: np.random.Generator) -> Frame:
    """The frame (SIZE, SIZE, 3), RGB, with a road user of this kind in front, or nothing.

    Lengths are in pixels, levels from 0 to 1; a heading of 1 is to the right.
    """
    night = rng.random() < 0.4
    street = np.random.default_rng(int(rng.integers(2**31)))
    x, ground, scale = rng.uniform(_LEFT, _RIGHT), rng.uniform(66, 86), rng.uniform(0.75, 1.2)
    heading = 1 if rng.random() < 0.5 else -1
    paint = tuple(float(c) for c in rng.uniform(0.08, 0.95, 3))
    daylight = float(rng.uniform(0.12, 0.3) if night else rng.uniform(0.6, 1.0))
    fog = float(rng.uniform(0, 0.5) if rng.random() < 0.25 else 0.0)
    post = float(rng.uniform(4, SIZE - 4)) if rng.random() < 0.3 else None
    canvas = Canvas(SIZE, daylight=daylight, fog=fog)
    place = canvas.at(float(x), float(ground), float(scale), heading)
    _street(canvas, street, night=night)
    if kind:
        DRAW[KINDS[kind]](place, paint)
    if post is not None:
        canvas.rectangle(post - 1.5, 0, post + 1.5, SIZE, (0.3, 0.3, 0.32))
    return canvas.pixels(rng, noise=0.02 + 0.03 * (1 - daylight))


def _street(canvas: Canvas, rng: np.random.Generator, *, night: bool) -> None:
    """Sky, houses with windows, road with marks, and a few cars far away."""
    horizon = float(rng.uniform(40, 48))
    canvas.gradient(0, horizon, (0.45, 0.62, 0.9), (0.8, 0.86, 0.95))
    houses(canvas, rng, horizon, 1.0, night=night)
    canvas.rectangle(0, horizon, SIZE, horizon + 6, (0.55, 0.53, 0.5))
    canvas.gradient(horizon + 6, SIZE, (0.36, 0.36, 0.38), (0.28, 0.28, 0.3))
    for mx in np.arange(float(rng.uniform(-16, 0)), SIZE, 20):
        canvas.rectangle(mx, horizon + 14, mx + 10, horizon + 15.5, (0.85, 0.85, 0.8))
    for _ in range(int(rng.integers(0, 4))):
        far = canvas.at(float(rng.uniform(4, SIZE - 4)), horizon + 7, 0.28, 1)
        paint = tuple(float(c) for c in rng.uniform(0.1, 0.9, 3))
        DRAW["car"](far, paint)
