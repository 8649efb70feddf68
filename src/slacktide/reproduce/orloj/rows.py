"""`FinishRow`: one line of the results, a printed figure beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from slacktide.reproduce.harness.experiments import Point, Row
from slacktide.reproduce.orloj.experiments import OrlojCell
from slacktide.reproduce.orloj.play import Finish
from slacktide.reproduce.orloj.published import printed_finish


@dataclass(frozen=True, slots=True)
class FinishRow(Row):
    """The finish rate of one scheduler in one case at one SLO: a mean over seeds."""

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


def row_of(point: Point[OrlojCell], finishes: Sequence[Finish]) -> FinishRow:
    """The row of a point, from one outcome for each seed."""
    rates = [finish.rate for finish in finishes]
    slo, label = point.first.slo, point.contender.label
    in_table = point.experiment.startswith("table")
    return FinishRow(
        point.experiment,
        point.setting,
        point.case,
        slo,
        label,
        printed_finish(point.case, slo, label) if in_table else None,
        fmean(rates),
        standard_error(rates),
        len(rates),
        point.at,
        {
            name: fmean(finish.rate_of(name) for finish in finishes if finish.submitted.get(name))
            for name in finishes[0].submitted
        },
    )


def standard_error(values: list[float]) -> float | None:
    """Of the mean of `values`; None if there is one."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None
