"""A reproduction as one self-contained HTML page, with a plot for every case and figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from slacktide.reports import Curve, curves, html_document, html_list, html_table
from slacktide.reproduce.orloj.experiments import EXPERIMENTS
from slacktide.reproduce.orloj.queue_times import QueueTime
from slacktide.reproduce.orloj.rows import COLUMNS, Row
from slacktide.reproduce.orloj.run import PAPER, QUEUE, Reproduction
from slacktide.reproduce.orloj.show import (
    by_class,
    classes,
    footing,
    goals_heading,
    grid,
    heading,
    line_of,
    sections,
    sweep,
)

_FINISH = "finish rate"
_SLO = "SLO, × P99 of the time alone"


def page(result: Reproduction) -> str:
    """The page. Raises ReportError if matplotlib is missing."""
    parts = [
        "<h2>Taken where the paper does not say</h2>",
        html_list("notes", result.assumptions),
    ]
    if result.goals:
        parts += [f"<h2>{escape(goals_heading(result))}</h2>", _goals(result)]
    for name, setting, rows in sections(result.rows):
        parts.append(f"<h2>{escape(heading(name))}, setting {escape(setting)}</h2>")
        parts += _figure(name, rows) if EXPERIMENTS[name].x_axis else _cases(rows)
    if result.queue:
        parts += [f"<h2>{escape(heading(QUEUE))}</h2>", *_queue(result.queue)]
    parts.append(f"<details><summary>Every row</summary>{_rows(result.rows)}</details>")
    return html_document(f"Reproduction of {PAPER}", footing(result), "\n".join(parts))


def _goals(result: Reproduction) -> str:
    headings = ("what", "setting", "measured", "wanted", "", "over")
    return html_table(
        headings,
        (
            (
                goal.what,
                goal.setting,
                goal.measured,
                goal.wanted,
                "" if goal.wanted == "–" else "met" if goal.met else "missed",
                goal.basis,
            )
            for goal in result.goals
        ),
    )


def _cases(rows: Sequence[Row]) -> Iterator[str]:
    """The tables, and a plot of finish rates by SLO for each case: printed ones are dashed."""
    yield "<p>Measured / printed.</p>"
    yield html_table(*grid(rows))
    headings, lines = classes(rows)
    if lines:
        yield "<p>By class, shortest first.</p>"
        yield html_table(headings, lines)
    for case, part in groupby(rows, key=lambda row: row.case):
        yield f"<h3>{escape(case)}</h3>"
        yield curves(_lines(list(part)), x_label=_SLO, y_label=_FINISH, y_most=1.05)


def _lines(rows: Sequence[Row]) -> list[Curve]:
    found = []
    for colour, name in enumerate(dict.fromkeys(row.scheduler for row in rows)):
        mine = [row for row in rows if row.scheduler == name]
        slos = tuple(row.slo_x_p99 for row in mine)
        found.append(Curve(name, slos, tuple(row.measured_mean for row in mine), colour))
        printed = [(row.slo_x_p99, row.published) for row in mine if row.published is not None]
        if printed:
            at = tuple(slo for slo, _ in printed)
            rates = tuple(rate for _, rate in printed)
            found.append(Curve(f"{name}, printed", at, rates, colour, dashed=True))
    return found


def _figure(name: str, rows: Sequence[Row]) -> Iterator[str]:
    x_axis = EXPERIMENTS[name].x_axis
    yield html_table(*sweep(rows, x_axis))
    drawn: list[Curve] = []
    for colour, line in enumerate(dict.fromkeys(map(line_of, rows))):
        mine = [row for row in rows if line_of(row) == line and row.at is not None]
        at = tuple(row.at for row in mine if row.at is not None)
        drawn.append(Curve(line, at, tuple(row.measured_mean for row in mine), colour))
    yield curves(drawn, x_label=x_axis, y_label=_FINISH, log="x", y_most=1.05)


def _queue(times: Sequence[QueueTime]) -> Iterator[str]:
    headings = ("scheduler", "pending", "insertion (µs)", "next batch (µs)")
    yield html_table(
        headings,
        (
            (
                time.scheduler,
                str(time.pending),
                f"{time.insertion_us:.1f}",
                f"{time.query_us:.0f}",
            )
            for time in times
        ),
    )
    drawn: list[Curve] = []
    for name in dict.fromkeys(time.scheduler for time in times):
        mine = [time for time in times if time.scheduler == name]
        at = tuple(float(time.pending) for time in mine)
        colour = len(drawn)
        drawn.append(
            Curve(f"{name}, insertion", at, tuple(time.insertion_us for time in mine), colour)
        )
        drawn.append(
            Curve(f"{name}, next batch", at, tuple(time.query_us for time in mine), colour + 1)
        )
    yield curves(drawn, x_label="requests in the queue", y_label="µs", log="xy")


def _rows(rows: Sequence[Row]) -> str:
    def text(value: object) -> str:
        if value is None:
            return ""
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    lines = ([text(getattr(row, name)) for name in COLUMNS[:-1]] + [by_class(row)] for row in rows)
    return html_table(COLUMNS, lines)
