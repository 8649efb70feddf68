"""How much memory there is, as far as this process may use it, and what its own takes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from slacktide.executors.cgroups import ROOT, control_groups, fields_of, number_in, read_text

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
    status = fields_of(read_text(ROOT / "proc/self/status").replace(":", ""))
    return status.get("RssAnon", 0) * 1024
