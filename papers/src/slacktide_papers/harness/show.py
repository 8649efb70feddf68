"""A reproduction at a terminal and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeAlias

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slacktide.lab.reports import TextTable, html_document, html_list, html_table, rich_table
from slacktide_papers.harness.run import Plot, Reproduction

Grid: TypeAlias = tuple[list[str], list[tuple[str, ...]]]
"""(headings, lines)"""

_ASSUMPTIONS = "Assumptions where the paper is silent"
_TOO_SHORT = "too short"
"""The mark of a goal that a quick run misses, because a whole run may meet it."""
_STYLES = {"met": "green", "missed": "bold red"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str | Callable[[Any], object]
    """An attribute of the rows, or a function of a row. The cell is empty if its value is None."""
    heading: str
    form: str = ""
    """Format specification of the cells, for `format`: `.1%`."""

    def cell(self, row: object) -> str:
        value = getattr(row, self.name) if isinstance(self.name, str) else self.name(row)
        return "" if value is None else format(value, self.form)


def table(
    title: str, rows: Iterable[object], columns: Sequence[Column], *, words: int = 1
) -> TextTable:
    """A line for each row. The first `words` columns are text."""
    lines = [tuple(column.cell(row) for column in columns) for row in rows]
    return TextTable(title, [column.heading for column in columns], lines, words=words)


def render(result: Reproduction[Any, Any, Any]) -> Group:
    """Assumptions, tables and goals, for a terminal."""
    paper = result.paper
    gap = 0 if paper.narrow else 1
    parts: list[Table | Text | Padding] = [Text(paper.title, style="bold"), Text("")]
    parts.append(Text(f"{_ASSUMPTIONS}:"))
    parts += [Padding.indent(Text(f"- {text}"), 2) for text in result.assumptions]
    for part in paper.parts(result, False):
        if isinstance(part, TextTable):
            parts.append(rich_table(part, gap=gap))
        elif isinstance(part, str):
            parts.append(Text(part))
    if result.goals:
        parts.append(rich_table(_goals(result), gap=gap, styles=_STYLES))
    parts.append(Text(_footing(result), style="dim"))
    return Group(*parts)


def page(result: Reproduction[Any, Any, Any]) -> str:
    """The result as an HTML page. Raises ReportError if matplotlib is missing."""
    title = f"Reproduction of {result.paper.title}"
    return html_document(title, _footing(result), "\n".join(_sections(result)))


def short(rate: float) -> str:
    """A rate with two digits, without a leading zero: `.57`, `1.0`."""
    text = f"{rate:.2f}"
    return "1.0" if text == "1.00" else text[1:]


def by_class(rates: Mapping[str, float]) -> str:
    """`.97 .62`: finish rates from the shortest class to the longest."""
    return " ".join(map(short, rates.values()))


def _footing(result: Reproduction[Any, Any, Any]) -> str:
    """One line on the number of runs, the date, the machine and the commit."""
    origin = result.provenance
    commit = f", commit {origin.commit}" if origin.commit else ""
    return (
        f"{result.cells} runs of {result.scope.size}, {result.stored_cells} of them stored earlier"
        f"; {origin.started} on {origin.machine}{commit}"
    )


def _goals(result: Reproduction[Any, Any, Any]) -> TextTable:
    """The table of goals; its last column, the basis, is shown only if some goal has one."""
    shown = slice(None if any(goal.basis for goal in result.goals) else -1)
    marks = {"missed": _TOO_SHORT} if result.quick else {}
    lines = []
    for goal in result.goals:
        cells = goal.setting, goal.what, goal.measured, goal.wanted, goal.basis
        lines.append((marks.get(goal.mark, goal.mark), *cells)[shown])
    headings = ("", "", "what", "measured", "wanted", "over")
    title = result.paper.goals_title(result.experiments, result.scope)
    title += f"; {_TOO_SHORT}: a quick run cannot decide" if result.quick else ""
    return TextTable(title, headings[shown], lines, words=3)


def _sections(result: Reproduction[Any, Any, Any]) -> Iterator[str]:
    yield f"<h2>{_ASSUMPTIONS}</h2>"
    yield html_list("notes", result.assumptions)
    for part in (*([_goals(result)] if result.goals else ()), *result.paper.parts(result, True)):
        if isinstance(part, TextTable):
            yield f"<h2>{escape(part.title)}</h2>"
            yield html_table(part.headings, part.lines)
        else:
            yield part.svg if isinstance(part, Plot) else f"<p>{escape(part)}</p>"
    rows = ([_text(getattr(row, name), result) for name in result.columns] for row in result.rows)
    every = html_table(result.columns, rows)
    yield f"<details><summary>Every row</summary>{every}</details>"


def _text(value: object, result: Reproduction[Any, Any, Any]) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return by_class(value)
    return f"{value:.{result.paper.digits}g}" if isinstance(value, float) else str(value)
