"""Where the control groups of this process are, version 1 and 2 alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class ControlGroup(NamedTuple):
    """One group that this process is in."""

    folder: Path
    unified: bool
    """Version 2; its files have other names than those of version 1."""


def control_groups(controller: str, *, root: Path = ROOT) -> Iterator[ControlGroup]:
    """This process's groups for `controller` (`cpu`, `memory`), innermost first, then all above.

    Folders that cannot be seen are among them; reading from those gives nothing. `root` is for
    tests.
    """
    groups = _own_groups(root)
    for mount, kind, options in _mounts(root):
        if kind == "cgroup2":
            own = groups.get("")
        elif kind == "cgroup" and controller in options:
            own = groups.get(controller)
        else:
            continue
        # Within a container the path may be the host's and lead nowhere; the mount itself is then
        # the container's group, and it is the last step of the walk in any case.
        path = Path((own or "/").strip("/"))
        for part in [path, *path.parents]:
            yield ControlGroup(mount / part, kind == "cgroup2")


def read_text(path: Path) -> str:
    """A small file of /proc or /sys, stripped; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def fields_of(text: str) -> dict[str, int]:
    """Name → number, of lines that begin with both."""
    found = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[1].isdecimal():
            found[parts[0]] = int(parts[1])
    return found


def number_in(path: Path) -> int | None:
    """The number in a file; None if there is none (`max`, no such file)."""
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> this process's group; the v2 hierarchy has the empty name."""
    groups = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _mounts(root: Path) -> Iterator[tuple[Path, str, list[str]]]:
    for line in read_text(root / "proc/self/mounts").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] in ("cgroup", "cgroup2"):
            yield root / fields[1].lstrip("/"), fields[2], fields[3].split(",")
