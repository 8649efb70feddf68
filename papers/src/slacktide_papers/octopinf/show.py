"""Tables at a terminal, and a page with the plots of the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from slacktide.lab.reports import Curve, TextTable, curves
from slacktide_papers.harness.run import Part, Plot, Reproduction
from slacktide_papers.harness.show import Grid
from slacktide_papers.octopinf.experiments import OctopInfScope
from slacktide_papers.octopinf.goals import ACTED, FleetRow
from slacktide_papers.octopinf.play import BIN_S, PlayedPipelines

MOST_POINTS = 300
"""Of a course: longer ones are drawn in wider bins."""


@dataclass(frozen=True, slots=True)
class Courses:
    """The first seed of every row, by experiment, setting and contender."""

    runs: Mapping[tuple[str, str, str], PlayedPipelines]

    def to_dict(self) -> dict[str, Any]:
        """Members of the JSON document."""
        return {
            "timelines": [
                {
                    "experiment": experiment,
                    "setting": setting,
                    "contender": contender,
                    "seconds": BIN_S,
                    "offered_and_in_time": run.timeline,
                    "by_pipeline": run.by_pipeline,
                }
                for (experiment, setting, contender), run in self.runs.items()
            ]
        }


Result: TypeAlias = Reproduction[OctopInfScope, FleetRow, Courses]


def goals_title(experiments: Sequence[str], scope: OctopInfScope) -> str:
    """What the goals are, and whether they may be quoted."""
    if scope.folder is not None and not scope.quick:
        return "Goals"
    return "Goals; set for whole runs on recorded counts and links, else they show the direction"


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables, and the plots of a page."""
    for (experiment, setting), rows in groupby(
        result.rows, key=lambda row: (row.experiment, row.setting)
    ):
        own = list(rows)
        if experiment == "all-five":
            title = f"{result.heading(experiment)}{result.too_short}"
            yield TextTable(title, *_mechanisms(own), words=1)
            yield TextTable("How often each did something", *_acted(own), words=1)
            continue
        title = f"{result.heading(experiment)}: {setting}{result.too_short}"
        yield TextTable(title, *_contenders(own), words=1)
        if plots:
            yield from _courses(result.extras, experiment, setting)
    for experiment in dict.fromkeys(row.experiment for row in result.rows):
        if experiment in ("figure-6", "figure-11"):
            yield TextTable("In time by pipeline", *_sources(result.extras, experiment), words=1)


def _contenders(rows: Iterable[FleetRow]) -> Grid:
    """A line for each contender."""
    headings = ["contender", "objects/s", "in time", "of bound", "complete", "partial"]
    headings += ["p50 ms", "p99 ms", "GB", "wasted", "plans", "early", "scaled", "printed"]
    return headings, [
        (
            row.contender,
            f"{row.effective:.1f}",
            f"{row.in_time:.3f}",
            "" if row.bound is None else f"{row.effective / max(row.bound, 1e-9):.3f}",
            f"{row.complete:.3f}",
            f"{row.partial:.3f}",
            f"{row.p50_ms:.0f}",
            f"{row.p99_ms:.0f}",
            f"{row.memory_gb:.1f}",
            f"{row.wasted:.3f}",
            *(f"{each}" for each in (row.plans, row.early, row.scaled)),
            "" if row.published is None else f"{row.published:.2f}",
        )
        for row in rows
    ]


def _mechanisms(rows: Iterable[FleetRow]) -> Grid:
    """The same, where five mechanisms are on or off."""
    headings = ["contender", "weighted", "in time", "complete", "partial", "lost", "p99 ms"]
    return [*headings, "cores", "busy"], [
        (
            row.contender,
            f"{row.weighted:.3f}",
            f"{row.in_time:.3f}",
            f"{row.complete:.3f}",
            f"{row.partial:.3f}",
            f"{max(0.0, row.lost):.3f}",
            f"{row.p99_ms:.0f}",
            f"{row.cores:.1f}",
            f"{row.cores_busy:.1f}",
        )
        for row in rows
    ]


def _acted(rows: Iterable[FleetRow]) -> Grid:
    """The first count of each mechanism."""
    return ["contender", *ACTED, "plans"], [
        (
            row.contender,
            *(str(row.acted.get(counts[0], "")) for counts in ACTED.values()),
            str(row.plans),
        )
        for row in rows
    ]


def _sources(courses: Courses, experiment: str) -> Grid:
    """Figure 7 in numbers: each source by itself, the first seed."""
    runs = {each[2]: run for each, run in courses.runs.items() if each[0] == experiment}
    names = sorted({name for run in runs.values() for name in run.by_pipeline})
    lines = []
    for name in names:
        found = [run.by_pipeline.get(name) for run in runs.values()]
        lines.append(
            (name, *("" if each is None else f"{each[4] / max(1, each[3]):.3f}" for each in found))
        )
    return ["source", *runs], lines


def _courses(courses: Courses, experiment: str, setting: str) -> Iterator[Plot]:
    """Objects per second, offered and in time, as Figures 6d, 7 and 11 have them."""
    drawn: list[Curve] = []
    for (of, at, contender), run in courses.runs.items():
        if (of, at) != (experiment, setting) or not run.timeline:
            continue
        if not drawn:
            drawn.append(_course("offered", [each[0] for each in run.timeline], 0, dashed=True))
        drawn.append(_course(contender, [each[1] for each in run.timeline], len(drawn)))
    if drawn:
        yield Plot(curves(drawn, x_label="seconds", y_label="objects/s", size=(8.0, 3.0)))


def _course(name: str, values: Sequence[int], colour: int, *, dashed: bool = False) -> Curve:
    width = -(-len(values) // MOST_POINTS)
    bins = range(0, len(values) - len(values) % width, width)
    y = tuple(sum(values[at : at + width]) / (width * BIN_S) for at in bins)
    x = tuple(BIN_S * (at + 0.5 * width) for at in bins)
    return Curve(name, x, y, colour, dashed=dashed)
