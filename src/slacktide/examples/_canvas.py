"""A small square canvas: rectangles, discs and lines, light and fog. Pure NumPy."""

from __future__ import annotations

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
