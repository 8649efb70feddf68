"""Bandwidths drawn from a seed: for tests, and where no recorded trace is at hand.

They have the shape of the public traces, not their data: what a second's bandwidth is worth for
guessing the next, how far it swings, how often it is gone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slacktide.workloads.bandwidth import BandwidthTrace
from slacktide.workloads.bandwidth_formats import MBIT
from slacktide.workloads.errors import WorkloadError, positive

STEP = 1.0
"""Seconds of one bandwidth."""
MOST_STEPS = 1_000_000

_MEDIAN_4G, _SWING_4G, _MEMORY_4G = 25.0, 0.45, 0.8
"""Mbit/s; σ of the logarithm; correlation from second to second. The Ghent bus has 26.7, 0.43 and
0.74, and 0.14 ten seconds on."""
_LEAST_4G, _MOST_4G = 2.0, 60.0

_NEAR, _FAR = (180.0, 0.4), (9.0, 0.8)
"""Mbit/s and σ of the logarithm, near a 5G cell and where LTE stands in."""
_STAYS = (20.0, 40.0)
"""Mean seconds near, and far."""
_GAP, _BETWEEN_GAPS = 2.0, 60.0
"""Mean seconds of an outage, and between two. In the Irish runs 2 to 4 % of all seconds are 0."""


def draw_4g(duration: float, rng: np.random.Generator) -> BandwidthTrace:
    """4G on the move: lognormal, each second like the one before (an AR(1) of logarithms), never
    gone. `duration` seconds, rounded up to whole ones. Raises WorkloadError."""
    count = _count(duration)
    swing = _walk(rng.standard_normal(count), _MEMORY_4G)
    levels = np.clip(_MEDIAN_4G * np.exp(_SWING_4G * swing), _LEAST_4G, _MOST_4G)
    return _trace(levels, "4g")


def draw_5g(duration: float, rng: np.random.Generator) -> BandwidthTrace:
    """5G on the move: much near a cell, little where LTE stands in, and outages between. As above.

    Every stay is geometric; within it, each second is like the one before.
    """
    count = _count(duration)
    chances, swings = rng.spawn(2)
    swing = _walk(swings.standard_normal(count), _MEMORY_4G)
    levels = np.empty(count)
    near, gap = True, False
    for second, (move, fall) in enumerate(chances.random((count, 2)).tolist()):
        near ^= move < STEP / _STAYS[not near]
        gap = fall >= STEP / _GAP if gap else fall < STEP / _BETWEEN_GAPS
        median, sigma = _NEAR if near else _FAR
        levels[second] = 0.0 if gap else median * np.exp(sigma * swing[second])
    return _trace(levels, "5g")


def _walk(draws: NDArray[np.float64], memory: float) -> NDArray[np.float64]:
    """Standard normals, each correlated by `memory` with the one before."""
    level, fresh = float(draws[0]), float(np.sqrt(1.0 - memory**2))
    made = [level]
    for draw in draws[1:].tolist():
        level = memory * level + fresh * draw
        made.append(level)
    return np.array(made)


def _trace(megabits: NDArray[np.float64], source: str) -> BandwidthTrace:
    return BandwidthTrace(
        np.arange(megabits.size) * STEP, megabits * MBIT, megabits.size * STEP, source
    )


def _count(duration: float) -> int:
    positive("length", duration)
    count = int(np.ceil(duration / STEP))
    if count > MOST_STEPS:
        raise WorkloadError("length", f"expected at most {MOST_STEPS:,} s, got {duration:g}")
    return count
