"""Where a figure was measured, and on which core what runs.

Every benchmark pins: servers (all their processes and threads) to one core, clients to another, so
that neither takes the other's time. With one core only they share it, and the result says so.
"""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from slacktide._version import BUILD

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
"""Repositories, bodies and other files that can be made again."""
RESULTS = ROOT / "bench" / "results"
"""Rows of long benchmarks that need not be measured twice."""

_PACKAGES = ("slacktide", "onnxruntime", "numpy", "grpcio", "uvloop", "httptools", "orjson")


@dataclass(frozen=True, slots=True)
class Cores:
    """Who runs where."""

    server: int
    client: int

    @property
    def shared(self) -> bool:
        return self.server == self.client


_ALL = sorted(os.sched_getaffinity(0))


def cores() -> Cores:
    """The last core this process could use at its start serves, the first one asks."""
    return Cores(server=_ALL[-1], client=_ALL[0])


def pin(core: int) -> None:
    """Keep this process, and all it starts, on one core."""
    os.sched_setaffinity(0, {core})


def pinned(core: int, command: list[str]) -> list[str]:
    """The command, kept on one core with every process it starts."""
    return ["taskset", "--cpu-list", str(core), *command]


def spread(command: list[str]) -> list[str]:
    """The command, on every core that this process could use at its start."""
    return ["taskset", "--cpu-list", ",".join(map(str, _ALL)), *command]


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def load_average() -> float:
    """Runnable processes over the last minute: above 0.3 the machine is not quiet."""
    return os.getloadavg()[0]


class Theft:
    """What the host of a virtual machine keeps for others, from when this object is made.

    A shared host may give a machine half of a core for minutes: then models take twice as long, and
    nothing but this shows why.
    """

    def __init__(self) -> None:
        self._stolen, self._wanted = _ticks()

    def share(self) -> float:
        """Of the CPU time that was wanted, what was not given; 0 where there is no host."""
        stolen, wanted = _ticks()
        return (stolen - self._stolen) / max(1, wanted - self._wanted)


def _ticks() -> tuple[int, int]:
    """(stolen, wanted) of all cores since the machine started (proc(5), /proc/stat)."""
    line = Path("/proc/stat").read_text().partition("\n")[0]
    user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, line.split()[1:9])
    return stolen, user + nice + system + irq + softirq + stolen


def provenance() -> dict[str, Any]:
    """Machine, versions, commit and date, as plain JSON values."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_model(),
            "cores": len(_ALL),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "load_average": load_average(),
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
        "build": BUILD,
    }


def _versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5.0)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
