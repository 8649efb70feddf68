"""Schedulers, planners, placements and glue that others wrote: from entry points, and as
`module:Class`.

An installed package registers its own under `slacktide.schedulers`, `slacktide.planners`,
`slacktide.placements` or `slacktide.glue`; they are named like those that are built in, wherever a
name may stand. `module:Class` imports whatever it names: the command line, the Python API, and
scenarios that were given `--allow-imports` may say it, a file of a repository never.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from slacktide.domain.options import OptionError
from slacktide.domain.registry import Registry
from slacktide.domain.suggestions import suggestion
from slacktide.executors.functions import load_named
from slacktide.planning.pipelines.policies import PLACEMENTS
from slacktide.planning.scaling.planners import PLANNERS
from slacktide.scheduling import POLICIES


@cache
def offer_entry_points() -> None:
    """Make the names of entry points valid. None is imported before it is named."""
    from importlib.metadata import entry_points  # slow: only once a model is read

    registries: tuple[Registry[Any], ...] = (POLICIES, PLANNERS, PLACEMENTS)
    for registry in registries:
        points = entry_points(group=f"slacktide.{registry.kind}s")
        for point in points:
            homes = {other.value for other in points if other.name == point.name}
            load = point.load if len(homes) == 1 else partial(_ambiguous, sorted(homes))
            registry.offer(point.name, load)


def _ambiguous(homes: Sequence[str]) -> Any:
    raise ValueError(f"several installed packages register it: {', '.join(homes)}")


def admit_all() -> None:
    """Make every name valid in this process, `module:Class` included: for recordings that are
    replayed under `--allow-imports`."""
    POLICIES.importer = PLANNERS.importer = PLACEMENTS.importer = load_named


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
    registry.offer(name, partial(load_named, name))


_GLUE: dict[str, str] = {}


def offer_glue(name: str, target: str) -> None:
    """Have `name` mean a function of the server's owner, `module:function`, which is imported here
    to see that it is there. Raises OptionError."""
    try:
        if not callable(load_named(target)):
            raise TypeError("it cannot be called")
    except Exception as error:  # it is foreign code that ran
        told = f"{name}: {target!r} cannot be used: {type(error).__name__}: {error}"
        raise OptionError(("glue", told)) from error
    _GLUE[name] = target


def glue_target(name: str) -> str:
    """What `domain.crops.Glue` calls the function of this name, `module:function`: one that the
    server's owner named, or an entry point. Workers import it. Raises OptionError if there is no
    such name: a file of a repository cannot name a module."""
    from importlib.metadata import entry_points

    known = {point.name: point.value for point in entry_points(group="slacktide.glue")} | _GLUE
    if name not in known:
        told = f"expected the name of a glue function, got {name!r}"
        raise OptionError(("function", f"{told}; {suggestion(name, sorted(known))}"))
    return known[name]
