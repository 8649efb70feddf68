"""`fit_latency`: c0 and c1 of l_B = c0 + c1 · k · max(l), from a measured profile.

A profile is taken with inputs of one length, so it shows c0 and c1 · length; that length is taken
as the unit. A length of 1 is then the work of one row as profiled, whatever the cores, and a
request's own length is learnt from its time alone. Least squares of the relative errors, so that
a batch of one counts as much as a batch of 64 (Orloj §4.2 gives the form, not the fit).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from slacktide.profiles.batch_latency import BatchLatency
from slacktide.profiles.latency_table import LatencyTable

LEAST_PART = 1e-3
"""c1 is at least this part of the time of one row: a length must cost something."""


class LatencyFit(NamedTuple):
    """A fitted latency, and how far it is from what was measured."""

    latency: BatchLatency
    error: float
    """Root mean square of (fitted − measured) / measured, over the measured batch sizes."""


def fit_latency(table: LatencyTable, cores: int) -> LatencyFit:
    """c0 ≥ 0 and c1 > 0 of the table's medians on `cores` cores, both falling with the cores.

    With one measured batch size all of its time is taken to grow with the rows.
    """
    column = table.median_surface.place(1, cores).column
    # As in `Surface`: never below what more cores were measured to take.
    fits = [_fit(table, count) for count in table.cores[column:]]
    factor = max(1.0, table.cores[0] / cores)
    c0 = max(fit[0] for fit in fits) * factor
    c1 = max(fit[1] for fit in fits) * factor
    errors = [(c0 + c1 * size) / table.expected(size, cores) - 1.0 for size in table.batches]
    error = math.sqrt(sum(e * e for e in errors) / len(errors))
    return LatencyFit(BatchLatency(c0, c1), error)


def _fit(table: LatencyTable, cores: int) -> tuple[float, float]:
    """(c0, c1) of one column: min Σ (c0 / t + c1 · k / t − 1)², both within their bounds."""
    sizes = table.batches
    times = [table.expected(size, cores) for size in sizes]
    least = LEAST_PART * times[0] / sizes[0]
    if len(sizes) == 1:
        return 0.0, times[0] / sizes[0]
    uu = sum(1.0 / (t * t) for t in times)
    uk = sum(k / (t * t) for k, t in zip(sizes, times, strict=True))
    kk = sum(k * k / (t * t) for k, t in zip(sizes, times, strict=True))
    u = sum(1.0 / t for t in times)
    k1 = sum(k / t for k, t in zip(sizes, times, strict=True))
    determinant = uu * kk - uk * uk
    c1 = (uu * k1 - uk * u) / determinant
    if c1 < least:
        return max(0.0, (u - least * uk) / uu), least
    c0 = (u - c1 * uk) / uu
    return (c0, c1) if c0 >= 0.0 else (0.0, k1 / kk)
