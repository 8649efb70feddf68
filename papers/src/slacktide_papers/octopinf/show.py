"""Tables at a terminal, and a page with the plots of the paper's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from slacktide.lab.reports import Curve, TextTable, curves
from slacktide_papers.harness.run import Part, Plot, Reproduction
from slacktide_papers.harness.show import Column, Grid, table
from slacktide_papers.octopinf.experiments import OctopInfScope
from slacktide_papers.octopinf.goals import ACTION_KINDS, FleetRow
from slacktide_papers.octopinf.play import BIN_S, PlayedPipelines

MOST_POINTS = 300
"""Maximum points of a curve; longer timelines are drawn in wider bins."""


CONTENDERS = (
    Column("contender", "contender"),
    Column("effective", "objects/s", ".1f"),
    Column("in_time", "in time", ".3f"),
    Column(
        lambda row: None if row.bound is None else row.effective / max(row.bound, 1e-9),
        "of bound",
        ".3f",
    ),
    Column("complete", "complete", ".3f"),
    Column("partial", "partial", ".3f"),
    Column("p50_ms", "p50 ms", ".0f"),
    Column("p99_ms", "p99 ms", ".0f"),
    Column("memory_gb", "GB", ".1f"),
    Column("wasted", "wasted", ".3f"),
    Column("plans", "plans"),
    Column("early", "early"),
    Column("scaled", "scaled"),
    Column("published", "printed", ".2f"),
)
SECOND_COLUMNS = (  # columns of `fp32`
    CONTENDERS[0],
    Column("in_time", "in time", ".3f"),
    Column(lambda row: row.of_bound("fluid"), "of bound", ".3f"),
    Column(lambda row: row.of_bound("undivided"), "of undivided", ".3f"),
    Column("weighted", "weighted", ".3f"),
    Column(lambda row: row.of_bound("weighted"), "of bound", ".3f"),
    Column(lambda row: row.of_bound("weighted, undivided"), "of undivided", ".3f"),
    Column("within", "within 2 points", ".3f"),
    Column(lambda row: row.of_bound("within"), "of bound", ".3f"),
    Column(lambda row: row.of_bound("within, undivided"), "of undivided", ".3f"),
    Column("memory_gb", "GB", ".1f"),
    Column("plans", "plans"),
    Column("published", "printed", ".2f"),
)
MECHANISMS = (  # columns of `all-five`
    Column("contender", "contender"),
    Column("weighted", "weighted", ".3f"),
    Column("in_time", "in time", ".3f"),
    Column("complete", "complete", ".3f"),
    Column("partial", "partial", ".3f"),
    Column(lambda row: max(0.0, row.lost), "lost", ".3f"),
    Column("p99_ms", "p99 ms", ".0f"),
    Column("cores", "cores", ".1f"),
    Column("cores_busy", "busy", ".1f"),
)


@dataclass(frozen=True, slots=True)
class Courses:
    """The run with the first seed of every row, by experiment, setting and contender."""

    runs: Mapping[tuple[str, str, str], PlayedPipelines]

    def to_dict(self) -> dict[str, Any]:
        """Members that are added to the JSON document."""
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


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables, and the plots of a page."""
    for (experiment, setting), rows in groupby(
        result.rows, key=lambda row: (row.experiment, row.setting)
    ):
        setting_rows = list(rows)
        if experiment == "all-five":
            title = f"{result.heading(experiment)}{result.too_short}"
            actions = [CONTENDERS[0], *map(_action, ACTION_KINDS), Column("plans", "plans")]
            yield table(title, setting_rows, MECHANISMS)
            yield table("Actions of each mechanism", setting_rows, actions)
            continue
        title = f"{result.heading(experiment)}: {setting}{result.too_short}"
        yield table(title, setting_rows, SECOND_COLUMNS if experiment == "fp32" else CONTENDERS)
        if plots:
            yield from _courses(result.extras, experiment, setting)
    for experiment in dict.fromkeys(row.experiment for row in result.rows):
        if experiment in ("figure-6", "figure-11"):
            yield TextTable("In time by pipeline", *_sources(result.extras, experiment))


def _action(mechanism: str) -> Column:
    """The column that shows how often a mechanism acted: the first of its counts."""
    count = ACTION_KINDS[mechanism][0]
    return Column(lambda row: row.acted.get(count), mechanism)


def _sources(courses: Courses, experiment: str) -> Grid:
    """Figure 7 in numbers: share of each pipeline's objects that are in time, first seed."""
    runs = {key[2]: run for key, run in courses.runs.items() if key[0] == experiment}
    names = sorted({name for run in runs.values() for name in run.by_pipeline})
    lines = []
    for name in names:
        counts = [run.by_pipeline.get(name) for run in runs.values()]
        lines.append(
            (name, *("" if row is None else f"{row[4] / max(1, row[3]):.3f}" for row in counts))
        )
    return ["source", *runs], lines


def _courses(courses: Courses, experiment: str, setting: str) -> Iterator[Plot]:
    """Plots of objects per second, offered and in time, as in Figures 6d, 7 and 11."""
    drawn: list[Curve] = []
    for (of, at, contender), run in courses.runs.items():
        if (of, at) != (experiment, setting) or not run.timeline:
            continue
        if not drawn:
            drawn.append(_course("offered", [counts[0] for counts in run.timeline], 0, dashed=True))
        drawn.append(_course(contender, [counts[1] for counts in run.timeline], len(drawn)))
    if drawn:
        yield Plot(curves(drawn, x_label="seconds", y_label="objects/s", size=(8.0, 3.0)))


def _course(name: str, values: Sequence[int], colour: int, *, dashed: bool = False) -> Curve:
    width = -(-len(values) // MOST_POINTS)
    bins = range(0, len(values) - len(values) % width, width)
    y = tuple(sum(values[at : at + width]) / (width * BIN_S) for at in bins)
    x = tuple(BIN_S * (at + 0.5 * width) for at in bins)
    return Curve(name, x, y, colour, dashed=dashed)
