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
from slacktide_papers.jellyfish.exits import ExitLatency
from slacktide_papers.jellyfish.goals import FrameRow
from slacktide_papers.jellyfish.instances import PlannedInstance
from slacktide_papers.jellyfish.play import PlayedFrames
from slacktide_papers.jellyfish.setting import KBIT, SIDES, JellyfishData


@dataclass(frozen=True, slots=True)
class JellyfishFigures:
    """What is shown beside the rows; empty where it was not asked for."""

    played: Mapping[tuple[str, str], PlayedFrames]
    """The first seed, by setting and contender."""
    profile: JellyfishData | None
    plans: Sequence[PlannedInstance]
    exits: Sequence[ExitLatency] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "runs": [
                {
                    "setting": name,
                    "contender": contender,
                    "latency_ms": one.latency_ms,
                    "sides": one.course,
                }
                for (name, contender), one in self.played.items()
            ],
            "plans": self.plans,
            "exits": self.exits,
        }


Result: TypeAlias = Reproduction[TraceScope, FrameRow, JellyfishFigures]


def goals_title(experiments: Sequence[str], scope: TraceScope) -> str:
    """What the goals are, and whether they may be quoted."""
    if scope.folder is not None and not scope.quick:
        return "Goals, and printed figures that are not met within a point"
    return "Goals; set for whole runs on recorded traces, else they show the direction"


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables, and the plots of a page."""
    figures = result.extras
    if figures.profile is not None:
        yield _profile(result.heading("figure-10"), figures.profile)
    for experiment, rows in groupby(result.rows, key=lambda row: row.experiment):
        kept = list(rows)
        title = f"{result.heading(experiment)}{result.too_short}"
        yield TextTable(title, *_rows(kept), words=2)
        if plots:
            yield from _plots(figures, experiment, kept)
    if figures.plans:
        yield _plans(result.heading("figure-18"), figures.plans)
    if figures.exits:
        yield _exits(result.heading("figure-20"), figures.exits)


def _rows(rows: Sequence[FrameRow]) -> tuple[list[str], list[tuple[str, ...]]]:
    headings = ["setting", "contender", "missed", "printed", "unsavable", "beyond", "accuracy"]
    headings += ["busy", "p50 ms", "p99 ms", "hits", "mismatched"]
    return headings, [
        (
            row.setting,
            row.contender,
            f"{row.miss_rate:.2%}",
            row.printed,
            f"{row.unsavable_rate:.2%}",
            f"{row.beyond_rate:.2%}",
            f"{row.accuracy:.4f}",
            f"{row.utilisation:.0%}",
            f"{row.p50_ms:.0f}",
            f"{row.p99_ms:.0f}",
            "" if row.hit_rate is None else f"{row.hit_rate:.1%}",
            f"{row.mismatch_rate:.2%}",
        )
        for row in rows
    ]


def _profile(title: str, data: JellyfishData) -> TextTable:
    lines = [
        (
            each.name,
            f"{1e3 * each.seconds[0]:.1f}",
            f"{1e3 * each.seconds[7]:.1f}",
            f"{8 / each.seconds[7]:.0f}",
            f"{each.accuracy:.3f}",
            f"{data.frame_bytes[side] / KBIT:.0f}",
        )
        for each, side in zip(data.variants, SIDES, strict=True)
    ]
    return TextTable(title, ("size", "b = 1", "b = 8", "frames/s", "accuracy", "kbit"), lines)


def _plans(title: str, plans: Iterable[PlannedInstance]) -> TextTable:
    """Of each size of instance: means over instances, beside the optimum or its bound."""
    lines = []
    for size, some in groupby(plans, key=lambda plan: plan.instance.partition(",")[0]):
        kept = list(some)
        top = {p.instance: p for p in kept if p.planner in ("exact", "bound")}
        for planner in dict.fromkeys(plan.planner for plan in kept):
            own = [plan for plan in kept if plan.planner == planner]
            ratios = [p.objective / top[p.instance].objective for p in own if p.instance in top]
            lines.append(
                (
                    size,
                    planner,
                    str(len(own)),
                    f"{fmean(ratios):.4f}" if ratios else "",
                    f"{min(ratios):.4f}" if ratios else "",
                    f"{1e3 * fmean(plan.seconds for plan in own):.1f}",
                )
            )
    headings = ("workers × clients", "planner", "instances", "÷ best known", "worst", "ms")
    return TextTable(title, headings, lines, words=2)


def _exits(title: str, exits: Iterable[ExitLatency]) -> TextTable:
    lines = [
        (
            str(each.side),
            str(each.batch),
            f"{each.share:.0%}",
            f"{each.whole_ms:.1f}",
            *(f"{each.quantiles_ms[place]:.1f}" for place in (5, 10, 15)),
            f"{each.batch_ms:.1f}",
            f"{each.batch_ms / each.whole_ms - 1.0:+.0%}",
        )
        for each in exits
    ]
    headings = ("side", "batch", "leave", "no exit", "p25", "p50", "p75", "batch", "batch time")
    return TextTable(title, headings, lines)


def _plots(figures: JellyfishFigures, experiment: str, rows: Sequence[FrameRow]) -> Iterator[Plot]:
    """Sizes over time (Figures 11, 14), or latencies (Figure 13), setting by setting."""
    if experiment not in ("figure-11", "figure-12", "figure-14"):
        return
    x_label, y_label = "seconds", "side, pixels"
    if experiment == "figure-12":
        x_label, y_label = "ms from capture", "share of answers"
    for setting, some in groupby(rows, key=lambda row: row.setting):
        drawn = []
        for colour, row in enumerate(some):
            one = figures.played[setting, row.contender]
            x, y = tuple(map(float, range(len(one.course)))), tuple(one.course)
            if experiment == "figure-12":
                x, y = tuple(one.latency_ms), tuple(at / 100 for at in range(101))
            drawn.append(Curve(f"{row.contender}, {setting}", x, y, colour))
        yield Plot(curves(drawn, x_label=x_label, y_label=y_label, size=(8.0, 2.6)))
