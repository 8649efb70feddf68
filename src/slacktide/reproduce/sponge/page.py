"""A reproduction as one self-contained HTML page, with the plots of the paper's figures."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from slacktide.profiles.amdahl import AmdahlFit
from slacktide.reports import Curve, curves, html_document, html_list, html_table
from slacktide.reproduce.sponge.rows import COLUMNS
from slacktide.reproduce.sponge.run import PAPER, Reproduction
from slacktide.reproduce.sponge.setting import DURATION
from slacktide.reproduce.sponge.show import (
    NO_POINTS,
    choice_lines,
    fit_lines,
    footing,
    goals_heading,
    heading,
    instance_lines,
    left_over,
    row_lines,
    sections,
    setting_title,
)

DRAWN = ("vertical", "joint", "fa2", "static-16", "static-8", "clairvoyant")
"""Policies whose course is drawn."""
BIN_S = 10
"""Seconds that a point of a course stands for."""
_TIME = "seconds"


def page(result: Reproduction) -> str:
    """The page. Raises ReportError if matplotlib is missing."""
    parts = [
        "<h2>Taken where the paper does not say</h2>",
        html_list("notes", result.assumptions),
    ]
    if result.goals:
        parts += [f"<h2>{escape(goals_heading(result))}</h2>", _goals(result)]
    if result.budgets:
        parts += _figure_1(result)
    if result.instances:
        parts += [f"<h2>{escape(heading('table-1'))}</h2>", "<p>By the fit / printed.</p>"]
        parts += [html_table(*instance_lines(result)), html_table(*choice_lines(result))]
    if result.fit is not None:
        parts += _figure_3(result.fit)
    elif "figure-3" in result.experiments:
        parts.append(f"<p>{escape(NO_POINTS)}</p>")
    for setting, rows in sections(result.rows):
        parts.append(f"<h2>{escape(setting_title(setting))}</h2>")
        parts.append(html_table(*row_lines(rows)))
        parts += _courses(result, setting)
    parts.append(f"<details><summary>Every row</summary>{_rows(result)}</details>")
    return html_document(f"Reproduction of {PAPER}", footing(result), "\n".join(parts))


def _goals(result: Reproduction) -> str:
    return html_table(
        ("what", "setting", "measured", "wanted", ""),
        (
            (goal.what, goal.setting, goal.measured, goal.wanted, "met" if goal.met else "missed")
            for goal in result.goals
        ),
    )


def _figure_1(result: Reproduction) -> Iterator[str]:
    seconds = tuple(float(at) for at in range(DURATION))
    yield f"<h2>{escape(heading('figure-1'))}</h2>"
    yield html_table(*left_over(result))
    bandwidth = Curve("4G", seconds, result.megabytes, dashed=True)
    yield curves([bandwidth], x_label=_TIME, y_label="MB/s", size=(8.0, 2.2))
    yield curves(
        [
            Curve(f"{each.size_kb} KB", seconds, each.by_second, colour, dashed=True)
            for colour, each in enumerate(result.budgets)
        ],
        x_label=_TIME,
        y_label="ms left of 1 s",
    )


def _figure_3(fit: AmdahlFit) -> Iterator[str]:
    yield f"<h2>{escape(heading('figure-3'))}</h2>"
    yield "<p>Milliseconds, by the fit / measured; dashed: by the fit.</p>"
    yield html_table(*fit_lines(fit))
    drawn: list[Curve] = []
    for colour, batch in enumerate(sorted({point.batch for point in fit.points})):
        mine = sorted(
            (point for point in fit.points if point.batch == batch), key=lambda point: point.cores
        )
        cores = tuple(float(point.cores) for point in mine)
        measured = tuple(1e3 * point.measured for point in mine)
        drawn.append(Curve(f"batch {batch}", cores, measured, colour))
        predicted = tuple(1e3 * point.predicted for point in mine)
        drawn.append(Curve(f"batch {batch}, fit", cores, predicted, colour, dashed=True))
    yield curves(drawn, x_label="cores", y_label="ms", log="xy")


def _courses(result: Reproduction, setting: str) -> Iterator[str]:
    """Violations and cores over time, as Figure 4 has them: of the first seed."""
    late: list[Curve] = []
    cores: list[Curve] = []
    for colour, policy in enumerate(DRAWN):
        played = result.timelines.get((setting, policy))
        if played is None:
            continue
        if played.late:
            counts = _binned(played.late)
            late.append(Curve(policy, _middles(len(counts)), counts, colour, dashed=True))
        sizes = tuple(total / BIN_S for total in _binned(played.cores))
        cores.append(Curve(policy, _middles(len(sizes)), sizes, colour, dashed=True))
    if late:
        label = f"violations in {BIN_S} s"
        yield curves(late, x_label="second of sending", y_label=label, size=(8.0, 2.6))
    if cores:
        yield curves(cores, x_label=_TIME, y_label="cores", size=(8.0, 2.6))


def _binned(values: tuple[float, ...] | tuple[int, ...]) -> tuple[float, ...]:
    whole = len(values) - len(values) % BIN_S
    return tuple(float(sum(values[at : at + BIN_S])) for at in range(0, whole, BIN_S))


def _middles(count: int) -> tuple[float, ...]:
    return tuple((number + 0.5) * BIN_S for number in range(count))


def _rows(result: Reproduction) -> str:
    def text(value: object) -> str:
        if value is None:
            return ""
        return f"{value:.5g}" if isinstance(value, float) else str(value)

    return html_table(
        COLUMNS, ([text(getattr(row, name)) for name in COLUMNS] for row in result.rows)
    )
