"""What the server's process and its workers use. Reads /proc.

Of the server's own, by the names that every Prometheus client uses.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from slacktide.executors.cgroups import ROOT, read_text
from slacktide.observability.metrics.exposition import Family


class Workers(Protocol):
    """Who starts worker processes (`ProcessExecutor`)."""

    @property
    def fork_server_pid(self) -> int | None: ...

    @property
    def worker_pids(self) -> tuple[int, ...]: ...


class WorkerUsage(NamedTuple):
    """All workers together."""

    processes: int = 0
    cpu_s: float = 0.0
    """CPU seconds, those of workers that have ended included."""
    memory_bytes: int = 0
    """Private memory of those that live: what would be free without them."""


def usage_of(workers: Workers | None, *, root: Path = ROOT) -> WorkerUsage:
    """Ask the kernel; a process that has just gone is left out."""
    if workers is None or workers.fork_server_pid is None:
        return WorkerUsage()
    # The fork server's children hand their times to it when it reaps them.
    ticks = sum(_ticks(root / f"proc/{workers.fork_server_pid}", ended=True))
    living = memory = 0
    for pid in workers.worker_pids:
        own = _ticks(root / f"proc/{pid}", ended=False)
        if own:
            living += 1
            ticks += sum(own)
            memory += _private_bytes(root / f"proc/{pid}")
    return WorkerUsage(living, ticks / os.sysconf("SC_CLK_TCK"), memory)


def _ticks(process: Path, *, ended: bool) -> list[int]:
    """utime and stime, and with `ended` also those of children that were reaped."""
    # The name of the program is in parentheses and may hold anything, more of them included.
    fields = read_text(process / "stat").rpartition(")")[2].split()
    return [int(field) for field in fields[11 : 15 if ended else 13]]


def _private_bytes(process: Path) -> int:
    for line in read_text(process / "status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


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
