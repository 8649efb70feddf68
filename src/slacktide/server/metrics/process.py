"""This process by the names that every Prometheus client uses. Reads /proc."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path

from slacktide.executors.cgroups import ROOT, read_text
from slacktide.server.metrics.exposition import Family


def process_families(*, root: Path = ROOT) -> Iterable[Family]:
    """CPU, memory, descriptors and start of the server process. `root` is for tests."""
    single = Family.single
    # The name of the program is in parentheses and may hold anything, more of them included.
    fields = read_text(root / "proc/self/stat").rpartition(")")[2].split()
    user, system, started, virtual, resident = (int(fields[i]) for i in (11, 12, 19, 20, 21))
    ticks = os.sysconf("SC_CLK_TCK")
    descriptors = len(os.listdir(root / "proc/self/fd"))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        single(
            "process_cpu_seconds_total", "counter", "CPU time, seconds", (user + system) / ticks
        ),
        single(
            "process_resident_memory_bytes",
            "gauge",
            "Memory in use",
            resident * resource.getpagesize(),
        ),
        single("process_virtual_memory_bytes", "gauge", "Address space", virtual),
        single("process_open_fds", "gauge", "Open file descriptors", descriptors),
        single("process_max_fds", "gauge", "Most file descriptors it may open", most),
        single(
            "process_start_time_seconds",
            "gauge",
            "When it started, seconds since the epoch",
            _boot_time(root) + started / ticks,
        ),
    )


def _boot_time(root: Path) -> int:
    """Seconds since the epoch."""
    for line in read_text(root / "proc/stat").splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return 0
