"""`Row`: one line of the results; `Judged` is what goals look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from slacktide.reproduce.sponge.cell import Cell, Played
from slacktide.reproduce.sponge.experiments import KNOWING, STEADY, Point
from slacktide.reproduce.sponge.play import CLAIRVOYANT
from slacktide.reproduce.sponge.published import FIGURE_4, FIGURE_4_CORES


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one setting: means over seeds. Rates are shares of the requests."""

    experiment: str
    setting: str
    policy: str
    violation_rate: float
    """Not answered by their deadline, whatever became of them."""
    unavoidable_rate: float
    """Of them: link time + l(1, 16) > SLO."""
    beyond_rate: float
    """The rest of the violations."""
    mean_cores: float
    """Allocated, of all instances."""
    p99_ms: float | None
    """From sending to the answer; None of the clairvoyant, who plans and runs nothing."""
    clairvoyant_cores: float | None
    """The fewest cores with which nothing servable is late; None if not computed."""
    steady_cores: float | None
    """The same if each second's cores must carry the mean rate for good (Sponge Eq. 3)."""
    replicas: int
    """Most instances at a time."""
    needed: int
    """Instances that the planner said the load needs; 0: it does not say."""
    seeds: int
    published: str
    """What the paper says of its violations; empty if nothing."""
    published_cores: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


COLUMNS = tuple(Row.__slots__)


def rows_of(points: Iterable[Point], played: Mapping[Cell, Played]) -> list[Row]:
    """The row of every point that was measured with all of its seeds."""
    points = list(points)
    known = {
        (point.setting, point.contender.label): fmean(
            played[cell].mean_cores for cell in point.cells
        )
        for point in points
        if point.contender.planner == CLAIRVOYANT and all(cell in played for cell in point.cells)
    }
    rows = []
    for point in points:
        if not all(cell in played for cell in point.cells):
            continue
        runs = [played[cell] for cell in point.cells]
        label = point.contender.label
        printed = point.setting == "figure-4"
        violations = fmean(run.violation_rate for run in runs)
        unavoidable = fmean(run.unavoidable_rate for run in runs)
        rows.append(
            Row(
                point.experiment,
                point.setting,
                label,
                violations,
                unavoidable,
                violations - unavoidable,
                fmean(run.mean_cores for run in runs),
                fmean(run.p99_ms for run in runs)
                if point.contender.planner != CLAIRVOYANT
                else None,
                known.get((point.setting, KNOWING.label)),
                known.get((point.setting, STEADY)),
                max(run.replicas for run in runs),
                max(run.needed for run in runs),
                len(runs),
                FIGURE_4.get(label, "") if printed else "",
                FIGURE_4_CORES.get(label, "") if printed else "",
            )
        )
    return rows
