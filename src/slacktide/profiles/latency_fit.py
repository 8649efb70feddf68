"""`fit_latency`: c0 and c1 of l_B = c0 + c1 · k · max(l), from a measured profile.

The table of a profile is taken with inputs of one length, so it shows c0 and c1 · length; that
length is taken as the unit. Where the model has padded axes, times at other lengths stand beside
it, and the fit is to all of them. A length of 1 is then the work of one row as profiled, whatever
the cores, and a request's own length is learnt from its time alone. Least squares of the relative
errors, so that a batch of one counts as much as a batch of 64 (Orloj §4.2 gives the form, not the
fit).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from slacktide.profiles.batch_latency import BatchLatency
from slacktide.profiles.latency_table import LatencyTable

LEAST_PART = 1e-3
"""c1 is at least this part of the time of one row: a length must cost something."""


class LengthTime(NamedTuple):
    """Median time of a batch whose members are of another length than those of the table."""

    rows: int
    cores: int
    length: float
    """As a multiple of the length in the table."""
    seconds: float


class LatencyFit(NamedTuple):
    """A fitted latency, and how far it is from what was measured."""

    latency: BatchLatency
    error: float
    """Root mean square of (fitted − measured) / measured, over the measured batch sizes."""


def fit_latency(table: LatencyTable, cores: int, others: Sequence[LengthTime] = ()) -> LatencyFit:
    """c0 ≥ 0 and c1 > 0 of the table's medians on `cores` cores, both falling with the cores.

    `others` are times at other lengths. With one measured point all of its time is taken to grow
    with the rows.
    """
    column = table.median_surface.place(1, cores).column
    # As in `Surface`: never below what more cores were measured to take.
    fits = [_fit(table, count, others) for count in table.cores[column:]]
    factor = max(1.0, table.cores[0] / cores)
    c0 = max(fit[0] for fit in fits) * factor
    c1 = max(fit[1] for fit in fits) * factor
    errors = [(c0 + c1 * size) / table.expected(size, cores) - 1.0 for size in table.batches]
    error = math.sqrt(sum(e * e for e in errors) / len(errors))
    return LatencyFit(BatchLatency(c0, c1), error)


def _fit(table: LatencyTable, cores: int, others: Sequence[LengthTime]) -> tuple[float, float]:
    """(c0, c1) of one column: min Σ (c0 / t + c1 · x / t − 1)² over points (x = k · length, t),
    both within their bounds."""
    points = [(float(size), table.expected(size, cores)) for size in table.batches]
    points += [(one.rows * one.length, one.seconds) for one in others if one.cores == cores]
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
