"""`Latencies`: percentiles of any number of samples in bounded memory.

While there are at most `EXACT` samples, every percentile is a sample. More samples are counted in
bins whose edges grow by 2^(1/140); a percentile is then the upper edge of its bin, at most `ERROR`
(0.5 %) above the true sample and never below it (decision 0015). Mean, minimum and maximum stay
exact. Times up to 0.1 µs count as 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.load.report.document import Percentiles

EXACT = 10_000
PER_DOUBLING = 140
ERROR = 2.0 ** (1.0 / PER_DOUBLING) - 1.0
LOWEST_S = 1e-7
_DOUBLINGS = 44
"""Range of the bins: from 0.1 µs to twenty days. Longer times fall into the last bin."""

Seconds = NDArray[np.float64]


class Latencies:
    """A mutable collection of samples in seconds, not negative."""

    def __init__(self, *, exact: bool = False) -> None:
        """`exact`: keep every sample, however many there are."""
        self._exact = exact
        self.count = 0
        self._sum = 0.0
        self._least = math.inf
        self._most = -math.inf
        self._samples: list[Seconds] = []
        self._bins: NDArray[np.int64] | None = None

    def add(self, samples: Seconds) -> None:
        """Add `samples`, shape (n,). The array may be kept, so it must not change."""
        if not samples.size:
            return
        self.count += samples.size
        self._sum += float(samples.sum())
        self._least = min(self._least, float(samples.min()))
        self._most = max(self._most, float(samples.max()))
        self._samples.append(samples)
        if self._bins is not None or (self.count > EXACT and not self._exact):
            self._fold()

    def _fold(self) -> None:
        """Move kept samples into the bins."""
        samples = np.concatenate(self._samples)
        self._samples.clear()
        place = np.log2(np.maximum(samples, LOWEST_S) / LOWEST_S) * PER_DOUBLING
        # A sample on an edge belongs below it: bin i holds those in (edge i − 1, edge i].
        bins = np.ceil(place).astype(np.int64)
        size = _DOUBLINGS * PER_DOUBLING
        counts = np.bincount(np.minimum(bins, size - 1), minlength=size)
        self._bins = counts if self._bins is None else self._bins + counts

    @classmethod
    def merged(cls, parts: Iterable[Latencies]) -> Latencies:
        """Return all samples of `parts` together, without changing `parts`."""
        total = cls()
        for part in parts:
            total._exact = total._exact or part._exact
            if part._bins is not None:
                total._bins = part._bins + (0 if total._bins is None else total._bins)
            total._samples += part._samples
            total.count += part.count
            total._sum += part._sum
            total._least = min(total._least, part._least)
            total._most = max(total._most, part._most)
        if total._samples and (
            total._bins is not None or (total.count > EXACT and not total._exact)
        ):
            total._fold()
        return total

    def quantiles(self, levels: Sequence[float]) -> tuple[float, ...]:
        """Return for each level (0 to 1) the least time that this share of the samples does not
        exceed. Raises ValueError if there are no samples."""
        if not self.count:
            raise ValueError("there are no samples")
        if self._bins is None:
            seconds = np.quantile(np.concatenate(self._samples), levels, method="inverted_cdf")
            return tuple(float(value) for value in seconds)
        ranks = np.maximum(np.ceil(np.asarray(levels) * self.count), 1.0)
        bins = np.searchsorted(np.cumsum(self._bins), ranks)
        edges = np.where(bins > 0, LOWEST_S * np.exp2(bins / PER_DOUBLING), 0.0)
        edges[np.asarray(levels) == 0.0] = self._least
        return tuple(float(edge) for edge in np.clip(edges, self._least, self._most))

    def percentiles(self) -> Percentiles | None:
        """Return the percentiles that a report shows; None without samples."""
        if not self.count:
            return None
        p50, p90, p99, p999 = self.quantiles((0.5, 0.9, 0.99, 0.999))
        mean = self._sum / self.count
        error = 0.0 if self._bins is None else ERROR
        return Percentiles(self.count, mean, p50, p90, p99, p999, self._most, error)

    def curve(self) -> tuple[float, ...]:
        """Return the times at 0, 1, …, 100 percent; empty without samples."""
        return self.quantiles([i / 100 for i in range(101)]) if self.count else ()


def percentiles(samples: Seconds) -> Percentiles | None:
    """Return the exact percentiles of `samples`, shape (n,); None without samples."""
    latencies = Latencies(exact=True)
    latencies.add(samples)
    return latencies.percentiles()
