"""`HintBins`: edges that cut work hints into bins of about equal use.

Fixed once enough hints were seen, so that a bin means the same for a while; made anew when one bin
has come to hold far more than it would with new edges.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import numpy as np

from slacktide.profiles.distribution import Floats

BINS = 8
ENOUGH_HINTS = 200
"""Hints before the first edges."""
SEEN = 1000
"""Hints remembered, and how often edges are looked at again."""
UNEVEN = 0.15
"""Share of the hints by which the fullest bin must shrink for new edges to be worth it."""


class HintBins:
    """Edges from the latest hints."""

    def __init__(self, edges: tuple[float, ...] = ()) -> None:
        self.edges = edges
        """Upper edges of the bins but the last, ascending; empty: one bin."""
        self._seen: Floats = np.empty(SEEN)
        self._count = 0
        self._look_at = ENOUGH_HINTS if not edges else SEEN

    def see(self, hint: float) -> bool:
        """One more request came with this hint. True if the edges have changed."""
        self._seen[self._count % SEEN] = hint
        self._count += 1
        if self._count < self._look_at:
            return False
        self._look_at += SEEN
        hints = self._seen[: min(self._count, SEEN)]
        levels = np.arange(1, BINS) / BINS
        edges = tuple(sorted(set(map(float, np.quantile(hints, levels, method="higher")))))
        if edges == self.edges or _fullest(hints, self.edges) - _fullest(hints, edges) < UNEVEN:
            return False
        self.edges = edges
        return True

    def bin_of(self, hint: float) -> int:
        """0 for the smallest hints."""
        return bisect_right(self.edges, hint)


def _fullest(hints: Floats, edges: tuple[float, ...]) -> float:
    """Share of the hints in the fullest bin."""
    ends = np.sort(hints).searchsorted(np.array(edges))
    return max(b - a for a, b in pairwise([0, *map(int, ends), hints.size])) / hints.size
