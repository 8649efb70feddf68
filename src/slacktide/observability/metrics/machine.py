"""How busy the processors are and how full the memory is, as far as this process may use them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from slacktide.executors.cgroups import ROOT, control_groups, fields_of, number_in, read_text
from slacktide.executors.cores import cpu_quota
from slacktide.executors.memory import Memory, memory


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
        """What may be used in all, and what is."""
        return memory(root=self._root)

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
                microseconds = fields_of(read_text(folder / "cpu.stat")).get("usage_usec")
                if microseconds is not None:
                    return microseconds / 1e6
        for folder, unified in control_groups("cpuacct", root=self._root):
            nanoseconds = None if unified else number_in(folder / "cpuacct.usage")
            if nanoseconds is not None:
                return nanoseconds / 1e9
        return None
