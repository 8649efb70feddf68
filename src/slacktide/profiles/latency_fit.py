"""`fit_latency`: c0 and c1 of l_B = c0 + c1 · k · max(l), from a measured profile.

The table of a profile is measured with inputs of one length, so it shows c0 and c1 · length; that
length is the unit. A length of 1 is then the work of one row as profiled, whatever the cores, and a
request's own length is learnt from its time alone. If the model has padded axes, times at other
lengths n come with the table, and the fit covers all of them: a row's work is (b · n + d · n²) /
(b + d), the law of size_law.py without its constant, which c0 covers; the square term is the cost
of attention. The fit minimises squares of relative errors, so a batch of one counts as much as one
of 64 (Orloj §4.2 gives the form, not the fit).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slacktide.domain import Signature
from slacktide.profiles.latency_table import LatencyTable
from slacktide.profiles.least_squares import non_negative
from slacktide.profiles.run_classes import BatchLatency
from slacktide.profiles.size_law import ENOUGH_SIZES
from slacktide.profiles.surface import between, core_share

LEAST_PART = 1e-3
"""Minimum c1, as a part of the time of one row: a length must cost something."""


class SizeTime(NamedTuple):
    """Median time of a batch whose rows have another size than the table's rows."""

    rows: int
    cores: int
    size: float
    """Size relative to the table's rows: the length if axes are padded, else the number of elements
    (size_law.py)."""
    seconds: float
    signature: Signature = ()
    """Shapes of the inputs; empty for padded axes."""


class LatencyFit(NamedTuple):
    """A fitted latency, and its deviation from the measurements."""

    latency: BatchLatency
    error: float
    """Root mean square of (fitted − measured) / measured, over the measured batch sizes."""


def fit_latency(table: LatencyTable, cores: int, sized: Sequence[SizeTime] = ()) -> LatencyFit:
    """Fit c0 ≥ 0 and c1 > 0 to the table's medians on `cores` cores, both falling with the cores.
    `sized`: times at other lengths. With one measured point, all of its time grows with the rows.
    """
    measured: dict[int, BatchLatency] = {}
    c0 = c1 = 0.0
    for count in reversed(table.cores):  # as in `Surface`: never below what more cores take
        fit = _fit(table, count, sized)
        c0, c1 = max(c0, fit[0]), max(c1, fit[1])
        measured[count] = BatchLatency(c0, c1)
    latency = latency_on(measured, table, cores)
    errors = [
        latency.seconds(size, 1.0) / table.expected(size, cores) - 1.0 for size in table.batches
    ]
    error = math.sqrt(sum(e * e for e in errors) / len(errors))
    return LatencyFit(latency, error)


def latency_on(
    measured: Mapping[int, BatchLatency], table: LatencyTable, cores: int
) -> BatchLatency:
    """The latency on any number of cores, given `measured` latencies on at least each core count of
    `table`. As in `Surface`, it is linear in 1 / cores between two counts; beyond them, it is
    proportional to the table's medians (of the batch size that gains least)."""
    measured_here = measured.get(cores)
    if measured_here is not None:
        return measured_here
    counts = table.cores
    column = bisect_left(counts, cores)
    if 0 < column < len(counts):
        most, least = measured[counts[column - 1]], measured[counts[column]]
        share = core_share(counts[column - 1], cores, counts[column])
        return BatchLatency(
            between(most.c0, least.c0, share), between(most.c1, least.c1, share), most.sizes
        )
    edge = counts[0 if column == 0 else -1]
    factor = max(table.expected(size, cores) / table.expected(size, edge) for size in table.batches)
    base = measured[edge]
    return BatchLatency(base.c0 * factor, base.c1 * factor, base.sizes)


def _fit(table: LatencyTable, cores: int, sized: Sequence[SizeTime]) -> tuple[float, float]:
    """(c0, c1) of one column: min Σ (c0 / t + c1 · x / t − 1)² over points (x = k · work, t), all
    coefficients within their bounds."""
    beside = [beside_point for beside_point in sized if beside_point.cores == cores]
    points = [(float(size), table.expected(size, cores)) for size in table.batches]
    if len({1.0, *(point.size for point in beside)}) >= ENOUGH_SIZES:
        rows = [(k, k, t) for k, t in points]
        rows += [
            (point.rows * point.size, point.rows * point.size**2, point.seconds) for point in beside
        ]
        x, square, t = np.array(rows).T
        shares = np.stack([1.0 / t, x / t, square / t], axis=1)
        c0, linear, quadratic = non_negative(shares, np.ones_like(t)).tolist()
        if linear + quadratic >= LEAST_PART * points[0][1] / points[0][0]:
            return c0, linear + quadratic
    points += [(point.rows * point.size, point.seconds) for point in beside]
    x, t = points[0]
    least = LEAST_PART * t / x
    if len(points) == 1:
        return 0.0, t / x
    uu = sum(1.0 / (t * t) for _, t in points)
    ux = sum(x / (t * t) for x, t in points)
    xx = sum(x * x / (t * t) for x, t in points)
    u = sum(1.0 / t for _, t in points)
    x1 = sum(x / t for x, t in points)
    determinant = uu * xx - ux * ux
    c1 = (uu * x1 - ux * u) / determinant
    if c1 < least:
        return max(0.0, (u - least * ux) / uu), least
    c0 = (u - c1 * ux) / uu
    return (c0, c1) if c0 >= 0.0 else (0.0, x1 / xx)
