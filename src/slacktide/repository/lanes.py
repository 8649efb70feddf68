"""Models that name the same lane must agree on it."""

from __future__ import annotations

from collections.abc import Iterable

from slacktide.repository.definition import ModelDefinition
from slacktide.repository.errors import Problem, SettingsError
from slacktide.repository.settings import ModelSettings
from slacktide.repository.settings_file import SETTINGS_FILE


def lane_disagreements(definitions: Iterable[ModelDefinition]) -> tuple[SettingsError, ...]:
    """An error for each model that names a lane which an earlier model states otherwise."""
    first: dict[str, ModelDefinition] = {}
    errors: dict[str, SettingsError] = {}
    for definition in definitions:
        lane = definition.settings.lane
        if lane is None:
            continue
        other = first.setdefault(lane, definition)
        ours, theirs = _place(definition.settings), _place(other.settings)
        if ours != theirs and other.name != definition.name:
            message = f"model {other.name!r} gives lane {lane!r} {theirs}, this one {ours}"
            where = f"{definition.name}/{SETTINGS_FILE}"
            errors.setdefault(definition.name, SettingsError(where, Problem("lane", message)))
    return tuple(errors.values())


def _place(settings: ModelSettings) -> str:
    cores = settings.cores
    if cores is None:
        return f"no cores of its own on {settings.device}"
    most = "all" if cores.max is None else str(cores.max)
    copies = settings.replicas
    place = f"{cores.min} to {most} cores on {settings.device}"
    if (copies.min, copies.max) != (1, 1):
        place += f" for {copies.min} to {copies.max} replicas"
    if settings.scaled:
        name, options = settings.planner
        stated = ", ".join(f"{key} {value}" for key, value in sorted(options.items()))
        place += f" scaled by {name}" + (f" ({stated})" if stated else "")
    return place
