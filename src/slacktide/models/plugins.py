"""Schedulers, scaling policies, placements and glue functions of other packages, by name.

An installed package registers entry points under `slacktide.schedulers`,
`slacktide.scaling_policies`, `slacktide.placements` or `slacktide.glue`. Their names are valid
wherever built-in names are. `module:Class` imports any class: only the command line, the Python
API, and scenarios run with `--allow-imports` may use it, never a file of a repository.
"""

from __future__ import annotations

import logging
from functools import cache, partial
from typing import Any

from slacktide._extensions import Extension, ExtensionError, installed, load_named, mismatches
from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registry
from slacktide.domain.suggestions import suggestion
from slacktide.planning.pipelines.policies import PLACEMENTS
from slacktide.planning.scaling.policies import SCALING_POLICIES
from slacktide.scheduling import POLICIES

log = logging.getLogger("slacktide.extensions")

_REGISTRIES: tuple[Registry[Any], ...] = (POLICIES, SCALING_POLICIES, PLACEMENTS)


def offer_entry_points() -> None:
    """Make the names of entry points valid. Each is imported when it is first named."""
    for registry in _REGISTRIES:
        offer_installed(registry)


def offer_installed(registry: Registry[Any]) -> None:
    """Make the names of entry points valid in one registry."""
    warn_of_mismatches()
    for name, extension in installed(registry.group).items():
        registry.offer(name, partial(_load, registry.kind, extension))


@cache
def warn_of_mismatches() -> None:
    """Warn once about our other distributions whose version differs from this one."""
    for mismatch in mismatches():
        log.warning("%s; until then it cannot be used", mismatch)


def _load(kind: str, extension: Extension) -> Any:
    """Import an extension. Raises OptionError."""
    try:
        return extension.load()
    except ExtensionError as error:
        raise OptionError(("name", f"{kind} {error}")) from error


def admit_all() -> None:
    """Make every name valid in this process, including `module:Class`, to replay recordings under
    `--allow-imports`."""
    for registry in _REGISTRIES:
        registry.importer = load_named


def admit_name(registry: Registry[Any], name: str, *, imports: bool) -> None:
    """Make `name` valid if it is an entry point, or `module:Class` and `imports` is true. Raises
    OptionError for `module:Class` without `imports`."""
    offer_installed(registry)
    if ":" not in name:
        return
    if not imports:
        why = "a file may only name built-in policies and installed entry points"
        flag = "only the command line, or a scenario with --allow-imports, may name a class"
        raise OptionError(("name", f"{name!r} would import code; {why}; {flag}"))
    registry.offer(name, partial(_load, registry.kind, Extension(name)))


_GLUE: dict[str, str] = {}


def offer_glue(name: str, target: str) -> None:
    """Register a glue function or a class with a method `predict`, as `module:name`, and import it
    to check it. Raises OptionError."""
    try:
        function = load_named(target)
        if isinstance(function, type):
            function = getattr(function, "predict", None)
        if not callable(function):
            raise TypeError("expected a function, or a class with a method 'predict'")
    except (Exception, SystemExit) as error:  # foreign code ran
        message = f"{name}: {target!r} cannot be used: {type(error).__name__}: {error}"
        raise OptionError(("glue", message)) from error
    _GLUE[name] = target


def glue_names() -> list[str]:
    """Return the names of all glue functions, for hints."""
    return sorted({*installed("glue"), *_GLUE})


def glue_target(name: str) -> str:
    """Return the `module:function` of a glue function, registered by `offer_glue` or an entry
    point, for workers to import. Raises OptionError for unknown names: files of a repository cannot
    name modules."""
    extensions = installed("glue")
    if name in _GLUE:
        return _GLUE[name]
    if name not in extensions:
        message = f"expected the name of a glue function, got {name!r}"
        raise OptionError(("function", f"{message}; {suggestion(name, glue_names())}"))
    try:
        return extensions[name].target
    except ExtensionError as error:
        raise OptionError(("function", f"glue function {error}")) from error
