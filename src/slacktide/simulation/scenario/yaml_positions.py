"""Where a value of a scenario was written: a line of the file, a value of the grid, a `--set`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slacktide.models.repository.settings_file import Path, ValidationProblem, dotted
from slacktide.models.repository.yaml_text import Lines
from slacktide.simulation.items import SimulationError


class ScenarioError(SimulationError):
    """A scenario that cannot be; `problems` are sentences of the form `where: key: expected …`."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[ScenarioError], tuple[tuple[str, ...]]]:
        """As it is, also from another process."""
        return ScenarioError, (self.problems,)


_SHORT_FORMS = {"scheduler": "name", "slo": "within"}
"""Sections that may be written as a text, and the key which that stands for."""


@dataclass(frozen=True, slots=True)
class YamlPositions:
    """From a place in the document to the words a person finds it by."""

    file: str
    lines: Lines
    elsewhere: Mapping[Path, str] = field(default_factory=dict)
    """What does not stand in its own line: grid values and overrides."""

    def of(self, path: Path) -> str:
        """Where `path` was written; where what is around it was, if it was not itself."""
        around = [path[:length] for length in range(len(path), 0, -1)]
        for place in around:
            if place in self.elsewhere:
                return self.elsewhere[place]
        for place in around:
            if place in self.lines:
                return f"{self.file}, line {self.lines[place]}"
        return self.file

    def moved(self, path: Path, words: str) -> YamlPositions:
        """These positions, with what stands at `path` written elsewhere."""
        return YamlPositions(self.file, self.lines, {**self.elsewhere, path: words})

    def error(self, *problems: ValidationProblem) -> ScenarioError:
        """The error that says all of these."""
        return ScenarioError([self._sentence(each) for each in problems])

    def refuse(self, path: Path, message: str) -> ScenarioError:
        """The error for one thing."""
        return self.error(ValidationProblem(path, message))

    def _sentence(self, each: ValidationProblem) -> str:
        key = dotted(each.path)
        text = f"{self.of(each.path)}: " + (f"{key}: " if key else "") + each.message
        return "".join(letter if letter.isprintable() else "?" for letter in text)


def find(document: Mapping[str, Any], dotted_key: str) -> Path:
    """The path that `dotted_key` means in `document`: keys may hold dots themselves, so the longest
    key that is there wins. What is not there yet is cut at its dots."""
    path: list[str] = []
    below: Any = document
    rest = dotted_key
    while rest:
        known = below if isinstance(below, Mapping) else {}
        fitting = [key for key in known if rest == key or rest.startswith(f"{key}.")]
        key = max(fitting, key=len) if fitting else rest.partition(".")[0]
        path.append(key)
        below = known.get(key)
        rest = rest[len(key) + 1 :]
    return tuple(path)


def replaced(document: Mapping[str, Any], path: Path, value: object) -> dict[str, Any]:
    """A copy of `document` with `value` at `path`; sections on the way are made if missing.

    Raises ValueError if something on the way is not a section.
    """
    key, *rest = path
    made = dict(document)
    if not rest:
        made[str(key)] = value
        return made
    below = made.get(str(key))
    if isinstance(below, str) and str(key) in _SHORT_FORMS:
        below = {_SHORT_FORMS[str(key)]: below}
    if below is not None and not isinstance(below, Mapping):
        raise ValueError(f"{dotted((key,))} is not a section")
    made[str(key)] = replaced(below or {}, tuple(rest), value)
    return made
