"""Finds the cores of this process and their hardware, and moves threads between cores.

It never uses the number of cores of the host: in a container most of them belong to others.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from slacktide.executors.cgroups import ROOT, ControlGroup, control_groups, read_text

_AVX = ("avx", "avx2", "fma", "f16c", "avx_vnni")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16")
_AMX = ("amx_tile", "amx_int8", "amx_bf16")
_ARM = ("asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2")
_FLAGS = frozenset((*_AVX, *_AVX512, *_AMX, *_ARM))
"""Instruction sets that ONNX Runtime's kernels depend on. Other flags are ignored."""


def available_cores(*, root: Path = ROOT, affinity: Iterable[int] | None = None) -> tuple[int, ...]:
    """Numbers of the processors to use, ascending: the affinity mask, cut to the CPU quota.

    A quota of 2.5 cores gives two, because a third thread would be throttled. Never empty. `root`
    and `affinity` are for tests.
    """
    cores = allowed_processors() if affinity is None else tuple(sorted(affinity))
    quota = cpu_quota(root=root)
    return cores if quota is None else cores[: max(1, int(quota + 1e-6))]


def allowed_processors() -> tuple[int, ...]:
    """Numbers of the processors that this process may use, ascending. All, if not on Linux."""
    if not hasattr(os, "sched_getaffinity"):
        return tuple(range(os.cpu_count() or 1))
    return tuple(sorted(os.sched_getaffinity(0)))


@contextmanager
def pinned(cores: Iterable[int]) -> Iterator[None]:
    """A context in which this thread, and processes it starts, run on `cores`."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_quota(*, root: Path = ROOT) -> float | None:
    """CPU seconds per second that control groups (v1 and v2) allow; None: unlimited.

    The minimum over this process's group and all visible groups above it.
    """
    quotas = (group_quota(group) for group in control_groups("cpu", root=root))
    return min((quota for quota in quotas if quota is not None), default=None)


def group_quota(group: ControlGroup) -> float | None:
    """Quota ÷ period of one group; None without a limit (`max`, −1, or no such file)."""
    if group.unified:
        quota, _, period = read_text(group.folder / "cpu.max").partition(" ")
    else:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quota, period = (read_text(group.folder / name) for name in names)
    try:
        value, per = int(quota), int(period)
    except ValueError:
        return None
    return value / per if value > 0 and per > 0 else None


@dataclass(frozen=True, slots=True)
class HardwareFingerprint:
    """The hardware that a latency profile depends on. Equal hardware shares profiles."""

    cpu: str
    """Model name of the processor."""
    flags: tuple[str, ...]
    """The instruction sets that matter, ascending."""
    cores: int
    """Number of cores that may be used."""
    onnxruntime: str
    """Version of ONNX Runtime; empty if it is not installed."""
    machine: str
    """Architecture, such as x86_64."""

    @property
    def facts(self) -> dict[str, str]:
        """The fields as text, for people."""
        return {**asdict(self), "flags": " ".join(self.flags), "cores": str(self.cores)}

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits, for file names and comparison. `cores` is not included, since
        a profile has a column for each number of cores.
        """
        fields = (self.cpu, " ".join(self.flags), self.onnxruntime, self.machine)
        return hashlib.sha256("\n".join(fields).encode()).hexdigest()[:16]


def hardware_fingerprint(*, root: Path = ROOT, cores: int | None = None) -> HardwareFingerprint:
    """The fingerprint of the hardware that this process may use."""
    facts: dict[str, str] = {}
    for line in read_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip().lower(), value.strip())
    flags = facts.get("flags") or facts.get("features") or ""
    return HardwareFingerprint(
        cpu=facts.get("model name") or facts.get("cpu part") or platform.processor(),
        flags=tuple(sorted(_FLAGS.intersection(flags.split()))),
        cores=len(available_cores(root=root)) if cores is None else cores,
        onnxruntime=_onnxruntime_version(),
        machine=platform.machine(),
    )


def _onnxruntime_version() -> str:
    for name in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def move_threads(pid: int, cores: Iterable[int]) -> tuple[int, ...]:
    """Bind every thread of `pid` to `cores` (about 0.1 ms). Returns the cores they may then use.

    A thread inherits its creator's mask, so the walk is repeated until it finds no new thread.
    Raises ProcessLookupError if the process has ended, OSError if it may not use these cores.
    """
    allowed = set(cores)
    moved: set[int] = set()
    while fresh := _threads(pid) - moved:
        for thread in fresh:
            try:
                os.sched_setaffinity(thread, allowed)
            except ProcessLookupError:  # the thread has ended meanwhile
                continue
        moved |= fresh
    return thread_cores(pid)


def thread_cores(pid: int) -> tuple[int, ...]:
    """The union of the cores of `pid`'s threads. Raises ProcessLookupError if it has ended."""
    allowed: set[int] = set()
    for thread in _threads(pid):
        try:
            allowed |= os.sched_getaffinity(thread)
        except ProcessLookupError:
            continue
    return tuple(sorted(allowed))


def _threads(pid: int) -> set[int]:
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"no process {pid}") from None
