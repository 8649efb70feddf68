"""`CpuAllocator`: gives the process of a replica its cores, and confirms them.

A plan uses cores only after they have been read back, so every grant ends in a `Grant` with the
cores that the process really has. There are three backends: affinity (the default), affinity with a
quota of a control group, and Kubernetes pods (in a higher package).

With a quota a replica gets `share` of the time of each core, so cores may be fractional: half a
core is a lane of one core with a share of 0.5. Whole cores should have no quota: with a quota of
one core spread over two, batches take 39 % longer at the median and more at the tail. So threads
are always bound, and the quota comes on top. Both versions of control groups work: 1
(`cpu.cfs_quota_us`) and 2 (`cpu.max`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slacktide.executors.cgroups import ROOT, ControlGroup, control_groups, read_text
from slacktide.executors.cores import group_quota, move_threads, thread_cores


@dataclass(frozen=True, slots=True)
class Grant:
    """The cores of a process, as read back from the system."""

    cores: tuple[int, ...]
    """Processors that the process's threads may run on, ascending."""
    amount: float
    """CPU seconds per second that the process may use, at most its number of cores."""
    detail: str = ""
    """Why the grant differs from the request; empty if it does not."""


Confirm = Callable[[Grant], None]


class CpuAllocator(Protocol):
    """Gives cores to the processes of replicas. Belongs to one event loop and never blocks it."""

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """Begin to give every thread of process `pid` these cores instead of its old ones.

        `confirm` is called once on the loop with the outcome: inside this call if a grant takes no
        time, or seconds later if an orchestrator decides. A newer grant for the process replaces an
        unfinished one, whose `confirm` need not be called. Raises ProcessLookupError if the process
        has ended; if it ends later, `confirm` is not called. If the allocator could not give all
        cores, it may call `confirm` again when it gets more, until the process's next grant.
        """
        ...

    def forget(self, pid: int) -> None:
        """Release everything held for a process that has ended."""
        ...


class AffinityAllocator:
    """Moves all threads of a process by their affinity masks. Takes 0.1 ms and no privileges.

    The caller has to choose disjoint sets: a mask does not keep other processes out.
    """

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """See CpuAllocator. Confirms from inside the call."""
        bound, detail = bind(pid, cores)
        confirm(Grant(bound, float(len(bound)), detail))

    def forget(self, pid: int) -> None:
        """Do nothing: nothing is held."""


def bind(pid: int, cores: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Bind every thread of `pid`. Returns the cores it may use now, and why any are missing.

    The kernel silently drops cores outside the process's cpuset, and refuses only if none remains.
    Raises ProcessLookupError if the process has ended.
    """
    requested = tuple(sorted(cores))
    try:
        allowed = move_threads(pid, requested)
    except ProcessLookupError:
        raise
    except OSError as error:
        allowed = thread_cores(pid)
        return allowed, f"cannot run on cores {_names(requested)}: {error.strerror}"
    if allowed == requested:
        return allowed, ""
    return allowed, f"requested cores {_names(requested)}, but may run only on {_names(allowed)}"


def _names(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores)) or "none"


log = logging.getLogger("slacktide.cores")

LEAST_SHARE = 0.1
PERIOD_US = 10_000
"""Period of a quota. The kernel's default, 100 ms, could stop a worker for that long in one go.
Below 10 ms throttling itself becomes expensive."""


class QuotaUnavailableError(Exception):
    """No control group can be created here; the text says why."""


class QuotaAllocator:
    """Creates a group in `folder` for each worker, named by the ids of this process and the worker.

    If a group cannot be written later, it logs a warning once and continues with affinity alone.
    """

    def __init__(self, folder: Path, *, unified: bool, share: float) -> None:
        """`folder`: a group that can contain groups with the `cpu` controller. Raises ValueError if
        `share` is not between 0.1 and 1."""
        if not LEAST_SHARE <= share <= 1.0:
            raise ValueError(f"share: expected {LEAST_SHARE} to 1, got {share}")
        self._folder = folder
        self._unified = unified
        self._share = share
        self._groups: dict[int, Path] = {}
        self._affinity_only = False

    @classmethod
    def in_own_group(cls, *, share: float, root: Path = ROOT) -> QuotaAllocator:
        """An allocator in this process's own group. `root` is for tests. Raises ValueError, or
        QuotaUnavailableError if the group cannot be written.
        """
        group = next((g for g in control_groups("cpu", root=root) if g.folder.is_dir()), None)
        if group is None:
            raise QuotaUnavailableError("found no control group for CPU time")
        allocator = cls(group.folder, unified=group.unified, share=share)
        _remove_leftovers(group.folder)
        try:
            if group.unified:
                _enable(group.folder)
            trial = allocator._make("trial")
            allocator._write(trial, share)
            allocator._read(trial)
            _remove(trial)
        except OSError as error:
            raise QuotaUnavailableError(
                f"the control group {group.folder} cannot be written ({error.strerror})"
            ) from None
        return allocator

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """See CpuAllocator. Confirms from inside the call."""
        bound, detail = bind(pid, cores)
        amount = float(len(bound))
        if not self._affinity_only:
            try:
                amount = self._limit(pid, amount * self._share)
            except ProcessLookupError:
                raise
            except OSError as error:
                self._affinity_only = True
                log.warning(
                    "cores are limited only by affinity from now on: the control group in %s "
                    "cannot be written (%s)", self._folder, error.strerror,
                )  # fmt: skip
        confirm(Grant(bound, amount, detail))

    def forget(self, pid: int) -> None:
        """Remove the process's group."""
        group = self._groups.pop(pid, None)
        if group is not None:
            _remove(group)

    def _limit(self, pid: int, amount: float) -> float:
        """Put the process under this quota. Returns the quota as read back."""
        group = self._groups.get(pid)
        if group is None:
            group = self._make(str(pid))
            self._groups[pid] = group
            self._write(group, amount)
            (group / "cgroup.procs").write_text(str(pid))  # moves all of its threads
        else:
            self._write(group, amount)
        return self._read(group)

    def _make(self, name: str) -> Path:
        group = self._folder / f"slacktide-{os.getpid()}-{name}"
        group.mkdir(exist_ok=True)
        return group

    def _write(self, group: Path, amount: float) -> None:
        quota = max(1, round(amount * PERIOD_US))
        if self._unified:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))

    def _read(self, group: Path) -> float:
        """CPU seconds per second. Raises OSError if the group has no quota."""
        quota = group_quota(ControlGroup(group, self._unified))
        if quota is None:
            raise OSError(0, "the quota was not accepted")
        return quota


def choose_allocator(quota_share: float | None = None) -> CpuAllocator:
    """An allocator by affinity, with a quota on top if `quota_share` is given.

    If no control group can be written, it logs a warning and uses affinity alone. Raises ValueError
    if `quota_share` is not between 0.1 and 1.
    """
    if quota_share is None:
        return AffinityAllocator()
    try:
        return QuotaAllocator.in_own_group(share=quota_share)
    except QuotaUnavailableError as error:
        log.warning("cores are limited only by affinity, without a quota: %s", error)
        return AffinityAllocator()


def _enable(group: Path) -> None:
    """Enable the `cpu` controller for groups in `group`. Raises OSError.

    Version 2 forbids that in a group that has processes. If these are only this process and its
    descendants, they are moved to a new subgroup.
    """
    if "cpu" in read_text(group / "cgroup.subtree_control").split():
        return
    pids = [int(pid) for pid in read_text(group / "cgroup.procs").split()]
    if any(not _is_ours(pid) for pid in pids):
        raise OSError(0, "other processes are in it")
    aside = group / f"slacktide-{os.getpid()}-server"
    aside.mkdir(exist_ok=True)
    for pid in pids:
        (aside / "cgroup.procs").write_text(str(pid))
    try:
        (group / "cgroup.subtree_control").write_text("+cpu")
    except OSError:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        _remove(aside)
        raise


def _is_ours(pid: int) -> bool:
    """Return whether this is our process or a descendant."""
    while pid > 1 and pid != os.getpid():
        status = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        pid = int(status[1]) if len(status) > 1 else 0
    return pid == os.getpid()


def _remove_leftovers(folder: Path) -> None:
    """Remove groups of servers that were killed."""
    for group in folder.glob("slacktide-*-*"):
        owner = group.name.split("-")[1]
        if not Path("/proc", owner).exists():
            _remove(group)


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # not empty yet, or removed with the container
        group.rmdir()
