from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slacktide.executors.cores import (
    available_cores,
    cpu_quota,
    hardware_fingerprint,
    move_threads,
    pinned,
    thread_cores,
)


class Host:
    """A make-believe file system with /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Host:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def v2(self, own: str) -> Host:
        self.write("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n")
        return self.write("proc/self/cgroup", f"0::{own}\n")

    def v1(self, own: str) -> Host:
        mounts = (
            "tmpfs /sys/fs/cgroup tmpfs ro 0 0\n"
            "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
            "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        )
        self.write("proc/self/mounts", mounts)
        return self.write("proc/self/cgroup", f"5:memory:/x\n4:cpu,cpuacct:{own}\n0::/\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_without_groups_the_affinity_mask_counts(host: Host) -> None:
    assert available_cores(root=host.root, affinity={5, 1, 3}) == (1, 3, 5)
    assert cpu_quota(root=host.root) is None
    assert set(available_cores()) <= os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", (0, 1, 2, 3)),
        ("250000 100000", (0, 1)),
        ("200000 100000", (0, 1)),
        ("50000 100000", (0,)),
        ("900000 100000", (0, 1, 2, 3)),
        ("nonsense", (0, 1, 2, 3)),
    ],
)
def test_v2_quota(host: Host, quota: str, cores: tuple[int, ...]) -> None:
    host.v2("/app").write("sys/fs/cgroup/app/cpu.max", quota)
    assert available_cores(root=host.root, affinity=range(4)) == cores


def test_a_group_above_limits_too(host: Host) -> None:
    host.v2("/slice/app").write("sys/fs/cgroup/slice/app/cpu.max", "max 100000")
    host.write("sys/fs/cgroup/slice/cpu.max", "300000 100000")
    assert cpu_quota(root=host.root) == 3.0


def test_v1_quota(host: Host) -> None:
    folder = "sys/fs/cgroup/cpu,cpuacct/app"
    host.v1("/app").write(f"{folder}/cpu.cfs_quota_us", "150000\n")
    host.write(f"{folder}/cpu.cfs_period_us", "50000\n")
    assert available_cores(root=host.root, affinity=range(8)) == (0, 1, 2)
    host.write(f"{folder}/cpu.cfs_quota_us", "-1\n")
    assert cpu_quota(root=host.root) is None


def test_v1_in_a_container_whose_path_is_the_hosts(host: Host) -> None:
    host.v1("/docker/0123").write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "100000")
    host.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert available_cores(root=host.root, affinity=range(8)) == (0,)


def test_fingerprint_takes_what_matters(host: Host) -> None:
    host.write(
        "proc/cpuinfo", "processor : 0\nmodel name\t: Fast One\nflags\t: fpu avx2 fma sse\n\n"
    )
    fingerprint = hardware_fingerprint(root=host.root, cores=2)
    assert (fingerprint.cpu, fingerprint.flags, fingerprint.cores) == (
        "Fast One",
        ("avx2", "fma"),
        2,
    )
    assert fingerprint.onnxruntime
    same = hardware_fingerprint(root=host.root, cores=2)
    other = hardware_fingerprint(root=host.root, cores=1)
    assert fingerprint.digest == same.digest == other.digest  # profiles have a column for each
    assert len(hardware_fingerprint().digest) == 16


def test_move_threads_moves_every_thread_and_reads_back() -> None:
    program = (
        "import threading, sys\n"
        "for _ in range(3): threading.Thread(target=sys.stdin.read).start()\n"
        "print('up', flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        threads = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        core = max(os.sched_getaffinity(0))
        assert len(threads) >= 4
        assert move_threads(process.pid, [core]) == (core,)
        assert all(os.sched_getaffinity(thread) == {core} for thread in threads)
        assert thread_cores(process.pid) == (core,)
        with pytest.raises(OSError):
            move_threads(process.pid, [10_000])
    with pytest.raises(ProcessLookupError):
        move_threads(process.pid, [core])


def test_a_thread_is_pinned_for_a_while_even_if_it_fails() -> None:
    before = os.sched_getaffinity(0)
    with pinned((min(before),)):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ZeroDivisionError), pinned((min(before),)):
        _ = 1 / 0
    assert os.sched_getaffinity(0) == before
