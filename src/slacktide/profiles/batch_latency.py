"""`BatchLatency`: the time of a batch whose members are padded to the longest of them.

    l_B = c0 + c1 · k · max(l)

(Orloj §4.2.) k is the number of rows paid for, l the length of a row: the part of its work that
differs from request to request, in any unit (tokens, or seconds of marginal run time with c1 = 1).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from slacktide.profiles.errors import ProfileError


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Seconds of a batch by its rows and its longest length. Raises ProfileError if impossible."""

    c0: float
    """Seconds that every batch takes."""
    c1: float
    """Seconds per row and unit of length."""
    sizes: tuple[int, ...] = ()
    """Sizes that a batch is padded to, ascending; empty: it pays for its own rows only."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.c0 < math.inf:
            raise ProfileError(f"c0 must be finite and not negative, got {self.c0}")
        if not 0.0 < self.c1 < math.inf:
            raise ProfileError(f"c1 must be finite and positive, got {self.c1}")
        if any(size < 1 for size in self.sizes) or list(self.sizes) != sorted(set(self.sizes)):
            raise ProfileError(f"sizes must be positive and ascending, got {self.sizes}")

    def paid(self, rows: int) -> int:
        """Rows that a batch of `rows` pays for; `rows` itself beyond the largest size."""
        i = bisect_left(self.sizes, rows)
        return self.sizes[i] if i < len(self.sizes) else rows

    def seconds(self, rows: int, longest: float) -> float:
        """Time of a batch of `rows` ≥ 1 rows, the longest of length `longest` ≥ 0."""
        return self.c0 + self.c1 * self.paid(rows) * longest

    def length_alone(self, seconds: float, rows: int = 1) -> float:
        """The length of a request of `rows` rows that took `seconds` by itself; at least 0."""
        return max(0.0, (seconds - self.c0) / (self.c1 * self.paid(rows)))
