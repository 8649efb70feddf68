"""What a benchmark gives back: figures with their goals, tables, and where they come from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable

from bench.machine import provenance


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every benchmark."""

    quick: bool = False
    """Short rounds, for a rough result that must not be quoted."""
    rows: str = ""
    """Only rows whose name contains one of these texts (comma-separated)."""
    peers: bool = True
    """Whether other servers are measured beside ours."""

    fresh: bool = False
    """Measure again what earlier runs have stored in bench/results."""
    beside: tuple[str, ...] = ()
    """Folders with the package of other commits or builds, measured in turn with this one."""

    def wants(self, row: str) -> bool:
        """Whether the options select `row`."""
        return not self.rows or any(part.strip() in row for part in self.rows.split(","))


@dataclass(frozen=True, slots=True)
class Goal:
    """The wanted range of a figure: at most, or at least, `limit`."""

    limit: float
    at_least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def at_least(limit: float) -> Goal:
    return Goal(limit, at_least=True)


def at_most(limit: float) -> Goal:
    return Goal(limit)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. A figure without a goal is for comparison."""

    name: str
    value: float
    unit: str = ""
    goal: Goal | None = None
    note: str = ""
    samples: tuple[float, ...] = ()
    """Values of the rounds; `value` is their median."""

    @property
    def missed(self) -> bool:
        return self.goal is not None and not self.goal.met(self.value)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows beside figures, for people; cells are text already."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Result:
    """Everything one benchmark found."""

    name: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Notes for the reader, such as a peer that could not be installed, or a chosen setting."""
    seeds: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    """Raw data for the JSON document only."""

    @property
    def missed(self) -> list[Figure]:
        """Figures that do not reach their goals."""
        return [figure for figure in self.figures if figure.missed]

    def to_dict(self, options: Options) -> dict[str, Any]:
        """JSON-ready, with the machine, versions and date."""
        return {
            "benchmark": self.name,
            "quick": options.quick,
            **provenance(),
            "seeds": list(self.seeds),
            "figures": [
                {
                    "name": figure.name,
                    "value": figure.value,
                    "unit": figure.unit,
                    "goal": None if figure.goal is None else str(figure.goal),
                    "met": None if figure.goal is None else not figure.missed,
                    "note": figure.note,
                    "samples": list(figure.samples),
                }
                for figure in self.figures
            ],
            "remarks": self.remarks,
            "tables": [
                {"title": table.title, "columns": table.columns, "rows": table.rows}
                for table in self.tables
            ],
            "details": self.details,
        }

    def show(self, console: Console) -> None:
        """Print figures, tables and remarks."""
        listed = RichTable(title=self.name, title_justify="left", box=SIMPLE)
        for column in ("figure", "value", "unit", "goal", ""):
            listed.add_column(column, justify="right" if column == "value" else "left")
        for figure in self.figures:
            goal = "" if figure.goal is None else str(figure.goal)
            verdict = "" if figure.goal is None else ("missed" if figure.missed else "met")
            listed.add_row(
                figure.name,
                format_number(figure.value),
                figure.unit,
                goal,
                " ".join(part for part in (verdict, figure.note) if part),
            )
        if self.figures:
            console.print(listed)
        for table in self.tables:
            shown = RichTable(title=table.title, title_justify="left", box=SIMPLE)
            for index, column in enumerate(table.columns):
                shown.add_column(column, justify="left" if index == 0 else "right")
            for row in table.rows:
                shown.add_row(*row)
            console.print(shown)
        for remark in self.remarks:
            console.print(f"  {remark}", style="dim", markup=False)


Benchmark = Callable[[Options], Result]
"""The `run` of every benchmark's module."""


def format_number(value: float) -> str:
    """Four significant digits, thousands separated."""
    if value != value:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def write_json(path: Path, results: Sequence[tuple[Result, Options]]) -> None:
    """All results of a run as one JSON document."""
    document = [result.to_dict(options) for result, options in results]
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
