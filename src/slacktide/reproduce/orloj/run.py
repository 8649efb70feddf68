"""The whole of it: plan the cells, measure those that are not known yet, make rows and goals."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

import orjson

from slacktide.load.report import Provenance
from slacktide.reproduce.errors import ReproduceError
from slacktide.reproduce.orloj.assumptions import assumptions
from slacktide.reproduce.orloj.cell import Cell, Finish
from slacktide.reproduce.orloj.experiments import EXPERIMENTS, Point, Scope
from slacktide.reproduce.orloj.goals import Goal, goals_of
from slacktide.reproduce.orloj.play import play
from slacktide.reproduce.orloj.queue_times import QueueTime, queue_times
from slacktide.reproduce.orloj.rows import COLUMNS, Row, rows_of
from slacktide.reproduce.state import Results
from slacktide.simulation.scenario.workers import done_in_processes

PAPER = "Orloj: Predictably Serving Unpredictable DNNs (Yu, Qiu, Jin, Chowdhury, 2022)"
QUEUE = "figure-12"
NAMES = tuple(sorted((*EXPERIMENTS, QUEUE), key=lambda name: (name.startswith("figure"), name)))
"""Every table and figure that can be asked for."""

CODE = (
    "domain",
    "workloads",
    "profiles",
    "engine",
    "scheduling",
    "simulation",
    "reproduce/orloj/cases.py",
    "reproduce/orloj/play.py",
    "reproduce/orloj/setting.py",
)
"""What a result depends on: results of other code do not count (state.py)."""

Moved = Callable[[float, str], None]
"""Told (share done, text)."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Everything that a run has to say."""

    experiments: tuple[str, ...]
    scope: Scope
    rows: tuple[Row, ...]
    goals: tuple[Goal, ...]
    queue: tuple[QueueTime, ...]
    assumptions: tuple[str, ...]
    provenance: Provenance
    cells: int
    """Runs that the rows rest on."""
    known: int
    """Those of them that were known from before."""

    @property
    def whole(self) -> bool:
        """Whether the goals rest on all that they were set for."""
        full = Scope(self.scope.settings)
        return {"table-2", "table-3"} <= set(self.experiments) and self.scope == full

    @property
    def falls_short(self) -> bool:
        """Whether some goal was missed."""
        return not all(goal.met for goal in self.goals)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "paper": PAPER,
            "experiments": list(self.experiments),
            "scope": asdict(self.scope),
            "assumptions": list(self.assumptions),
            "goals": [goal.to_dict() for goal in self.goals],
            "rows": [row.to_dict() for row in self.rows],
            "queue": [time.to_dict() for time in self.queue],
            "cells": self.cells,
            "known": self.known,
            "provenance": asdict(self.provenance),
        }

    def to_json(self) -> bytes:
        """`to_dict` as an indented document."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def to_csv(self) -> str:
        """The rows, with a header; finish rates by class as one JSON object."""
        text = StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            cells = row.to_dict()
            cells["finish_per_class"] = orjson.dumps(cells["finish_per_class"]).decode()
            writer.writerow(cells)
        return text.getvalue()


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The experiments of these names in their order, all if there are none.

    Raises ReproduceError if one is unknown.
    """
    for name in names:
        if name not in NAMES:
            raise ReproduceError(f"unknown experiment {name!r}; there are: {', '.join(NAMES)}")
    return tuple(name for name in NAMES if name in names or not names)


def reproduce(
    experiments: Sequence[str],
    scope: Scope,
    results: Results,
    *,
    provenance: Provenance,
    jobs: int = 1,
    moved: Moved = lambda share, text: None,
) -> Reproduction:
    """Measure what `experiments` need and `results` do not have, and make rows of all of it."""
    points = [
        point for name in experiments if name != QUEUE for point in EXPERIMENTS[name].points(scope)
    ]
    wanted = {_identity(cell): cell for point in points for cell in point.cells}
    missing = [cell for cell in wanted.values() if results.get(cell.to_dict()) is None]
    known = len(wanted) - len(missing)
    with results:
        done = known
        tasks = ((cell, cell) for cell in _spread(missing))
        for cell, result in done_in_processes(measure, tasks, jobs=jobs):
            results.add(cell.to_dict(), result)
            done += 1
            moved(done / len(wanted), f"{cell.setting} {cell.case} {cell.contender.label}")
    finishes = _finishes(points, results)
    return Reproduction(
        tuple(experiments),
        scope,
        tuple(rows_of(points, finishes)),
        tuple(goals_of(points, finishes)),
        tuple(queue_times() if QUEUE in experiments else ()),
        tuple(assumptions(experiments, scope)),
        provenance,
        len(wanted),
        known,
    )


def measure(cell: Cell) -> dict[str, Any]:
    """What comes of `cell`, as plain data."""
    return play(cell).to_dict()


def _identity(cell: Cell) -> bytes:
    """Equal for cells that are the same run, whatever their contenders are called."""
    return orjson.dumps(cell.to_dict(), option=orjson.OPT_SORT_KEYS)


def _spread(cells: Iterable[Cell]) -> list[Cell]:
    """First seeds first, so that a run cut short has something to say about every row."""
    return sorted(cells, key=lambda cell: cell.seed)


def _finishes(points: Iterable[Point], results: Results) -> dict[Cell, Finish]:
    found = {}
    for point in points:
        for cell in point.cells:
            result = results.get(cell.to_dict())
            if result is not None:
                found[cell] = Finish.from_dict(result)
    return found
