"""`ShapeClasses`: a pool's requests sorted into classes by the shape of their inputs.

If requests differ in length, a batch takes as long as its longest member, and classes are
distributions of lengths (`RunClasses`). If they differ in shape, all members of a batch have one
shape, so a class has its own batch times (`ClassTimes`), for any rows and cores.

Shapes are sorted by work (`ShapeSorting`) into classes of limited width; shapes that have not run
are sorted by the law over sizes. The sorting stays fixed while shapes come and predictions change,
so that queues need not be sorted again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from slacktide.domain import Request, Signature
from slacktide.profiles.batch_times import BatchTimes
from slacktide.profiles.corrected_times import CorrectedTimes
from slacktide.profiles.run_classes import RunClasses, same_classes
from slacktide.profiles.size_law import SizeLaw, elements
from slacktide.profiles.time_distribution import SplitLogLogistic

MOST_CLASSES = 16
NARROW = 1.1
"""Largest ratio of work within a class; it is increased if there would be more than `MOST_CLASSES`.
"""
_MINOR = 0.01
"""Part of the arrivals of a class below which a shape does not influence the class's times."""
_WEIGHT_SHOWS = 0.1


@dataclass(frozen=True, slots=True, eq=False)
class ShapeSorting:
    """The class of each shape; classes are numbered by work, least first."""

    by_signature: Mapping[Signature, int]
    works: tuple[float, ...]
    """Typical work by class, in rows as profiled, ascending."""
    edges: tuple[float, ...]
    """Limits between neighbouring classes, for shapes that have not run."""
    width: float
    """Largest ratio between the work of a shape and the typical work of its class."""
    law: SizeLaw | None
    unit: int
    """Elements of a row as profiled."""

    @classmethod
    def of(
        cls, shapes: Mapping[Signature, tuple[float, float]], law: SizeLaw | None, unit: int
    ) -> ShapeSorting:
        """Sort `shapes`, {signature: (work, requests)}, of which there is at least one."""
        order = sorted(shapes, key=lambda signature: (shapes[signature][0], signature))
        works = [shapes[signature][0] for signature in order]
        width = NARROW
        while len(starts := _starts(works, width)) > MOST_CLASSES:
            width **= 1.5
        by_signature: dict[Signature, int] = {}
        typical: list[float] = []
        edges: list[float] = []
        for of, (start, stop) in enumerate(pairwise([*starts, len(order)])):
            by_signature.update((signature, of) for signature in order[start:stop])
            weights = [shapes[signature][1] + 1e-3 for signature in order[start:stop]]
            logs = zip(weights, map(math.log, works[start:stop]), strict=True)
            typical.append(math.exp(sum((w * log for w, log in logs), 0.0) / sum(weights, 0.0)))
            if start:
                edges.append(math.sqrt(works[start - 1] * works[start]))
        return cls(by_signature, tuple(typical), tuple(edges), width, law, unit)

    def class_of(self, signature: Signature) -> int:
        """The class of a shape, known or unknown."""
        class_ = self.by_signature.get(signature)
        if class_ is not None or not self.edges:
            return class_ or 0
        size = elements(signature) / self.unit
        return bisect_right(self.edges, size if self.law is None else self.law.work(size))

    def holds(self, later: ShapeSorting, far: float) -> bool:
        """Return True if this sorting may stay in use instead of `later`, the newest one: no known
        shape and no size predicted by the law is off by more than the factor `far`."""
        return (
            later.width >= self.width
            and all(
                apart(later.works[of], self.works[self.class_of(signature)]) <= self.width * far
                for signature, of in later.by_signature.items()
            )
            and (
                self.law is later.law is None
                or (
                    not (self.law is None or later.law is None)
                    and all(
                        apart(self.law.work(size), later.law.work(size)) <= far
                        for size in later.law.sizes
                    )
                )
            )
        )


def apart(first: float, second: float) -> float:
    """The ratio of two positive numbers, at least 1."""
    return max(first / second, second / first)


def _starts(works: Sequence[float], width: float) -> list[int]:
    """Indices among ascending `works` at which classes begin; no class is wider than `width`."""
    starts = [0]
    for i, work in enumerate(works):
        if work > works[starts[-1]] * width:
            starts.append(i)
    return starts


class ClassTimes(BatchTimes):
    """The batch times of one class."""

    def __init__(self, parts: Sequence[tuple[CorrectedTimes, float]]) -> None:
        """`parts`: times of its shapes, at least one, with their numbers of requests."""
        least = _MINOR * sum(requests for _, requests in parts)
        frequent = [(times, requests + 1e-3) for times, requests in parts if requests >= least]
        self.times = tuple([times for times, _ in frequent])
        total = sum(requests for _, requests in frequent)
        self._weights = tuple([requests / total for _, requests in frequent])

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> SplitLogLogistic:
        """The time of a batch of any of its shapes. The median lies between the shapes' medians;
        the extremes are as far out as those of any shape."""
        if len(self.times) == 1:
            return self.times[0].of(rows, cores)
        parts = [times.of(rows, cores) for times in self.times]
        pairs = zip(self._weights, parts, strict=True)
        p50 = math.exp(sum(weight * math.log(part.expected) for weight, part in pairs))
        p01 = min(part.expected * math.exp(-part.lower) for part in parts)
        return SplitLogLogistic(
            p50,
            max(part.p99 for part in parts),
            math.log(p50 / p01),
            max(part.tail for part in parts),
        )

    def like(self, rival: ClassTimes) -> bool:
        """Whether `rival` predicts about the same: same shapes, about the same weights."""
        return len(self.times) == len(rival.times) and all(
            a is b and abs(c - d) < _WEIGHT_SHOWS
            for a, b, c, d in zip(
                self.times, rival.times, self._weights, rival._weights, strict=True
            )
        )

    @property
    def revision(self) -> int:
        """Rises with the revisions of its shapes."""
        return sum([times.revision for times in self.times])


@dataclass(frozen=True, slots=True, eq=False)
class ShapeClasses:
    """The classes of one pool, for one number of cores."""

    sorting: ShapeSorting
    times: tuple[BatchTimes, ...]
    """By class. Unlike this snapshot, they keep learning."""
    shares: tuple[float, ...]
    """Share of the arrivals by class; they add up to 1."""
    cores: int

    def __len__(self) -> int:
        """Number of classes, at least 1."""
        return len(self.times)

    def class_of(self, request: Request) -> int:
        """The class of `request`."""
        return self.sorting.class_of(request.signature)

    def alone(self, of: int) -> float:
        """Expected seconds of one row of class `of` alone."""
        return self.times[of].of(1, self.cores).expected

    def typical(self) -> float:
        """Expected seconds of one row alone, over all arrivals."""
        return sum(share * self.alone(of) for of, share in enumerate(self.shares))


Classes: TypeAlias = RunClasses | ShapeClasses
"""A pool's requests, sorted by length or by shape."""


def sorted_alike(first: Classes | None, second: Classes | None) -> bool:
    """Whether every request has the same class in both snapshots; None: all are alike."""
    if isinstance(first, ShapeClasses):
        return isinstance(second, ShapeClasses) and first.sorting is second.sorting
    if first is None or second is None:
        return first is second
    return isinstance(second, RunClasses) and same_classes(first, second)
