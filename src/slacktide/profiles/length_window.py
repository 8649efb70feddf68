"""`LengthWindow`: the latest run times of one key. After a drift, only the newest are kept.

Orloj resets its profiling memory "every once a while" (§3.2); here the data decide when. The newest
`NEWEST` samples are compared with older ones by the two-sample Kolmogorov-Smirnov test, whose
critical distance at level α is √(−½ ln(α / 2)) · √((m + n) / (m n)) (Smirnov, Table for estimating
the goodness of fit of empirical distributions, 1948). If the two samples differ, only the newest
remain.
"""

from __future__ import annotations

import math

import numpy as np

from slacktide.profiles.distribution import Floats

WINDOW = 1000
"""Maximum number of samples in the window."""
NEWEST = 50
"""After this many new samples, they are compared with the older ones."""
LEVEL = 0.001
"""Share of comparisons that find a drift by chance; this happens once in 50,000 samples."""
_CRITICAL = math.sqrt(-0.5 * math.log(LEVEL / 2.0))


class LengthWindow:
    """At most `WINDOW` samples. A sample's length is gross − fixed · factor, where `factor` is the
    current c0 as a multiple of the profile's."""

    __slots__ = ("_fixed", "_gross", "_hints", "_next", "_since", "count")

    def __init__(self) -> None:
        self._gross: Floats = np.empty(WINDOW)
        self._fixed: Floats = np.empty(WINDOW)
        self._hints: Floats = np.empty(WINDOW)
        self._next = 0
        self._since = 0
        self.count = 0

    def add(self, gross: float, fixed: float, hint: float) -> bool:
        """Add a sample: `gross` = seconds / (c1 · k), `fixed` = c0 / (c1 · k), `hint` = work
        hint or NaN. Seconds and c0 refer to the machine's speed when it was profiled. Returns
        whether the window has drifted: then only its newest samples remain."""
        at = self._next
        self._gross[at] = gross
        self._fixed[at] = fixed
        self._hints[at] = hint
        self._next = at + 1 if at + 1 < WINDOW else 0
        if self.count < WINDOW:
            self.count += 1
        self._since += 1
        if self._since < NEWEST:
            return False
        self._since = 0
        return self.count >= 3 * NEWEST and self._drifted()

    def lengths(self, factor: float) -> Floats:
        """All samples as lengths, if c0 is `factor` times the profile's."""
        order = self._order()
        lengths: Floats = np.maximum(self._gross[order] - factor * self._fixed[order], 0.0)
        return lengths

    def samples(self) -> tuple[Floats, Floats, Floats]:
        """(gross, fixed, hints), oldest first."""
        order = self._order()
        return self._gross[order], self._fixed[order], self._hints[order]

    def _order(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        start = self._next - self.count
        return np.arange(start, start + self.count) % WINDOW

    def _drifted(self) -> bool:
        lengths = self.lengths(1.0)
        before, newest = lengths[:-NEWEST], lengths[-NEWEST:]
        if ks_distance(before, newest) <= _CRITICAL * math.sqrt(1 / before.size + 1 / newest.size):
            return False
        newest_samples = [samples[-NEWEST:] for samples in self.samples()]
        self._gross[:NEWEST], self._fixed[:NEWEST], self._hints[:NEWEST] = newest_samples
        self._next = self.count = NEWEST
        return True


def ks_distance(sample: Floats, reference: Floats) -> float:
    """Largest difference of two empirical CDFs, 0 to 1."""
    sample, reference = np.sort(sample), np.sort(reference)
    joined = np.concatenate((sample, reference))
    sample_cdf = sample.searchsorted(joined, side="right") / sample.size
    reference_cdf = reference.searchsorted(joined, side="right") / reference.size
    return float(np.abs(sample_cdf - reference_cdf).max())
