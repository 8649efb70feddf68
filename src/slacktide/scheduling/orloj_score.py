"""Orloj's priority score of a request (Eq. 2), as a function of its slack.

    p(s) = E[C(now + τ + L) - C(now + L)] / E[L],   s = deadline - now, τ ~ exponential of rate b

is the cost of being passed over once, per second of lane time. L is the time of the request's
batch, and C its cost, which is a step at the deadline. L is a histogram. For a bin [l1, l2) of
probability *density* h (the paper says frequency, which is off by the width of the bin) Eq. 2 is

    p_i = h / (b E[L]) · (e^(-b (s - l2)) - e^(-b (s - l1)))    s > l2
    p_i = h / (b E[L]) · (1 - e^(-b (s - l1)))                  l1 < s ≤ l2
    p_i = 0                                                     s ≤ l1

and p is the sum over bins. As a function of slack it needs neither the paper's base time nor its
resets: nothing overflows, since no exponent is positive. The sum is a curve with

    dp/ds = f(s) / E[L] - b p,    f the density of L

From one bin edge to the next, therefore, p(s + x) = p(s) e^(-b x) + f (1 - e^(-b x)) / (b E[L]),
and one value per edge determines the curve. Within a bin the curve either rises or falls. So
requests that share a curve, sorted by deadline, form a few runs in which the score is sorted too,
which replaces the paper's milestones and convex hull.

A cost with several steps (appendix B) is a sum of such curves, each shifted by the time of its step
after the deadline: the same equation with f the sum of the shifted densities, times their costs.

The other members of a batch are not known yet (§4.3), so they are assumed to be drawn from all
arrivals of any application: F is the mixture of all classes. The score of a request of class g uses
the histogram of a batch that contains it, F_g · F^(k-1), a product of CDFs as in Eq. 8. The mean
E[L] occurs in two places: in the score, and in line 11 of Orloj's Algorithm 1, which drops requests
and rules out sizes. If it "only depends on the batch size", as the paper says, it is the mean of
F^k in both places (`batch`). If it depends on the request, as EstimateBatchLatency(r, bs) of line
11 suggests, it is the mean of F_g · F^(k-1), either in line 11 only (`own_class`) or in both places
(`by_class`). In a pool without classes, all requests are one class with the pool's predicted batch
times, and the readings agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1
from typing import Literal, TypeAlias

import numpy as np

from slacktide.profiles import BatchTimes, RunClasses, ShapeClasses, TimeDistribution
from slacktide.profiles.distribution import FLOOR, POINTS, expected_max, weighted_sum

Step = tuple[float, float]
"""(seconds after the deadline, cost of being later)."""

ONE_STEP: tuple[Step, ...] = ((0.0, 1.0),)
"""The plain cost: 1 for missing the deadline."""


@dataclass(frozen=True, slots=True)
class TimeHistogram:
    """Distribution of the time of one kind of batch, in seconds."""

    edges: tuple[float, ...]
    """Ascending; one edge more than bins."""
    cdf: tuple[float, ...]
    """P(time ≤ edge); 0 at the first and 1 at the last."""
    mean: float
    """E[L] in the score."""
    need: float
    """E[L] in line 11: the time that a request must have left to be in such a batch."""


class Score:
    """The curve p(s) of one kind of request in batches of one size, for a first step of cost 1."""

    __slots__ = ("_at_edge", "_b", "_edges", "_inflow", "directions", "turns")

    def __init__(self, times: TimeHistogram, *, b: float, steps: Sequence[Step] = ONE_STEP) -> None:
        """`b` is the rate of the anticipated delay, per second."""
        self._b = b
        edges, inflow = _shifted(times, steps)
        p = 0.0
        self._edges = edges
        self._inflow = inflow
        """f / E[L] from each edge on."""
        self._at_edge = [p]
        for i in range(len(edges) - 1):
            p = _after(p, inflow[i], edges[i + 1] - edges[i], b)
            self._at_edge.append(p)
        self.turns: list[float] = []
        """Slacks at which the curve begins to rise or to fall, ascending."""
        self.directions: list[bool] = [False]
        """Whether the curve rises: first below the first turn, then from each turn on."""
        for edge, rate, at in zip(edges, inflow, self._at_edge, strict=True):
            rises = rate > b * at
            if rises != self.directions[-1]:
                self.turns.append(edge)
                self.directions.append(rises)

    def at(self, slack: float) -> float:
        """p at a slack of `slack` seconds."""
        i = bisect_right(self._edges, slack) - 1
        if i < 0:
            return 0.0
        return _after(self._at_edge[i], self._inflow[i], slack - self._edges[i], self._b)


def _shifted(times: TimeHistogram, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """(edges, f / E[L] from each edge on): the sum of the densities of all steps."""
    cells = list(zip(pairwise(times.edges), pairwise(times.cdf), strict=True))
    changes = []
    for n, (after, cost) in enumerate(steps):
        for (start, end), (below, above) in cells:
            changes.append((start - after, n, cost * (above - below) / (end - start)))
        changes.append((times.edges[-1] - after, n, 0.0))
    changes.sort()
    current = [0.0] * len(steps)
    edges: list[float] = []
    inflow: list[float] = []
    for edge, n, density in changes:
        current[n] = density
        if edges and edges[-1] == edge:
            inflow.pop()
        else:
            edges.append(edge)
        inflow.append(sum(current) / times.mean)
    return edges, inflow


def _after(p: float, inflow: float, x: float, b: float) -> float:
    """The curve `x` seconds after the value `p`, with a constant f / E[L] = `inflow`."""
    return p * exp(-b * x) - inflow * expm1(-b * x) / b


Reading: TypeAlias = Literal["batch", "own_class", "by_class"]
"""Where E[L] is the mean of batches with the request's own class: nowhere, in line 11, or
everywhere."""

TAIL = 0.001
"""Probability cut off at either end of a histogram that is made from quantiles."""

BINS = 48
"""Bins of a histogram that is made from quantiles."""


class OrlojTimes:
    """Histograms and scores by class, rows and batch size, for one number of cores, in seconds.
    Computed on first use."""

    def __init__(
        self,
        times: BatchTimes,
        cores: int,
        *,
        b: float,
        steps: tuple[Step, ...],
        reading: Reading = "batch",
    ) -> None:
        self._times = times
        self._reading = reading
        self._cores = cores
        self._b = b
        self._steps = steps
        classes = self._classes = times.classes(cores)
        if isinstance(classes, RunClasses):
            mixture = weighted_sum(np.asarray(classes.shares), classes.cdfs)
            self._mix = np.log(np.maximum(mixture, FLOOR))
        self._histograms: dict[tuple[int, int, int], TimeHistogram] = {}
        self._scores: dict[tuple[int, int, int], Score] = {}

    def histogram(self, of: int, rows: int, size: int) -> TimeHistogram:
        """The time of a batch of `size` rows, `rows` of which belong to a request of class `of`."""
        key = (of, rows, size)
        histogram = self._histograms.get(key)
        if histogram is None:
            classes = self._classes
            if isinstance(classes, RunClasses):
                histogram = self._by_class(classes, of, max(0, size - rows), max(rows, size))
            elif isinstance(classes, ShapeClasses):
                histogram = _by_time(classes.times[of].of(max(rows, size), self._cores))
            else:
                histogram = _by_time(self._times.of(size, self._cores))
            self._histograms[key] = histogram
        return histogram

    def score(self, of: int, rows: int, size: int) -> Score:
        """The priority curve of a request of class `of` with `rows` rows in a batch of `size`."""
        key = (of, rows, size)
        score = self._scores.get(key)
        if score is None:
            score = self._scores[key] = Score(
                self.histogram(of, rows, size), b=self._b, steps=self._steps
            )
        return score

    def _by_class(self, classes: RunClasses, of: int, fillers: int, rows: int) -> TimeHistogram:
        latency, step = classes.latency, classes.step
        cdf = np.exp(classes.logs[of] + fillers * self._mix)
        cdf[0] = 0.0
        edges = [latency.seconds(rows, j * step) for j in range(POINTS)]
        batch, class_mean = (
            latency.seconds(rows, expected_max(distribution, step))
            for distribution in (np.exp((fillers + 1) * self._mix), cdf)
        )
        return TimeHistogram(
            tuple(edges),
            tuple(cdf.tolist()),
            class_mean if self._reading == "by_class" else batch,
            batch if self._reading == "batch" else class_mean,
        )


def _by_time(time: TimeDistribution) -> TimeHistogram:
    mean, low = time.expected, time.quantile(TAIL)
    high = max(time.quantile(1.0 - TAIL), low + 1e-6 * mean)
    edges = [low + (high - low) * i / BINS for i in range(BINS + 1)]
    inner = [time.on_time(edge) for edge in edges[1:-1]]
    return TimeHistogram(tuple(edges), (0.0, *inner, 1.0), mean, mean)
