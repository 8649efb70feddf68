"""The whole of it: plan the cells, measure those that are not known yet, make rows and goals."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import Any

import orjson

from slacktide.load.report import Provenance
from slacktide.profiles.amdahl import AmdahlFit, fit_amdahl
from slacktide.reproduce.errors import ReproduceError
from slacktide.reproduce.sponge.assumptions import assumptions
from slacktide.reproduce.sponge.bandwidths import bandwidths, measured_points
from slacktide.reproduce.sponge.budgets import Budgets, budgets, megabytes
from slacktide.reproduce.sponge.cell import Cell, Played
from slacktide.reproduce.sponge.choices import Choice, Instance, choices, instances
from slacktide.reproduce.sponge.experiments import EXPERIMENTS, Point, Scope
from slacktide.reproduce.sponge.goals import Goal, goals_of
from slacktide.reproduce.sponge.play import play
from slacktide.reproduce.sponge.rows import COLUMNS, Row, rows_of
from slacktide.reproduce.state import Results
from slacktide.simulation.scenario.workers import done_in_processes

PAPER = "Sponge: Inference Serving with Dynamic SLOs Using In-Place Vertical Scaling (2024)"

CODE = (
    "domain",
    "workloads",
    "profiles",
    "engine",
    "scheduling",
    "scaling",
    "simulation",
    "server/bandwidth.py",
    "reproduce/sponge/bandwidths.py",
    "reproduce/sponge/clairvoyant.py",
    "reproduce/sponge/play.py",
    "reproduce/sponge/setting.py",
)
"""What a result depends on: results of other code do not count (state.py)."""

MEDIAN_ERROR, WORST_ERROR = 0.10, 0.35
"""Of the fit, relative, over the 30 points."""

Moved = Callable[[float, str], None]
"""Told (share done, text)."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Everything that a run has to say."""

    experiments: tuple[str, ...]
    scope: Scope
    rows: tuple[Row, ...]
    goals: tuple[Goal, ...]
    timelines: Mapping[tuple[str, str], Played]
    """The first seed of every row, by setting and policy."""
    megabytes: tuple[float, ...]
    """Figure 1: bandwidth by second; empty if it was not asked for."""
    budgets: tuple[Budgets, ...]
    instances: tuple[Instance, ...]
    choices: tuple[Choice, ...]
    fit: AmdahlFit | None
    """Figure 3; None without recorded points."""
    assumptions: tuple[str, ...]
    provenance: Provenance
    cells: int
    """Runs that the rows rest on."""
    known: int
    """Those of them that were known from before."""

    @property
    def falls_short(self) -> bool:
        """Whether some goal was missed."""
        return not all(goal.met for goal in self.goals)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "paper": PAPER,
            "experiments": list(self.experiments),
            "recorded": self.scope.folder is not None,
            "seeds": self.scope.seeds,
            "duration": self.scope.duration,
            "quick": self.scope.quick,
            "assumptions": list(self.assumptions),
            "goals": [goal.to_dict() for goal in self.goals],
            "rows": [row.to_dict() for row in self.rows],
            "timelines": [
                {
                    "setting": setting,
                    "policy": policy,
                    "cores": list(played.cores),
                    "late": list(played.late),
                }
                for (setting, policy), played in self.timelines.items()
            ],
            "figure_1": {
                "megabytes_per_second": list(self.megabytes),
                "budgets_ms": [each.to_dict() for each in self.budgets],
            },
            "table_1": {
                "instances": [each.to_dict() for each in self.instances],
                "choices": [each.to_dict() for each in self.choices],
            },
            "figure_3": None if self.fit is None else _fit_dict(self.fit),
            "cells": self.cells,
            "known": self.known,
            "provenance": asdict(self.provenance),
        }

    def to_json(self) -> bytes:
        """`to_dict` as an indented document."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    def to_csv(self) -> str:
        """The rows, with a header."""
        text = StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.to_dict() for row in self.rows)
        return text.getvalue()


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The experiments of these names in their order, all if there are none.

    Raises ReproduceError if one is unknown.
    """
    for name in names:
        if name not in EXPERIMENTS:
            there = ", ".join(EXPERIMENTS)
            raise ReproduceError(f"unknown experiment {name!r}; there are: {there}")
    return tuple(name for name in EXPERIMENTS if name in names or not names)


def reproduce(
    experiments: Sequence[str],
    scope: Scope,
    results: Results,
    *,
    provenance: Provenance,
    jobs: int = 1,
    moved: Moved = lambda share, text: None,
) -> Reproduction:
    """Measure what `experiments` need and `results` do not have, and make rows of all of it.

    Raises ReproduceError if the scope's folder lacks a trace.
    """
    data = bandwidths(scope.folder)
    scope = replace(scope, digest=data.digest)
    fit = None
    if "figure-3" in experiments and scope.folder is not None:
        fit = fit_amdahl(measured_points(scope.folder))
    points = [point for name in experiments for point in EXPERIMENTS[name].points(scope)]
    wanted = {_identity(cell): cell for point in points for cell in point.cells}
    missing = [cell for cell in wanted.values() if results.get(cell.to_dict()) is None]
    known = len(wanted) - len(missing)
    with results:
        done = known
        tasks = ((cell, cell) for cell in sorted(missing, key=lambda cell: cell.seed))
        for cell, result in done_in_processes(measure, tasks, jobs=jobs):
            results.add(cell.to_dict(), result)
            done += 1
            moved(done / len(wanted), f"{cell.setting} {cell.contender.label}")
    played = _played(points, results)
    rows = rows_of(points, played)
    return Reproduction(
        tuple(experiments),
        scope,
        tuple(rows),
        (*_fit_goals(fit), *goals_of(rows)),
        {
            (point.setting, point.contender.label): played[point.cells[0]]
            for point in points
            if point.cells[0] in played
        },
        megabytes(data) if "figure-1" in experiments else (),
        budgets(data) if "figure-1" in experiments else (),
        instances() if "table-1" in experiments else (),
        choices() if "table-1" in experiments else (),
        fit,
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


def _played(points: Iterable[Point], results: Results) -> dict[Cell, Played]:
    found = {}
    for point in points:
        for cell in point.cells:
            result = results.get(cell.to_dict())
            if result is not None:
                found[cell] = Played.from_dict(result)
    return found


def _fit_goals(fit: AmdahlFit | None) -> list[Goal]:
    if fit is None:
        return []
    return [
        Goal("figure-3", what, f"{100 * error:.1f} %", f"≤ {100 * most:g} %", error <= most)
        for what, error, most in (
            ("median relative error of the fit", fit.median_error, MEDIAN_ERROR),
            ("worst relative error of the fit", fit.worst_error, WORST_ERROR),
        )
    ]


def _fit_dict(fit: AmdahlFit) -> dict[str, Any]:
    return {
        "model": asdict(fit.model),
        "median_error": fit.median_error,
        "worst_error": fit.worst_error,
        "points": [
            {
                "batch": point.batch,
                "cores": point.cores,
                "measured_ms": 1e3 * point.measured,
                "predicted_ms": 1e3 * point.predicted,
            }
            for point in fit.points
        ],
    }
