"""From the text of a slacktide.yaml to valid settings, or to an error for each wrong key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from slacktide.domain.suggestions import shown
from slacktide.models.repository.errors import ModelConfigError, Problem, SettingsError
from slacktide.models.repository.fields import name_to_section
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.triton.translate import Translation
from slacktide.models.repository.validation_errors import validation_problems
from slacktide.models.repository.yaml_text import YamlError, parse_yaml
from slacktide.scheduling import DEFAULT_POLICY

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


_DEEP = ("limits", "inputs", "outputs")
"""Keys whose parts are overridden one by one; every other key is replaced as a whole."""


def merge(
    own: Document,
    config: Translation,
    defaults: Document,
    *,
    own_where: str,
    config_where: str,
) -> ModelSettings:
    """The settings in effect.

    `own` and `defaults` are valid by themselves. Raises ModelConfigError if the configuration is
    not, and SettingsError if the three contradict each other.
    """
    try:
        validate_settings({**config.settings, **config.not_fifo}, where=config_where)
    except SettingsError as error:
        problems = (Problem(p.field, f"(as it amounts to) {p.message}") for p in error.problems)
        raise ModelConfigError(config_where, *problems) from None
    scheduler = _scheduler(own, config, defaults)
    standing_in = {} if scheduler["name"] == "fifo" else config.not_fifo
    document: dict[str, Any] = {}
    for layer in (defaults, config.settings, standing_in, own):
        document = _over(layer, document)
    return validate_settings({**document, "scheduler": scheduler}, where=own_where)


def warn_unused(settings: ModelSettings, config: Translation, *, where: str) -> tuple[str, ...]:
    """Sentences on what is stated in vain: delays of batches, which only `fifo` has, and replicas
    on a device, which runs one batch at a time."""
    found: tuple[str, ...] = ()
    if not settings.on_cpu and (count := settings.replicas.min) > 1:
        reason = f"{settings.device} runs one batch at a time"
        found = (f"replicas: {count} are stated, and one serves: {reason}",)
    if settings.scheduler.name == "fifo" or not {"max_delay", "preferred"} & config.fifo.keys():
        return found
    return (
        *found,
        f"{where}: the delay and preferred sizes of dynamic_batching have no effect under the "
        f"scheduler {settings.scheduler.name!r}; state 'scheduler: fifo' to have them",
    )


def _over(layer: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """`layer` laid over `below`, the keys of `_DEEP` part by part and those below them too."""
    merged = dict(below)
    for key, value in layer.items():
        merged[key] = _deep(value, merged.get(key)) if key in _DEEP else value
    return merged


def _deep(value: Any, below: Any) -> Any:
    if not (isinstance(value, Mapping) and isinstance(below, Mapping)):
        return value
    return {**below, **{key: _deep(inner, below.get(key)) for key, inner in value.items()}}


def _scheduler(own: Document, config: Translation, defaults: Document) -> dict[str, Any]:
    """The chosen policy with its options, of which only those of the same policy are merged."""
    layers = [
        name_to_section(defaults.get("scheduler", {})),
        {"name": "fifo", **config.fifo},
        name_to_section(own.get("scheduler", {})),
    ]
    stated = [layer["name"] for layer in (layers[2], layers[0]) if "name" in layer]
    name = stated[0] if stated else DEFAULT_POLICY
    merged: dict[str, Any] = {}
    for layer in layers:
        if layer.get("name") == name:
            merged |= layer
    return {**merged, "name": name}
