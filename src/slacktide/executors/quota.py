"""`QuotaAllocator`: affinity, and a control group with a CPU quota for each worker.

A replica gets `share` of the time of each of its cores, so cores may be fractional: half of one is
a lane of one core with a share of 0.5. Whole cores need no quota, and are better off without: a
quota of one core on two cost 39 % at the median and more at the tail, which is why threads are
bound in any case and the quota comes on top.

Version 1 (`cpu.cfs_quota_us`) and version 2 (`cpu.max`) of control groups are written alike.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from slacktide.executors.allocator import AffinityAllocator, Confirm, CpuAllocator, Grant, bind
from slacktide.executors.cgroups import ROOT, control_groups, read_text
from slacktide.executors.cores import ratio

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
        made = cls(group.folder, unified=group.unified, share=share)
        _remove_leftovers(group.folder)
        try:
            if group.unified:
                _enable(group.folder)
            trial = made._make("trial")
            made._write(trial, share)
            made._read(trial)
            _remove(trial)
        except OSError as error:
            raise QuotaUnavailableError(
                f"the control group {group.folder} cannot be written ({error.strerror})"
            ) from None
        return made

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        """See CpuAllocator; settled from inside the call."""
        found, detail = bind(pid, cores)
        amount = float(len(found))
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
        confirm(Grant(found, amount, detail))

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
        if self._unified:
            quota, _, period = read_text(group / "cpu.max").partition(" ")
        else:
            quota, period = (
                read_text(group / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            )
        found = ratio(quota, period)
        if found is None:
            raise OSError(0, "the quota read back differs")
        return found


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


def _enable(own: Path) -> None:
    """Have groups made in `own` get the `cpu` controller. Raises OSError.

    Version 2 does not allow that in a group that holds processes. If these are this process and
    its children only, they move to a group of their own below it.
    """
    if "cpu" in read_text(own / "cgroup.subtree_control").split():
        return
    held = [int(pid) for pid in read_text(own / "cgroup.procs").split()]
    if any(not _is_ours(pid) for pid in held):
        raise OSError(0, "other processes are in it")
    aside = own / f"slacktide-{os.getpid()}-server"
    aside.mkdir(exist_ok=True)
    for pid in held:
        (aside / "cgroup.procs").write_text(str(pid))
    try:
        (own / "cgroup.subtree_control").write_text("+cpu")
    except OSError:
        for pid in held:
            (own / "cgroup.procs").write_text(str(pid))
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
