"""A reproduction at a terminal: what was assumed, the tables, and the lines of the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.box import SIMPLE
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slacktide.profiles.amdahl import AmdahlFit
from slacktide.reproduce.sponge.experiments import EXPERIMENTS
from slacktide.reproduce.sponge.rows import Row
from slacktide.reproduce.sponge.run import PAPER, Reproduction
from slacktide.reproduce.sponge.setting import SETTINGS

Lines = list[tuple[str, ...]]


def render(result: Reproduction) -> Group:
    """All of it."""
    parts: list[Table | Text | Padding] = [Text(PAPER, style="bold"), Text("")]
    parts.append(Text("Taken where the paper does not say:"))
    parts += [Padding(Text(f"- {text}"), (0, 0, 0, 2)) for text in result.assumptions]
    for title, headings, lines in tables(result):
        parts.append(_table(title, headings, lines))
    if "figure-3" in result.experiments and result.fit is None:
        parts.append(Text(NO_POINTS))
    if result.goals:
        parts.append(_goals(result))
    parts.append(Text(footing(result), style="dim"))
    return Group(*parts)


NO_POINTS = "Figure 3 needs the measured latencies: --data DIR."


def tables(result: Reproduction) -> Iterable[tuple[str, list[str], Lines]]:
    """(title, headings, lines) of everything but the goals."""
    if result.budgets:
        yield heading("figure-1"), *left_over(result)
    if result.instances:
        yield heading("table-1"), *instance_lines(result)
        yield "What planners choose for 100 requests/s", *choice_lines(result)
    if result.fit is not None:
        yield heading("figure-3"), *fit_lines(result.fit)
    for setting, rows in sections(result.rows):
        yield setting_title(setting), *row_lines(rows)


def heading(name: str) -> str:
    """`Table 1. Instances that …`."""
    return f"{name.replace('-', ' ').capitalize()}. {EXPERIMENTS[name].title}"


def setting_title(name: str) -> str:
    """`x3. times × 3`."""
    return f"{name}. {SETTINGS[name].title}"


def sections(rows: Iterable[Row]) -> list[tuple[str, list[Row]]]:
    """(setting, rows) in order."""
    return [(name, list(part)) for name, part in groupby(rows, key=lambda row: row.setting)]


def left_over(result: Reproduction) -> tuple[list[str], Lines]:
    """Figure 1 in numbers."""
    return ["size", "least", "mean", "most (ms)", "nothing left"], [
        (
            f"{each.size_kb} KB",
            f"{each.least:.0f}",
            f"{each.mean:.0f}",
            f"{each.most:.0f}",
            f"{each.gone:.1%} of seconds",
        )
        for each in result.budgets
    ]


def instance_lines(result: Reproduction) -> tuple[list[str], Lines]:
    """Table 1: measured by the fit / printed."""
    return ["cores", "batch", "ms", "requests/s", "cores in all"], [
        (
            str(each.cores),
            str(each.batch),
            f"{each.fitted_ms:.0f}/{each.printed_ms:.0f}",
            f"{each.fitted_throughput:.0f}/{each.printed_throughput:.0f}",
            f"{each.fitted_cores}/{each.printed_cores}",
        )
        for each in result.instances
    ]


def choice_lines(result: Reproduction) -> tuple[list[str], Lines]:
    """What planners choose, by network delay."""
    return ["network", "planner", "instances", "cores of each", "batch", ""], [
        (
            f"{each.delay_ms:.0f} ms",
            each.planner,
            str(each.replicas),
            str(each.cores),
            str(each.batch),
            "" if each.holds else "not enough",
        )
        for each in result.choices
    ]


def fit_lines(fit: AmdahlFit) -> tuple[list[str], Lines]:
    """Figure 3: fitted / measured milliseconds, a line for each number of cores."""
    batches = sorted({point.batch for point in fit.points})
    found = {
        (point.cores, point.batch): f"{1e3 * point.predicted:.0f}/{1e3 * point.measured:.0f}"
        for point in fit.points
    }
    cores = sorted({point.cores for point in fit.points})
    return ["cores", *(f"batch {batch}" for batch in batches)], [
        (str(count), *(found.get((count, batch), "") for batch in batches)) for count in cores
    ]


def row_lines(rows: Sequence[Row]) -> tuple[list[str], Lines]:
    """A line for each policy."""
    printed = any(row.published for row in rows)
    headings = ["policy", "violated", "beyond", "cores", "p99 ms", "most"]
    lines: Lines = []
    for row in rows:
        line = (
            row.policy,
            f"{row.violation_rate:.2%}",
            f"{row.beyond_rate:.2%}",
            f"{row.mean_cores:.2f}",
            "" if row.p99_ms is None else f"{row.p99_ms:.0f}",
            f"{row.replicas} of {row.needed}" if row.needed else str(row.replicas),
        )
        lines.append((*line, row.published, row.published_cores) if printed else line)
    return ([*headings, "printed", "cores"] if printed else headings), lines


def footing(result: Reproduction) -> str:
    """What it rests on, in a line."""
    origin = result.provenance
    commit = f", commit {origin.commit}" if origin.commit else ""
    return (
        f"{result.cells} runs of {result.scope.duration} s, {result.known} of them known from "
        f"before; {origin.started} on {origin.machine}{commit}"
    )


def goals_heading(result: Reproduction) -> str:
    """What the goals are, and whether they may be quoted."""
    if result.scope.folder is not None and not result.scope.quick:
        return "Goals"
    return "Goals; set for whole runs on recorded bandwidths, else they show the direction"


def _goals(result: Reproduction) -> Table:
    lines = _empty(goals_heading(result))
    for name in ("", "", "what"):
        lines.add_column(name)
    for name in ("measured", "wanted"):
        lines.add_column(name, justify="right")
    for goal in result.goals:
        mark = Text("met", style="green") if goal.met else Text("missed", style="bold red")
        lines.add_row(mark, goal.setting, goal.what, goal.measured, goal.wanted)
    return lines


def _table(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    made = _empty(title)
    for number, name in enumerate(headings):
        made.add_column(name, justify="left" if number == 0 else "right", no_wrap=number == 0)
    for line in lines:
        made.add_row(*line)
    return made


def _empty(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
