"""A small square canvas: rectangles, discs and lines, light and fog; and how each kind of road user
is drawn on it: side view, in units of about a tenth of a metre. Pure NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, ...]
"""Red, green, blue, each from 0 to 1."""


class Canvas:
    """Colours (3, size, size) in linear light, and where lamps shine by themselves."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._light = np.zeros((3, size, size), np.float32)
        self._glow = np.zeros((size, size), np.float32)

    def at(self, x: float, ground: float, scale: float, heading: int) -> VehicleSpot:
        """A place to draw a thing in its own units, standing at (x, ground)."""
        return VehicleSpot(self, x, ground, scale, heading)

    def rectangle(
        self, x0: float, y0: float, x1: float, y1: float, colour: Colour, *, glows: bool = False
    ) -> None:
        """Fill; corners are rounded to pixels, what lies outside is cut off."""
        box = (slice(*self._span(y0, y1)), slice(*self._span(x0, x1)))
        self._light[:, *box] = np.array(colour, np.float32)[:, None, None]
        self._glow[box] = glows

    def disc(self, x: float, y: float, radius: float, colour: Colour, hole: float = 0.0) -> None:
        """Fill a disc, or a ring where `hole` (its inner radius) is positive."""
        top, bottom = self._span(y - radius, y + radius + 1)
        left, right = self._span(x - radius, x + radius + 1)
        ys, xs = np.ogrid[top:bottom, left:right]
        distance = (xs + 0.5 - x) ** 2 + (ys + 0.5 - y) ** 2
        inside = (distance <= radius**2) & (distance >= hole**2)
        self._light[:, top:bottom, left:right][:, inside] = np.array(colour, np.float32)[:, None]
        self._glow[top:bottom, left:right][inside] = 0

    def line(
        self, x0: float, y0: float, x1: float, y1: float, width: float, colour: Colour
    ) -> None:
        """A stroke, as squares set along it."""
        half = width / 2
        steps = int(max(abs(x1 - x0), abs(y1 - y0))) + 2
        for x, y in zip(np.linspace(x0, x1, steps), np.linspace(y0, y1, steps), strict=True):
            self.rectangle(x - half, y - half, x + half, y + half, colour)

    def gradient(self, top: float, bottom: float, above: Colour, below: Colour) -> None:
        """Fill the full width from one colour to another."""
        first, last = self._span(top, bottom)
        share = np.linspace(0, 1, last - first, dtype=np.float32)
        a, b = np.array(above, np.float32)[:, None], np.array(below, np.float32)[:, None]
        self._light[:, first:last] = (a + (b - a) * share)[:, :, None]

    def expose(self, daylight: float, fog: float) -> None:
        """Darken to `daylight` (bluish at night), keep lamps bright, mix in grey for fog."""
        tint = np.array([daylight, daylight, daylight**0.85], np.float32)[:, None, None]
        self._light = self._light * (tint + (1 - tint) * self._glow)
        self._light += fog * (0.7 * daylight - self._light)

    def pixels(self, rng: np.random.Generator, *, noise: float) -> NDArray[np.uint8]:
        """The picture (3, size, size), with the noise of a sensor (standard deviation)."""
        seen = self._light + noise * rng.standard_normal(self._light.shape, dtype=np.float32)
        return (np.clip(seen, 0, 1) * 255).astype(np.uint8)

    def _span(self, low: float, high: float) -> tuple[int, int]:
        first = min(max(round(low), 0), self._size)
        return first, max(min(round(high), self._size), first)


@dataclass(frozen=True, slots=True)
class VehicleSpot:
    """Draws on a canvas in a thing's own units: x ahead of its middle, y up from the ground."""

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

    def _x(self, x: float) -> float:
        return self.x + self.heading * self.scale * x

    def _y(self, y: float) -> float:
        return self.ground - self.scale * y


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
    """A car with a lit sign and a chequered stripe, cream or yellow."""
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
    """A box body of its own pale colour behind a cab with a gap between them."""
    pale = tuple(0.6 + 0.35 * c for c in reversed(paint))
    place.box(-32, 8, 15, 36, pale)
    place.box(-32, 5, 26, 8, _DARK)
    place.box(17, 5, 28, 25, paint)
    place.box(21, 15, 28, 22, _GLASS)
    _wheels(place, -24, -14, 20, radius=5)
    _lamps(place, 28, -32, 8)


def _bus(place: VehicleSpot, paint: Colour) -> None:
    """Windows from end to end."""
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
    """Thin wheels one can see through, and no headlight."""
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
