"""`slacktide models check DIR`: everything that can be found wrong without serving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from slacktide.domain.tensors import ModelInterface
from slacktide.executors.onnx_file import OnnxFile
from slacktide.executors.onnx_runtime import ModelError
from slacktide.models.repository.definition import ModelDefinition
from slacktide.models.repository.errors import (
    ModelFileError,
    Problem,
    RepositoryError,
    SettingsError,
    only_fails,
)
from slacktide.models.repository.interface import check_interface
from slacktide.models.repository.repository import ListedModel, Repository
from slacktide.models.repository.settings import ModelSettings
from slacktide.models.repository.settings_file import SETTINGS_FILE


class Severity(Enum):
    ERROR = "error"
    """The model would not be served."""
    WARNING = "warning"
    """It would, but perhaps not as its owner thinks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found. `message` names the file relative to the repository."""

    model: str
    """Its name; empty for the repository as a whole."""
    severity: Severity
    message: str


def check_repository(root: Path) -> list[Finding]:
    """Folders, settings, config.pbtxt and the ONNX files of every model, in the order of names.

    An empty list: nothing is wrong. Never raises for what it finds. Loads onnx.
    """
    try:
        listed = Repository(root).scan()
    except RepositoryError as error:
        return [Finding("", Severity.ERROR, str(error))]
    if not listed:
        message = "no models: expected folders such as NAME/1/model.onnx"
        return [Finding("", Severity.WARNING, message)]
    findings = [finding for model in listed for finding in _model(model)]
    definitions = [definition for model in listed for definition in model.definitions]
    for lane in lane_disagreements(definitions):
        findings.append(Finding(lane.where.partition("/")[0], Severity.ERROR, str(lane)))
    return sorted(findings, key=lambda finding: finding.model)


def _model(listed: ListedModel) -> Iterator[Finding]:
    if listed.problem is not None:
        yield Finding(listed.name, Severity.ERROR, str(listed.problem))
    for number, definition in enumerate(listed.definitions):
        if number == 0:  # the same for every version
            for warning in definition.warnings:
                yield Finding(listed.name, Severity.WARNING, warning)
        yield from _version(definition)


def _version(definition: ModelDefinition) -> Iterator[Finding]:
    try:
        with only_fails(definition.where):
            interface = _declared(definition)
            if interface is None:
                message = "inputs or outputs of undeclared rank were not checked"
                where = definition.where
                yield Finding(definition.name, Severity.WARNING, f"{where}: {message}")
                return
            for warning in check_interface(definition, interface):
                yield Finding(definition.name, Severity.WARNING, warning)
    except RepositoryError as error:
        yield Finding(definition.name, Severity.ERROR, str(error))


def _declared(definition: ModelDefinition) -> ModelInterface | None:
    """What the model file declares; None if that is not all. Raises ModelFileError."""
    try:
        file = OnnxFile(definition.model_path, definition.data_root)
        file.check_rules()
        if domains := file.custom_domains():
            raise ModelError(f"operators of {', '.join(domains)} need a library that is not loaded")
        return file.interface(definition.settings.max_batch)
    except ModelError as error:
        raise ModelFileError(definition.where, str(error)) from None


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
