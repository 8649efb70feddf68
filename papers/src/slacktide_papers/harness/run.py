"""`Publication`: what each paper supplies. `reproduce` runs the cells that have no result yet."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import orjson

from slacktide.lab.load.report import Provenance
from slacktide.lab.reports import TextTable
from slacktide.lab.simulation.scenario import done_in_processes
from slacktide_papers.harness.experiments import (
    Experiment,
    Goal,
    Point,
    ResultRow,
    SomeCell,
    SomeScope,
    identity,
)
from slacktide_papers.harness.state import ReproduceError, Results

SIMULATED = (
    "domain",
    "profiles",
    "engine",
    "scheduling",
    "lab/workloads",
    "lab/simulation",
    "papers/policies",
)
"""Folders whose code every simulated result depends on."""

Outcome = TypeVar("Outcome")
"""Outcome of a cell: a dataclass of plain data."""
SomeRow = TypeVar("SomeRow", bound=ResultRow)
Extras = TypeVar("Extras")
"""Type of a paper's further results, beside rows and goals."""


class Plot(NamedTuple):
    """An `<svg>` element."""

    svg: str


Part: TypeAlias = TextTable | Plot | str
Moved: TypeAlias = Callable[[float, str], None]
"""Called with (share done, text)."""


def _no_data(scope: SomeScope, folder: Path, experiments: Sequence[str]) -> SomeScope:
    raise ReproduceError("--data: expected none; this evaluation uses no recorded data")


def _every_row(result: Reproduction[Any, SomeRow, Any], plots: bool) -> list[Part]:
    """One table of all rows."""
    lines = [[str(getattr(row, name)) for name in result.columns] for row in result.rows]
    return [TextTable("Results", result.columns, lines, words=len(fields(ResultRow)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication(Generic[SomeScope, SomeCell, Outcome, SomeRow, Extras]):
    """A paper: its title, its experiments, how they are played, and what was assumed."""

    title: str
    code: tuple[str, ...]
    """Code that results depend on: a result made by different code is not reused (state.py). An
    absolute path is a file of another package."""
    experiments: Mapping[str, Experiment[SomeScope, SomeCell]]
    """Tables and figures by name."""
    scope: SomeScope
    quick: SomeScope
    """The scope for a run of a minute or two: shows that everything runs, and rough results."""
    with_data: Callable[[SomeScope, Path, Sequence[str]], SomeScope] = _no_data
    """Returns the scope with the recorded data that the experiments need.

    Raises ReproduceError if the data cannot be read.
    """
    play: Callable[[SomeCell], Outcome]
    """A module-level function, because it runs in other processes. Returns a dataclass or a dict of
    plain data; equal cells give equal outcomes."""
    outcome: Callable[..., Outcome] = dict  # type: ignore[assignment]  # if `play` returns a dict
    """Makes an outcome from the fields that `play` returned."""
    row: type[SomeRow]
    conclude: Callable[
        [Sequence[str], SomeScope, Sequence[tuple[Point[SomeCell], list[Outcome]]]],
        tuple[Sequence[SomeRow], Sequence[Goal], Extras],
    ]
    """(experiments, scope, points with an outcome for each cell) → rows, goals, extras."""
    extras: Callable[[Extras], Mapping[str, Any]] = lambda extras: {}
    """Converts extras to members of the JSON document."""
    assumptions: Callable[[Sequence[str], SomeScope], Sequence[str]] = lambda names, scope: ()
    """Sentences that say what the paper leaves open and what is assumed there."""
    goals_title: Callable[[Sequence[str], SomeScope], str] = lambda names, scope: "Goals"
    """Title of the table of goals, which says whether the figures may be quoted."""
    parts: Callable[[Reproduction[SomeScope, SomeRow, Extras], bool], Iterable[Part]] = _every_row
    """Parts to show beside assumptions and goals: tables, sentences and, if asked for, the plots
    of a page."""
    prepare: Callable[..., SomeScope] | None = None
    """(scope, experiments, jobs=, moved=) → the scope with everything that has to be computed
    before the first cell is played; None: no preparation. Raises ReproduceError."""
    digits: int = 5
    """Number of significant digits in the list of every row."""
    narrow: bool = False
    """Whether tables are so wide that they are printed without gaps between the columns."""

    def chosen(self, names: Sequence[str]) -> tuple[str, ...]:
        """The named experiments, in the paper's order; without names, all except those that run
        only `by_name`. Raises ReproduceError for an unknown name."""
        for name in names:
            if name not in self.experiments:
                available = ", ".join(self.experiments)
                raise ReproduceError(f"expected an experiment, got {name!r}; valid: {available}")
        return tuple(
            name
            for name, experiment in self.experiments.items()
            if name in names or not (names or experiment.by_name)
        )


@dataclass(frozen=True, slots=True)
class Reproduction(Generic[SomeScope, SomeRow, Extras]):
    """The results of one call of `reproduce`, ready to be shown."""

    paper: Publication[SomeScope, Any, Any, SomeRow, Extras]
    experiments: tuple[str, ...]
    scope: SomeScope
    rows: Sequence[SomeRow]
    goals: Sequence[Goal]
    extras: Extras
    provenance: Provenance
    cells: int
    """Number of runs that the rows are computed from."""
    stored_cells: int
    """Number of those runs whose results were already stored."""
    quick: bool = False
    """True for a run with `--quick`."""

    @property
    def too_short(self) -> str:
        """Suffix to the title of a table that ranks contenders; empty for whole runs."""
        return f" ({self.scope.size} a run: too short to rank)" if self.quick else ""

    @property
    def assumptions(self) -> Sequence[str]:
        return self.paper.assumptions(self.experiments, self.scope)

    def heading(self, name: str) -> str:
        """`Table 2. Two modes, …`."""
        return f"{name.replace('-', ' ').capitalize()}. {self.paper.experiments[name].title}"

    def to_dict(self) -> dict[str, Any]:
        """The whole result as one document, of values that orjson can write."""
        return {
            "paper": self.paper.title,
            "experiments": self.experiments,
            **self.scope.to_dict(),
            "assumptions": self.assumptions,
            "goals": [goal.to_dict() for goal in self.goals],
            "rows": self.rows,
            **self.paper.extras(self.extras),
            "cells": self.cells,
            "known": self.stored_cells,
            "provenance": self.provenance,
        }

    def to_json(self) -> bytes:
        """`to_dict` as an indented document."""
        return orjson.dumps(self.to_dict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of every row."""
        return tuple(column.name for column in fields(self.paper.row))

    def to_csv(self) -> str:
        """The rows, with a header. Mappings are written as JSON objects."""
        text = StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow(
                {
                    name: orjson.dumps(value).decode() if isinstance(value, dict) else value
                    for name, value in asdict(row).items()
                }
            )
        return text.getvalue()


def reproduce(
    paper: Publication[SomeScope, SomeCell, Outcome, SomeRow, Extras],
    experiments: Sequence[str],
    scope: SomeScope,
    results: Results,
    *,
    provenance: Provenance,
    jobs: int = 1,
    moved: Moved = lambda share, text: None,
    quick: bool = False,
) -> Reproduction[SomeScope, SomeRow, Extras]:
    """Run the cells that `experiments` need and `results` lacks, then make rows of all cells.
    Raises ReproduceError; a KeyboardInterrupt states how many runs are finished."""
    points = [
        point
        for name in experiments
        if (points_of := paper.experiments[name].points) is not None
        for point in points_of(scope)
    ]
    identities = {cell: identity(cell) for point in points for cell in point.cells}
    missing = [cell for cell, key in identities.items() if results.get(key) is None]
    stored = len(identities) - len(missing)
    # First seeds first, so that an interrupted run has stored a cell for every row.
    tasks = ((cell, cell) for cell in sorted(missing, key=lambda cell: cell.seed))
    finished = done_in_processes(partial(_played, paper.play), tasks, jobs=jobs)
    if missing:
        moved(stored / len(identities), f"{stored} of {len(identities)} runs")
    done = stored
    try:
        for cell, played in finished:
            results.add(identities[cell], played)
            done += 1
            moved(done / len(identities), f"{done} of {len(identities)} runs ({cell})")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{done} of {len(identities)} runs are") from None
    outcomes = {
        cell: paper.outcome(**result)
        for cell, key in identities.items()
        if (result := results.get(key)) is not None
    }
    measured = [(point, [outcomes[cell] for cell in point.cells]) for point in points]
    rows, goals, extras = paper.conclude(experiments, scope, measured)
    names, cells = tuple(experiments), len(identities)
    return Reproduction(paper, names, scope, rows, goals, extras, provenance, cells, stored, quick)


def _played(play: Callable[[SomeCell], Any], cell: SomeCell) -> dict[str, Any]:
    """Outcome of `cell`, as plain data."""
    played = play(cell)
    return dict(played) if isinstance(played, Mapping) else asdict(played)
