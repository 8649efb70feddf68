"""How busy the processors are and how full the memory is, as far as this process may use them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from slacktide.executors.cgroups import ROOT, control_groups, read_text
from slacktide.executors.cores import cpu_quota

_UNLIMITED = 1 << 60
"""Version 1 of control groups writes "no limit" as a number near 2^63."""


class Memory(NamedTuple):
    """Bytes."""

    total: int
    used: int


class Machine:
    """Asks /proc and the control groups. `root`, `cores` and `clock` are for tests."""

    def __init__(
        self,
        *,
        root: Path = ROOT,
        cores: Iterable[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        allowed = os.sched_getaffinity(0) if cores is None else cores
        self._lines = frozenset(f"cpu{core}" for core in allowed)
        self._clock = clock
        self._quota = cpu_quota(root=root)
        self._before = self._cpu_times()
        self._utilization = 0.0

    def cpu_utilization(self) -> float:
        """Share of CPU time that was in use since the last call, 0 to 1.

        Under a CPU quota: of the quota, by this control group. Else: of the processors that this
        process may run on, by everybody.
        """
        now = self._cpu_times()
        busy, available = (new - old for new, old in zip(now, self._before, strict=True))
        if available > 0.0:
            self._utilization = min(1.0, max(0.0, busy / available))
            self._before = now
        return self._utilization

    def memory(self) -> Memory:
        """What may be used in all, and what is: of the tightest control group, else the machine.

        Page cache that can be dropped does not count as used.
        """
        facts = _fields(read_text(self._root / "proc/meminfo").replace(":", ""))
        total = facts.get("MemTotal", 0) * 1024
        best = Memory(total, total - facts.get("MemAvailable", 0) * 1024)
        for folder, unified in control_groups("memory", root=self._root):
            limit = _number(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
            usage = _number(folder / ("memory.current" if unified else "memory.usage_in_bytes"))
            if limit is None or usage is None or limit >= min(_UNLIMITED, best.total or _UNLIMITED):
                continue
            statistics = _fields(read_text(folder / "memory.stat"))
            cache = statistics.get("inactive_file" if unified else "total_inactive_file", 0)
            best = Memory(limit, max(0, usage - cache))
        return best

    def _cpu_times(self) -> tuple[float, float]:
        """(in use, available), each cumulative and in the same unit."""
        used = None if self._quota is None else self._group_cpu_s()
        if used is not None and self._quota is not None:
            return used, self._clock() * self._quota
        busy = total = 0
        for line in read_text(self._root / "proc/stat").splitlines():
            name, *fields = line.split()
            if name in self._lines:
                # user, nice, system, idle, iowait, irq, softirq, steal; guests are within user.
                ticks = [int(field) for field in fields[:8]]
                total += sum(ticks)
                busy += sum(ticks) - sum(ticks[3:5])
        return float(busy), float(total)

    def _group_cpu_s(self) -> float | None:
        """CPU seconds that this process's control group has used; None if it does not say."""
        for folder, unified in control_groups("cpu", root=self._root):
            if unified:
                microseconds = _fields(read_text(folder / "cpu.stat")).get("usage_usec")
                if microseconds is not None:
                    return microseconds / 1e6
        for folder, unified in control_groups("cpuacct", root=self._root):
            nanoseconds = None if unified else _number(folder / "cpuacct.usage")
            if nanoseconds is not None:
                return nanoseconds / 1e9
        return None


def _fields(text: str) -> dict[str, int]:
    """Name → number, of lines that begin with both."""
    found = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[1].isdecimal():
            found[parts[0]] = int(parts[1])
    return found


def _number(path: Path) -> int | None:
    """The number in a file; None if there is none (`max`, no such file)."""
    text = read_text(path)
    return int(text) if text.isdecimal() else None
