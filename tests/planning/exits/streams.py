"""Made-up answers of ramps: deeper ramps are surer and more often right, hard rows are hard for
all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.planning.exits.thresholds import ThresholdSearch

Array = NDArray[Any]


def exits(search: ThresholdSearch) -> tuple[float, ...]:
    """Share of rows that would leave at each ramp, by the best thresholds."""
    left = np.bincount(search.leaves(search.best()), minlength=search.ramps + 1)
    return tuple((left[:-1] / search.rows).tolist())


def answers(
    rng: np.random.Generator, rows: int, ramps: int, *, ease: float = 0.0
) -> tuple[Array, Array]:
    """(uncertainty, agreement), each [rows, ramps]. `ease`: more is easier; 0: the last of many
    ramps agrees on nine rows of ten."""
    hard = rng.normal(size=(rows, 1))
    depth = 1.5 * np.arange(1, ramps + 1) / ramps
    trouble = hard + 0.5 * rng.normal(size=(rows, ramps)) - depth - ease
    right = 1.0 / (1.0 + np.exp(2.5 * (trouble - 0.5)))
    noise = 0.03 * rng.normal(size=(rows, ramps))
    return np.clip(1.0 - right + noise, 0.0, 1.0), rng.random((rows, ramps)) < right


def stream(
    rng: np.random.Generator, rows: int, ramps: int, ease: Array | float, *, bond: float = 0.9
) -> tuple[Array, Array]:
    """The same, row after row of one stream: neighbours are about as hard (`bond`), and `ease` may
    change from row to row."""
    drawn = rng.normal(size=rows) * np.sqrt(1.0 - bond**2)
    hard: Array = np.empty(rows)
    last = 0.0
    for row in range(rows):
        last = bond * last + drawn[row]
        hard[row] = last
    depth = 3.0 * np.arange(1, ramps + 1) / ramps
    trouble = (hard - ease)[:, None] + 0.3 * rng.normal(size=(rows, ramps)) - depth
    right = 1.0 / (1.0 + np.exp(3.0 * trouble))
    noise = 0.03 * rng.normal(size=(rows, ramps))
    return np.clip(1.0 - right + noise, 0.0, 1.0), rng.random((rows, ramps)) < right
