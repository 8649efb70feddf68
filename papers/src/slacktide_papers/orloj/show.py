"""Tables at a terminal, and a page with a plot for every case and figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias

from slacktide.lab.reports import Curve, TextTable, curves
from slacktide_papers.harness.run import Part, Plot, Reproduction
from slacktide_papers.harness.show import Column, Grid, by_class, short, table
from slacktide_papers.orloj.experiments import EXPERIMENTS, QUEUE, OrlojScope
from slacktide_papers.orloj.goals import FinishRow
from slacktide_papers.orloj.queue_times import QueueTime

Result: TypeAlias = Reproduction[OrlojScope, FinishRow, tuple[QueueTime, ...]]

BY_CLASS = ("orloj", "orloj, by class", "slack", "slack, theta 2")
"""Schedulers whose finish rates are also shown by class; `--json` and `--csv` have them for all."""

CLASS_SLO = 2.0
"""SLO at which a terminal shows finish rates by class; a page shows them at all SLOs."""

NOISE = 0.02
"""Finish rates of one seed that differ by at most this may rank differently in whole runs."""
_CLOSE = f"≈: within {NOISE:g} of the best reading of orloj; too short a run to rank the two."
QUEUE_COLUMNS = (
    Column("scheduler", "scheduler"),
    Column("pending", "pending"),
    Column("insertion_us", "insertion", ".1f"),
    Column("query_us", "next batch", ".0f"),
)
_FINISH = "finish rate"
_SLO = "SLO, × P99 of the time alone"


def goals_title(experiments: Sequence[str], scope: OrlojScope) -> str:
    """Title of the goals, which may be quoted only if Tables 2 and 3 were measured whole."""
    if {"table-2", "table-3"} <= set(experiments) and scope == OrlojScope(scope.settings):
        return "Goals; gains in points of percent"
    return "Goals for the whole of Tables 2 and 3 with five seeds; with less, only indicative"


def parts(result: Result, plots: bool) -> Iterator[Part]:
    """The tables; with `plots` also each case's finish rates by SLO, printed ones dashed."""
    for name, setting, rows in _by_setting(result.rows):
        x_axis = EXPERIMENTS[name].x_axis
        printed = "" if x_axis else ": measured / printed"
        title = f"{result.heading(name)}, setting {setting}{printed}"
        yield _table(title, _sweep(rows, x_axis) if x_axis else _grid(rows, close=result.quick))
        if result.quick and not x_axis:
            yield _CLOSE
        if x_axis and plots:
            yield _figure(rows, x_axis)
        if x_axis:
            continue
        classes = _classes([row for row in rows if plots or row.slo_x_p99 == CLASS_SLO])
        if classes[1]:
            yield _table("The same by class, shortest first", classes)
        for case, part in groupby(rows, key=lambda row: row.case) if plots else ():
            yield case
            yield Plot(curves(_lines(list(part)), x_label=_SLO, y_label=_FINISH, y_most=1.05))
    if result.extras:
        title = f"{result.heading(QUEUE)}, µs, medians on this machine"
        yield table(title, result.extras, QUEUE_COLUMNS)
        if plots:
            yield _queue_plot(result.extras)


def _by_setting(rows: Iterable[FinishRow]) -> list[tuple[str, str, list[FinishRow]]]:
    """(experiment, setting, rows) in order."""
    groups = groupby(rows, key=lambda row: (row.experiment, row.setting))
    return [(name, setting, list(part)) for (name, setting), part in groups]


def _grid(rows: Sequence[FinishRow], *, close: bool) -> Grid:
    """A line for each case and SLO, a column for each scheduler. `close`: with a mark if one
    seed is too little to rank slack and orloj."""
    often = Counter(row.scheduler for row in rows)
    # A scheduler measured in few rows gets no column; classes and goals show it.
    shown = [name for name, count in often.items() if 2 * count > max(often.values())]
    return _by_scheduler(rows, shown, _rate, close=close)


def _classes(rows: Sequence[FinishRow]) -> Grid:
    """Finish rates by class, for cases with several classes."""
    several = [row for row in rows if len(row.finish_per_class) > 1]
    present = {row.scheduler for row in several}
    shown = [name for name in BY_CLASS if name in present]
    return _by_scheduler(several, shown, lambda row: by_class(row.finish_per_class))


def _by_scheduler(
    rows: Sequence[FinishRow],
    schedulers: list[str],
    text: Callable[[FinishRow], str],
    *,
    close: bool = False,
) -> Grid:
    lines = []
    for (case, slo), cells in groupby(rows, key=lambda row: (row.case, row.slo_x_p99)):
        part = list(cells)
        texts = {row.scheduler: text(row) for row in part}
        if close and _within_noise(part):
            texts["slack"] = f"≈{texts['slack']}"
        lines.append((case, f"{slo:g}", *(texts.get(name, "") for name in schedulers)))
    return ["case", "SLO", *schedulers], lines


def _within_noise(rows: Sequence[FinishRow]) -> bool:
    """Whether slack and the best reading of orloj are too near each other to be ranked."""
    rates = {row.scheduler: row.measured_mean for row in rows}
    readings = [rate for name, rate in rates.items() if name.startswith("orloj")]
    return "slack" in rates and bool(readings) and abs(rates["slack"] - max(readings)) <= NOISE


def _rate(row: FinishRow) -> str:
    """`.57/.60`: measured / printed; only the measured rate if none is printed."""
    measured = short(row.measured_mean)
    return measured if row.published is None else f"{measured}/{short(row.published)}"


def _sweep(rows: Sequence[FinishRow], x_axis: str) -> Grid:
    """A figure as a grid: a row for each place on its x axis, a column for each curve."""
    lines = list(dict.fromkeys(map(_line_of, rows)))
    places = [at for at in dict.fromkeys(row.at for row in rows) if at is not None]
    cells = {(row.at, _line_of(row)): short(row.measured_mean) for row in rows}
    return [x_axis, *lines], [
        (f"{at:g}", *(cells.get((at, line), "") for line in lines)) for at in places
    ]


def _line_of(row: FinishRow) -> str:
    """Name of the curve of a figure that `row` lies on, such as `slack, 2 ×`."""
    return f"{row.scheduler.partition(',')[0]}, {row.slo_x_p99:g} ×"


_FOLDED = {
    "clockwork": "clock\nwork",
    "symphony": "sym-\nphony",
    "orloj_text": "orloj\ntext",
    "oracle_slack": "ora-\ncle",
    "slack, notice 0.2": "no-\ntice\n0.2",
    "orloj, by class": "by\nclass",
}
"""Headings that are divided."""


def _table(title: str, grid: Grid) -> TextTable:
    """A table with headings on several lines, so that eleven columns fit into 80 characters."""
    (first, *columns), lines = grid
    folded = [_FOLDED.get(name, name.replace(", ", "\n").replace(" ", "\n")) for name in columns]
    return TextTable(title, [first, *folded], lines)


def _lines(rows: Sequence[FinishRow]) -> list[Curve]:
    rate_curves = []
    for colour, name in enumerate(dict.fromkeys(row.scheduler for row in rows)):
        curve = [row for row in rows if row.scheduler == name]
        slos = tuple(row.slo_x_p99 for row in curve)
        rate_curves.append(Curve(name, slos, tuple(row.measured_mean for row in curve), colour))
        printed = [(row.slo_x_p99, row.published) for row in curve if row.published is not None]
        if printed:
            at, rates = zip(*printed, strict=True)
            rate_curves.append(Curve(f"{name}, printed", at, rates, colour, dashed=True))
    return rate_curves


def _figure(rows: Sequence[FinishRow], x_axis: str) -> Plot:
    drawn: list[Curve] = []
    for colour, line in enumerate(dict.fromkeys(map(_line_of, rows))):
        line_rows = [row for row in rows if _line_of(row) == line and row.at is not None]
        at = tuple(row.at for row in line_rows if row.at is not None)
        drawn.append(Curve(line, at, tuple(row.measured_mean for row in line_rows), colour))
    return Plot(curves(drawn, x_label=x_axis, y_label=_FINISH, log="x", y_most=1.05))


def _queue_plot(times: Sequence[QueueTime]) -> Plot:
    drawn: list[Curve] = []
    for name in dict.fromkeys(time.scheduler for time in times):
        scheduler_times = [time for time in times if time.scheduler == name]
        at = tuple(float(time.pending) for time in scheduler_times)
        for operation, spent in (
            ("insertion", tuple(time.insertion_us for time in scheduler_times)),
            ("next batch", tuple(time.query_us for time in scheduler_times)),
        ):
            drawn.append(Curve(f"{name}, {operation}", at, spent, len(drawn)))
    return Plot(curves(drawn, x_label="requests in the queue", y_label="µs", log="xy"))
