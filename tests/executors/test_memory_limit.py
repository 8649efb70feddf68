"""A worker may be kept from taking more memory than its model's owner allows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from slacktide.domain import BatchFinished, ReplicaLost
from slacktide.executors import cgroups as module
from slacktide.executors.cgroups import limit_memory, release_memory
from slacktide.executors.hand_over.output_file import OutputWriter
from slacktide.executors.hand_over.protocol import FrameKind, FrameReader, decode_text, encode_batch
from slacktide.executors.hand_over.worker import BatchRunner
from slacktide.executors.openvino_session import CancelOptions
from slacktide.executors.ports import BatchOrder
from slacktide.executors.process import ProcessExecutor

MIB = 1 << 20
PID = os.getpid()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What setrlimit is told, instead of doing it."""
    limits_set: list[tuple[int, int]] = []
    monkeypatch.setattr(module.resource, "setrlimit", lambda _, pair: limits_set.append(pair))
    return limits_set


def version_1(root: Path) -> Path:
    group = root / "sys/fs/cgroup/memory/box"
    group.mkdir(parents=True)
    write(root, "9:memory:/box\n", "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
    return group


def version_2(root: Path) -> Path:
    group = root / "sys/fs/cgroup/unit/server"
    group.mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text("")
    (group.parent / "cgroup.subtree_control").write_text("cpu memory")
    write(root, "0::/unit/server\n", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    return group


def write(root: Path, groups: str, mounts: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    (root / "proc/self/mounts").write_text(mounts)


def test_version_1_gets_a_group_below_our_own(tmp_path: Path, limits: Any) -> None:
    own = version_1(tmp_path)
    assert limit_memory(64 * MIB, root=tmp_path)
    group = own / f"slacktide-{PID}"
    assert (group / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (group / "memory.memsw.limit_in_bytes").read_text() == str(64 * MIB)
    assert (group / "cgroup.procs").read_text() == str(PID)
    assert limits == []
    assert not release_memory(PID, root=tmp_path)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert release_memory(PID, root=tmp_path)


@pytest.mark.parametrize("delegated", [True, False])
def test_version_2_gets_one_beside_ours_only_where_that_was_delegated(
    tmp_path: Path, limits: Any, monkeypatch: pytest.MonkeyPatch, delegated: bool
) -> None:
    unit = version_2(tmp_path).parent

    def getxattr(path: Path, name: str) -> bytes:
        if path == unit and name == "user.delegate" and delegated:
            return b"1"
        raise OSError("no such attribute")

    monkeypatch.setattr(module.os, "getxattr", getxattr)
    assert limit_memory(64 * MIB, root=tmp_path) is delegated
    group = unit / f"slacktide-{PID}"
    assert group.exists() is delegated
    if delegated:
        assert (group / "memory.max").read_text() == str(64 * MIB)
        assert (group / "memory.swap.max").read_text() == "0"
        (group / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
        assert release_memory(PID, root=tmp_path)
        assert limits == []
    else:
        assert len(limits) == 1


def test_where_there_is_no_group_allocations_fail() -> None:
    """In a process of its own, which reserves addresses freely and may use few."""
    script = """
import mmap
from pathlib import Path
from slacktide.executors.cgroups import limit_memory
assert not limit_memory(64 << 20, root=Path("/nowhere"))
mmap.mmap(-1, 1 << 30, prot=mmap.PROT_READ)
bytearray(32 << 20)
try:
    bytearray(256 << 20)
except MemoryError:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "refused\n"


class Failing:
    """A session whose every batch runs out of memory."""

    interface = None
    stages = None
    opener = SimpleNamespace(run_options=CancelOptions)

    def run(self, *_: Any) -> Any:
        raise MemoryError

    def fault(self, error: BaseException) -> Any:
        from slacktide.executors.onnx_runtime import fault_of

        return fault_of(error)

    def detail(self, error: BaseException) -> str:
        return "out of memory"


@pytest.mark.parametrize(
    ("confined", "kind"), [(True, FrameKind.BROKEN), (False, FrameKind.FAILED)]
)
def test_a_failed_allocation_ends_a_confined_worker_alone(
    kit: Any, arena: Any, confined: bool, kind: FrameKind
) -> None:
    session: Any = Failing()
    runner = BatchRunner(session, memoryview(b""), OutputWriter(-1), print, confined=confined)
    ((_, body),) = FrameReader().feed(encode_batch(BatchOrder(3, [kit.put(arena, np.array([1]))])))
    ((answer, text),) = FrameReader().feed(runner.execute(body))
    assert answer is kind
    assert decode_text(text) == (2 if confined else 3, "out of memory")


async def test_a_real_worker_that_takes_too_much_is_lost_for_that(
    models: Any, kit: Any, arena: Any
) -> None:
    path = kit.save(
        models.path("greedy"),
        [
            helper.make_node("ConstantOfShape", ["form"], ["much"]),
            helper.make_node("ReduceMax", ["much"], ["y"], keepdims=0),
        ],
        [kit.value("form", TensorProto.INT64, [1])],
        [kit.value("y", TensorProto.FLOAT, [])],
    )

    async def body(executor: ProcessExecutor) -> None:
        case = kit.Case(executor, path, arena, worker_memory=192 * MIB)
        await case.ready()
        pid = case.handle.pid
        assert pid is not None
        small, large = np.array([1 << 20]), np.array([1 << 28])  # 4 MiB, 1 GiB
        assert isinstance(await case.run(1, kit.put(arena, small, rows=1)), BatchFinished)
        lost = await case.run(2, kit.put(arena, large, rows=1))
        assert lost == ReplicaLost(0, "out of memory: a worker may use at most 192 MiB")
        assert case.out_of_memory
        assert [p for g in module._places(Path("/")) for p in g.folder.glob(f"*-{pid}")] == []

    executor = ProcessExecutor()
    try:
        await body(executor)
    finally:
        await executor.close()


async def test_a_worker_that_is_killed_or_stopped_leaves_no_group(
    models: Any, kit: Any, arena: Any
) -> None:
    executor = ProcessExecutor()
    try:
        killed = kit.Case(executor, models.gather(), arena, worker_memory=512 * MIB)
        stopped = kit.Case(executor, models.gather(), arena, worker_memory=512 * MIB)
        await killed.ready()
        await stopped.ready()
        pids = [killed.handle.pid, stopped.handle.pid]
        killed.handle.kill()
        lost = await killed.next()
        assert isinstance(lost, ReplicaLost)
        assert not killed.out_of_memory
        assert "signal 9" in lost.detail
        stopped.handle.stop()
    finally:
        await executor.close()
    groups = [group.folder for group in module._places(Path("/"))]
    assert [p for g in groups for pid in pids for p in g.glob(f"slacktide-{pid}")] == []
