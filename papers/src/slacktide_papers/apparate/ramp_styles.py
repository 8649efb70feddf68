"""Figure 9: light ramps compared with heavier ones under the same budget.

As in the paper, ramps are evenly spaced, as many as the budget has room for, with the thresholds
that are best in hindsight. Heavier ramps are those of `deeper_ramps`, and stand-ins for the paper's
ramps that begin with convolutions. A stand-in gives the answer of our ramp one or two positions
later, and its time includes the layers between them, which it runs for itself alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from slacktide.lab.simulation import ExitTable
from slacktide.planning.exits import ThresholdSearch

BUDGETS = (0.05, 0.2)
OURS = "ours"
LAYERS = (1, 2)
"""Numbers of model layers that the stand-ins run first."""


@dataclass(frozen=True, slots=True)
class RampStyle:
    """Ramps of one style on a stream. Cost and savings: shares of one row's time without exits."""

    stream: str
    style: str
    budget: float
    ramps: int
    cost: float
    """Cost of one ramp, averaged over all positions."""
    saved_p25: float
    saved_p50: float
    saved: float
    """Mean saving."""
    exits: float
    """Share of rows that leave at a ramp."""


def compared_styles(stream: str, tables: Mapping[str, ExitTable], loss: float) -> list[RampStyle]:
    """Every style under every budget. `tables`: by style; `OURS` must be among them."""
    ours = tables[OURS]
    every = {**tables, **{f"+ {n} of the model's layers": _behind(ours, n) for n in LAYERS}}
    return [
        _style(stream, style, table, budget, loss)
        for budget in BUDGETS
        for style, table in every.items()
    ]


def _behind(table: ExitTable, layers: int) -> ExitTable:
    """The table if each ramp first ran this many of the model's next layers."""
    earlier = slice(0, len(table.positions) - layers)
    return replace(
        table,
        positions=table.positions[earlier],
        uncertainty=table.uncertainty[:, layers:],
        agrees=table.agrees[:, layers:],
        agreement=table.agreement[layers:],
        before=table.before[:, earlier],
        ramp=table.ramp[:, layers:] + table.before[:, layers:] - table.before[:, earlier],
    )


def _style(stream: str, style: str, table: ExitTable, budget: float, loss: float) -> RampStyle:
    whole = float(table.whole[0])
    cost = table.ramp[0] / whole
    places = list(_evenly(cost.tolist(), budget))
    ends = table.before[0][places] / whole + np.cumsum(cost[places])
    total = 1.0 + float(cost[places].sum())
    evidence = table.uncertainty[:, places], table.agrees[:, places]
    leaves = np.zeros(len(table), np.int64)
    if places:
        search = ThresholdSearch(*evidence, (total - ends).tolist(), loss * len(table))
        leaves = search.leaves(search.best())
    saved = 1.0 - np.append(ends, total)[leaves]
    return RampStyle(
        stream,
        style,
        budget,
        len(places),
        float(cost.mean()),
        float(np.percentile(saved, 75)),
        float(np.median(saved)),
        float(saved.mean()),
        float((leaves < len(places)).mean()),
    )


def _evenly(cost: Sequence[float], budget: float) -> Iterator[int]:
    """Positions at even distances: as many as the budget has room for."""
    for count in range(len(cost), 0, -1):
        places = np.linspace(0, len(cost) - 1, count + 2)[1:-1].round().astype(int).tolist()
        if len(set(places)) == count and sum(cost[place] for place in places) <= budget:
            yield from places
            return
