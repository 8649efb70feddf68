"""Allocators on real processes, and on make-believe control groups."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slacktide.executors.allocator import (
    PERIOD_US,
    AffinityAllocator,
    CpuAllocator,
    Grant,
    QuotaAllocator,
    QuotaUnavailableError,
    choose_allocator,
)
from slacktide.executors.cores import available_cores, thread_cores

ALL = available_cores()
ONE = ALL[:1]


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process with several threads."""
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
        yield process.pid


def granted(allocator: CpuAllocator, pid: int, cores: tuple[int, ...]) -> Grant:
    grants: list[Grant] = []
    allocator.grant(pid, cores, grants.append)
    (grant,) = grants
    return grant


def test_affinity_is_settled_at_once_and_read_back(sleeper: int) -> None:
    allocator = AffinityAllocator()
    for cores in (ONE, ALL, ALL[-1:]):
        assert granted(allocator, sleeper, cores) == Grant(cores, float(len(cores)))
        assert thread_cores(sleeper) == cores
    allocator.forget(sleeper)


def test_affinity_tells_what_it_did_not_get(sleeper: int) -> None:
    granted(AffinityAllocator(), sleeper, ONE)
    refused = granted(AffinityAllocator(), sleeper, (10_000,))
    assert refused == Grant(ONE, 1.0, "cannot run on cores 10000: Invalid argument")


def test_a_process_that_is_gone_cannot_be_granted_anything() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    for allocator in (AffinityAllocator(), QuotaAllocator(Path(), unified=True, share=1.0)):
        with pytest.raises(ProcessLookupError):
            allocator.grant(process.pid, ONE, pytest.fail)


def fake_root(root: Path, *, unified: bool) -> Path:
    """A make-believe file system; the folder of this process's group in it."""
    kind, options = ("cgroup2", "rw") if unified else ("cgroup", "rw,cpu")
    for path, text in (
        ("proc/self/mounts", f"cgroup /sys/fs/cgroup {kind} {options} 0 0\n"),
        ("proc/self/cgroup", "0::/app\n" if unified else "1:cpu:/app\n"),
        ("sys/fs/cgroup/app/cgroup.procs", f"{os.getpid()}\n"),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root / "sys/fs/cgroup/app"


@pytest.mark.parametrize("unified", [True, False], ids=["v2", "v1"])
def test_a_quota_is_written_beside_the_affinity(
    sleeper: int, tmp_path: Path, unified: bool
) -> None:
    own = fake_root(tmp_path, unified=unified)
    allocator = QuotaAllocator.in_own_group(share=0.75, root=tmp_path)
    group = own / f"slacktide-{os.getpid()}-{sleeper}"
    for cores in (ALL, ONE):
        amount = 0.75 * len(cores)
        assert granted(allocator, sleeper, cores) == Grant(cores, amount)
        assert thread_cores(sleeper) == cores
        assert (group / "cgroup.procs").read_text() == str(sleeper)
        quota = f"{round(amount * PERIOD_US)}"
        if unified:
            assert (group / "cpu.max").read_text() == f"{quota} {PERIOD_US}"
        else:
            assert (group / "cpu.cfs_quota_us").read_text() == quota
            assert (group / "cpu.cfs_period_us").read_text() == str(PERIOD_US)
    for file in group.iterdir():
        file.unlink()  # as in a real one, whose files go with the folder
    allocator.forget(sleeper)
    allocator.forget(sleeper)
    assert not group.exists()


def test_version_2_makes_room_for_groups_by_moving_this_process_aside(tmp_path: Path) -> None:
    own = fake_root(tmp_path, unified=True)
    QuotaAllocator.in_own_group(share=1.0, root=tmp_path)
    aside = own / f"slacktide-{os.getpid()}-server"
    assert (aside / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_group_with_other_processes_is_left_alone(tmp_path: Path) -> None:
    own = fake_root(tmp_path, unified=True)
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    with pytest.raises(QuotaUnavailableError, match="other processes are in it"):
        QuotaAllocator.in_own_group(share=1.0, root=tmp_path)
    assert not (own / "cgroup.subtree_control").exists()


def test_no_group_at_all_falls_back_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(QuotaUnavailableError, match="no control group"):
        QuotaAllocator.in_own_group(share=1.0, root=tmp_path)

    def refuse(*, share: float) -> QuotaAllocator:
        raise QuotaUnavailableError("the control group /app cannot be written")

    monkeypatch.setattr(QuotaAllocator, "in_own_group", refuse)
    with caplog.at_level(logging.WARNING, "slacktide.cores"):
        assert isinstance(choose_allocator(0.5), AffinityAllocator)
    (record,) = caplog.records
    assert "only by affinity" in record.getMessage()
    assert "/app cannot be written" in record.getMessage()
    assert isinstance(choose_allocator(), AffinityAllocator)


def test_a_group_that_refuses_later_is_told_once(
    sleeper: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake_root(tmp_path, unified=True)
    allocator = QuotaAllocator.in_own_group(share=0.5, root=tmp_path)
    allocator._folder = tmp_path / "gone"
    with caplog.at_level(logging.WARNING, "slacktide.cores"):
        for _ in range(2):
            assert granted(allocator, sleeper, ONE) == Grant(ONE, 1.0)
    assert [r.getMessage().startswith("cores are limited") for r in caplog.records] == [True]


@pytest.mark.parametrize("share", [0.0, 0.05, 1.5])
def test_shares_must_make_sense(share: float) -> None:
    with pytest.raises(ValueError, match=f"share: expected 0.1 to 1, got {share}"):
        QuotaAllocator(Path(), unified=True, share=share)


def test_a_real_group_where_one_can_be_made() -> None:
    try:
        allocator = QuotaAllocator.in_own_group(share=0.5)
    except QuotaUnavailableError as error:
        pytest.skip(str(error))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pid = process.pid
        assert granted(allocator, pid, ONE) == Grant(ONE, 0.5)
        name = f"slacktide-{os.getpid()}-{pid}"
        assert name in Path(f"/proc/{pid}/cgroup").read_text()
        assert granted(allocator, pid, ALL) == Grant(ALL, 0.5 * len(ALL))
        process.kill()
    assert allocator._groups[pid].exists()
    allocator.forget(pid)
    assert not [*allocator._folder.glob(f"slacktide-{os.getpid()}-*")]


def test_groups_that_a_killed_server_left_are_removed(tmp_path: Path) -> None:
    own = fake_root(tmp_path, unified=False)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    left, alive = own / f"slacktide-{ended.pid}-7", own / f"slacktide-{os.getppid()}-7"
    for group in (left, alive):
        group.mkdir()
    QuotaAllocator.in_own_group(share=1.0, root=tmp_path)
    assert (left.exists(), alive.exists()) == (False, True)
