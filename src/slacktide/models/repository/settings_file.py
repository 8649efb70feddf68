"""Reads a slacktide.yaml into valid settings, or an error for each wrong key.

Errors of pydantic are reworded for YAML files: the key, the expected value, the value found. This
works for any file of pydantic's models, such as scenarios of the simulator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from slacktide.domain.options import OptionError
from slacktide.domain.suggestions import shown, suggestion
from slacktide.models.repository.errors import ModelConfigError, Problem, SettingsError
from slacktide.models.repository.fields import name_to_section
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.triton.translate import Translation
from slacktide.models.repository.yaml_text import YamlError, parse_yaml
from slacktide.scheduling import DEFAULT_POLICY

SETTINGS_FILE = "slacktide.yaml"
MAX_SETTINGS_BYTES = 64 * 1024

Document = Mapping[str, Any]
"""The keys of a settings file as written, not yet validated."""


def parse_settings(data: bytes, *, where: str) -> Document:
    """Return the document in a settings file, validated on its own. Raises SettingsError."""
    document = parse_document(data, where=where)
    validate_settings(document, where=where)
    return document


def parse_document(data: bytes, *, where: str) -> Document:
    """Return the keys and values in a file, not yet validated. Raises SettingsError."""
    try:
        document = parse_yaml(data.decode("utf-8-sig"))
    except (YamlError, UnicodeDecodeError) as error:
        reason = "expected UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise SettingsError(where, reason) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(where, f"expected keys and values, got {shown(document)}")
    return document


def validate_settings(document: Document, *, where: str) -> ModelSettings:
    """Return the settings in a document. Raises SettingsError with all its problems."""
    try:
        return ModelSettings.model_validate(document)
    except ValidationError as error:
        problems = (problem.problem for problem in validation_problems(error, ModelSettings))
        raise SettingsError(where, *problems) from None


_MERGED_KEYS = ("limits", "inputs", "outputs")
"""Keys that are merged part by part; others are replaced as a whole."""


def merge(
    own_settings: Document, config: Translation, *, own_where: str, config_where: str
) -> ModelSettings:
    """Return the settings in effect. `own_settings` must be valid on its own. Raises
    ModelConfigError if `config` is invalid, and SettingsError if the two contradict each other."""
    try:
        validate_settings({**config.settings, **config.not_fifo}, where=config_where)
    except SettingsError as error:
        problems = (
            Problem(p.field, f"(translated to {SETTINGS_FILE}) {p.message}") for p in error.problems
        )
        raise ModelConfigError(config_where, *problems) from None
    scheduler = {"name": DEFAULT_POLICY, **name_to_section(own_settings.get("scheduler", {}))}
    document = dict(config.settings)
    if scheduler["name"] == "fifo":
        scheduler = {**config.fifo, **scheduler}
    else:
        document |= config.not_fifo
    for key, value in own_settings.items():
        document[key] = _merged(value, document.get(key)) if key in _MERGED_KEYS else value
    return validate_settings({**document, "scheduler": scheduler}, where=own_where)


def warn_unused(settings: ModelSettings, config: Translation, *, where: str) -> tuple[str, ...]:
    """Return warnings about settings without effect: delays of batches without `fifo`, several
    replicas on a device, and early exits without a worker."""
    warnings: tuple[str, ...] = ()
    if settings.early_exit is not None and settings.exits is None:
        warnings = (f"early_exit: has no effect with 'executor: {settings.executor}'",)
    if not settings.on_cpu and (count := settings.replicas.min) > 1:
        reason = f"{settings.device} runs one batch at a time"
        warnings += (f"replicas: only one of {count} is used: {reason}",)
    if settings.scheduler.name == "fifo" or not {"max_delay", "preferred"} & config.fifo.keys():
        return warnings
    return (
        *warnings,
        f"{where}: the delay and preferred sizes of dynamic_batching have no effect under the "
        f"scheduler {settings.scheduler.name!r}; state 'scheduler: fifo' to use them",
    )


def _merged(value: Any, below: Any) -> Any:
    """Merge `value` over `below`, recursively."""
    if not (isinstance(value, Mapping) and isinstance(below, Mapping)):
        return value
    return {**below, **{key: _merged(inner, below.get(key)) for key, inner in value.items()}}


_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
}

_SHORT_FORMS = {
    "cores": "a whole number, or keys such as {min: 1, max: 4}",
    "replicas": "a whole number, or keys such as {min: 1, max: 4}",
    "versions": "all, a list such as [1, 2], or a key such as {latest: 2}",
    "variants": "a list of sizes such as [224, 320], or keys and values",
}
"""Expected values of keys whose sections have a short form."""

Model = type[BaseModel]
Path = tuple[int | str, ...]
"""Place of a value in a document: keys and indices from the top."""


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    """A problem in a document."""

    path: Path
    message: str

    @property
    def problem(self) -> Problem:
        return Problem(dotted(self.path), self.message)


def validation_problems(error: ValidationError, root: Model) -> tuple[ValidationProblem, ...]:
    """Return all problems of a document that should be a `root`, without repetitions."""
    problems = (_problems(dict(details), root) for details in error.errors(include_url=False))
    return tuple(dict.fromkeys(chain.from_iterable(problems)))


def dotted(path: Path) -> str:
    """Return the path as text, such as `inputs.image.shape[0]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _problems(details: dict[str, Any], root: Model) -> Iterable[ValidationProblem]:
    path: Path = tuple(part for part in details["loc"] if part != "[key]")
    error = details.get("ctx", {}).get("error")
    if not isinstance(error, OptionError):
        problem = _problem(details, path, root)
        return () if problem is None else (problem,)
    return (ValidationProblem((*path, *name.split(".")), text) for name, text in error.problems)


def _problem(details: dict[str, Any], path: Path, root: Model) -> ValidationProblem | None:
    """Return the problem; None if another problem covers it."""
    value, kind, context = details["input"], details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        return ValidationProblem(
            path, f"unknown key; {suggestion(str(path[-1]), _keys(path, root))}"
        )
    if kind == "missing":
        return ValidationProblem(path[:-1], f"expected a key {path[-1]!r}")
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context["expected"])
        hint = suggestion(str(value), valid)
        return ValidationProblem(
            path, f"expected {context['expected']}, got {shown(value)}; {hint}"
        )
    if kind == "value_error":
        return ValidationProblem(path, str(context["error"]))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        expected = _SHORT_FORMS.get(str(path[-1]) if path else "", "keys and values")
        return ValidationProblem(path, f"expected {expected}, got {shown(value)}")
    if kind == "tuple_type" and isinstance(value, str | int | float):
        return ValidationProblem(path, f"expected a list such as [{value}], got {shown(value)}")
    if kind == "string_pattern_mismatch":
        return ValidationProblem(path, f"expected 'cpu', 'cuda' or 'cuda:N', got {shown(value)}")
    if kind in ("too_short", "too_long") and isinstance(value, Collection):
        least, most = context.get("min_length", 0), context.get("max_length", math.inf)
        if least <= len(value) <= most:
            return None  # wrong items were left out, and reported
        expected = f"at least {least}" if len(value) < least else f"at most {most}"
        return ValidationProblem(path, f"expected {expected}, got {len(value) or 'none'}")
    expected = _TYPES.get(kind) or re.sub(r"^\w+ should (be|have) ", "", details["msg"])
    return ValidationProblem(path, f"expected {expected}, got {shown(value)}")


def _keys(path: Path, root: Model) -> tuple[str, ...]:
    """Return the valid keys of the section in which the last key of `path` is unknown."""
    below: Any = root
    for part in path:
        below = _step(below, part)
    return tuple(
        field.alias or key
        for kind in _alternatives(below)
        if _is_section(kind)
        for key, field in kind.model_fields.items()
    )


def _step(annotation: Any, part: int | str) -> Any:
    """Return the annotation under `part`; the section itself if it lacks the key."""
    for kind in _alternatives(annotation):
        if _is_section(kind):
            fields = {field.alias or key: field for key, field in kind.model_fields.items()}
            return fields[str(part)].annotation if part in fields else kind
        if get_origin(kind) is dict:
            return get_args(kind)[1]
        if get_origin(kind) in (tuple, list):
            return get_args(kind)[0]
    return None


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Yield an annotation without `Annotated`, or the parts of a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    elif annotation is not type(None):
        yield annotation


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
