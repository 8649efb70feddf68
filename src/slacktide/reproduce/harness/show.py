"""A reproduction at a terminal and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from rich.box import SIMPLE
from rich.console import Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from slacktide.reports import html_document, html_list, html_table
from slacktide.reproduce.harness.run import Reproduction

_TAKEN = "Taken where the paper does not say"
_STYLES = {"met": "green", "missed": "bold red"}


def render(result: Reproduction[Any, Any, Any]) -> Group:
    """What was assumed, the tables, and the lines of the summary, for a terminal."""
    paper = result.paper
    parts: list[RichTable | Text | Padding] = [Text(paper.title, style="bold"), Text("")]
    parts.append(Text(f"{_TAKEN}:"))
    parts += [Padding(Text(f"- {text}"), (0, 0, 0, 2)) for text in result.assumptions]
    for each in paper.tables(result):
        if isinstance(each, str):
            parts.append(Text(each))
        else:
            parts.append(_table(*each, narrow=paper.narrow))
    if result.goals:
        parts.append(_goals(result))
    parts.append(Text(_footing(result), style="dim"))
    return Group(*parts)


def page(result: Reproduction[Any, Any, Any]) -> str:
    """The page. Raises ReportError if matplotlib is missing."""
    title = f"Reproduction of {result.paper.title}"
    return html_document(title, _footing(result), "\n".join(_sections(result)))


def short(rate: float) -> str:
    """`.57`, `1.0`."""
    text = f"{rate:.2f}"
    return "1.0" if text == "1.00" else text[1:]


def by_class(rates: Mapping[str, float]) -> str:
    """`.97 .62`: finish rates from the shortest class to the longest."""
    return " ".join(map(short, rates.values()))


def _footing(result: Reproduction[Any, Any, Any]) -> str:
    """What it rests on, in a line."""
    origin = result.provenance
    commit = f", commit {origin.commit}" if origin.commit else ""
    return (
        f"{result.cells} runs of {result.scope.size}, {result.known} of them known from before; "
        f"{origin.started} on {origin.machine}{commit}"
    )


def _goals(result: Reproduction[Any, Any, Any]) -> RichTable:
    over = slice(None if any(goal.basis for goal in result.goals) else -1)
    table = _empty(result.goals_title, narrow=result.paper.narrow)
    for number, name in enumerate(("", "", "what", "measured", "wanted", "over")[over]):
        table.add_column(name, justify="left" if number < 3 else "right")
    for goal in result.goals:
        mark = Text(goal.mark, style=_STYLES.get(goal.mark, ""))
        cells = (goal.setting, goal.what, goal.measured, goal.wanted, goal.basis)
        table.add_row(mark, *cells[over])
    return table


def _table(
    title: str, headings: Sequence[str], lines: Iterable[Sequence[str]], *, narrow: bool
) -> RichTable:
    table = _empty(title, narrow=narrow)
    for number, name in enumerate(headings):
        left = number == 0
        table.add_column(name, justify="left" if left else "right", no_wrap=left or narrow)
    for line in lines:
        table.add_row(*line)
    return table


def _empty(title: str, *, narrow: bool) -> RichTable:
    padding = (0, 0 if narrow else 1, 0, 0)
    return RichTable(
        title=title, title_justify="left", box=SIMPLE, padding=padding, show_edge=not narrow
    )


def _sections(result: Reproduction[Any, Any, Any]) -> Iterator[str]:
    yield f"<h2>{_TAKEN}</h2>"
    yield html_list("notes", result.assumptions)
    if result.goals:
        over = slice(None if any(goal.basis for goal in result.goals) else -1)
        headings = ("what", "setting", "measured", "wanted", "", "over")
        lines = (
            (goal.what, goal.setting, goal.measured, goal.wanted, goal.mark, goal.basis)[over]
            for goal in result.goals
        )
        yield f"<h2>{escape(result.goals_title)}</h2>"
        yield html_table(headings[over], lines)
    yield from result.paper.sections(result)
    rows = ([_text(getattr(row, name), result) for name in result.columns] for row in result.rows)
    every = html_table(result.columns, rows)
    yield f"<details><summary>Every row</summary>{every}</details>"


def _text(value: object, result: Reproduction[Any, Any, Any]) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return by_class(value)
    return f"{value:.{result.paper.digits}g}" if isinstance(value, float) else str(value)
