"""`slacktide models check DIR`: everything that can be found wrong without serving."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from slacktide.repository.definition import ModelDefinition
from slacktide.repository.errors import ModelFileError, RepositoryError, only_fails
from slacktide.repository.interface import check_interface
from slacktide.repository.lanes import lane_disagreements
from slacktide.repository.onnx_file import OnnxFile
from slacktide.repository.repository import ListedModel, Repository


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
            file = OnnxFile(definition)
            file.check()
            if domains := file.custom_domains():
                message = f"operators of {', '.join(domains)} need a library that is not loaded"
                raise ModelFileError(definition.where, message)
            interface = file.interface(definition.settings.max_batch)
            if interface is None:
                message = "inputs or outputs of undeclared rank were not checked"
                where = definition.where
                yield Finding(definition.name, Severity.WARNING, f"{where}: {message}")
                return
            for warning in check_interface(definition, interface):
                yield Finding(definition.name, Severity.WARNING, warning)
    except RepositoryError as error:
        yield Finding(definition.name, Severity.ERROR, str(error))
