"""Finds extensions: those that other distributions register, and those named as `module:name`.

Extensions are entry points of the group `slacktide.POINT`, where POINT is `schedulers`,
`scaling_policies`, `placements`, `glue`, `verbs`, `arrivals` or, for papers, `publications`. They
are imported only when named. `module:name` imports arbitrary code, so it is accepted only on the
command line, in the Python API, and in files under `--allow-imports`.
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
"""Our other distributions, which must have our version."""


class ExtensionError(Exception):
    """An extension that cannot be used. The message begins with its name."""


class Extension(NamedTuple):
    """An extension, by its name at an extension point."""

    name: str
    points: tuple[EntryPoint, ...] = ()
    """Its entry points: none if the name is `module:name`, several if distributions conflict."""

    @property
    def origin(self) -> str:
        """The distributions that register the extension, such as `shop-policies 1.0`; without any,
        its name."""
        return " and ".join(map(_origin, self.points)) or self.name

    @property
    def target(self) -> str:
        """Its `module:name`. Raises ExtensionError if several distributions register the name, or
        if the distribution that registers it is one of ours but has a different version."""
        if not self.points:
            return self.name
        if len(self.points) > 1:
            origins = " and ".join(f"{_origin(point)} ({point.value})" for point in self.points)
            problem = f"is registered by two distributions, {origins}; uninstall one of them"
            raise ExtensionError(f"{self.name!r} {problem}")
        (point,) = self.points
        if point.dist is not None and (why := _mismatch(point.dist.name, point.dist.version)):
            raise ExtensionError(f"{self.name!r} cannot be used: {why}")
        return point.value.partition("[")[0].strip()  # without extras

    def load(self) -> Any:
        """Import the extension. Raises ExtensionError."""
        try:
            return import_named(self.target) if self.points else load_named(self.name)
        except ExtensionError:
            raise
        except (Exception, SystemExit) as error:  # foreign code may raise anything
            place = f" ({self.target} of {self.origin})" if self.points else ""
            problem = f"cannot be used: {type(error).__name__}: {error}"
            raise ExtensionError(f"{self.name!r}{place} {problem}") from error


@cache
def installed(extension_point: str) -> Mapping[str, Extension]:
    """The extensions that installed distributions register for an extension point, by name."""
    from importlib.metadata import entry_points  # slow, and needed only for names that are not ours

    points: dict[str, dict[str, EntryPoint]] = {}
    for point in entry_points(group=f"slacktide.{extension_point}"):
        points.setdefault(point.name, {}).setdefault(_origin(point), point)
    return {name: Extension(name, tuple(origins.values())) for name, origins in points.items()}


def find_extension(extension_point: str, name: str) -> Extension | None:
    """The extension installed under this name, or the one that `module:name` denotes; None if there
    is none."""
    if _PLACE.fullmatch(name):
        return Extension(name)
    return installed(extension_point).get(name)


def import_named(target: str) -> Any:
    """Import `module:name`. Raises whatever the import raises."""
    module, _, path = target.partition(":")
    return attrgetter(path)(import_module(module))


def load_named(target: str) -> Any:
    """Like `import_named`, but also finds modules in the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that nothing there shadows an installed module
    return import_named(target)


def mismatches() -> list[str]:
    """A message for each of our other distributions whose version differs from ours."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in OURS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return [why for name, number in versions.items() if (why := _mismatch(name, number))]


def _mismatch(name: str, version: str) -> str:
    """Why a distribution does not match our version; empty if it does."""
    if name not in OURS or version == __version__:
        return ""
    problem = f"{name} {version} does not match slacktide {__version__}"
    return f"{problem}; install the same version of both"


def _origin(point: EntryPoint) -> str:
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"
