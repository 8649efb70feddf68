"""Schedulers and planners that others wrote: from entry points, and as `module:Class`.

An installed package registers its own under `slacktide.schedulers` or `slacktide.planners`; they
are named like those that are built in, wherever a name may stand. `module:Class` imports whatever
it names: the command line, the Python API, and scenarios that were given `--allow-imports` may say
it, a file of a repository never.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from importlib import import_module
from operator import attrgetter
from typing import Any

from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registry
from slacktide.planning.scaling.planners import PLANNERS
from slacktide.scheduling import POLICIES


@cache
def offer_entry_points() -> None:
    """Make the names of entry points valid. None is imported before it is named."""
    from importlib.metadata import entry_points  # slow: only once a model is read

    registries: tuple[Registry[Any], ...] = (POLICIES, PLANNERS)
    for registry in registries:
        for point in entry_points(group=f"slacktide.{registry.kind}s"):
            registry.offer(point.name, point.load)


def admit_all() -> None:
    """Make every name valid in this process, `module:Class` included: for recordings that are
    replayed under `--allow-imports`."""
    POLICIES.importer = PLANNERS.importer = _imported


def admit_name(registry: Registry[Any], name: str, *, imports: bool) -> None:
    """Make `name` valid if it is that of an entry point, or `module:Class` and `imports` holds.
    Raises OptionError for `module:Class` where it must not be imported."""
    offer_entry_points()
    if ":" not in name:
        return
    if not imports:
        why = "a file names what is built in or an installed entry point"
        flag = "only the command line, or a scenario under --allow-imports, may name a class"
        raise OptionError(("name", f"{name!r} would import code: {why}; {flag}"))
    registry.offer(name, partial(_imported, name))


def _imported(name: str) -> Any:
    module, _, path = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there hides an installed module
    return attrgetter(path)(import_module(module))
