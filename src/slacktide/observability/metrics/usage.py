"""Resource usage of the machine, its GPUs, the server's process and its workers, from /proc,
control groups and NVIDIA's management library.

The metrics of the server's process have the names that all Prometheus clients use.
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from slacktide.executors.cgroups import (
    ROOT,
    Memory,
    control_groups,
    fields_of,
    memory,
    number_in,
    read_text,
)
from slacktide.executors.cores import cpu_quota
from slacktide.executors.process import ProcessExecutor
from slacktide.observability.metrics.families import MetricFamily


class Machine:
    """Use of the processors and memory available to this process. `root`, `cores` and `clock` are
    for tests."""

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
        self._last_times = self._cpu_times()
        self._utilization = 0.0

    def cpu_utilization(self) -> float:
        """Share of CPU time in use since the last call, 0 to 1. Under a CPU quota, the share of the
        quota that this control group used; else how busy all processes together kept the processors
        that this process may use."""
        now = self._cpu_times()
        busy, available = (time - last for time, last in zip(now, self._last_times, strict=True))
        if available > 0.0:
            self._utilization = min(1.0, max(0.0, busy / available))
            self._last_times = now
        return self._utilization

    def memory(self) -> Memory:
        """Available and used memory."""
        return memory(root=self._root)

    def _cpu_times(self) -> tuple[float, float]:
        """Return (CPU time used, CPU time available), both cumulative and in the same unit."""
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
        """CPU seconds used by this process's control group; None if unknown."""
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


class WorkerUsage(NamedTuple):
    """Usage of all workers together."""

    processes: int = 0
    cpu_s: float = 0.0
    """CPU seconds, including those of ended workers."""
    memory_bytes: int = 0
    """Private memory of living workers, which would be free without them."""


def usage_of(workers: ProcessExecutor | None, *, root: Path = ROOT) -> WorkerUsage:
    """Read the usage of the workers from the kernel. A process that has just ended is skipped."""
    if workers is None or workers.fork_server_pid is None:
        return WorkerUsage()
    # The fork server's times include those of the children it has reaped.
    ticks = sum(_ticks(root / f"proc/{workers.fork_server_pid}", ended=True))
    living = memory = 0
    for pid in workers.worker_pids:
        ticks_of_worker = _ticks(root / f"proc/{pid}", ended=False)
        if ticks_of_worker:
            living += 1
            ticks += sum(ticks_of_worker)
            memory += fields_of(read_text(root / f"proc/{pid}/status")).get("RssAnon:", 0) * 1024
    return WorkerUsage(living, ticks / os.sysconf("SC_CLK_TCK"), memory)


def _ticks(process: Path, *, ended: bool) -> list[int]:
    """User and system CPU time of a process, in ticks; with `ended` also of reaped children."""
    return [int(field) for field in _stat(process)[11 : 15 if ended else 13]]


def _stat(process: Path) -> list[str]:
    # The program's name is in parentheses and may contain anything, even parentheses.
    return read_text(process / "stat").rpartition(")")[2].split()


def process_families(*, root: Path = ROOT) -> Iterable[MetricFamily]:
    """CPU, memory, descriptors and start time of the server process. `root` is for tests."""
    fields = _stat(root / "proc/self")
    user, system, started, virtual, resident = (int(fields[i]) for i in (11, 12, 19, 20, 21))
    ticks = os.sysconf("SC_CLK_TCK")
    boot = fields_of(read_text(root / "proc/stat")).get("btime", 0)
    used, began = (user + system) / ticks, boot + started / ticks
    descriptors = len(os.listdir(root / "proc/self/fd"))
    descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    gauges = (
        ("resident_memory_bytes", "Memory in use", resident * resource.getpagesize()),
        ("virtual_memory_bytes", "Address space", virtual),
        ("open_fds", "Open file descriptors", descriptors),
        ("max_fds", "Maximum open file descriptors", descriptor_limit),
        ("start_time_seconds", "Start time, seconds since the epoch", began),
    )
    yield MetricFamily.single("process_cpu_seconds_total", "counter", "CPU time, seconds", used)
    for name, help, value in gauges:
        yield MetricFamily.single(f"process_{name}", "gauge", help, value)


_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96


class Gpu(NamedTuple):
    """State of a GPU; None for values that the device does not report."""

    uuid: str
    utilization: float | None
    """Share of time that a kernel ran, 0 to 1."""
    memory_total: int | None
    memory_used: int | None
    power_w: float | None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Nvml:
    """NVIDIA's management library, which comes with the driver, called through ctypes. Names and
    layouts are those of nvml.h, which keeps them stable. Made by `open_nvml`."""

    def __init__(self, library: Any) -> None:
        """`library` must be initialised."""
        self._library = library

    def gpus(self) -> tuple[Gpu, ...]:
        """The state of every GPU; about a millisecond for each."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        gpus = [self._gpu(index) for index in range(count.value)]
        return tuple(gpu for gpu in gpus if gpu is not None)

    def _gpu(self, index: int) -> Gpu | None:
        library = self._library
        device = ctypes.c_void_p()
        uuid = ctypes.create_string_buffer(_UUID_BYTES)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            return None
        if library.nvmlDeviceGetUUID(device, uuid, _UUID_BYTES):
            return None
        memory, utilization, milliwatts = _Memory(), _Utilization(), ctypes.c_uint()
        has_memory = not library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
        has_rates = not library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization))
        has_power = not library.nvmlDeviceGetPowerUsage(device, ctypes.byref(milliwatts))
        return Gpu(
            uuid.value.decode("ascii", "replace"),
            utilization.gpu / 100 if has_rates else None,
            memory.total if has_memory else None,
            memory.used if has_memory else None,
            milliwatts.value / 1000 if has_power else None,
        )


def open_nvml() -> Nvml | None:
    """Open the library; None if there is no driver or it does not start."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2():
            return None
    except (OSError, AttributeError):
        return None
    return Nvml(library)
