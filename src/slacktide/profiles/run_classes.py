"""`RunClasses`: a pool's requests sorted into a few classes by how much work they are.

A class is an application, or a bin of the work hint, or several of them merged; classes are
numbered by mean length, shortest first. A snapshot: predictions that change make a new one.
All CDFs share one grid of `POINTS` lengths x_j = j · step (SCHEDULING §3, State).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from slacktide.domain import Request
from slacktide.profiles.batch_latency import BatchLatency

POINTS = 96
"""Lengths of the grid."""

NO_HINT = -1
"""Bin of a request without a work hint."""

Floats: TypeAlias = NDArray[np.float64]
Key: TypeAlias = tuple[str, int]
"""(application, bin of the work hint)."""


@dataclass(frozen=True, slots=True, eq=False)
class RunClasses:
    """What a policy may know of the classes of one pool, for one number of cores."""

    latency: BatchLatency
    step: float
    """Distance of two grid lengths."""
    cdfs: Floats
    """P(length ≤ x_j) by class, shape (G, POINTS), 0 at j = 0, non-decreasing, 1 at the end."""
    means: tuple[float, ...]
    """Mean length by class, ascending."""
    shares: tuple[float, ...]
    """Share of the arrivals by class; they add up to 1."""
    by_key: Mapping[Key, int]
    """Class of every application and bin that is known."""
    fallback: int
    """Class of the requests of everybody else: the longest."""
    hint_edges: tuple[float, ...] = ()
    """Upper edges of the hint bins but the last, ascending."""

    def __len__(self) -> int:
        """Number of classes, at least 1."""
        return len(self.means)

    def key_of(self, request: Request) -> Key:
        """What the distributions of `request` are kept by."""
        hint = request.work_hint
        edges = self.hint_edges
        return request.application, NO_HINT if hint is None else bisect_right(edges, hint)

    def class_of(self, request: Request) -> int:
        """The class of `request`."""
        return self.by_key.get(self.key_of(request), self.fallback)

    def alone(self, of: int) -> float:
        """Expected seconds of one row of class `of` by itself."""
        return self.latency.seconds(1, self.means[of])
