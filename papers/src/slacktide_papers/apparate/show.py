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

_DRAWN = ("figure-13", "figure-16")


@dataclass(frozen=True, slots=True)
class ExitFigures:
    """What is shown beside the rows."""

    runs: Mapping[tuple[str, str, str, str], PlayedExits]
    """By experiment, stream, case and contender."""
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
    """What the goals are, and whether they may be quoted."""
    if scope.own and not (scope.quick or scope.inputs):
        return "Goals"
    return "Goals; set for whole streams of the examples, else they show the direction"


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables, and the plots of a page."""
    figures = result.extras
    if figures.styles:
        yield _styles(result.heading("figure-9"), figures.styles)
    if figures.searches:
        yield _searches(result.heading("figure-11"), figures.searches)
    if figures.live:
        yield _live(result.heading("live"), figures.live)
    for experiment, rows in groupby(result.rows, key=lambda row: row.experiment):
        kept = list(rows)
        yield TextTable(result.heading(experiment), *_rows(kept), words=2)
        if plots and experiment in _DRAWN:
            for setting in dict.fromkeys(row.setting for row in kept):
                yield from _plots(figures, experiment, setting)


def _rows(rows: Sequence[ExitRow]) -> tuple[list[str], list[tuple[str, ...]]]:
    cases = any(row.case for row in rows)
    printed = any(row.printed for row in rows)
    headings = ["stream", *(["case"] if cases else []), "contender", "in time", "p50 ms", "p99"]
    headings += ["saved p25", "p50", "p99", "right", "windows", "exits", "ramps"]
    return [*headings, *(["printed p50"] if printed else [])], [
        (
            row.setting,
            *((row.case,) if cases else ()),
            row.policy,
            f"{row.on_time:.1%}",
            *(f"{each:.1f}" for each in (row.p50_ms, row.p99_ms)),
            *(f"{each:.1%}" for each in (row.saved_p25, row.saved_p50, row.saved_p99)),
            f"{row.agreement:.2%}",
            f"{row.windows:.0%}",
            f"{row.exits:.0%}",
            f"{row.ramps:.1f}",
            *((row.printed,) if printed else ()),
        )
        for row in rows
    ]


def _searches(title: str, searches: Sequence[TimedSearch]) -> TextTable:
    headings = ["stream", "ramps", "search ms", "grid ms", "of the grid's saving"]
    return TextTable(
        title,
        headings,
        [
            (
                one.table,
                str(one.ramps),
                f"{one.search_ms:.1f}",
                f"{one.grid_ms:.3g}",
                "" if one.of_grid is None else f"{one.of_grid:.1%}",
            )
            for one in searches
        ],
    )


def _live(title: str, streams: Sequence[LiveStream]) -> TextTable:
    headings = ["stream", "inputs", "", "left early", "right", "p50 ms", "p99 ms", "ramps"]
    lines = [
        (
            one.stream if not at else "",
            str(one.inputs) if not at else "",
            name,
            f"{one.exits[at]:.1%}",
            f"{one.agreement[at]:.2%}",
            f"{one.p50_ms[at]:.1f}",
            f"{one.p99_ms[at]:.1f}",
            f"{one.ramps[at]:.1f}",
        )
        for one in streams
        for at, name in enumerate(("live", "predicted"))
    ]
    return TextTable(title, headings, lines, words=3)


def _styles(title: str, styles: Sequence[RampStyle]) -> TextTable:
    headings = ["stream", "ramps", "budget", "how many", "each takes"]
    return TextTable(
        title,
        [*headings, "saved p25", "p50", "mean", "exits"],
        [
            (
                one.stream,
                one.style,
                f"{one.budget:.0%}",
                str(one.ramps),
                f"{one.cost:.1%}",
                *(f"{each:.1%}" for each in (one.saved_p25, one.saved_p50, one.saved)),
                f"{one.exits:.0%}",
            )
            for one in styles
        ],
        words=2,
    )


def _plots(figures: ExitFigures, experiment: str, setting: str) -> Iterator[Plot]:
    mine = {
        contender: run
        for (name, stream, _, contender), run in figures.runs.items()
        if (name, stream) == (experiment, setting)
    }
    shares = tuple(each / 100 for each in range(101))
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
