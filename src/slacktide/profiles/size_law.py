"""`SizeLaw`: the work of a row by its size, for models whose inputs vary in shape.

*Size* is the number of elements of a row, over all inputs, relative to the row as profiled; *work*
is the cost of a row, in rows as profiled. Both are 1 for the profiled row. The law is

    L(s) = (a + b · s + d · s²) · left(s)          a, b, d ≥ 0

a, b and d minimise the squared relative errors, exactly (least_squares.py); a covers the part that
does not depend on the size, d the quadratic part (attention). `left` is the residual factor. At a
known size it is the known work ÷ the fitted work; between two known sizes its logarithm is linear
in that of the size; beyond the ends it is constant. So measured values stay as they are, and the
fit extrapolates them. Between two known sizes the work lies between their works.

A few known sizes close together say little about distant sizes, where the square grows fastest. So
the fit also minimises a penalty on the square: `_CAUTION` × d · s² ÷ the work if it were
proportional to size, where s is the largest size within reach.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slacktide.domain import Signature
from slacktide.profiles.least_squares import non_negative
from slacktide.profiles.reading import ProfileError

ENOUGH_SIZES = 3
"""Number of known sizes required for a law."""
REACH = 4.0
"""Factor by which sizes may exceed the largest known size, or fall below the smallest."""
_CAUTION = 0.07
"""If three to five sizes of a linear, quadratic or mixed law are known to within 4 %, then 90 % of
predictions are within 17 % at twice the largest size and 35 % at four times; without this penalty,
within 28 % and 78 %."""
_SAME = 1e-6


def elements(signature: Signature) -> int:
    """Elements of one row over all inputs, at least 1."""
    return max(1, sum(math.prod(shape) for shape in signature))


class SizeWork(NamedTuple):
    """The work of a row of a known size."""

    size: float
    work: float
    weight: float = 1.0
    """Its certainty relative to others."""


@dataclass(frozen=True, slots=True)
class SizeLaw:
    """Work by size, both above 0. Made by `fit`."""

    coefficients: tuple[float, float, float]
    """a, b and d."""
    sizes: tuple[float, ...]
    """Known sizes, ascending."""
    works: tuple[float, ...]
    """Known work by size."""

    @classmethod
    def fit(cls, evidence: Sequence[SizeWork]) -> SizeLaw | None:
        """Fit the law to `evidence`; None with fewer than `ENOUGH_SIZES` different sizes. Equal
        sizes count as one, with the geometric mean of their work. Raises ProfileError unless all
        numbers are above 0 and finite."""
        merged: list[list[SizeWork]] = []
        for size_work in sorted(evidence):
            if not all(0.0 < value < math.inf for value in size_work):
                raise ProfileError(f"sizes: expected numbers above 0, got {size_work}")
            if merged and size_work.size <= merged[-1][0].size * (1.0 + _SAME):
                merged[-1].append(size_work)
            else:
                merged.append([size_work])
        if len(merged) < ENOUGH_SIZES:
            return None
        weights = [sum(weighted.weight for weighted in group) for group in merged]
        sizes = [group[0].size for group in merged]
        works = [
            math.exp(sum(weighted.weight * math.log(weighted.work) for weighted in group) / weight)
            for group, weight in zip(merged, weights, strict=True)
        ]
        roots = [math.sqrt(weight / max(weights)) for weight in weights]
        scale = math.exp(sum(map(math.log, sizes)) / len(sizes))  # keeps powers within range
        x, root = np.array(sizes) / scale, np.array(roots)
        terms = np.stack([np.ones_like(x), x, x**2], axis=1) * (root / np.array(works))[:, None]
        far = REACH * sizes[-1] / scale
        caution = [[0.0, 0.0, _CAUTION * far**2 / (REACH * works[-1])]]
        rows, target = np.vstack([terms, caution]), np.append(root, 0.0)
        a, b, d = non_negative(rows, target).tolist()
        return cls((a, b / scale, d / scale**2), tuple(sizes), tuple(works))

    def work(self, size: float) -> float:
        """Return the work of a row of `size`; both are above 0. Constant below the reach."""
        sizes, works = self.sizes, self.works
        size = max(size, sizes[0] / REACH)
        after = bisect_left(sizes, size)
        if after == len(sizes) or after == 0:
            end = min(after, len(sizes) - 1)
            return works[end] * self._fitted(size) / self._fitted(sizes[end])
        if sizes[after] == size:
            return works[after]
        low, high = sizes[after - 1], sizes[after]
        share = math.log(size / low) / math.log(high / low)
        log_residual = (1.0 - share) * math.log(works[after - 1] / self._fitted(low))
        log_residual += share * math.log(works[after] / self._fitted(high))
        least, most = sorted((works[after - 1], works[after]))
        return min(max(self._fitted(size) * math.exp(log_residual), least), most)

    def reaches(self, size: float) -> bool:
        """Whether `size` is near enough to the known sizes to be predicted."""
        return self.sizes[0] / REACH <= size <= self.sizes[-1] * REACH

    @property
    def errors(self) -> tuple[float, ...]:
        """(fitted − known) / known at each known size, without the residual factor."""
        pairs = zip(self.sizes, self.works, strict=True)
        return tuple(self._fitted(size) / work - 1.0 for size, work in pairs)

    def _fitted(self, size: float) -> float:
        a, b, d = self.coefficients
        return a + (b + d * size) * size
