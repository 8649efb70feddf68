"""Looking at a server from outside: its processes and what memory they hold. Reads /proc.

Pages of a memfd are in the resident size of every process that maps them, and in none if it is only
written to. So they are taken out of the processes (`RssShmem`) and counted once, with the file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

PROC = Path("/proc")
_BLOCK = 512
"""Bytes of a block in `st_blocks`, whatever the file system's are (stat(2))."""


def tree(pid: int) -> tuple[int, ...]:
    """`pid` and every process below it, parents first; those that end meanwhile are left out."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(OSError):
            for thread in (PROC / str(parent) / "task").iterdir():
                pids.extend(map(int, (thread / "children").read_text().split()))
    return tuple(pids)


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """CPU time of all threads that these processes have now, to the nanosecond."""
    total = 0
    for pid in pids:
        for thread in (PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):  # ended since
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def running(pid: int) -> bool:
    """Whether any thread of it is on a core, or waits for one and nothing else."""
    with contextlib.suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            # The name of the program is in parentheses and may hold anything, more of them too.
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                return True
    return False


def memory(pids: tuple[int, ...]) -> int:
    """Bytes resident of these processes, and of the memfds that they hold, each counted once."""
    files: dict[int, int] = {}
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += _own_bytes(pid)
            for entry in os.scandir(PROC / str(pid) / "fd"):
                with contextlib.suppress(OSError):  # closed since
                    if os.readlink(entry.path).startswith("/memfd:"):
                        status = os.stat(entry.path)
                        files[status.st_ino] = status.st_blocks * _BLOCK
    return total + sum(files.values())


def _own_bytes(pid: int) -> int:
    """Resident, without shared memory."""
    kib = {"VmRSS": 0, "RssShmem": 0}
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kib:
            kib[name] = int(value.split()[0])
    return (kib["VmRSS"] - kib["RssShmem"]) * 1024


class MemorySampler:
    """Takes the memory of a server's processes at intervals, in a thread, while the block lasts."""

    def __init__(self, pid: int, interval: float) -> None:
        self.samples: list[int] = []
        """Bytes."""
        self._pid, self._interval = pid, interval
        self._stop = Event()
        self._thread = Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.samples.append(memory(tree(self._pid)))
