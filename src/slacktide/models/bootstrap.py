"""Intervals of accuracies: percentiles over sets of images drawn with replacement (bootstrap).

All variants are scored on the same sets, so the interval of a difference is that of pairs, which is
narrower than the intervals of two accuracies suggest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
SETS = 1000
_SEED = 0
_PERCENTILES = (2.5, 97.5)
"""Of a 95 % interval."""


def resampled_sets(images: int) -> NDArray[np.uint16]:
    """Return [sets, images]: how often each image is in each set. The seed is fixed."""
    generator = np.random.default_rng(_SEED)
    drawn = (generator.integers(images, size=images) for _ in range(SETS))
    rows = [np.bincount(numbers, minlength=images).astype(np.uint16) for numbers in drawn]
    return np.array(rows)


def interval(accuracies: NDArray[Any]) -> Interval:
    """Return the 95 % interval of accuracies, or of differences, over sets. NaN marks sets without
    a label."""
    low, high = np.nanpercentile(accuracies, _PERCENTILES)
    return float(low), float(high)
