"""Reads a scenario file into the cells of its grid, each a valid `Scenario`.

A cell holds plain data: a document, and labels that distinguish it from other cells. It can be sent
to another process, which validates the document again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

import orjson
from pydantic import ValidationError

from slacktide.domain import shown, suggestion
from slacktide.lab.simulation.items import SimulationError
from slacktide.lab.simulation.scenario.sections import Scenario
from slacktide.models.repository import RepositoryError, dotted, read_bounded, validation_problems
from slacktide.models.repository.settings_file import Path, ValidationProblem
from slacktide.models.repository.yaml_text import Lines, YamlError, parse_yaml, parse_yaml_lines

MAX_BYTES = 1 << 20
MOST_CELLS = 10_000
_NOT_IN_A_GRID = ("grid", "seeds", "title")


class ScenarioError(SimulationError):
    """An invalid scenario; `problems` are sentences of the form `where: key: expected …`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ScenarioError], tuple[tuple[str, ...]]]:
        """Keep `problems` when the error is pickled to another process."""
        return ScenarioError, (self.problems,)


_SHORT_FORMS = {"scheduler": "name", "slo": "within"}
"""Sections that may be written as plain text, and the key that the text then sets."""


@dataclass(frozen=True, slots=True)
class YamlPositions:
    """Places where values of the document were written: a line of the file, a grid value or a
    `--set`."""

    file: str
    lines: Lines
    elsewhere: Mapping[Path, str] = field(default_factory=dict)
    """Descriptions of places outside `lines`, by path: grid values and overrides."""

    def of(self, path: Path) -> str:
        """Return where `path` was written, or else the nearest section around it."""
        around = [path[:length] for length in range(len(path), 0, -1)]
        for place in around:
            if place in self.elsewhere:
                return self.elsewhere[place]
        for place in around:
            if place in self.lines:
                return f"{self.file}, line {self.lines[place]}"
        return self.file

    def moved(self, path: Path, words: str) -> YamlPositions:
        """Return a copy in which the value at `path` was written at the place `words`."""
        return YamlPositions(self.file, self.lines, {**self.elsewhere, path: words})

    def error(self, *problems: ValidationProblem) -> ScenarioError:
        """Return an error with all these problems and their places."""
        return ScenarioError([self._sentence(problem) for problem in problems])

    def refuse(self, path: Path, message: str) -> ScenarioError:
        """Return an error with one problem."""
        return self.error(ValidationProblem(path, message))

    def _sentence(self, problem: ValidationProblem) -> str:
        key = dotted(problem.path)
        text = f"{self.of(problem.path)}: " + (f"{key}: " if key else "") + problem.message
        return "".join(letter if letter.isprintable() else "?" for letter in text)


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the grid's values."""

    scenario: Scenario
    document: Mapping[str, Any]
    """The scenario as plain data, without its grid."""
    labels: Mapping[str, str]
    """Chosen grid values as text, by dotted key; empty without a grid."""
    positions: YamlPositions
    folder: FilePath
    """Folder of the scenario file; relative paths in the file start here."""
    imports: bool = False
    """Whether the scenario may name schedulers and planners to import."""


def read_scenario(
    path: FilePath, settings: Sequence[str] = (), *, imports: bool = False
) -> tuple[Cell, ...]:
    """Return the cells of the scenario in the file at `path`, in the order of its grid; at least 1.

    `settings` are `KEY=VALUE` with dotted keys, and replace what the file says. `imports`: whether
    the file may name schedulers and planners to import, as `module:Class`. Raises ScenarioError
    with every problem.
    """
    try:
        text = read_bounded(path, MAX_BYTES, where=str(path)).decode()
    except RepositoryError as error:
        raise ScenarioError([str(error)]) from None
    except UnicodeDecodeError:
        raise ScenarioError([f"{path.name}: expected UTF-8"]) from None
    return parse_scenario(text, path.name, path.parent, settings, imports=imports)


def parse_scenario(
    text: str, name: str, folder: FilePath, settings: Sequence[str] = (), *, imports: bool = False
) -> tuple[Cell, ...]:
    """Return cells like `read_scenario`, from the text of a file called `name` in `folder`."""
    try:
        document, lines = parse_yaml_lines(text)
    except YamlError as error:
        raise ScenarioError([f"{name}: {error}"]) from None
    if not isinstance(document, dict):
        raise ScenarioError([f"{name}: expected keys and values, got {shown(document)}"])
    positions = YamlPositions(name, lines)
    document.setdefault("title", FilePath(name).stem)
    for setting in settings:
        document, positions = _overridden(document, positions, setting)
    whole = checked(document, positions, imports=imports)
    plain = {key: value for key, value in document.items() if key != "grid"}
    bare = Cell(whole.model_copy(update={"grid": {}}), plain, {}, positions, folder, imports)
    return _cells(bare, whole.grid)


def checked(
    document: Mapping[str, Any], positions: YamlPositions, *, imports: bool = False
) -> Scenario:
    """Return the scenario in a document. Raises ScenarioError with every problem in it."""
    try:
        scenario = Scenario.model_validate(document, context={"imports": imports})
    except ValidationError as error:
        raise positions.error(*validation_problems(error, Scenario)) from None
    problems = []
    senders = {("applications", name): spec.model for name, spec in scenario.applications.items()}
    asking = {("clients", name): spec.model for name, spec in scenario.clients.items()}
    for (kind, name), model in (senders | asking).items():
        path = (kind, name, "model")
        if model not in scenario.models:
            hint = suggestion(model, scenario.models)
            problems.append(ValidationProblem(path, f"no model {model!r}; {hint}"))
        elif kind == "clients" and not scenario.models[model].variants:
            why = f"expected a model with 'variants', got {model!r}"
            problems.append(ValidationProblem(path, why))
    if problems:
        raise positions.error(*problems)
    return scenario


def _overridden(
    document: Mapping[str, Any], positions: YamlPositions, setting: str
) -> tuple[dict[str, Any], YamlPositions]:
    """Return the document and its positions with `--set KEY=VALUE` applied."""
    key, equals, value = setting.partition("=")
    words = f"--set {key}"
    if not equals or not key:
        raise ScenarioError([f"--set: expected KEY=VALUE, got {shown(setting)}"])
    try:
        path = find(document, key)
        return replaced(document, path, parse_yaml(value)), positions.moved(path, words)
    except (YamlError, ValueError) as error:
        raise ScenarioError([f"{words}: {error}"]) from None


def _cells(bare: Cell, grid: Mapping[str, Sequence[Any]]) -> tuple[Cell, ...]:
    """Return cells for all combinations of the grid's values; the last key changes fastest."""
    count = 1
    for key, values in grid.items():
        if key.partition(".")[0] in _NOT_IN_A_GRID:
            raise bare.positions.refuse(
                ("grid", key), f"{key.partition('.')[0]!r} cannot be varied"
            )
        count *= len(values)
    if count > MOST_CELLS:
        why = f"expected at most {MOST_CELLS} combinations, got {count}"
        raise bare.positions.refuse(("grid",), why)
    cells: list[Cell] = []
    problems: list[str] = []
    for choice in itertools.product(*(range(len(values)) for values in grid.values())):
        cell = bare
        try:
            for (key, values), index in zip(grid.items(), choice, strict=True):
                cell = _chosen(cell, key, index, values[index])
            cells.append(
                replace(cell, scenario=checked(cell.document, cell.positions, imports=cell.imports))
            )
        except ScenarioError as error:
            problems += error.problems
    if problems:
        raise ScenarioError(tuple(dict.fromkeys(problems)))
    return tuple(cells)


def _chosen(cell: Cell, key: str, index: int, value: object) -> Cell:
    """Return `cell` with the grid value number `index` of `key` applied."""
    path = find(cell.document, key)
    place = ("grid", key)
    words = cell.positions.of((*place, index))
    try:
        document = replaced(cell.document, path, value)
    except ValueError as error:
        raise cell.positions.refuse(place, str(error)) from None
    return replace(
        cell,
        document=document,
        labels={**cell.labels, key: _label(value)},
        positions=cell.positions.moved(path, f"{words} (grid)"),
    )


def _label(value: object) -> str:
    """Return a grid value as text; a section with a name as the name and its options."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        options = [f"{key}={_label(option)}" for key, option in value.items() if key != "name"]
        return " ".join((str(value["name"]), *options))
    return orjson.dumps(value).decode()


def find(document: Mapping[str, Any], dotted_key: str) -> Path:
    """Return the path that `dotted_key` means in `document`. Keys may contain dots, so the longest
    existing key wins. A part that does not exist yet is split at its dots."""
    path: list[str] = []
    below: Any = document
    remainder = dotted_key
    while remainder:
        section = below if isinstance(below, Mapping) else {}
        fitting = [key for key in section if remainder == key or remainder.startswith(f"{key}.")]
        key = max(fitting, key=len) if fitting else remainder.partition(".")[0]
        path.append(key)
        below = section.get(key)
        remainder = remainder[len(key) + 1 :]
    return tuple(path)


def replaced(document: Mapping[str, Any], path: Path, value: object) -> dict[str, Any]:
    """Return a copy of `document` with `value` at `path`; missing sections on the way are added.
    Raises ValueError if a value on the way is not a section."""
    key, *tail = path
    changed = dict(document)
    if not tail:
        changed[str(key)] = value
        return changed
    below = changed.get(str(key))
    if isinstance(below, str) and str(key) in _SHORT_FORMS:
        below = {_SHORT_FORMS[str(key)]: below}
    if below is not None and not isinstance(below, Mapping):
        raise ValueError(f"expected a section at {dotted((key,))}, got {shown(below)}")
    changed[str(key)] = replaced(below or {}, tuple(tail), value)
    return changed
