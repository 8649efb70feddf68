"""`CpuAllocator`: how the process of a replica gets its cores, and how that is confirmed.

A plan counts on cores only once they have been read back, so every grant ends in a `Grant` that
says what the process really has. Three backends: affinity (the default), affinity with a control
group's quota, and pods of Kubernetes, which belong to a higher package.

With a quota a replica gets `share` of the time of each of its cores, so cores may be fractional:
half of one is a lane of one core with a share of 0.5. Whole cores need no quota, and are better off
without: a quota of one core on two cost 39 % at the median and more at the tail, which is why
threads are bound in any case and the quota comes on top. Version 1 (`cpu.cfs_quota_us`) and version
2 (`cpu.max`) of control groups are written alike.
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
    """What a process has now: read back, not assumed."""

    cores: tuple[int, ...]
    """Processors that its threads may run on, ascending."""
    amount: float
    """CPU seconds per second that it may use; at most the number of its cores."""
    detail: str = ""
    """Why this is not what was asked for; empty if it is."""


Confirm = Callable[[Grant], None]


class CpuAllocator(Protocol):
    """Gives cores to the processes of replicas. Belongs to one event loop; nothing here blocks."""

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """Begin to give every thread of process `pid` these cores, in place of those it had.

        `confirm` is called on the loop, once, when that is settled, for better or worse: from
        inside this call where it takes no time, maybe seconds later where an orchestrator decides.
        A newer grant for the same process replaces an older one that is not settled; the older
        `confirm` need not be called then. Raises ProcessLookupError if the process is gone; if it
        ends later, `confirm` is not called. An allocator that could not give all of them may
        call it again should more be had later, until the next grant for that process.
        """
        ...

    def forget(self, pid: int) -> None:
        """The process has ended: give back what was kept for it."""
        ...


class AffinityAllocator:
    """Moves all threads of the process by their affinity masks: 0.1 ms, and no privileges.

    Disjoint sets are the caller's business: a mask limits a process, it does not keep others out.
    """

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """See CpuAllocator; settled from inside the call."""
        bound, detail = bind(pid, cores)
        confirm(Grant(bound, float(len(bound)), detail))

    def forget(self, pid: int) -> None:
        """Nothing is kept."""


def bind(pid: int, cores: tuple[int, ...]) -> tuple[tuple[int, ...], str]:
    """Bind every thread of `pid`; where it may run then, and why not on all of `cores`.

    The kernel quietly leaves out cores that the process's cpuset does not have, and refuses only if
    none is left. Raises ProcessLookupError if the process is gone.
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
    return allowed, f"asked for cores {_names(requested)}, may run on {_names(allowed)} only"


def _names(cores: tuple[int, ...]) -> str:
    return ", ".join(map(str, cores)) or "none"


log = logging.getLogger("slacktide.cores")

LEAST_SHARE = 0.1
PERIOD_US = 10_000
"""Of a quota. The kernel's own, 100 ms, would stop a worker for up to that long at a time; below
10 ms the throttling itself begins to cost."""


class QuotaUnavailableError(Exception):
    """No control group can be made here; the text says why."""


class QuotaAllocator:
    """Makes groups below `folder`, one for each worker, named after this process and the worker's.

    Should a group refuse later on, it says so once and goes on with affinity alone.
    """

    def __init__(self, folder: Path, *, unified: bool, share: float) -> None:
        """`folder` is a group in which groups with the `cpu` controller can be made. Raises
        ValueError if `share` is not between 0.1 and 1."""
        if not LEAST_SHARE <= share <= 1.0:
            raise ValueError(f"share: expected {LEAST_SHARE} to 1, got {share}")
        self._folder = folder
        self._unified = unified
        self._share = share
        self._groups: dict[int, Path] = {}
        self._refused = False

    @classmethod
    def found(cls, *, share: float, root: Path = ROOT) -> QuotaAllocator:
        """One in this process's own group, where that can be written. `root` is for tests.

        Raises QuotaUnavailableError, or ValueError as above.
        """
        group = next((g for g in control_groups("cpu", root=root) if g.folder.is_dir()), None)
        if group is None:
            raise QuotaUnavailableError("there is no control group for CPU time")
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
        """See CpuAllocator; settled from inside the call."""
        bound, detail = bind(pid, cores)
        amount = float(len(bound))
        if not self._refused:
            try:
                amount = self._limit(pid, amount * self._share)
            except ProcessLookupError:
                raise
            except OSError as error:
                self._refused = True
                log.warning(
                    "cores are limited by affinity alone from now on: the control group in %s "
                    "cannot be written (%s)", self._folder, error.strerror,
                )  # fmt: skip
        confirm(Grant(bound, amount, detail))

    def forget(self, pid: int) -> None:
        """Remove its group."""
        group = self._groups.pop(pid, None)
        if group is not None:
            _remove(group)

    def _limit(self, pid: int, amount: float) -> float:
        """Put the process under this quota; the quota read back."""
        group = self._groups.get(pid)
        if group is None:
            group = self._make(str(pid))
            self._groups[pid] = group
            self._write(group, amount)
            (group / "cgroup.procs").write_text(str(pid))  # all of its threads go with it
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
        """CPU seconds per second. Raises OSError if there is no quota after all."""
        quota = group_quota(ControlGroup(group, self._unified))
        if quota is None:
            raise OSError(0, "the quota read back differs")
        return quota


def choose_allocator(quota_share: float | None = None) -> CpuAllocator:
    """The allocator of this machine: affinity, with a quota on top if `quota_share` is given.

    Where no control group can be written, it is affinity alone, and a warning says so. Raises
    ValueError if `quota_share` is not between 0.1 and 1.
    """
    if quota_share is None:
        return AffinityAllocator()
    try:
        return QuotaAllocator.found(share=quota_share)
    except QuotaUnavailableError as error:
        log.warning("cores are limited by affinity alone, without a quota: %s", error)
        return AffinityAllocator()


def _enable(group: Path) -> None:
    """Have groups made in `group` get the `cpu` controller. Raises OSError.

    Version 2 does not allow that in a group that holds processes. If these are this process and
    its children only, they move to a group of their own below it.
    """
    if "cpu" in read_text(group / "cgroup.subtree_control").split():
        return
    held = [int(pid) for pid in read_text(group / "cgroup.procs").split()]
    if any(not _is_ours(pid) for pid in held):
        raise OSError(0, "other processes are in it")
    aside = group / f"slacktide-{os.getpid()}-server"
    aside.mkdir(exist_ok=True)
    for pid in held:
        (aside / "cgroup.procs").write_text(str(pid))
    try:
        (group / "cgroup.subtree_control").write_text("+cpu")
    except OSError:
        for pid in held:
            (group / "cgroup.procs").write_text(str(pid))
        _remove(aside)
        raise


def _is_ours(pid: int) -> bool:
    """Whether it is this process or one below it."""
    while pid > 1 and pid != os.getpid():
        status = read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
        pid = int(status[1]) if len(status) > 1 else 0
    return pid == os.getpid()


def _remove_leftovers(folder: Path) -> None:
    """Groups of servers that were killed."""
    for group in folder.glob("slacktide-*-*"):
        owner = group.name.split("-")[1]
        if not Path("/proc", owner).exists():
            _remove(group)


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # not empty yet, or gone with the container's tree
        group.rmdir()
