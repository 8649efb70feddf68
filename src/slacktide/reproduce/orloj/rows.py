"""`Row`: one line of the results, a printed figure beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from slacktide.reproduce.orloj.cell import Cell, Finish
from slacktide.reproduce.orloj.experiments import Point
from slacktide.reproduce.orloj.published import printed_finish

COLUMNS = (
    "experiment",
    "setting",
    "case",
    "slo_x_p99",
    "scheduler",
    "published",
    "measured_mean",
    "measured_se",
    "seeds",
    "at",
    "finish_per_class",
)


@dataclass(frozen=True, slots=True)
class Row:
    """The finish rate of one scheduler in one case at one SLO: a mean over seeds."""

    experiment: str
    setting: str
    case: str
    slo_x_p99: float
    scheduler: str
    published: float | None
    """As printed; None where the paper prints none."""
    measured_mean: float
    measured_se: float | None
    """Standard error of the mean; None with one seed."""
    seeds: int
    at: float | None
    """Where on the x axis of a figure; None in a table."""
    finish_per_class: Mapping[str, float]
    """Mean finish rate by application, shortest first."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def rows_of(points: Iterable[Point], finishes: Mapping[Cell, Finish]) -> list[Row]:
    """The row of every point that was measured with all of its seeds."""
    rows = []
    for point in points:
        found = [finishes[cell] for cell in point.cells if cell in finishes]
        if not found or len(found) < len(point.cells):
            continue
        rates = [finish.rate for finish in found]
        in_table = point.experiment.startswith("table")
        rows.append(
            Row(
                point.experiment,
                point.setting,
                point.case,
                point.slo,
                point.contender.label,
                printed_finish(point.case, point.slo, point.contender.label) if in_table else None,
                fmean(rates),
                standard_error(rates),
                len(rates),
                point.at,
                {
                    name: fmean(
                        finish.rate_of(name) for finish in found if finish.submitted.get(name)
                    )
                    for name in found[0].submitted
                },
            )
        )
    return rows


def standard_error(values: list[float]) -> float | None:
    """Of the mean of `values`; None if there is one."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None
