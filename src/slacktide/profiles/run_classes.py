"""`RunClasses`: a pool's requests sorted into a few classes by their work.

A class is an application, or a bin of the work hint, or several of them merged; classes are
numbered by mean length, shortest first. `RunClasses` is a snapshot, made by `length_classes.py`;
when predictions change, a new one is made. All CDFs share the grid of distribution.py.

The time of a batch whose members are padded to the longest of them is (Orloj §4.2)

    l_B = c0 + c1 · k · max(l)

k is the number of rows paid for, l the length of a row: the part of its work that differs between
requests, in any unit (tokens, or seconds of marginal run time with c1 = 1).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from slacktide.domain import Request
from slacktide.profiles.distribution import FLOOR, Floats
from slacktide.profiles.reading import ProfileError


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """Seconds of a batch by rows and longest length. Raises ProfileError for invalid values."""

    c0: float
    """Seconds per batch."""
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


NO_HINT = -1
"""Bin of a request without a work hint."""

Key: TypeAlias = tuple[str, int]
"""(application, bin of the work hint)."""


def key_of(request: Request, edges: Sequence[float]) -> Key:
    """The key of `request`, given the `RunClasses.hint_edges`."""
    hint = request.work_hint
    return request.application, NO_HINT if hint is None else bisect_right(edges, hint)


@dataclass(frozen=True, slots=True, eq=False)
class RunClasses:
    """The classes of one pool, for one number of cores."""

    latency: BatchLatency
    step: float
    """Distance between neighbouring grid lengths."""
    cdfs: Floats
    """P(length ≤ x_j) by class, shape (G, POINTS), 0 at j = 0, non-decreasing, 1 at the end."""
    means: tuple[float, ...]
    """Mean length by class, ascending."""
    shares: tuple[float, ...]
    """Share of the arrivals by class; they add up to 1."""
    by_key: Mapping[Key, int]
    """Class by known application and bin."""
    fallback: int
    """Class of requests with unknown keys: the longest."""
    hint_edges: tuple[float, ...] = ()
    """Upper edges of all hint bins but the last, ascending."""
    logs: Floats = field(init=False, repr=False)
    """ln of `cdfs`, at least ln FLOOR: products of CDFs are sums of these logarithms."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "logs", np.log(np.maximum(self.cdfs, FLOOR)))

    def __len__(self) -> int:
        """Number of classes, at least 1."""
        return len(self.means)

    def class_of(self, request: Request) -> int:
        """The class of `request`."""
        return self.by_key.get(key_of(request, self.hint_edges), self.fallback)

    def counts(self, members: Sequence[Request]) -> tuple[int, ...]:
        """The number of `members` in each class."""
        counts = [0] * len(self.means)
        for member in members:
            counts[self.class_of(member)] += 1
        return tuple(counts)

    def alone(self, of: int) -> float:
        """Expected seconds of one row of class `of` alone."""
        return self.latency.seconds(1, self.means[of])

    def typical(self) -> float:
        """Expected seconds of one row alone, over all arrivals."""
        pairs = zip(self.shares, self.means, strict=True)
        return self.latency.seconds(1, sum(share * mean for share, mean in pairs))


def same_classes(first: RunClasses, second: RunClasses) -> bool:
    """Whether every request has the same class in both snapshots."""
    return first is second or (
        len(first) == len(second)
        and first.fallback == second.fallback
        and first.hint_edges == second.hint_edges
        and first.by_key == second.by_key
    )
