"""From the text of a slacktide.yaml to valid settings, or to an error for each wrong key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from slacktide.repository.errors import Problem, SettingsError
from slacktide.repository.nearest import shown, suggestion
from slacktide.repository.schedulers import SCHEDULERS, Section
from slacktide.repository.settings import Cores, InputSettings, Limits, ModelSettings, Versions
from slacktide.repository.yaml_text import YamlError, parse_yaml

SETTINGS_FILE = "slacktide.yaml"
MAX_SETTINGS_BYTES = 64 * 1024

_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "a word",
    "bool_type": "true or false",
    "tuple_type": "a list",
}
"""What pydantic's complaints about types ask for, in the words of a YAML file."""

Document = Mapping[str, Any]
"""The keys of a settings file as written, not yet validated."""


def parse_settings(data: bytes, *, where: str) -> Document:
    """The document in a settings file, known to be valid by itself. Raises SettingsError."""
    try:
        document = parse_yaml(data.decode())
    except (YamlError, UnicodeDecodeError) as error:
        reason = "expected UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise SettingsError(where, reason) from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingsError(where, f"expected keys and values, got {shown(document)}")
    validate_settings(document, where=where)
    return document


def validate_settings(document: Document, *, where: str) -> ModelSettings:
    """The settings a document states. Raises SettingsError with every problem in it."""
    try:
        return ModelSettings.model_validate(document)
    except ValidationError as error:
        problems = (_problem(dict(details)) for details in error.errors(include_url=False))
        raise SettingsError(where, *dict.fromkeys(problems)) from None


def _problem(details: dict[str, Any]) -> Problem:
    """One of pydantic's complaints, in our words."""
    location, found = tuple(details["loc"]), details["input"]
    kind, context = details["type"], details.get("ctx", {})
    field = _dotted(location)
    if kind == "extra_forbidden":
        hint = suggestion(str(location[-1]), _keys(location[:-1]))
        return Problem(field, f"unknown key; {hint}")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        given = context.get("tag", "")
        hint = suggestion(given, SCHEDULERS)
        return Problem(f"{field}.name", f"expected a scheduler, got {given!r}; {hint}")
    if kind == "literal_error":
        valid = re.findall(r"'([^']*)'", context["expected"])
        hint = suggestion(str(found), valid)
        return Problem(field, f"expected {context['expected']}, got {shown(found)}; {hint}")
    if kind == "value_error":
        return Problem(field, str(context["error"]))
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return Problem(field, f"expected keys and values, got {shown(found)}")
    if kind == "string_pattern_mismatch":
        return Problem(field, f"expected 'cpu', 'cuda' or 'cuda:N', got {shown(found)}")
    expected = _TYPES.get(kind) or re.sub(r"^\w+ should (be|have) ", "", details["msg"])
    return Problem(field, f"expected {expected}, got {shown(found)}")


def _dotted(location: tuple[int | str, ...]) -> str:
    """`inputs.image.shape[0]`; the policy's name, which pydantic puts in, is left out."""
    if location[:1] == ("scheduler",):
        location = location[:1] + location[2:]
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _keys(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys that are valid at this place."""
    sections: dict[str, type[Section]] = {"cores": Cores, "limits": Limits, "versions": Versions}
    match location:
        case ():
            section: type[Section] = ModelSettings
        case ("scheduler", str(name)):
            section = SCHEDULERS[name]
        case ("inputs", _):
            section = InputSettings
        case (str(name), *_):
            section = sections[name]
        case _:
            return ()
    return tuple(section.model_fields)
