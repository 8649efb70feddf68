"""What pydantic complains of, in the words of a YAML file: the key, what was expected, what stands.

For any file whose parts are `Section`s: slacktide.yaml, and scenarios of the simulator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError

from slacktide.domain.options import OptionError
from slacktide.domain.suggestions import shown, suggestion
from slacktide.models.repository.errors import Problem
from slacktide.models.repository.fields import Section

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a word",
    "bool_type": "true or false",
    "tuple_type": "a list",
}

Path = tuple[int | str, ...]
"""Where a value stands in a document: keys and indices from the top."""


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    """One thing wrong with a document."""

    path: Path
    message: str

    @property
    def problem(self) -> Problem:
        return Problem(dotted(self.path), self.message)


def validation_problems(
    error: ValidationError, root: type[Section]
) -> tuple[ValidationProblem, ...]:
    """All that is wrong with a document that should have been a `root`, each thing once."""
    made = (_complaints(dict(details), root) for details in error.errors(include_url=False))
    return tuple(dict.fromkeys(chain.from_iterable(made)))


def dotted(path: Path) -> str:
    """`inputs.image.shape[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _complaints(details: dict[str, Any], root: type[Section]) -> Iterable[ValidationProblem]:
    path: Path = tuple(details["loc"])
    error = details.get("ctx", {}).get("error")
    if not isinstance(error, OptionError):
        return (_complaint(details, path, root),)
    return (ValidationProblem((*path, *name.split(".")), told) for name, told in error.problems)


def _complaint(details: dict[str, Any], path: Path, root: type[Section]) -> ValidationProblem:
    found, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return ValidationProblem(
            path, f"unknown key; {suggestion(str(path[-1]), _keys(path, root))}"
        )
    if kind == "missing":
        return ValidationProblem(path[:-1], f"expected a key {path[-1]!r}")
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context["expected"])
        hint = suggestion(str(found), valid)
        return ValidationProblem(
            path, f"expected {context['expected']}, got {shown(found)}; {hint}"
        )
    if kind == "value_error":
        return ValidationProblem(path, str(context["error"]))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return ValidationProblem(path, f"expected keys and values, got {shown(found)}")
    if kind == "string_pattern_mismatch":
        return ValidationProblem(path, f"expected 'cpu', 'cuda' or 'cuda:N', got {shown(found)}")
    expected = _TYPES.get(kind) or re.sub(r"^\w+ should (be|have) ", "", details["msg"])
    return ValidationProblem(path, f"expected {expected}, got {shown(found)}")


def _keys(path: Path, root: type[Section]) -> tuple[str, ...]:
    """The keys that are valid in the section in which the last key of `path` is not."""
    below: Any = root
    for part in path:
        below = _step(below, part)
    return tuple(key for kind in _sections(below) for key in kind.model_fields)


def _step(annotation: Any, part: int | str) -> Any:
    """The annotation of what stands under `part`; the section itself if it has no such key."""
    for kind in _alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, Section):
            field = kind.model_fields.get(str(part))
            return kind if field is None else field.annotation
        if get_origin(kind) is dict:
            return get_args(kind)[1]
        if get_origin(kind) in (tuple, list):
            return get_args(kind)[0]
    return None


def _alternatives(annotation: Any) -> Iterator[Any]:
    """An annotation without `Annotated`, and the parts of a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    elif annotation is not type(None):
        yield annotation


def _sections(annotation: Any) -> Iterator[type[Section]]:
    for kind in _alternatives(annotation):
        if isinstance(kind, type) and issubclass(kind, Section):
            yield kind
