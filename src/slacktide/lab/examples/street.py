"""Rendered street scenes for the detector: many road users of unequal sizes, and exact boxes.

A `Street` is one video: lanes and pavements, one behind another, on which traffic moves from the
left or from the right. `scene(frame)` is one frame (there is one every 0.1 s) at any resolution.
Each vehicle except a bicycle has the emblem of its brand and a plate of four characters, and each
person wears a coat of a named colour; these are legible if drawn large. Everything depends only on
the seed: a frame shows the same road users in the same places at every resolution.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples._canvas import DRAW, Canvas, Colour, VehicleSpot, houses

OVERLAP: Final = 0.5
"""Minimum intersection over union at which a box counts as showing a road user."""
SIZE: Final = 608
"""Default height and width of a scene, in pixels."""

FRAME_SECONDS: Final = 0.1
"""Time between two frames of a video."""

KINDS: tuple[str, ...] = tuple(DRAW)
"""Class names; a kind is an index into them."""

CLOTHING: dict[str, Colour] = {
    "red": (0.8, 0.12, 0.12),
    "orange": (0.95, 0.5, 0.1),
    "yellow": (0.93, 0.85, 0.2),
    "green": (0.15, 0.55, 0.2),
    "blue": (0.12, 0.25, 0.75),
    "purple": (0.5, 0.2, 0.6),
    "white": (0.93, 0.93, 0.93),
    "black": (0.1, 0.1, 0.12),
}
"""Colours of coats."""

CHARACTERS: Final = "0123456789ACEFHKLPTX"
"""Characters that a plate may hold."""

_FONT = bytes.fromhex(
    "0e11131519110e 040c040404040e 0e11010204081f 1f02040201110e 02060a121f0202"
    "1f101e0101110e 0608101e11110e 1f010204080808 0e11110e11110e 0e11110f01020c"
    "0e1111111f1111 0e11101010110e 1f10101e10101f 1f10101e101010 1111111f111111"
    "11121418141211 1010101010101f 1e11111e101010 1f040404040404 11110a040a1111"
)
"""Seven rows of five dots for each of CHARACTERS."""

_EMBLEMS = {
    "aster": "08 2a 1c 7f 1c 2a 08",
    "borea": "3e 41 41 41 41 41 3e",
    "cygna": "08 08 08 7f 08 08 08",
    "delmo": "08 1c 3e 7f 3e 1c 08",
    "ektra": "7f 7f 00 7f 7f 00 7f",
    "fjord": "08 08 1c 1c 3e 3e 7f",
    "gavia": "41 22 14 08 14 22 41",
    "halcy": "63 63 63 7f 63 63 63",
    "irida": "7f 41 5d 55 5d 41 7f",
    "jovex": "78 78 78 78 0f 0f 0f",
}
BRANDS: tuple[str, ...] = tuple(_EMBLEMS)
"""Names of the brands that emblems stand for."""

_BADGES: dict[str, tuple[float, float, float, float, float, float]] = {
    "car": (0, 7.5, 5.6, 14.5, 14.5, 7),
    "taxi": (0, 7.5, 5.6, 14.5, 14.5, 7),
    "van": (0, 8.5, 7, -12, 19, 10),
    "pickup": (0, 8.5, 6, 16.5, 15.5, 7),
    "truck": (-2, 15, 10, -8.5, 28.5, 12),
    "bus": (-4, 11, 8.5, 13, 11, 8.5),
    "motorcycle": (-15, 17, 5.5, -15, 23.5, 7),
}
"""Plate and emblem: x, y and height of each, in `VehicleSpot` units (about 0.1 m)."""

_TRAFFIC = ("car", "taxi", "van", "pickup", "truck", "bus", "motorcycle")
_TRAFFIC_BELOW = (0.26, 0.38, 0.51, 0.63, 0.75, 0.84)

Picture = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class RoadUser:
    """A road user that is visible enough to be detected."""

    kind: int
    """Index into KINDS."""
    box: tuple[float, float, float, float]
    """x0, y0, x1, y1 around all its drawn parts, in fractions of the picture."""
    direction: str
    """`left` or `right`."""
    brand: str | None = None
    """One of BRANDS, for vehicles except bicycles."""
    plate: str | None = None
    """Four of CHARACTERS, for vehicles except bicycles."""
    clothing: str | None = None
    """Colour of the coat, one of CLOTHING, for people on foot and on bicycles."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture and the road users in it."""

    picture: Picture
    """(size, size, 3), RGB."""
    road_users: tuple[RoadUser, ...]
    """Road users from far to near, except those cut off or hidden by half or more."""

    def boxes(self) -> NDArray[np.float32]:
        """(road users, 4): x0, y0, x1, y1 in fractions."""
        return np.array([r.box for r in self.road_users], np.float32).reshape(-1, 4)

    def shown_in(self, box: NDArray[np.floating[Any]]) -> RoadUser | None:
        """Return the road user with the largest intersection over union with `box`, if that is at
        least `OVERLAP`. `box`: x0, y0, x1, y1 in fractions."""
        if not self.road_users:
            return None
        truth = self.boxes().astype(float)
        low, high = np.maximum(box[:2], truth[:, :2]), np.minimum(box[2:], truth[:, 2:])
        shared = np.prod(np.clip(high - low, 0, None), axis=1)
        areas = np.prod(truth[:, 2:] - truth[:, :2], axis=1) + np.prod(box[2:] - box[:2])
        overlap = shared / np.maximum(areas - shared, 1e-12)
        best = int(overlap.argmax())
        return self.road_users[best] if overlap[best] >= OVERLAP else None

    def kinds(self) -> NDArray[np.int64]:
        """(road users,): indices into KINDS."""
        return np.array([r.kind for r in self.road_users], np.int64)


@dataclass(frozen=True, slots=True)
class _Strip:
    """A lane or a pavement. Lengths in pixels of a picture of SIZE, speeds in pixels per second."""

    ground: float
    scale: float
    heading: int
    on_foot: bool
    speed: float
    spacing: float
    slots: int
    """Number of places for road users, on a loop that is longer than the strip."""


class Street:
    """One seeded video of a street."""

    def __init__(
        self, seed: int, *, night: bool | None = None, traffic: float | None = None
    ) -> None:
        """`traffic`: share of the lanes' places that are taken, from 0 (an empty street) to 1 (rush
        hour, in which all drive slowly). If `traffic` or `night` is None, the seed decides. Raises
        ValueError for traffic outside 0 to 1."""
        if traffic is not None and not 0 <= traffic <= 1:
            raise ValueError(f"traffic must be from 0 to 1, not {traffic}")
        rng = np.random.default_rng((seed, 0))
        dark, busy = rng.random() < 0.35, float(rng.choice((0.25, 0.5, 0.8)))
        self._seed = seed
        self._night = bool(dark) if night is None else night
        self._traffic = busy if traffic is None else traffic
        self._daylight = float(rng.uniform(0.28, 0.45) if self._night else rng.uniform(0.65, 1.0))
        self._fog = float(rng.uniform(0, 0.35) if rng.random() < 0.2 else 0.0)
        self._horizon = float(rng.uniform(90, 130))
        self._strips = self._laid_out(rng)
        self._empty: Canvas | None = None

    def scene(self, frame: int = 0, size: int = SIZE) -> Scene:
        """Draw frame number `frame` at size x size pixels."""
        if self._empty is None or self._empty.size != size:
            self._empty = self._drawn_empty(size)
        canvas = self._empty.copy()
        users = []
        for number, strip in enumerate(self._strips):
            for slot in range(strip.slots):
                user = self._draw(canvas, number, strip, slot, frame * FRAME_SECONDS)
                if user is not None:
                    users.append(user)
        grain = np.random.default_rng((self._seed, 2, frame))
        picture = canvas.pixels(grain, noise=0.015 + 0.025 * (1 - self._daylight))
        return Scene(picture, tuple(_visible(users)))

    def _laid_out(self, rng: np.random.Generator) -> tuple[_Strip, ...]:
        """Return strips from far to near; nearer strips are larger, as in perspective."""
        nearest, ratio = float(rng.uniform(1.8, 2.6)), float(rng.uniform(0.76, 0.8))
        pavements = {int(rng.integers(1, 3)), int(rng.integers(3, 6)), int(rng.integers(6, 9))}
        strips = []
        for depth in reversed(range(9)):
            scale = nearest * ratio**depth
            ground = self._horizon + (598 - self._horizon) * ratio**depth
            on_foot = depth in pavements
            hurry = 1.3 - self._traffic
            speed = (16.0 if on_foot else float(rng.uniform(70, 140)) * hurry) * scale
            # Far away, where a strip is long, traffic is thinner.
            spacing = (46 if on_foot else 92) * scale * max(1.0, 0.7 / scale) ** 0.6
            slots = math.ceil((SIZE + 100 * scale) / spacing)
            heading = 1 if rng.random() < 0.5 else -1
            strips.append(_Strip(ground, scale, heading, on_foot, speed, spacing, slots))
        return tuple(strips)

    def _drawn_empty(self, size: int) -> Canvas:
        """Draw sky, houses, road and marks, without anything that moves."""
        rng = np.random.default_rng((self._seed, 1))
        canvas = Canvas(size, daylight=self._daylight, fog=self._fog)
        unit = size / SIZE
        horizon = self._horizon * unit
        canvas.gradient(0, horizon, (0.45, 0.62, 0.9), (0.8, 0.86, 0.95))
        houses(canvas, rng, horizon, 2.5 * unit, lit=0.4 * self._night)
        canvas.gradient(horizon, size, (0.4, 0.4, 0.41), (0.27, 0.27, 0.29))
        for strip in self._strips:
            ground, scale = strip.ground * unit, strip.scale * unit
            if strip.on_foot:
                shade = float(rng.uniform(0.42, 0.58))
                top, bottom = ground - 7 * scale, ground + 2 * scale
                canvas.rectangle(0, top, size, bottom, (shade, shade * 0.97, shade * 0.92))
                continue
            for x in np.arange(float(rng.uniform(-60, 0)) * scale, size, 60 * scale):
                canvas.rectangle(
                    x, ground + 4 * scale, x + 26 * scale, ground + 5.5 * scale, (0.85, 0.85, 0.8)
                )
        canvas.take_box()
        return canvas

    def _draw(
        self, canvas: Canvas, number: int, strip: _Strip, slot: int, seconds: float
    ) -> RoadUser | None:
        """Draw the road user at a place of a strip; return it if its middle is in the picture."""
        lap, way = divmod(slot * strip.spacing + strip.speed * seconds, strip.slots * strip.spacing)
        rng = random.Random(f"{self._seed} {number} {slot} {int(lap)}")
        luck, shift, red, green, blue, kind_draw, first, second = (rng.random() for _ in range(8))
        if luck >= (0.4 * self._traffic**0.5 if strip.on_foot else self._traffic):
            return None
        # Even the longest vehicles (68 units) stay apart: spacing is 92, and shifts are below 20.
        x = way + (20 * shift - 60) * strip.scale
        if x > SIZE + 40 * strip.scale:
            return None
        x = x if strip.heading == 1 else SIZE - x
        unit = canvas.size / SIZE
        spot = canvas.at(x * unit, strip.ground * unit, strip.scale * unit, strip.heading)
        brand = plate = clothing = None
        paint: Colour = (0.08 + 0.87 * red, 0.08 + 0.87 * green, 0.08 + 0.87 * blue)
        if strip.on_foot:
            kind = "pedestrian" if kind_draw < 0.62 else "bicycle"
            clothing = tuple(CLOTHING)[int(first * len(CLOTHING))]
            paint = tuple(min(c * (0.85 + 0.3 * red), 1.0) for c in CLOTHING[clothing])
            if kind == "bicycle":
                # Invert the formula by which `_bicycle` derives the coat's colour.
                paint = tuple((c - 0.3) / 0.6 for c in reversed(paint))
            DRAW[kind](spot, paint)
        else:
            kind = _TRAFFIC[bisect.bisect(_TRAFFIC_BELOW, kind_draw)]
            brand = BRANDS[int(first * len(BRANDS))]
            plate = _plate(int(second * len(CHARACTERS) ** 4))
            DRAW[kind](spot, paint)
            _draw_badges(spot, kind, brand, plate)
        box = canvas.take_box()
        if box is None or not 0 <= x < SIZE:
            return None
        x0, y0, x1, y1 = (edge / canvas.size for edge in box)
        direction = "right" if strip.heading == 1 else "left"
        return RoadUser(KINDS.index(kind), (x0, y0, x1, y1), direction, brand, plate, clothing)


def _plate(number: int) -> str:
    base = len(CHARACTERS)
    return "".join(CHARACTERS[number // base**i % base] for i in range(4))


def _draw_badges(spot: VehicleSpot, kind: str, brand: str, plate: str) -> None:
    plate_x, plate_y, plate_height, x, y, height = _BADGES[kind]
    # A border of one dot around characters, which are five dots wide and one apart.
    dots = np.zeros((9, 25), np.bool_)
    for i, character in enumerate(plate):
        dots[1:8, 1 + 6 * i : 6 + 6 * i] = _GLYPHS[CHARACTERS.index(character)]
    spot.bitmap(plate_x, plate_y, plate_height, dots, (0.05, 0.05, 0.08), (0.96, 0.96, 0.92))
    spot.bitmap(x, y, height, _EMBLEM_DOTS[brand], (0.98, 0.98, 1.0), (0.08, 0.1, 0.3))


def _rows(content: bytes, width: int) -> NDArray[np.bool_]:
    """Return bitmaps (count, 7, width) from one byte per row."""
    bits = np.unpackbits(np.frombuffer(content, np.uint8)[:, None], axis=1)
    return bits[:, 8 - width :].astype(np.bool_).reshape(-1, 7, width)


_GLYPHS = _rows(_FONT, 5)
_EMBLEM_DOTS = {
    name: np.pad(_rows(bytes.fromhex(rows), 7)[0], 1) for name, rows in _EMBLEMS.items()
}


def _visible(users: list[RoadUser]) -> list[RoadUser]:
    """Return road users from far to near, except those of which a nearer one hides half or more."""
    boxes = np.array([user.box for user in users]).reshape(-1, 4)
    low = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    hidden = np.triu(np.prod(np.clip(high - low, 0, None), axis=2), 1).max(1, initial=0.0)
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    return [user for user, much in zip(users, hidden >= area / 2, strict=True) if not much]
