"""A square canvas for rectangles, discs, lines and bitmaps, by day, by night and in fog; functions
that draw all kinds of road users in side view, in units of about 0.1 m. Uses only NumPy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, ...]
"""Red, green, blue, each from 0 to 1."""

PixelBox = tuple[int, int, int, int]
"""x0, y0, x1, y1 in pixels; the last column is x1 - 1."""

_NOISE_VALUES = 70_001
"""Distinct noise values of a picture. Larger pictures repeat them, shifted from row to row."""


class Canvas:
    """A picture (size, size). Colours are adapted to the light when they are drawn. The canvas also
    records the box around what is drawn."""

    def __init__(self, size: int, *, daylight: float = 1.0, fog: float = 0.0) -> None:
        """`daylight` < 1 darkens all but lamps, with a blue tint; `fog` adds grey; both 0 to 1."""
        self.size = size
        self._tint = (daylight, daylight, daylight**0.85)
        self._fog, self._grey = fog, 0.7 * daylight
        self._packed = np.zeros((size, size), np.uint32)
        self._noted: PixelBox | None = None
        self._exposed_colours: dict[tuple[Colour, bool], int] = {}

    def copy(self) -> Canvas:
        """Return a canvas with the same picture and light, and no recorded box."""
        canvas = copy.copy(self)
        canvas._packed, canvas._noted = self._packed.copy(), None
        canvas._exposed_colours = self._exposed_colours.copy()
        return canvas

    def take_box(self) -> PixelBox | None:
        """Return the box around what was drawn since the last call, except gradients, or None."""
        noted, self._noted = self._noted, None
        return noted

    def at(self, x: float, ground: float, scale: float, heading: int) -> VehicleSpot:
        """Return a place to draw something that stands at (x, ground), in its own units."""
        return VehicleSpot(self, x, ground, scale, heading)

    def rectangle(
        self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, glows: bool = False
    ) -> None:
        """Fill a rectangle; corners are rounded to pixels, and parts outside are cut off."""
        (top, bottom), (left, right) = self._span(y0, y1), self._span(x0, x1)
        if top < bottom and left < right:
            self._packed[top:bottom, left:right] = self._exposed(colour, glows=glows)
            self._note(left, top, right, bottom)

    def disc(self, x: float, y: float, radius: float, colour: Colour, hole: float = 0.0) -> None:
        """Fill a disc, or a ring if `hole`, the inner radius, is positive."""
        top, bottom = self._span(y - radius, y + radius + 1)
        left, right = self._span(x - radius, x + radius + 1)
        ys, xs = np.arange(top, bottom) + (0.5 - y), np.arange(left, right) + (0.5 - x)
        distance = (ys**2)[:, None] + xs**2
        inside = (distance <= radius**2) & (distance >= hole**2)
        self._packed[top:bottom, left:right][inside] = self._exposed(colour)
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        if len(rows):
            first, last = int(columns[0]), int(columns[-1]) + 1
            self._note(left + first, top + int(rows[0]), left + last, top + int(rows[-1]) + 1)

    def line(
        self, x0: float, y0: float, x1: float, y1: float, width: float, colour: Colour
    ) -> None:
        """Draw a line as a row of squares."""
        half = width / 2
        steps = int(max(abs(x1 - x0), abs(y1 - y0)) / max(half, 1)) + 1
        for i in range(steps + 1):
            x, y = x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps
            self.rectangle(x - half, y - half, x + half, y + half, colour)

    def bitmap(
        self,
        x0: float,
        y0: float,
        x1: float,
        y1: float,
        dots: NDArray[np.bool_],
        ink: Colour,
        paper: Colour,
    ) -> None:
        """Fill with `dots` (rows, columns), stretched: each pixel takes its nearest dot."""
        (top, bottom), (left, right) = self._span(y0, y1), self._span(x0, x1)
        if top >= bottom or left >= right:
            return
        rows = (np.arange(top, bottom) + 0.5 - y0) / (y1 - y0) * dots.shape[0]
        columns = (np.arange(left, right) + 0.5 - x0) / (x1 - x0) * dots.shape[1]
        rows = np.clip(rows, 0, dots.shape[0] - 1).astype(np.intp)
        columns = np.clip(columns, 0, dots.shape[1] - 1).astype(np.intp)
        colours = np.array([self._exposed(paper), self._exposed(ink)], np.uint32)
        self._packed[top:bottom, left:right] = colours[dots.astype(np.intp)[rows[:, None], columns]]
        self._note(left, top, right, bottom)

    def gradient(self, top: float, bottom: float, above: Colour, below: Colour) -> None:
        """Fill the full width with a gradient from one colour to another, in fine steps."""
        first, last = self._span(top, bottom)
        height = max((last - first) // 64, 1)
        for y in range(first, last, height):
            share = (y - first) / (last - first)
            mixed = tuple(a + (b - a) * share for a, b in zip(above, below, strict=True))
            self._packed[y : min(y + height, last)] = self._exposed(mixed)

    def pixels(self, rng: np.random.Generator, *, noise: float) -> NDArray[np.uint8]:
        """Return the RGB picture (size, size, 3); `noise`: standard deviation of sensor noise."""
        picture = self._packed.view(np.uint8).reshape(self.size, self.size, 4)[:, :, :3]
        values = rng.standard_normal(min(picture.size, _NOISE_VALUES), dtype=np.float32)
        grain = np.resize((values * (255 * noise)).astype(np.int16), picture.shape)
        grain += picture
        return np.clip(grain, 0, 255, out=grain).astype(np.uint8)

    def _exposed(self, colour: Colour, *, glows: bool = False) -> int:
        """Return the colour in this light as packed bytes: red (lowest), green, blue."""
        cached = self._exposed_colours.get((colour, glows))
        if cached is not None:
            return cached
        packed = 0
        for i, (light, tint) in enumerate(zip(colour, self._tint, strict=True)):
            level = light if glows else light * tint
            level += self._fog * (self._grey - level)
            packed |= int(min(max(level, 0.0), 1.0) * 255) << (8 * i)
        self._exposed_colours[colour, glows] = packed
        return packed

    def _note(self, left: int, top: int, right: int, bottom: int) -> None:
        if self._noted is not None:
            x0, y0, x1, y1 = self._noted
            left, top, right, bottom = min(left, x0), min(top, y0), max(right, x1), max(bottom, y1)
        self._noted = (left, top, right, bottom)

    def _span(self, low: float, high: float) -> tuple[int, int]:
        first, last = round(low), round(high)
        first = 0 if first < 0 else first
        last = self.size if last > self.size else last
        return first, last if last > first else first


@dataclass(frozen=True, slots=True)
class VehicleSpot:
    """Draws in the units of one thing: x ahead of its middle, y up from the ground."""

    canvas: Canvas
    x: float
    ground: float
    scale: float
    """Pixels per unit; a car is about 40 units long."""
    heading: int

    def box(
        self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, glows: bool = False
    ) -> None:
        left, right = sorted((self._x(x0), self._x(x1)))
        self.canvas.rectangle(left, self._y(y1), right, self._y(y0), colour, glows=glows)

    def disc(self, x: float, y: float, radius: float, colour: Colour, hole: float = 0.0) -> None:
        size = self.scale
        self.canvas.disc(self._x(x), self._y(y), radius * size, colour, hole * size)

    def line(
        self, x0: float, y0: float, x1: float, y1: float, width: float, colour: Colour
    ) -> None:
        ends = (self._x(x0), self._y(y0), self._x(x1), self._y(y1))
        self.canvas.line(*ends, width * self.scale, colour)

    def bitmap(
        self, x: float, y: float, height: float, dots: NDArray[np.bool_], ink: Colour, paper: Colour
    ) -> None:
        """Draw square dots around the middle (x, y); never mirrored."""
        half_height = height * self.scale / 2
        half_width = half_height * dots.shape[1] / dots.shape[0]
        x, y = self._x(x), self._y(y)
        corners = (x - half_width, y - half_height, x + half_width, y + half_height)
        self.canvas.bitmap(*corners, dots, ink, paper)

    def _x(self, x: float) -> float:
        return self.x + self.heading * self.scale * x

    def _y(self, y: float) -> float:
        return self.ground - self.scale * y


def houses(
    canvas: Canvas,
    rng: np.random.Generator,
    horizon: float,
    unit: float,
    *,
    lit: float,
    lamps: np.random.Generator | None = None,
) -> None:
    """Draw a row of houses on the horizon; `unit`: pixels per unit of length; `lit`: share of lit
    windows. `lamps` chooses the lit windows, so that the houses do not depend on `lit`; without
    `lamps`, `rng` chooses them, if there are any."""
    x = 0.0
    while x < canvas.size:
        width, top = rng.uniform(12, 30) * unit, horizon - rng.uniform(14, 40) * unit
        wall = tuple(float(c) for c in rng.uniform(0.25, 0.7, 3) * (1.0, 0.9, 0.85))
        canvas.rectangle(x, top, x + width, horizon, wall)
        for wx in np.arange(x + 3 * unit, x + width - 3 * unit, 6 * unit):
            for wy in np.arange(top + 3 * unit, horizon - 6 * unit, 8 * unit):
                on = (lamps.random() if lamps else rng.random() if lit else 1.0) < lit
                pane = (0.95, 0.85, 0.5) if on else (0.25, 0.3, 0.38)
                canvas.rectangle(wx, wy, wx + 3 * unit, wy + 4 * unit, pane, glows=on)
        x += width + float(rng.uniform(0, 6)) * unit


_TYRE = (0.06, 0.06, 0.07)
_RIM = (0.6, 0.6, 0.62)
_GLASS = (0.55, 0.68, 0.78)
_LAMP = (1.0, 0.97, 0.8)
_TAIL = (0.9, 0.1, 0.08)
_SKIN = (0.8, 0.6, 0.48)
_DARK = (0.12, 0.12, 0.15)


def _wheels(place: VehicleSpot, *at: float, radius: float = 4.5) -> None:
    for x in at:
        place.disc(x, radius, radius, _TYRE)
        place.disc(x, radius, radius * 0.45, _RIM)


def _lamps(place: VehicleSpot, front: float, rear: float, height: float) -> None:
    place.box(front - 2.5, height, front, height + 2.5, _LAMP, glows=True)
    place.box(rear, height, rear + 2, height + 2.5, _TAIL, glows=True)


def _car(place: VehicleSpot, paint: Colour) -> None:
    place.box(-20, 4, 20, 11, paint)
    place.box(-13, 11, 9, 18, paint)
    place.box(-11, 12, -3, 16.5, _GLASS)
    place.box(-1, 12, 7, 16.5, _GLASS)
    _wheels(place, -12, 12)
    _lamps(place, 20, -20, 8)


def _taxi(place: VehicleSpot, paint: Colour) -> None:
    """Draw a cream or yellow car with a lit sign and a chequered stripe."""
    _car(place, (0.95, 0.75 + 0.15 * paint[1], 0.1 + 0.6 * paint[2]))
    place.box(-6, 18, 3, 22, _LAMP, glows=True)
    for x in range(-18, 18, 6):
        place.box(x, 8, x + 3, 10, _DARK)


def _van(place: VehicleSpot, paint: Colour) -> None:
    place.box(-22, 4, 16, 26, paint)
    place.box(16, 4, 22, 14, paint)
    place.box(9, 15, 16, 23, _GLASS)
    _wheels(place, -13, 14)
    _lamps(place, 22, -22, 8)


def _pickup(place: VehicleSpot, paint: Colour) -> None:
    place.box(-23, 5, 22, 12, paint)
    place.box(-2, 12, 12, 21, paint)
    place.box(1, 14, 9, 19.5, _GLASS)
    place.box(-23, 12, -21, 15, paint)
    _wheels(place, -14, 14, radius=5.5)
    _lamps(place, 22, -23, 8)


def _truck(place: VehicleSpot, paint: Colour) -> None:
    """Draw a cab, and behind it, after a gap, a box body in a different, pale colour."""
    pale = tuple(0.6 + 0.35 * c for c in reversed(paint))
    place.box(-32, 8, 15, 36, pale)
    place.box(-32, 5, 26, 8, _DARK)
    place.box(17, 5, 28, 25, paint)
    place.box(21, 15, 28, 22, _GLASS)
    _wheels(place, -24, -14, 20, radius=5)
    _lamps(place, 28, -32, 8)


def _bus(place: VehicleSpot, paint: Colour) -> None:
    """Draw a bus with windows from end to end."""
    place.box(-34, 5, 34, 32, paint)
    for x in range(-31, 31, 9):
        place.box(x, 17, x + 7, 27, _GLASS)
    place.box(18, 6, 24, 27, _DARK)
    _wheels(place, -22, 22, radius=5)
    _lamps(place, 34, -34, 8)


def _rider(place: VehicleSpot, coat: Colour, saddle: float) -> None:
    place.line(-2, saddle, 2, saddle + 10, 4, coat)
    place.line(2, saddle + 8, 8, saddle + 4, 2, coat)
    place.line(-2, saddle, 3, saddle - 9, 2.5, _DARK)
    place.disc(3.5, saddle + 14, 3, _SKIN)


def _motorcycle(place: VehicleSpot, paint: Colour) -> None:
    _wheels(place, -10, 10, radius=5)
    place.box(-8, 6, 7, 11, paint)
    place.line(10, 5, 7, 16, 2, _DARK)
    _rider(place, _DARK, 12)
    place.disc(3.5, 26.5, 3.2, paint)
    _lamps(place, 12, -12, 11)


def _bicycle(place: VehicleSpot, paint: Colour) -> None:
    """Draw a bicycle with thin, see-through wheels and no headlight."""
    for x in (-9, 9):
        place.disc(x, 6, 6, _TYRE, hole=4.4)
    place.line(-9, 6, 0, 6, 1.2, paint)
    place.line(0, 6, 7, 14, 1.2, paint)
    place.line(9, 6, 7, 16, 1.2, paint)
    place.line(-9, 6, -3, 14, 1.2, paint)
    _rider(place, tuple(0.3 + 0.6 * c for c in reversed(paint)), 15)


def _pedestrian(place: VehicleSpot, paint: Colour) -> None:
    place.line(0, 12, -4, 0, 2.5, _DARK)
    place.line(0, 12, 4, 0, 2.5, _DARK)
    place.box(-3.5, 12, 3.5, 24, paint)
    place.line(2, 22, 7, 13, 2, paint)
    place.disc(0, 28, 3.2, _SKIN)


DRAW: dict[str, Callable[[VehicleSpot, Colour], None]] = {
    "car": _car,
    "taxi": _taxi,
    "van": _van,
    "pickup": _pickup,
    "truck": _truck,
    "bus": _bus,
    "motorcycle": _motorcycle,
    "bicycle": _bicycle,
    "pedestrian": _pedestrian,
}
