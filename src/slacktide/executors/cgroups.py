"""The control groups of this process, version 1 and 2 alike, and memory: how much it may use, what
its own takes, and a limit."""

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
    """Version 2; its files have other names than those of version 1."""


def control_groups(controller: str, *, root: Path = ROOT) -> Iterator[ControlGroup]:
    """This process's groups for `controller` (`cpu`, `memory`), innermost first, then all above.

    Folders that cannot be seen are among them; reading from those gives nothing. `root` is for
    tests.
    """
    groups = _own_groups(root)
    for mount, kind, options in _mounts(root):
        if kind == "cgroup2":
            group = groups.get("")
        elif kind == "cgroup" and controller in options:
            group = groups.get(controller)
        else:
            continue
        # Within a container the path may be the host's and lead nowhere; the mount itself is then
        # the container's group, and it is the last step of the walk in any case.
        path = Path((group or "/").strip("/"))
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
    fields = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[1].isdecimal():
            fields[parts[0]] = int(parts[1])
    return fields


def number_in(path: Path) -> int | None:
    """The number in a file; None if there is none (`max`, no such file)."""
    text = read_text(path)
    return int(text) if text.isdecimal() else None


def _own_groups(root: Path) -> dict[str, str]:
    """Controller -> this process's group; the v2 hierarchy has the empty name."""
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
    """Bytes."""

    total: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)


def memory(*, root: Path = ROOT) -> Memory:
    """What may be used in all, and what is: of the tightest control group, else the machine.

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
    """Bytes resident that are this process's alone: no files, nothing shared."""
    return _own("RssAnon")


def _own(field: str) -> int:
    status = fields_of(read_text(ROOT / "proc/self/status").replace(":", ""))
    return status.get(field, 0) * 1024


def limit_memory(nbytes: int, *, root: Path = ROOT) -> bool:
    """Have this process take at most `nbytes` more than it has now.

    By a control group of its own where one can be made (True): the kernel kills it for more. Else
    by RLIMIT_DATA (False): allocations beyond it fail. `root` is for tests.
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
        except OSError:  # not ours to divide
            with contextlib.suppress(OSError):
                group.rmdir()
    # Not RLIMIT_AS: allocators reserve far more addresses than they use.
    most = _own("VmData") + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    return False


def release_memory(pid: int, *, root: Path = ROOT) -> bool:
    """Remove what `limit_memory` made for a process that is dead; whether it died of its limit."""
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
"""Names of the limits with and without swap; True: version 2."""


def _places(root: Path) -> Iterator[ControlGroup]:
    """Groups in which we may make others: our own, and the one above if it was delegated to us.

    Version 2 allows none below a group that holds processes, so there it takes the latter: a unit
    of systemd with `Delegate=yes` and `DelegateSubgroup=`. What else is above us is not ours, even
    if it can be written: its limits are not those that we are to keep.
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
