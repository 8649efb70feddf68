"""`UsageHistogram`: a histogram whose older samples count less, as the Kubernetes VPA keeps one.

Buckets grow exponentially; a sample weighs 2^(time / half-life) as much as one at time 0, so that
nothing has to be aged (vertical-pod-autoscaler, documentation of its recommender: first bucket of
0.01 cores, each 5 % wider than the one before, half-life of 24 hours).
"""

from __future__ import annotations

import math

FIRST = 0.01
RATIO = 1.05
_LONGEST = 100.0
"""Half-lives after which weights are written down to a new beginning, so that none overflows."""


class UsageHistogram:
    """Weights of samples of CPU usage, in cores."""

    def __init__(self, half_life: float) -> None:
        """`half_life` in seconds, above 0."""
        self._half_life = half_life
        self._weights: dict[int, float] = {}
        self._reference: float | None = None

    def add(self, usage: float, weight: float, *, now: float) -> None:
        """Count `usage` ≥ 0 cores, seen at `now`, with `weight` > 0."""
        if self._reference is None:
            self._reference = now
        age = (now - self._reference) / self._half_life
        if age > _LONGEST:
            self._weights = {bucket: kept * 2.0**-age for bucket, kept in self._weights.items()}
            self._reference, age = now, 0.0
        bucket = _bucket(usage)
        self._weights[bucket] = self._weights.get(bucket, 0.0) + weight * 2.0**age

    def percentile(self, share: float) -> float:
        """Upper end of the bucket below which `share` (0 to 1) of the weight lies, in cores.

        0 while there is no sample.
        """
        total = sum(self._weights.values())
        below = 0.0
        for bucket in sorted(self._weights):
            below += self._weights[bucket]
            if below >= share * total:
                return _start(bucket + 1)
        return 0.0


def _bucket(usage: float) -> int:
    """Which bucket: the first begins at 0, bucket i at FIRST · (RATIO^i − 1) / (RATIO − 1)."""
    return int(math.log(usage * (RATIO - 1.0) / FIRST + 1.0, RATIO) + 1e-9)


def _start(bucket: int) -> float:
    return FIRST * (RATIO**bucket - 1.0) / (RATIO - 1.0)
