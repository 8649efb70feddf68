"""Control groups of this process, versions 1 and 2, and its memory: how much is available, how much
is used, and a limit."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class ControlGroup(NamedTuple):
    """One group that this process is in."""

    folder: Path
    unified: bool
    """Whether the group is of version 2, whose files have other names."""


def control_groups(controller: str, *, root: Path = ROOT) -> Iterator[ControlGroup]:
    """This process's groups for `controller` (`cpu`, `memory`), from the innermost outwards.

    Some folders may be invisible; reading from them gives nothing. `root` is for tests.
    """
    groups = _own_groups(root)
    for mount, kind, options in _mounts(root):
        if kind == "cgroup2":
            group = groups.get("")
        elif kind == "cgroup" and controller in options:
            group = groups.get(controller)
        else:
            continue
        # In a container the path may be the host's and not exist here. Then the mount itself, where
        # the walk ends, is the container's group.
        path = Path((group or "/").strip("/"))
        for part in [path, *path.parents]:
            yield ControlGroup(mount / part, kind == "cgroup2")


def read_text(path: Path) -> str:
    """The content of a small file of /proc or /sys, stripped; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def fields_of(text: str) -> dict[str, int]:
    """Numbers by name, from lines that begin with a name and its number."""
    fields = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[1].isdecimal():
            fields[parts[0]] = int(parts[1])
    return fields


def number_in(path: Path) -> int | None:
    """The number in a file; None if there is none (`max`, or no such file)."""
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def _own_groups(root: Path) -> dict[str, str]:
    """This process's group by controller; the v2 hierarchy has the empty name."""
    groups = {}
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, membership = line.partition(":")
        controllers, _, path = membership.partition(":")
        for controller in controllers.split(","):
            groups[controller] = path
    return groups


def _mounts(root: Path) -> Iterator[tuple[Path, str, list[str]]]:
    for line in read_text(root / "proc/self/mounts").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] in ("cgroup", "cgroup2"):
            yield root / fields[1].lstrip("/"), fields[2], fields[3].split(",")


_UNLIMITED = 1 << 60
"""Version 1 of control groups writes "no limit" as a number near 2^63."""


class Memory(NamedTuple):
    """Memory that a process may use, in bytes."""

    total: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)


def memory(*, root: Path = ROOT) -> Memory:
    """Memory of the tightest control group, or else of the machine.

    Page cache that can be dropped does not count as used. `root` is for tests.
    """
    facts = fields_of(read_text(root / "proc/meminfo").replace(":", ""))
    total = facts.get("MemTotal", 0) * 1024
    best = Memory(total, total - facts.get("MemAvailable", 0) * 1024)
    for folder, unified in control_groups("memory", root=root):
        limit = number_in(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
        usage = number_in(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
        if limit is None or usage is None or limit >= min(_UNLIMITED, best.total or _UNLIMITED):
            continue
        statistics = fields_of(read_text(folder / "memory.stat"))
        cache = statistics.get("inactive_file" if unified else "total_inactive_file", 0)
        best = Memory(limit, max(0, usage - cache))
    return best


def own_memory() -> int:
    """Resident bytes of this process alone, without files and shared memory."""
    return _process_bytes("RssAnon")


def _process_bytes(field: str) -> int:
    status = fields_of(read_text(ROOT / "proc/self/status").replace(":", ""))
    return status.get(field, 0) * 1024


def limit_memory(nbytes: int, *, root: Path = ROOT) -> bool:
    """Limit this process to `nbytes` more memory than it uses now.

    Returns True if it gets a control group of its own: the kernel then kills it beyond the limit.
    Else returns False: RLIMIT_DATA makes allocations beyond the limit fail. `root` is for tests.
    """
    for parent, unified in _places(root):
        group = parent / f"slacktide-{os.getpid()}"
        limit, swap = _LIMITS[unified]
        try:
            group.mkdir(exist_ok=True)
            (group / limit).write_text(str(nbytes))
            with contextlib.suppress(OSError):  # a kernel that does not count swap
                (group / swap).write_text("0" if unified else str(nbytes))
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return True
        except OSError:  # we may not create groups there
            with contextlib.suppress(OSError):
                group.rmdir()
    # Not RLIMIT_AS: allocators reserve far more addresses than they use.
    most = _process_bytes("VmData") + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return False


def release_memory(pid: int, *, root: Path = ROOT) -> bool:
    """Remove the group of a dead process. Returns whether its limit killed the process."""
    breached = False
    for parent, unified in _places(root):
        group = parent / f"slacktide-{pid}"
        events = read_text(group / ("memory.events" if unified else "memory.oom_control"))
        breached |= fields_of(events).get("oom_kill", 0) > 0
        with contextlib.suppress(OSError):
            group.rmdir()
    return breached


_LIMITS = {
    False: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    True: ("memory.max", "memory.swap.max"),
}
"""File names of the limits without and with swap, by whether the group is of version 2."""


def _places(root: Path) -> Iterator[ControlGroup]:
    """Groups in which we may create others: our own, and its parent if that was delegated to us.

    Version 2 allows no group below a group that has processes, so there we need the parent: a
    systemd unit with `Delegate=yes` and `DelegateSubgroup=`. Groups further up are not ours, even
    if they are writable: in them we would escape the limits that apply to us.
    """
    for version in (False, True):
        groups = control_groups("memory", root=root)
        ours = [group for group in groups if group.unified is version and group.folder.is_dir()][:2]
        for at, group in enumerate(ours):
            try:
                if at and (not version or os.getxattr(group.folder, "user.delegate") != b"1"):
                    continue
            except OSError:
                continue
            if not version or "memory" in read_text(group.folder / "cgroup.subtree_control"):
                yield group
