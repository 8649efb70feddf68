"""Rendered street scenes for the frame classifiers: unrelated frames, and streams of video.

A roadside camera sees sky, houses, a road, and at most one road user in the foreground, by day or
night, perhaps in fog, with distant cars and a post in the way. The label is the kind of the road
user in front, exact because we drew it. Night, fog and distance make some frames much harder than
others, as in real video.

Unrelated frames have all kinds in equal parts, in any colour. Streams resemble streets: half of the
road users are cars, most others people, vans and bicycles, and the mix changes slowly; most paint
and clothes are white, grey or black. All drawing is NumPy on a small canvas, at about a
millisecond per frame.
"""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples._canvas import DRAW, Canvas, Colour, houses

SIZE: Final = 96
"""Height and width of a frame, pixels."""

KINDS: tuple[str, ...] = ("empty", *DRAW)
"""Class names; a label is an index into them."""

FRAME_RATE: Final = 30
"""Frames per second of a stream."""
STREAM_FRAMES: Final = 16 * 60 * FRAME_RATE
"""Number of frames in a stream of sixteen minutes."""
HOUR_FRAMES: Final = 60 * 60 * FRAME_RATE
"""Number of frames in a stream of an hour."""

_LEFT, _RIGHT = 20.0, 76.0
"""Range of the x position of a road user's middle (pixels), so that most of it is visible."""

_SHARES = {
    "car": 0.5,
    "pedestrian": 0.15,
    "van": 0.09,
    "bicycle": 0.07,
    "taxi": 0.06,
    "bus": 0.05,
    "truck": 0.04,
    "motorcycle": 0.02,
    "pickup": 0.02,
}
"""Mean shares of the kinds of road users in streams."""

_PAINTS: tuple[tuple[float, Colour], ...] = (
    (0.27, (0.9, 0.9, 0.9)),
    (0.2, (0.1, 0.1, 0.11)),
    (0.18, (0.35, 0.36, 0.38)),
    (0.15, (0.66, 0.67, 0.69)),
    (0.09, (0.14, 0.22, 0.5)),
    (0.06, (0.62, 0.1, 0.1)),
    (0.05, (0.3, 0.38, 0.25)),
)
"""Shares and colours of vehicles and clothes in streams."""

Frame = NDArray[np.uint8]


def frames(count: int, rng: np.random.Generator) -> tuple[Frame, NDArray[np.int64]]:
    """Draw unrelated RGB frames (count, 3, SIZE, SIZE), with kinds in equal parts, and labels."""
    labels = rng.permutation(np.arange(count, dtype=np.int64) % len(KINDS))
    out = np.empty((count, 3, SIZE, SIZE), np.uint8)
    for i, kind in enumerate(labels):
        out[i] = _frame(int(kind), rng).transpose(2, 0, 1)
    return out, labels


@dataclass(frozen=True, slots=True)
class StreamConditions:
    """Conditions during a stream. Each series has values at equal intervals from the first frame to
    the last, and is linear between them."""

    seed: int
    """Seed of the street, the traffic on it and the noise of the camera."""
    daylight: tuple[float, ...]
    """Brightness: 0.12 is a dark night, 1 is noon."""
    fog: tuple[float, ...] = (0.0,)
    """Share of grey in the light, 0 to 0.5."""
    traffic: tuple[float, ...] = (0.5,)
    """Density: at 0 occasional road users; at 1 one after another, slow and with stops."""
    frames: int = STREAM_FRAMES
    """Number of frames."""


STREAMS: dict[str, StreamConditions] = {
    "day": StreamConditions(101, daylight=(0.95, 0.85, 1.0, 0.9)),
    "night": StreamConditions(102, daylight=(0.26, 0.18, 0.15, 0.2), traffic=(0.5, 0.35)),
    "fog": StreamConditions(103, daylight=(0.8, 0.7), fog=(0.4, 0.5, 0.3, 0.45)),
    "rush_hour": StreamConditions(104, daylight=(0.9, 0.8), traffic=(0.8, 1.0, 0.85)),
    "dusk": StreamConditions(105, daylight=(0.8, 0.7, 0.35, 0.2), traffic=(0.7, 0.4)),
    "dawn": StreamConditions(106, daylight=(0.2, 0.25, 0.6, 0.9), traffic=(0.3, 0.9)),
    "fog_rolling_in": StreamConditions(107, daylight=(0.85,), fog=(0.0, 0.0, 0.35, 0.5)),
    "foggy_night": StreamConditions(108, daylight=(0.28,), fog=(0.35, 0.2, 0.0, 0.1)),
}
"""The eight streams by name."""
HOURS: dict[str, StreamConditions] = {
    f"long_{name}": replace(conditions, frames=HOUR_FRAMES) for name, conditions in STREAMS.items()
}
"""Streams of an hour on the same eight streets, by name."""


@dataclass(frozen=True, slots=True)
class _Lane:
    ground: float
    scale: float
    heading: int


@dataclass(frozen=True, slots=True)
class _Visit:
    """A road user that drives or walks by, and may stop for a while. Times in seconds."""

    kind: int
    paint: Colour
    lane: _Lane
    start: float
    end: float
    entry: float
    """Distance of its middle from the frame at the start, pixels."""
    speed: float
    stop: float
    """Instant at which it stops."""
    pause: float

    def x(self, seconds: float) -> float:
        """Return the position of the middle at `seconds`, in pixels from the left."""
        standing = min(max(seconds - self.stop, 0.0), self.pause)
        way = (seconds - self.start - standing) * self.speed - self.entry
        return way if self.lane.heading == 1 else SIZE - way


class Video:
    """The frames of a stream, drawn on request in any order."""

    def __init__(self, conditions: StreamConditions) -> None:
        self._conditions = conditions
        rng = np.random.default_rng((conditions.seed, 0))
        self._post = float(rng.uniform(4, SIZE - 4)) if rng.random() < 0.4 else None
        self._far = [(float(rng.uniform(0, 240)), float(rng.uniform(4, 12))) for _ in range(3)]
        self._visits = list(self._visited(rng))
        self._starts = [visit.start for visit in self._visits]
        self._empty: tuple[float, float, Canvas] | None = None

    def frame(self, number: int) -> tuple[Frame, int]:
        """Return RGB frame `number`, (3, SIZE, SIZE), and its label: the kind of the road user
        whose middle is visible, or 0. Raises ValueError for a number outside the stream."""
        if not 0 <= number < (count := self._conditions.frames):
            raise ValueError(f"the stream has frames 0 to {count - 1}, not {number}")
        seconds, kind = number / FRAME_RATE, 0
        # Passing clouds change the light. The empty street is drawn once per level of light.
        clouds = 0.04 * (np.sin(seconds / 7) + np.sin(seconds / 17 + 1))
        daylight = round(self._at(self._conditions.daylight, seconds) * (1 + clouds), 2)
        canvas = self._street(daylight, round(self._at(self._conditions.fog, seconds), 2))
        for i, (place, speed) in enumerate(self._far):
            lap, x = divmod(place + speed * seconds, 240)
            paint = random.Random(f"{self._conditions.seed} {i} {lap}")
            colour = (paint.uniform(0.1, 0.9), paint.uniform(0.1, 0.9), paint.uniform(0.1, 0.9))
            if x < SIZE + 24:
                DRAW["car"](canvas.at(x - 12, self._horizon + 7, 0.28, 1), colour)
        visit = self._visits[bisect.bisect(self._starts, seconds) - 1]
        if seconds < visit.end:
            x, lane = visit.x(seconds), visit.lane
            spot = canvas.at(x, lane.ground, lane.scale, lane.heading)
            DRAW[KINDS[visit.kind]](spot, visit.paint)
            kind = visit.kind if 0 <= x < SIZE else 0
        if self._post is not None:
            canvas.rectangle(self._post - 1.5, 0, self._post + 1.5, SIZE, (0.3, 0.3, 0.32))
        grain = np.random.default_rng((self._conditions.seed, 1, number))
        pixels = canvas.pixels(grain, noise=0.02 + 0.03 * (1 - daylight))
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)), kind

    def _street(self, daylight: float, fog: float) -> Canvas:
        """Return a copy of the empty street."""
        if self._empty is None or self._empty[:2] != (daylight, fog):
            canvas = Canvas(SIZE, daylight=daylight, fog=fog)
            lit = 0.4 * min(max((0.55 - daylight) / 0.25, 0.0), 1.0)
            rng, lamps = (np.random.default_rng((self._conditions.seed, i)) for i in (2, 3))
            self._horizon = _backdrop(canvas, rng, lit=lit, lamps=lamps)
            self._empty = daylight, fog, canvas
        return self._empty[2].copy()

    def _visited(self, rng: np.random.Generator) -> Iterator[_Visit]:
        """Yield road users one after another, from before the first frame until after the last."""
        heading = 1 if rng.random() < 0.5 else -1
        far = _Lane(float(rng.uniform(69, 74)), float(rng.uniform(0.78, 0.92)), heading)
        near = _Lane(float(rng.uniform(79, 85)), float(rng.uniform(0.98, 1.15)), -heading)
        path = _Lane(float(rng.uniform(66, 69)), float(rng.uniform(0.76, 0.95)), 1)
        # The shares of kinds also change: they move from one mix to another.
        mixes = rng.dirichlet([40 * _SHARES[kind] for kind in DRAW], 2)
        clock, end = -8.0, self._conditions.frames / FRAME_RATE
        while clock < end:
            done = max(clock, 0.0) / end
            busy = self._at(self._conditions.traffic, max(clock, 0.0))
            kind = 1 + int(rng.choice(len(DRAW), p=mixes[0] * (1 - done) + mixes[1] * done))
            shade = _PAINTS[int(rng.choice(len(_PAINTS), p=[share for share, _ in _PAINTS]))][1]
            paint: Colour = tuple(float(c) for c in shade * rng.uniform(0.85, 1.1, 3))
            on_foot, pedals = KINDS[kind] == "pedestrian", KINDS[kind] == "bicycle"
            lane = near if rng.random() < 0.5 else far
            if on_foot or pedals:
                lane = _Lane(path.ground, path.scale, 1 if rng.random() < 0.5 else -1)
            length = 10 if on_foot else 18 if pedals else 36
            pace = 26.0 if on_foot else 60.0 if pedals else 130 * (1.1 - 0.75 * busy)
            speed = pace * float(rng.uniform(0.8, 1.2)) * lane.scale
            entry = length * lane.scale
            stands = rng.random() < 0.2 + 0.4 * busy
            pause = float(rng.uniform(0.8, 1.5 + 3 * busy)) if stands else 0.0
            stop = clock + (entry + float(rng.uniform(_LEFT, _RIGHT))) / speed
            until = clock + (SIZE + 2 * entry) / speed + pause
            yield _Visit(kind, paint, lane, clock, until, entry, speed, stop, pause)
            clock = until + 0.1 + float(rng.exponential(0.2 + 1.5 * (1 - busy)))

    def _at(self, series: tuple[float, ...], seconds: float) -> float:
        places = np.linspace(0, self._conditions.frames / FRAME_RATE, len(series))
        return float(np.interp(seconds, places, series))


def video(name: str, start: int = 0, stop: int | None = None) -> Iterator[tuple[Frame, int]]:
    """Yield frames `start` to `stop` (or the last) of a stream in order, each with its label (see
    `Video.frame`). Raises ValueError for an unknown stream."""
    streams = STREAMS | HOURS
    if name not in streams:
        raise ValueError(f"no stream is called {name!r} (all: {', '.join(streams)})")
    conditions = streams[name]
    return map(Video(conditions).frame, range(start, conditions.frames if stop is None else stop))


def _frame(kind: int, rng: np.random.Generator) -> Frame:
    """Draw an RGB frame (SIZE, SIZE, 3) with a road user of this kind in front (0: none). Lengths
    are in pixels, light and colours from 0 to 1; heading 1 is to the right."""
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
    horizon = _backdrop(canvas, street, lit=0.4 * night)
    for _ in range(int(street.integers(0, 4))):
        far = canvas.at(float(street.uniform(4, SIZE - 4)), horizon + 7, 0.28, 1)
        DRAW["car"](far, tuple(float(c) for c in street.uniform(0.1, 0.9, 3)))
    if kind:
        DRAW[KINDS[kind]](place, paint)
    if post is not None:
        canvas.rectangle(post - 1.5, 0, post + 1.5, SIZE, (0.3, 0.3, 0.32))
    return canvas.pixels(rng, noise=0.02 + 0.03 * (1 - daylight))


def _backdrop(
    canvas: Canvas,
    rng: np.random.Generator,
    *,
    lit: float,
    lamps: np.random.Generator | None = None,
) -> float:
    """Draw sky, houses with windows and a road with markings; return the horizon's y in pixels."""
    horizon = float(rng.uniform(40, 48))
    canvas.gradient(0, horizon, (0.45, 0.62, 0.9), (0.8, 0.86, 0.95))
    houses(canvas, rng, horizon, 1.0, lit=lit, lamps=lamps)
    canvas.rectangle(0, horizon, SIZE, horizon + 6, (0.55, 0.53, 0.5))
    canvas.gradient(horizon + 6, SIZE, (0.36, 0.36, 0.38), (0.28, 0.28, 0.3))
    for mx in np.arange(float(rng.uniform(-16, 0)), SIZE, 20):
        canvas.rectangle(mx, horizon + 14, mx + 10, horizon + 15.5, (0.85, 0.85, 0.8))
    return horizon
