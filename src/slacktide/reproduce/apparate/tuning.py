"""Figure 11: how long the search for thresholds takes, and what it finds beside a grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import perf_counter

import numpy as np

from slacktide.planning.exits.thresholds import ThresholdSearch
from slacktide.simulation.exit_tables import ExitTable

ROWS = 512
STEPS = 41
"""Thresholds of a grid, from 0 to 1, for each ramp."""
RAMPS = (2, 3, 8)
GRID_MOST = 3
"""Ramps for which a grid is tried; for more its time is reckoned."""
TIMES = 5


@dataclass(frozen=True, slots=True)
class TimedSearch:
    """The search on 512 rows, the median of several times."""

    table: str
    ramps: int
    search_ms: float
    grid_ms: float
    of_grid: float | None
    """What it saves, as a share of what the grid's best saves; None: not tried."""


def timed_searches(name: str, table: ExitTable, loss: float) -> Iterator[TimedSearch]:
    """For a few numbers of ramps at even distances."""
    rows = np.linspace(0, len(table) - 1, min(ROWS, len(table))).astype(int)
    for count in RAMPS:
        places = np.unique(np.linspace(0, len(table.positions) - 1, count).round()).astype(int)
        known = table.uncertainty[np.ix_(rows, places)], table.agrees[np.ix_(rows, places)]
        saved = (table.whole[0] - table.before[0][places]).tolist()
        taken = []
        for _ in range(TIMES):
            begin = perf_counter()
            search = ThresholdSearch(*known, saved, loss * len(rows))
            found = search.best()
            taken.append(perf_counter() - begin)
        best, tried, begin = 0.0, 0, perf_counter()
        grid = product(np.linspace(0.0, 1.0, STEPS), repeat=len(places))
        for thresholds in grid:
            at = np.array(thresholds)
            if search.cost(at) <= search.most:
                best = max(best, search.saving(at))
            tried += 1
            if len(places) > GRID_MOST and tried >= STEPS:
                break
        each = (perf_counter() - begin) / tried
        whole = len(places) <= GRID_MOST
        yield TimedSearch(
            name,
            len(places),
            1e3 * median(taken),
            1e3 * each * STEPS ** len(places),
            found.saved * len(rows) / best if whole and best > 0.0 else None,
        )
