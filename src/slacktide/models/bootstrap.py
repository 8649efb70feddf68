"""Intervals of accuracies: percentiles over sets of images drawn with replacement (bootstrap).

All variants are scored on the same sets, so the interval of a difference comes from pairs, and is
narrower than the intervals of two accuracies suggest. Average precision is higher on drawn sets, in
which images repeat, so percentiles are shifted by the measured value minus the mean. Over all sets
together, each image is drawn equally often, so a plain share needs no shift.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
SETS = 1000
_SEED = 0
_PERCENTILES = (2.5, 97.5)
"""Ends of a 95 % interval."""


def resampled_sets(images: int) -> NDArray[np.uint16]:
    """Return [sets, images]: how often each image is in each set. The seed is fixed."""
    drawn = np.tile(np.arange(images, dtype=np.int32), SETS)
    np.random.default_rng(_SEED).shuffle(drawn)
    counts = (np.bincount(numbers, minlength=images) for numbers in drawn.reshape(SETS, images))
    return np.array([row.astype(np.uint16) for row in counts])


def interval(drawn: NDArray[Any], measured: float) -> Interval:
    """Return the 95 % interval of an accuracy, or of a difference, around its `measured` value.
    `drawn`: its value for each set; NaN for sets without a label."""
    low, high = np.nanpercentile(drawn, _PERCENTILES) + (measured - np.nanmean(drawn))
    return round(float(low), 9), round(float(high), 9)
