"""From the text of a slacktide.yaml to valid settings, or to an error for each wrong key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from slacktide.domain.suggestions import shown
from slacktide.models.repository.errors import SettingsError
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.validation_errors import validation_problems
from slacktide.models.repository.yaml_text import YamlError, parse_yaml

SETTINGS_FILE = "slacktide.yaml"
MAX_SETTINGS_BYTES = 64 * 1024

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
        problems = (each.problem for each in validation_problems(error, ModelSettings))
        raise SettingsError(where, *problems) from None
