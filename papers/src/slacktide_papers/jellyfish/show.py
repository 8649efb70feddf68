"""Tables at a terminal, and a page with the plots of the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import Any, TypeAlias

from slacktide.lab.reports import Curve, TextTable, curves
from slacktide_papers.harness.experiments import TraceScope
from slacktide_papers.harness.run import Part, Plot, Reproduction
from slacktide_papers.harness.show import Column, table
from slacktide_papers.jellyfish.exits import ExitLatency
from slacktide_papers.jellyfish.goals import FrameRow
from slacktide_papers.jellyfish.instances import PlannedInstance
from slacktide_papers.jellyfish.play import PlayedFrames
from slacktide_papers.jellyfish.setting import KBIT, SIDES, JellyfishData


@dataclass(frozen=True, slots=True)
class JellyfishFigures:
    """Data of the figures that are not made from rows; empty if they were not asked for."""

    played: Mapping[tuple[str, str], PlayedFrames]
    """The run with the first seed, by (setting, contender)."""
    profile: JellyfishData | None
    plans: Sequence[PlannedInstance]
    exits: Sequence[ExitLatency] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [
                {
                    "setting": name,
                    "contender": contender,
                    "latency_ms": run.latency_ms,
                    "sides": run.course,
                }
                for (name, contender), run in self.played.items()
            ],
            "plans": self.plans,
            "exits": self.exits,
        }


CONTENDERS = (
    Column("setting", "setting"),
    Column("contender", "contender"),
    Column("miss_rate", "missed", ".2%"),
    Column("printed", "printed"),
    Column("unsavable_rate", "unsavable", ".2%"),
    Column("beyond_rate", "beyond", ".2%"),
    Column("accuracy", "accuracy", ".4f"),
    Column("utilisation", "busy", ".0%"),
    Column("p50_ms", "p50 ms", ".0f"),
    Column("p99_ms", "p99 ms", ".0f"),
    Column("hit_rate", "hits", ".1%"),
    Column("mismatch_rate", "mismatched", ".2%"),
)
SIZES = (  # a row is (variant, bytes of a frame)
    Column(lambda row: row[0].name, "size"),
    Column(lambda row: 1e3 * row[0].seconds[0], "b = 1", ".1f"),
    Column(lambda row: 1e3 * row[0].seconds[7], "b = 8", ".1f"),
    Column(lambda row: 8 / row[0].seconds[7], "frames/s", ".0f"),
    Column(lambda row: row[0].accuracy, "accuracy", ".3f"),
    Column(lambda row: row[1] / KBIT, "kbit", ".0f"),
)
EXITS = (
    Column("side", "side"),
    Column("batch", "batch"),
    Column("share", "leave", ".0%"),
    Column("whole_ms", "no exit", ".1f"),
    Column(lambda row: row.quantiles_ms[5], "p25", ".1f"),
    Column(lambda row: row.quantiles_ms[10], "p50", ".1f"),
    Column(lambda row: row.quantiles_ms[15], "p75", ".1f"),
    Column("batch_ms", "batch", ".1f"),
    Column(lambda row: row.batch_ms / row.whole_ms - 1.0, "batch time", "+.0%"),
)

Result: TypeAlias = Reproduction[TraceScope, FrameRow, JellyfishFigures]


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables; with `plots`, also the plots of a page."""
    figures = result.extras
    if figures.profile is not None:
        sizes = zip(figures.profile.variants, SIDES, strict=True)
        profiled = [(variant, figures.profile.frame_bytes[side]) for variant, side in sizes]
        yield table(result.heading("figure-10"), profiled, SIZES)
    for experiment, rows in groupby(result.rows, key=lambda row: row.experiment):
        experiment_rows = list(rows)
        title = f"{result.heading(experiment)}{result.too_short}"
        yield table(title, experiment_rows, CONTENDERS, words=2)
        if plots:
            yield from _plots(figures, experiment, experiment_rows)
    if figures.plans:
        yield _plans(result.heading("figure-18"), figures.plans)
    if figures.exits:
        yield table(result.heading("figure-20"), figures.exits, EXITS)


def _plans(title: str, plans: Iterable[PlannedInstance]) -> TextTable:
    """One line per fleet size and planner: objective ÷ optimum or bound, and mean planning time."""
    lines = []
    for size, some in groupby(plans, key=lambda plan: plan.instance.partition(",")[0]):
        group = list(some)
        top = {p.instance: p for p in group if p.planner in ("exact", "bound")}
        for planner in dict.fromkeys(plan.planner for plan in group):
            planned = [plan for plan in group if plan.planner == planner]
            ratios = [p.objective / top[p.instance].objective for p in planned if p.instance in top]
            lines.append(
                (
                    size,
                    planner,
                    str(len(planned)),
                    f"{fmean(ratios):.4f}" if ratios else "",
                    f"{min(ratios):.4f}" if ratios else "",
                    f"{1e3 * fmean(plan.seconds for plan in planned):.1f}",
                )
            )
    headings = ("workers × clients", "planner", "instances", "÷ best known", "worst", "ms")
    return TextTable(title, headings, lines, words=2)


def _plots(figures: JellyfishFigures, experiment: str, rows: Sequence[FrameRow]) -> Iterator[Plot]:
    """One plot per setting: sizes over time (11, 14), or latencies (12; the paper's Figure 13)."""
    if experiment not in ("figure-11", "figure-12", "figure-14"):
        return
    x_label, y_label = "seconds", "side, pixels"
    if experiment == "figure-12":
        x_label, y_label = "ms from capture", "share of answers"
    for setting, group in groupby(rows, key=lambda row: row.setting):
        drawn = []
        for colour, row in enumerate(group):
            run = figures.played[setting, row.contender]
            x, y = tuple(map(float, range(len(run.course)))), tuple(run.course)
            if experiment == "figure-12":
                x, y = tuple(run.latency_ms), tuple(at / 100 for at in range(101))
            drawn.append(Curve(f"{row.contender}, {setting}", x, y, colour))
        yield Plot(curves(drawn, x_label=x_label, y_label=y_label, size=(8.0, 2.6)))
