"""What the kernel and the driver of a GPU say, on make-believe machines."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import ProcessCollector

from slacktide.observability.metrics.families import MetricFamily, plain, write
from slacktide.observability.metrics.usage import (
    Gpu,
    Machine,
    Memory,
    Nvml,
    WorkerUsage,
    process_families,
    usage_of,
)


class Host:
    """A make-believe file system with /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.time = 100.0
        meminfo = "MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable: 12000000 kB\n"
        self.write("proc/meminfo", meminfo)
        self.stat(busy=0, idle=0)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def stat(self, *, busy: int, idle: int) -> None:
        """Two processors with these ticks each, and a third that is not ours and always busy."""
        ours = f"{busy} 0 0 {idle} 0 0 0 0 0 0"
        lines = ["cpu 1 2 3 4", f"cpu0 {ours}", f"cpu1 {ours}", "cpu2 999999 0 0 0 0 0 0 0 0 0"]
        self.write("proc/stat", "\n".join([*lines, "intr 5", ""]))

    def groups_v2(self) -> None:
        self.write("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
        self.write("proc/self/cgroup", "0::/outer/inner\n")

    def groups_v1(self) -> None:
        mounts = [f"cgroup /sys/fs/cgroup/{c} cgroup rw,{c} 0 0" for c in ("cpu", "memory")]
        self.write("proc/self/mounts", "\n".join([*mounts, "cgroup /acct cgroup cpuacct 0 0"]))
        self.write("proc/self/cgroup", "3:memory:/a\n2:cpu:/a\n1:cpuacct:/a\n")

    def machine(self) -> Machine:
        return Machine(root=self.root, cores=(0, 1), clock=lambda: self.time)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_utilization_is_that_of_our_processors_since_the_last_scrape(host: Host) -> None:
    machine = host.machine()
    host.stat(busy=30, idle=10)
    assert machine.cpu_utilization() == 0.75
    assert machine.cpu_utilization() == 0.75  # nothing has passed: what it was
    host.stat(busy=30, idle=50)
    assert machine.cpu_utilization() == 0.0


def test_under_a_quota_utilization_is_of_the_quota_v2(host: Host) -> None:
    host.groups_v2()
    host.write("sys/fs/cgroup/outer/cpu.max", "250000 100000\n")
    host.write("sys/fs/cgroup/outer/inner/cpu.stat", "usage_usec 1000000\nuser_usec 1\n")
    machine = host.machine()
    host.time += 10.0
    host.write("sys/fs/cgroup/outer/inner/cpu.stat", "usage_usec 6000000\n")
    assert machine.cpu_utilization() == pytest.approx(0.2)
    host.time += 1.0
    host.write("sys/fs/cgroup/outer/inner/cpu.stat", "usage_usec 99000000\n")
    assert machine.cpu_utilization() == 1.0


def test_under_a_quota_utilization_is_of_the_quota_v1(host: Host) -> None:
    host.groups_v1()
    host.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000")
    host.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
    host.write("acct/a/cpuacct.usage", "0")
    machine = host.machine()
    host.time += 4.0
    host.write("acct/a/cpuacct.usage", "1000000000")
    assert machine.cpu_utilization() == pytest.approx(0.25)


def test_memory_of_the_machine(host: Host) -> None:
    assert host.machine().memory() == Memory(16_384_000_000, 4_096_000_000)


def test_memory_of_the_tightest_control_group_v2(host: Host) -> None:
    host.groups_v2()
    host.write("sys/fs/cgroup/outer/inner/memory.max", "max")
    host.write("sys/fs/cgroup/outer/memory.max", "1000000")
    host.write("sys/fs/cgroup/outer/memory.current", "700000")
    host.write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 200000\n")
    assert host.machine().memory() == Memory(1_000_000, 500_000)


def test_memory_without_a_limit_is_that_of_the_machine_v1(host: Host) -> None:
    host.groups_v1()
    host.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "700000")
    host.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", str((1 << 63) - 4096))
    assert host.machine().memory().total == 16_384_000_000
    host.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000")
    assert host.machine().memory() == Memory(1_000_000, 700_000)


class Workers:
    fork_server_pid: int | None = 10
    worker_pids = (11, 12)


def test_workers_times_include_those_that_ended(host: Host) -> None:
    def process(pid: int, ticks: str, name: str) -> None:
        host.write(f"proc/{pid}/stat", f"{pid} ({name}) S 1 1 1 0 -1 0 0 0 0 0 {ticks} 20 0 1")
        host.write(f"proc/{pid}/status", "Name: x\nRssAnon:\t    2048 kB\nRssFile: 9 kB\n")

    process(10, "1 2 300 400", "forks")
    process(11, "50 50 7000 7000", "a (b) c) 1 2 3")
    usage = usage_of(Workers(), root=host.root)  # 12 has just gone
    assert usage.processes == 1
    assert usage.cpu_s == pytest.approx((703 + 100) / 100)
    assert usage.memory_bytes == 2 << 20


def test_without_workers_there_is_no_usage(host: Host) -> None:
    idle = Workers()
    idle.fork_server_pid = None
    assert usage_of(None) == usage_of(idle, root=host.root) == WorkerUsage()


def test_the_process_is_measured_as_the_reference_does() -> None:
    reference = {
        sample.name: sample.value
        for family in ProcessCollector(registry=None).collect()
        for sample in family.samples
    }
    ours = {family.name: family.samples[0].value for family in process_families()}
    assert ours.keys() == reference.keys()
    for name in ("process_start_time_seconds", "process_max_fds"):
        assert ours[name] == pytest.approx(reference[name])
    for name in reference.keys() - {"process_open_fds"}:
        assert ours[name] == pytest.approx(reference[name], rel=0.5)
    assert abs(ours["process_open_fds"] - reference["process_open_fds"]) <= 3


class Library:
    """As libnvidia-ml answers: 0 is success."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802  # NVML's name
        count._obj.value = 3
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, device: Any) -> int:  # noqa: N802  # as above
        device._obj.value = index + 1
        return 15 if index == 1 else 0

    def nvmlDeviceGetUUID(self, device: Any, uuid: Any, length: int) -> int:  # noqa: N802  # as above
        uuid.value = f"GPU-{device.value}".encode()
        return 0 if length == 96 else 7

    def nvmlDeviceGetMemoryInfo(self, device: Any, memory: Any) -> int:  # noqa: N802  # as above
        memory._obj.total, memory._obj.used = 1000, 10
        assert ctypes.sizeof(memory._obj) == 24
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: Any, rates: Any) -> int:  # noqa: N802  # as above
        rates._obj.gpu = 40
        return 0

    def nvmlDeviceGetPowerUsage(self, device: Any, milliwatts: Any) -> int:  # noqa: N802  # as above
        milliwatts._obj.value = 61500
        return 3 if device.value == 3 else 0  # NVML_ERROR_NOT_SUPPORTED


def test_gpus_say_what_they_can() -> None:
    assert Nvml(Library()).gpus() == (
        Gpu("GPU-1", 0.4, 1000, 10, 61.5),
        Gpu("GPU-3", 0.4, 1000, 10, None),
    )


def test_a_histogram_with_negative_bounds_has_no_sum() -> None:
    family = MetricFamily("left_seconds", "histogram", "Left")
    family.add_histogram((-1.0, 0.0), (1, 0, 2), 5.0)
    assert [sample.suffix for sample in family.samples] == ["_bucket"] * 3
    assert [sample.value for sample in family.samples] == [1, 1, 3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (150754811904, "150754811904"),
        (1.50754811904e11, "150754811904"),
        (1e22, "10000000000000000000000"),
        (0.25, "0.25"),
        (2.5e-7, "0.00000025"),
        (1e-12, "0"),
        (100.0, "100"),
    ],
)
def test_numbers_are_plain_digits(value: float, text: str) -> None:
    assert plain(value) == text


def test_a_family_on_the_page() -> None:
    family = MetricFamily("waits_ms", "histogram", "How long\nit \\ took")
    family.add_histogram((0.5, 10.0), (1, 0, 2), 30.25, model='a"\\\n')
    assert write([family]).decode() == (
        "# HELP waits_ms How long\\nit \\\\ took\n"
        "# TYPE waits_ms histogram\n"
        'waits_ms_bucket{model="a\\"\\\\\\n",le="0.5"} 1\n'
        'waits_ms_bucket{model="a\\"\\\\\\n",le="10"} 1\n'
        'waits_ms_bucket{model="a\\"\\\\\\n",le="+Inf"} 3\n'
        'waits_ms_sum{model="a\\"\\\\\\n"} 30.25\n'
        'waits_ms_count{model="a\\"\\\\\\n"} 3\n'
    )
