"""Figure 11: time and result of our search for thresholds, compared with a grid search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import median
from time import thread_time

import numpy as np

from slacktide.lab.simulation import ExitTable
from slacktide.planning.exits import ThresholdSearch

ROWS = 512
STEPS = 41
"""Number of thresholds of a grid for each ramp: quantiles of its uncertainty, the lowest set to
0."""
RAMPS = (2, 3, 8)
GRID_MOST = 3
"""Maximum number of ramps for which a whole grid is tried; for more, its time is extrapolated."""
TIMES = 5


@dataclass(frozen=True, slots=True)
class TimedSearch:
    """The search on 512 rows beside a grid. Processor times; `search_ms`: median of several."""

    table: str
    ramps: int
    search_ms: float
    grid_ms: float
    of_grid: float | None
    """Saving ÷ the best saving of the grid; None: the grid was not tried, or saves nothing."""


def timed_searches(name: str, table: ExitTable, loss: float) -> Iterator[TimedSearch]:
    """The search for each number of evenly spaced ramps in `RAMPS`."""
    rows = np.linspace(0, len(table) - 1, min(ROWS, len(table))).astype(int)
    for count in RAMPS:
        places = np.unique(np.linspace(0, len(table.positions) - 1, count).round()).astype(int)
        evidence = table.uncertainty[np.ix_(rows, places)], table.agrees[np.ix_(rows, places)]
        saved = (table.whole[0] - table.before[0][places]).tolist()
        seconds = []
        for _ in range(TIMES):
            begin = thread_time()
            search = ThresholdSearch(*evidence, saved, loss * len(rows))
            best_thresholds = search.best()
            seconds.append(thread_time() - begin)
        best, tried, begin = 0.0, 0, thread_time()
        levels = np.quantile(evidence[0], np.linspace(0.0, 1.0, STEPS), axis=0)
        levels[0] = 0.0
        for thresholds in product(*levels.T.tolist()):
            at = np.array(thresholds)
            if search.cost(at) <= search.most:
                best = max(best, search.saving(at))
            tried += 1
            if len(places) > GRID_MOST and tried >= STEPS:
                break
        trial_s = (thread_time() - begin) / tried
        whole = len(places) <= GRID_MOST
        yield TimedSearch(
            name,
            len(places),
            1e3 * median(seconds),
            1e3 * trial_s * STEPS ** len(places),
            search.saving(best_thresholds) / best if whole and best > 0.0 else None,
        )
