"""Tables at a terminal, and a page with the plots of the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, TypeAlias

from slacktide.lab.reports import Curve, TextTable, curves
from slacktide.profiles import AmdahlFit
from slacktide_papers.harness.run import Part, Plot, Reproduction
from slacktide_papers.harness.show import Column, Grid, table
from slacktide_papers.sponge.experiments import SpongeScope
from slacktide_papers.sponge.figures import Budgets, Instance, PlannerChoice
from slacktide_papers.sponge.goals import CoresRow
from slacktide_papers.sponge.play import Played
from slacktide_papers.sponge.setting import DURATION, SETTINGS

DRAWN = ("vertical", "joint", "fa2", "static-16", "static-8", "clairvoyant")
"""Policies whose course over time is drawn."""
BIN_S = 10
"""Seconds that each point of a course covers."""
LEFT_OVER = (
    Column(lambda row: f"{row.size_kb} KB", "size"),
    Column("least", "least", ".0f"),
    Column("mean", "mean", ".0f"),
    Column("most", "most (ms)", ".0f"),
    Column(lambda row: f"{row.gone:.1%} of seconds", "nothing left"),
)
INSTANCES = (
    Column("cores", "cores"),
    Column("batch", "batch"),
    Column(lambda row: f"{row.fitted_ms:.0f}/{row.printed_ms:.0f}", "ms"),
    Column(lambda row: f"{row.fitted_throughput:.0f}/{row.printed_throughput:.0f}", "requests/s"),
    Column(lambda row: f"{row.fitted_cores}/{row.printed_cores}", "cores in all"),
)
CHOICES = (
    Column(lambda row: f"{row.delay_ms:.0f} ms", "network"),
    Column("planner", "planner"),
    Column("replicas", "instances"),
    Column("cores", "cores of each"),
    Column("batch", "batch"),
    Column(lambda row: None if row.holds else "not enough", ""),
)
POLICIES = (
    Column("policy", "policy"),
    Column("violation_rate", "violated", ".2%"),
    Column("beyond_rate", "beyond", ".2%"),
    Column("mean_cores", "cores", ".2f"),
    Column("p99_ms", "p99 ms", ".0f"),
    Column(lambda row: f"{row.replicas} of {row.needed}" if row.needed else row.replicas, "most"),
)
PRINTED = (Column("published", "printed"), Column("published_cores", "cores"))
_TIME = "seconds"
NO_POINTS = "Figure 3 needs the measured latencies: --data DIR."


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures that are shown beside the rows; empty if they were not asked for."""

    timelines: Mapping[tuple[str, str], Played]
    """The run with the first seed, by (setting, policy)."""
    megabytes: tuple[float, ...]
    """Figure 1: bandwidth by second."""
    budgets: tuple[Budgets, ...]
    instances: tuple[Instance, ...]
    choices: tuple[PlannerChoice, ...]
    fit: AmdahlFit | None
    """Figure 3; None without recorded points."""

    def to_dict(self) -> dict[str, Any]:
        """Members of the JSON document."""
        return {
            "timelines": [
                {"setting": setting, "policy": policy, "cores": played.cores, "late": played.late}
                for (setting, policy), played in self.timelines.items()
            ],
            "figure_1": {"megabytes_per_second": self.megabytes, "budgets_ms": self.budgets},
            "table_1": {"instances": self.instances, "choices": self.choices},
            "figure_3": None if self.fit is None else _fit_dict(self.fit),
        }


Result: TypeAlias = Reproduction[SpongeScope, CoresRow, Figures]


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables; with `plots`, also the plots of a page."""
    figures = result.extras
    if figures.budgets:
        yield table(result.heading("figure-1"), figures.budgets, LEFT_OVER)
        if plots:
            yield from _figure_1(figures)
    if figures.instances:
        title = f"{result.heading('table-1')}: by the fit / printed"
        yield table(title, figures.instances, INSTANCES)
        yield table("Choices of planners for 100 requests/s", figures.choices, CHOICES)
    if figures.fit is not None:
        title = f"{result.heading('figure-3')}: milliseconds, by the fit / measured"
        yield TextTable(title, *_fit(figures.fit))
        if plots:
            yield _figure_3(figures.fit)
    for title, setting, rows in _settings(result.rows):
        columns = POLICIES + (PRINTED if any(row.published for row in rows) else ())
        yield table(f"{title}{result.too_short}", rows, columns)
        if plots:
            yield from _courses(figures, setting)
    if "figure-3" in result.experiments and figures.fit is None:
        yield NO_POINTS


def _settings(rows: Iterable[CoresRow]) -> list[tuple[str, str, list[CoresRow]]]:
    """(title, setting, rows) in order; the title is `x3. times × 3`."""
    groups = groupby(rows, key=lambda row: row.setting)
    return [(f"{name}. {SETTINGS[name].title}", name, list(part)) for name, part in groups]


def _fit(fit: AmdahlFit) -> Grid:
    """Figure 3: fitted / measured milliseconds, a line for each number of cores."""
    batches = sorted({point.batch for point in fit.points})
    cells = {
        (point.cores, point.batch): f"{1e3 * point.predicted:.0f}/{1e3 * point.measured:.0f}"
        for point in fit.points
    }
    cores = sorted({point.cores for point in fit.points})
    return ["cores", *(f"batch {batch}" for batch in batches)], [
        (str(count), *(cells.get((count, batch), "") for batch in batches)) for count in cores
    ]


def _figure_1(figures: Figures) -> Iterator[Plot]:
    seconds = tuple(float(at) for at in range(DURATION))
    bandwidth = [Curve("4G", seconds, figures.megabytes, dashed=True)]
    yield Plot(curves(bandwidth, x_label=_TIME, y_label="MB/s", size=(8.0, 2.2)))
    budgets = [
        Curve(f"{budget.size_kb} KB", seconds, budget.by_second, colour, dashed=True)
        for colour, budget in enumerate(figures.budgets)
    ]
    yield Plot(curves(budgets, x_label=_TIME, y_label="ms left of 1 s"))


def _figure_3(fit: AmdahlFit) -> Plot:
    drawn: list[Curve] = []
    for colour, batch in enumerate(sorted({point.batch for point in fit.points})):
        points = sorted(
            (dot for dot in fit.points if dot.batch == batch), key=lambda dot: dot.cores
        )
        cores = tuple(float(point.cores) for point in points)
        measured = tuple(1e3 * point.measured for point in points)
        predicted = tuple(1e3 * point.predicted for point in points)
        drawn.append(Curve(f"batch {batch}", cores, measured, colour))
        drawn.append(Curve(f"batch {batch}, fit", cores, predicted, colour, dashed=True))
    return Plot(curves(drawn, x_label="cores", y_label="ms", log="xy"))


def _courses(figures: Figures, setting: str) -> Iterator[Plot]:
    """Violations and cores over time, as in Figure 4, of the run with the first seed."""
    late: list[Curve] = []
    cores: list[Curve] = []
    for colour, policy in enumerate(DRAWN):
        played = figures.timelines.get((setting, policy))
        if played is None:
            continue
        if played.late:
            late.append(_course(policy, played.late, colour))
        cores.append(_course(policy, played.cores, colour, BIN_S))
    if late:
        label = f"violations in {BIN_S} s"
        yield Plot(curves(late, x_label="second of sending", y_label=label, size=(8.0, 2.6)))
    if cores:
        yield Plot(curves(cores, x_label=_TIME, y_label="cores", size=(8.0, 2.6)))


def _course(policy: str, values: Sequence[float], colour: int, per: int = 1) -> Curve:
    """A curve with a point at the middle of each whole bin: the sum of its seconds ÷ `per`."""
    bins = range(0, len(values) - len(values) % BIN_S, BIN_S)
    y = tuple(float(sum(values[at : at + BIN_S])) / per for at in bins)
    return Curve(policy, tuple(at + 0.5 * BIN_S for at in bins), y, colour, dashed=True)


def _fit_dict(fit: AmdahlFit) -> dict[str, Any]:
    points = [
        {
            "batch": point.batch,
            "cores": point.cores,
            "measured_ms": 1e3 * point.measured,
            "predicted_ms": 1e3 * point.predicted,
        }
        for point in fit.points
    ]
    errors = {"median_error": fit.median_error, "worst_error": fit.worst_error}
    return {"model": asdict(fit.model), **errors, "points": points}
