"""Extensions: what other distributions add by name, and what an operator names as `module:name`.

Every extension point finds its extensions here, in entry points of the group `slacktide.POINT`:
`schedulers`, `planners` (scaling policies), `placements`, `glue`, `verbs`, `arrivals` and, for
papers, `publications`. None is imported before it is named. `module:name` imports whatever it
names, so only the command line and the Python API may say it, and files under `--allow-imports`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from slacktide._version import __version__

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_PLACE = re.compile(r"[\w.]+:[\w.]+")
OURS = ("slacktide-papers",)
"""Our other distributions, which must be of our version."""


class ExtensionError(Exception):
    """An extension that cannot be used. The text begins with its name."""


class Extension(NamedTuple):
    """One name of an extension point."""

    name: str
    points: tuple[EntryPoint, ...] = ()
    """None: the name is `module:name`. Several: distributions contradict each other."""

    @property
    def origin(self) -> str:
        """The distributions that register it, such as `shop-policies 1.0`."""
        return " and ".join(map(_origin, self.points)) or self.name

    @property
    def target(self) -> str:
        """`module:name`. Raises ExtensionError if several distributions register the name, or
        ours does in another version than this."""
        if not self.points:
            return self.name
        if len(self.points) > 1:
            origins = " and ".join(f"{_origin(each)} ({each.value})" for each in self.points)
            told = f"is registered by two distributions, {origins}; uninstall one of them"
            raise ExtensionError(f"{self.name!r} {told}")
        (point,) = self.points
        if point.dist is not None and (why := _mismatch(point.dist.name, point.dist.version)):
            raise ExtensionError(f"{self.name!r} cannot be used: {why}")
        return point.value.partition("[")[0].strip()  # extras say what to install

    def load(self) -> Any:
        """Import it. Raises ExtensionError."""
        try:
            return import_named(self.target) if self.points else load_named(self.name)
        except ExtensionError:
            raise
        except (Exception, SystemExit) as error:  # it is foreign code that ran
            place = f" ({self.target} of {self.origin})" if self.points else ""
            told = f"{self.name!r}{place} cannot be used: {type(error).__name__}: {error}"
            raise ExtensionError(told) from error


@cache
def installed(extension_point: str) -> Mapping[str, Extension]:
    """Every name that installed distributions register for an extension point."""
    from importlib.metadata import entry_points  # slow: only where a name is not ours

    points: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=f"slacktide.{extension_point}"):
        points.setdefault(point.name, {}).setdefault(_origin(point), point)
    return {name: Extension(name, tuple(found.values())) for name, found in points.items()}


def find_extension(extension_point: str, name: str) -> Extension | None:
    """What a word of the command line names: an installed name, or `module:name`."""
    if _PLACE.fullmatch(name):
        return Extension(name)
    return installed(extension_point).get(name)


def import_named(target: str) -> Any:
    """What `module:name` names. Raises whatever importing it raises."""
    module, _, path = target.partition(":")
    return attrgetter(path)(import_module(module))


def load_named(target: str) -> Any:
    """Like `import_named`, but also finds modules in the working folder."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there hides an installed module
    return import_named(target)


def mismatches() -> list[str]:
    """A sentence for each of our distributions that is installed in another version than this."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in OURS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return [why for name, number in versions.items() if (why := _mismatch(name, number))]


def _mismatch(name: str, version: str) -> str:
    """Why a distribution does not fit this one; empty if it does."""
    if name not in OURS or version == __version__:
        return ""
    return f"{name} {version} does not fit slacktide {__version__}; install both of one version"


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"
