"""`--config FILE`: flags from a YAML file, below the environment and the command line."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import typer
import yaml

from slacktide.cli.output import fail


def values_from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take defaults from a YAML file whose keys are the flags without dashes in front.

    A callback of an eager option. Ends the program for a file or a key that cannot be used.
    """
    if path is None:
        return None
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        fail(f"--config: {error}")
    if not isinstance(document, dict):
        fail("--config: expected a mapping of flags to values")
    known = {
        name.lstrip("-"): parameter.name
        for parameter in context.command.params
        for name in parameter.opts
        if name.startswith("--")
    }
    unknown = [key for key in document if str(key).replace("_", "-") not in known]
    if unknown:
        near = get_close_matches(str(unknown[0]).replace("_", "-"), known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        fail(f"--config: unknown key {unknown[0]!r}{hint}")
    values = {known[str(key).replace("_", "-")]: value for key, value in document.items()}
    context.default_map = {**(context.default_map or {}), **values}
    return path
