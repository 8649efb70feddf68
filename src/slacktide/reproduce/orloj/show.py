"""A reproduction at a terminal: what was assumed, the tables, and the lines of the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from rich.box import SIMPLE
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slacktide.reproduce.orloj.experiments import EXPERIMENTS
from slacktide.reproduce.orloj.queue_times import QueueTime
from slacktide.reproduce.orloj.rows import Row
from slacktide.reproduce.orloj.run import PAPER, QUEUE, Reproduction

BY_CLASS = ("orloj", "orloj, by class", "slack", "slack, theta 2")
"""Schedulers whose finish rates are shown by class too; `--json` and `--csv` have those of all."""

CLASS_SLO = 2.0
"""The SLO at which they are shown at a terminal; a page shows all."""


def render(result: Reproduction) -> Group:
    """All of it."""
    parts: list[Table | Text | Padding] = [Text(PAPER, style="bold"), Text("")]
    parts.append(Text("Taken where the paper does not say:"))
    parts += [Padding(Text(f"- {text}"), (0, 0, 0, 2)) for text in result.assumptions]
    for name, setting, rows in sections(result.rows):
        x_axis = EXPERIMENTS[name].x_axis
        printed = "" if x_axis else ": measured / printed"
        title = f"{heading(name)}, setting {setting}{printed}"
        parts.append(_table(title, *(sweep(rows, x_axis) if x_axis else grid(rows))))
        headings, lines = classes([row for row in rows if row.slo_x_p99 == CLASS_SLO])
        if lines and not x_axis:
            parts.append(_table("The same by class, shortest first", headings, lines))
    if result.queue:
        parts.append(_queue(result.queue))
    if result.goals:
        parts.append(_goals(result))
    parts.append(Text(footing(result), style="dim"))
    return Group(*parts)


def sections(rows: Iterable[Row]) -> list[tuple[str, str, list[Row]]]:
    """(experiment, setting, rows) in order."""
    found = groupby(rows, key=lambda row: (row.experiment, row.setting))
    return [(name, setting, list(part)) for (name, setting), part in found]


def heading(name: str) -> str:
    """`Table 2. Two modes, …`."""
    title = EXPERIMENTS[name].title if name in EXPERIMENTS else "Cost of the queue"
    return f"{name.replace('-', ' ').capitalize()}. {title}"


def footing(result: Reproduction) -> str:
    """What it rests on, in a line."""
    origin = result.provenance
    commit = f", commit {origin.commit}" if origin.commit else ""
    return (
        f"{result.cells} runs of {result.scope.requests} requests, {result.known} of them known "
        f"from before; {origin.started} on {origin.machine}{commit}"
    )


def goals_heading(result: Reproduction) -> str:
    """What the goals are, and whether they may be quoted."""
    if result.whole:
        return "Goals; gains in points of percent"
    return "Goals; set for Tables 2 and 3 whole with five seeds, with less they show the direction"


def grid(rows: Sequence[Row]) -> tuple[list[str], list[tuple[str, ...]]]:
    """(headings, lines): a line for each case and SLO, a column for each scheduler."""
    often = Counter(row.scheduler for row in rows)
    # One measured in a few rows only would cost a column; it is among the classes and the goals.
    shown = [name for name, count in often.items() if 2 * count > max(often.values())]
    return _by_scheduler(rows, shown, cell)


def classes(rows: Sequence[Row]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The same of finish rates by class, where there are several."""
    several = [row for row in rows if len(row.finish_per_class) > 1]
    present = {row.scheduler for row in several}
    return _by_scheduler(several, [name for name in BY_CLASS if name in present], by_class)


def _by_scheduler(
    rows: Sequence[Row], schedulers: list[str], text: Callable[[Row], str]
) -> tuple[list[str], list[tuple[str, ...]]]:
    lines = []
    for (case, slo), part in groupby(rows, key=lambda row: (row.case, row.slo_x_p99)):
        found = {row.scheduler: text(row) for row in part}
        lines.append((case, f"{slo:g}", *(found.get(name, "") for name in schedulers)))
    return ["case", "SLO", *schedulers], lines


def cell(row: Row) -> str:
    """`.57/.60`: measured, and printed if it is."""
    measured = _short(row.measured_mean)
    return measured if row.published is None else f"{measured}/{_short(row.published)}"


def by_class(row: Row) -> str:
    """`.97 .62`: finish rates from the shortest class to the longest."""
    return " ".join(map(_short, row.finish_per_class.values()))


def sweep(rows: Sequence[Row], x_axis: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """(headings, lines) of a figure: a line for each place on its axis, a column for each line."""
    lines = list(dict.fromkeys(line_of(row) for row in rows))
    places = [at for at in dict.fromkeys(row.at for row in rows) if at is not None]
    found = {(row.at, line_of(row)): _short(row.measured_mean) for row in rows}
    return [x_axis, *lines], [
        (f"{at:g}", *(found.get((at, line), "") for line in lines)) for at in places
    ]


def line_of(row: Row) -> str:
    """The line of a figure that `row` lies on: `slack, 2 ×`."""
    return f"{row.scheduler.partition(',')[0]}, {row.slo_x_p99:g} ×"


def _short(rate: float) -> str:
    """`.57`, `1.0`."""
    text = f"{rate:.2f}"
    return "1.0" if text == "1.00" else text[1:]


def _table(title: str, headings: Sequence[str], lines: Iterable[Sequence[str]]) -> Table:
    table = _empty(title)
    for number, name in enumerate(headings):
        left = number == 0
        table.add_column(
            name if left else _folded(name),
            justify="left" if left else "right",
            no_wrap=True,
        )
    for line in lines:
        table.add_row(*line)
    return table


def _folded(name: str) -> str:
    """A heading on several lines, so that ten columns fit a terminal of 80."""
    short = name.replace("oracle_", "oracle ").replace("_", "_\n").replace(" ", "\n")
    return short.replace("clockwork", "clock-\nwork")


def _queue(times: Sequence[QueueTime]) -> Table:
    table = _empty(f"{heading(QUEUE)}, µs, medians on this machine")
    table.add_column("scheduler")
    for name in ("pending", "insertion", "next batch"):
        table.add_column(name, justify="right")
    for time in times:
        table.add_row(
            time.scheduler, str(time.pending), f"{time.insertion_us:.1f}", f"{time.query_us:.0f}"
        )
    return table


def _goals(result: Reproduction) -> Table:
    table = _empty(goals_heading(result))
    for name in ("", "", "what"):
        table.add_column(name)
    for name in ("measured", "wanted", "over"):
        table.add_column(name, justify="right")
    for goal in result.goals:
        mark = Text("met", style="green") if goal.met else Text("missed", style="bold red")
        judged = mark if goal.wanted != "–" else Text("")
        table.add_row(judged, goal.setting, goal.what, goal.measured, goal.wanted, goal.basis)
    return table


def _empty(title: str) -> Table:
    return Table(title=title, title_justify="left", box=SIMPLE, padding=0, show_edge=False)
