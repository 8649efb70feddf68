"""Distributions of lengths on one grid, and the distribution of the longest length of a batch.

A batch whose members are padded takes as long as its longest member, so only the maximum of lengths
matters. The members are independent, so the CDF of the maximum is the product of their CDFs. For k
equal members it is F^k (Orloj, Eq. 6). For different members it equals Orloj's Eq. 8 (a test
compares the two), but costs only one multiplication per class, where Eq. 8 sums over all subsets.

All CDFs share a grid of `POINTS` lengths x_j = j · step, with F(x_0) = 0 and F = 1 at the end, and
are linear in between. A sample is spread over one step around itself, which keeps means exact:
`expected_max` of a sample's CDF is the sample mean, whatever the step.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.profiles.reading import ProfileError

POINTS = 96
"""Number of lengths in the grid."""
FLOOR = 1e-9
"""Smallest value of a CDF in a product, so that its logarithm exists."""

Floats: TypeAlias = NDArray[np.float64]


def weighted_sum(weights: Floats, rows: Floats) -> Floats:
    """`weights @ rows`, equal to the last bit on every machine; (n,) or (m, n) by (n, p).

    Libraries choose kernels for matrix products by the processor, so a recording of one machine
    would not replay on another.
    """
    total: Floats = np.add.reduce(weights[..., np.newaxis] * rows, axis=-2)
    return total


def step_for(longest: float) -> float:
    """Distance between neighbouring grid lengths such that `longest` > 0 is within the grid."""
    if not 0.0 < longest < np.inf:
        raise ProfileError(f"the longest length must be positive and finite, got {longest}")
    return longest / (POINTS - 1.5)


def empirical_cdf(lengths: Floats, step: float) -> Floats:
    """CDF of samples, shape (POINTS,); lengths beyond the grid count as its end. Raises
    ProfileError without samples or for values that are not finite."""
    if not lengths.size or not np.isfinite(lengths).all():
        raise ProfileError("expected at least one length, all of them finite")
    places = np.clip(lengths / step + 0.5, 1.0, POINTS - 1.0)
    below = places.astype(np.int64)
    part = places - below
    mass = np.bincount(below, 1.0 - part, POINTS + 1) + np.bincount(below + 1, part, POINTS + 1)
    cdf: Floats = np.minimum(np.cumsum(mass[:POINTS]) / lengths.size, 1.0)
    cdf[-1] = 1.0
    return cdf


def point_cdf(length: float, step: float) -> Floats:
    """CDF of a known length, to within about a step."""
    return empirical_cdf(np.array([length]), step)


def expected_max(cdf: Floats, step: float) -> float:
    """Mean of a CDF: the area above it, by the trapezoidal rule, exact for linear pieces."""
    return step * float(POINTS - cdf.sum() - 0.5)


def quantile(cdf: Floats, level: float, step: float) -> float:
    """The smallest length that a share `level` (0 to 1) of lengths stays within."""
    if not 0.0 <= level <= 1.0:
        raise ProfileError(f"level must be within 0 and 1, got {level}")
    high = int(cdf.searchsorted(level))
    if high == 0:
        return 0.0
    high = min(high, POINTS - 1)
    below, above = float(cdf[high - 1]), float(cdf[high])
    part = min((level - below) / (above - below), 1.0) if above > below else 1.0
    return step * (high - 1 + part)


def share_within(cdf: Floats, length: float, step: float) -> float:
    """P(length ≤ `length`); 0 below the grid, 1 beyond it."""
    place = length / step
    if place <= 0.0:
        return 0.0
    if place >= POINTS - 1:
        return 1.0
    low = int(place)
    below, above = float(cdf[low]), float(cdf[low + 1])
    return below + (above - below) * (place - low)
