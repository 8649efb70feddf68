"""Tables at a terminal, and a page with the plots of the paper's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from slacktide.lab.reports import Curve, TextTable, curves
from slacktide_papers.apparate.experiments import ExitScope
from slacktide_papers.apparate.goals import ExitRow
from slacktide_papers.apparate.live import LiveStream
from slacktide_papers.apparate.play import WINDOW, PlayedExits
from slacktide_papers.apparate.ramp_styles import RampStyle
from slacktide_papers.apparate.tuning import TimedSearch
from slacktide_papers.harness.run import Part, Plot, Reproduction
from slacktide_papers.harness.show import Column, table

CONTENDERS = (
    Column("setting", "stream"),
    Column("case", "case"),
    Column("policy", "contender"),
    Column("load", "load", ".2f"),
    Column("on_time", "in time", ".1%"),
    Column("p50_ms", "p50 ms", ".1f"),
    Column("p99_ms", "p99", ".1f"),
    Column("saved_p25", "saved p25", ".1%"),
    Column("saved_p50", "p50", ".1%"),
    Column("saved_p99", "p99", ".1%"),
    Column("agreement", "right", ".2%"),
    Column("windows", "windows", ".0%"),
    Column("exits", "exits", ".0%"),
    Column("ramps", "ramps", ".1f"),
    Column("remembered", "memory", ".0%"),
    Column("caught", "changes", ".1%"),
    Column("delay_p95", "delay", ".0f"),
    Column("printed", "printed p50"),
)
SEARCHES = (
    Column("table", "stream"),
    Column("ramps", "ramps"),
    Column("search_ms", "search ms", ".1f"),
    Column("grid_ms", "grid ms", ".3g"),
    Column("of_grid", "of the grid's saving", ".1%"),
)
STYLES = (
    Column("stream", "stream"),
    Column("style", "ramps"),
    Column("budget", "budget", ".0%"),
    Column("ramps", "how many"),
    Column("cost", "each takes", ".1%"),
    Column("saved_p25", "saved p25", ".1%"),
    Column("saved_p50", "p50", ".1%"),
    Column("saved", "mean", ".1%"),
    Column("exits", "exits", ".0%"),
)
_DRAWN = ("figure-13", "figure-16")


@dataclass(frozen=True, slots=True)
class ExitFigures:
    """Figures that are shown beside the rows."""

    runs: Mapping[tuple[str, str, str, str], PlayedExits]
    """Outcomes by (experiment, stream, case, contender)."""
    searches: Sequence[TimedSearch]
    styles: Sequence[RampStyle]
    live: Sequence[LiveStream] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [
                {
                    **dict(zip(("experiment", "setting", "case", "contender"), key, strict=True)),
                    "latency_ms": run.latency_ms,
                    "agreement": run.course,
                }
                for key, run in self.runs.items()
            ],
            "searches": self.searches,
            "styles": self.styles,
            "live": self.live,
        }


Result: TypeAlias = Reproduction[ExitScope, ExitRow, ExitFigures]


def goals_title(experiments: Sequence[str], scope: ExitScope) -> str:
    """Title of the goals; it says whether the goals may be quoted."""
    if scope.from_examples and not (scope.quick or scope.inputs):
        return "Goals"
    return "Goals; set for whole streams of the examples, otherwise only indicative"


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables; with `plots`, also the plots of a page."""
    figures = result.extras
    if figures.styles:
        yield table(result.heading("figure-9"), figures.styles, STYLES, words=2)
    if figures.searches:
        yield table(result.heading("figure-11"), figures.searches, SEARCHES)
    if figures.live:
        yield _live(result.heading("live"), figures.live)
    for experiment, rows in groupby(result.rows, key=lambda row: row.experiment):
        experiment_rows = list(rows)
        yield table(result.heading(experiment), experiment_rows, _columns(experiment_rows), words=2)
        if plots and experiment in _DRAWN:
            for setting in dict.fromkeys(row.setting for row in experiment_rows):
                yield from _plots(figures, experiment, setting)


def _columns(rows: Sequence[ExitRow]) -> list[Column]:
    """All columns; without case, load or printed figure if no row has one."""
    names = ("case", "load", "remembered", "caught", "delay_p95", "printed")
    empty = {name for name in names if not any(getattr(row, name) for row in rows)}
    return [column for column in CONTENDERS if column.name not in empty]


def _live(title: str, streams: Sequence[LiveStream]) -> TextTable:
    headings = ["stream", "inputs", "", "left early", "right", "p50 ms", "p99 ms", "ramps"]
    lines = [
        (
            stream.stream if not at else "",
            str(stream.inputs) if not at else "",
            name,
            f"{stream.exits[at]:.1%}",
            f"{stream.agreement[at]:.2%}",
            f"{stream.p50_ms[at]:.1f}",
            f"{stream.p99_ms[at]:.1f}",
            f"{stream.ramps[at]:.1f}",
        )
        for stream in streams
        for at, name in enumerate(("live", "predicted"))
    ]
    return TextTable(title, headings, lines, words=3)


def _plots(figures: ExitFigures, experiment: str, setting: str) -> Iterator[Plot]:
    mine = {
        contender: run
        for (name, stream, _, contender), run in figures.runs.items()
        if (name, stream) == (experiment, setting)
    }
    shares = tuple(percent / 100 for percent in range(101))
    spread = [
        Curve(contender, tuple(run.latency_ms), shares, colour)
        for colour, (contender, run) in enumerate(mine.items())
    ]
    yield Plot(curves(spread, x_label=f"{setting}: ms", y_label="share of answers"))
    right = [
        Curve(contender, tuple(map(float, range(len(run.course)))), tuple(run.course), colour)
        for colour, (contender, run) in enumerate(mine.items())
        if min(run.course, default=1.0) < 1.0
    ]
    if right:
        label = f"{setting}: windows of {WINDOW} answers"
        yield Plot(curves(right, x_label=label, y_label="the model's answers", size=(8.0, 2.6)))
