"""Arguments that verbs share, checks of paths, and cleaning of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

if TYPE_CHECKING:
    from slacktide.models.repository.repository import ModelDefinition, Repository

ModelPath = Annotated[
    Path, typer.Argument(help="A model's folder, e.g. models/residual, or one ONNX file.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder for results if the model's folder is read-only.",
        envvar="SLACKTIDE_STATE_DIR",
    ),
]

_LINK = re.compile(r"(?:tcp|udp|sctp)://")


def open_model(
    model: Path, state_dir: Path | None
) -> tuple[Repository, str, tuple[ModelDefinition, ...]]:
    """The repository of a model's folder or file, and the model's name and served versions. Raises
    RepositoryError."""
    from slacktide.models.repository.single_model import SingleModel, open_repository

    folder = model.absolute() if model.is_file() else model.resolve()
    repository = open_repository(folder if folder.is_file() else folder.parent, state_dir)
    name = repository.model if isinstance(repository, SingleModel) else folder.name
    return repository, name, repository.read(name)


def take_service_links() -> list[str]:
    """Remove from the environment our port and host variables that hold a Service's address.
    Returns the removed variables as NAME=VALUE.

    For a Service named `slacktide-metrics`, Kubernetes sets
    `SLACKTIDE_METRICS_PORT=tcp://10.0.0.7:8002` in each pod, as Docker's links do.
    """
    links = [
        name
        for name, value in os.environ.items()
        if name.startswith("SLACKTIDE_")
        and name.endswith(("_PORT", "_HOST"))
        and _LINK.match(value)
    ]
    return [f"{name}={os.environ.pop(name)}" for name in sorted(links)]


def check_paths(command: Any) -> None:
    """Make all arguments and options that are paths refuse empty values and URLs."""
    for subcommand in getattr(command, "commands", {}).values():
        check_paths(subcommand)
    if command.callback is None:
        return
    hints = get_type_hints(command.callback)
    for parameter in command.params:
        hint = hints.get(parameter.name)
        if {hint, *get_args(hint)} & {Path, list[Path]}:
            parameter.process_value = partial(_path_value, parameter.process_value)


def _path_value(convert: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    from slacktide.models.repository.paths import local_path

    for path in value if isinstance(value, list | tuple) else (value,):
        if isinstance(path, str):
            try:
                local_path(path)
            except ValueError as error:
                raise typer.BadParameter(str(error)) from None
    return convert(context, value)
