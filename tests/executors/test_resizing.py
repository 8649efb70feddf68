"""Resizes of real workers: read back, reported once, and survived by everybody."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from slacktide.domain import BatchFinished, ReplicaLost
from slacktide.executors.allocator import Confirm, Grant
from slacktide.executors.cores import available_cores, thread_cores
from slacktide.executors.hand_over.protocol import FrameKind, encode_number, frame
from slacktide.executors.hand_over.worker import BatchRunner, _serve
from slacktide.executors.measuring import measure
from slacktide.executors.ports import Resized, SessionSize
from slacktide.executors.process import ProcessExecutor

ALL = available_cores()
ONE, OTHER = ALL[:1], ALL[-1:]
several = pytest.mark.skipif(len(ALL) < 2, reason="needs two cores")


async def test_a_resize_is_read_back(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        assert thread_cores(case.handle.pid) == ONE
        for cores in (OTHER, ALL, ONE):
            case.handle.resize(cores)
            assert await case.next() == Resized(cores)
            assert thread_cores(case.handle.pid) == cores
            report = await case.run(1, kit.put(arena, np.ones((1, 4), np.float32)))
            assert isinstance(report, BatchFinished)


async def test_a_resize_while_it_starts_is_done_at_once(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        case.handle.resize(ONE)
        case.handle.resize(OTHER)  # before the fork server has answered: only the last one counts
        reports = [await case.next(), await case.next()]
        assert sorted(type(report).__name__ for report in reports) == ["ReplicaUp", "Resized"]
        assert Resized(OTHER) in reports
        assert thread_cores(case.handle.pid) == OTHER
        assert case.quiet


async def test_several_resizes_in_a_breath_are_reported_once(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        for cores in (ALL, ONE, OTHER):
            case.handle.resize(cores)
        assert await case.next() == Resized(OTHER)
        await asyncio.sleep(0)
        assert case.quiet


async def test_cores_that_do_not_exist_are_refused_with_what_it_has(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        case.handle.resize((10_000,))
        assert await case.next() == Resized(ONE, "cannot run on cores 10000: Invalid argument")
        case.handle.resize((*OTHER, 10_000))
        kept = OTHER[0]
        assert await case.next() == Resized(
            OTHER, f"requested cores {kept}, 10000, but may run only on {kept}"
        )


@contextmanager
def cpuset(cores: tuple[int, ...]) -> Iterator[Path]:
    """A control group (version 1) of these cores only; skips the test where none can be made."""
    parent = Path("/sys/fs/cgroup/cpuset")
    group = parent / f"slacktide-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpuset.mems").write_text((parent / "cpuset.mems").read_text())
        (group / "cpuset.cpus").write_text(",".join(map(str, cores)))
    except OSError:
        pytest.skip("no cpuset can be made here")
    try:
        yield group
    finally:
        group.rmdir()


@several
async def test_cores_outside_its_cpuset_are_told(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        with cpuset(ONE) as group:
            case = kit.Case(executor, models.matmul(), arena)
            await case.ready()
            (group / "cgroup.procs").write_text(str(case.handle.pid))
            case.handle.resize(OTHER)
            refused = await case.next()
            assert isinstance(refused, Resized)
            assert refused.cores == ONE
            assert "cannot run" in refused.detail
            case.handle.resize(ALL)
            less = await case.next()
            assert isinstance(less, Resized)
            assert less.cores == ONE
            assert "only" in less.detail
            report = await case.run(1, kit.put(arena, np.ones((1, 4), np.float32)))
            assert isinstance(report, BatchFinished)
            case.handle.kill()
            assert isinstance(await case.next(), ReplicaLost)


async def test_kill_minus_nine_during_resizes_ends_in_one_loss(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        for turn in range(3):
            case = kit.Case(executor, models.matmul(), arena)
            await case.ready()
            pid = case.handle.pid
            started = threading.Event()

            def kill(pid: int = pid, started: threading.Event = started) -> None:
                started.wait()
                os.kill(pid, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            reports = []
            while not (reports and isinstance(reports[-1], ReplicaLost)):
                started.set()
                case.handle.resize((ONE, OTHER, ALL)[turn])
                await asyncio.sleep(0)
                while not case.quiet:
                    reports.append(await case.next())
            killer.join()
            assert reports[-1] == ReplicaLost(0, "the worker process was killed by signal 9")
            assert all(isinstance(report, Resized) for report in reports[:-1])
            case.handle.resize(ONE)  # long dead
            await asyncio.sleep(0)
            assert case.quiet


async def test_a_worker_that_has_just_died_is_not_resized(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        pidfd = os.pidfd_open(case.handle.pid)
        os.kill(case.handle.pid, signal.SIGKILL)
        assert await kit.gone(pidfd)  # the loop may have heard of it, or not yet
        os.close(pidfd)
        case.handle.resize(OTHER)
        reports = [await case.next()]
        while not isinstance(reports[-1], ReplicaLost):
            reports.append(await case.next())
        assert case.quiet


class SlowAllocator:
    """Settles grants when told to, as somebody far away would."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[int, ...], Confirm]] = []
        self.forgotten: list[int] = []

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        self.asked.append((pid, cores, confirm))

    def forget(self, pid: int) -> None:
        self.forgotten.append(pid)


@pytest.mark.replaces_parts
async def test_a_resize_that_takes_its_time_counts_when_it_is_settled(models, kit, arena) -> None:
    allocator = SlowAllocator()

    async with kit.serving(ProcessExecutor(allocator)) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        pid = case.handle.pid
        assert [(at, cores) for at, cores, _ in allocator.asked] == [(pid, ONE)]
        allocator.asked[0][2](Grant(ONE, 1.0))  # nobody asked for this one
        case.handle.resize(ALL)
        case.handle.resize(OTHER)
        report = await case.run(1, kit.put(arena, np.ones((1, 4), np.float32)))
        assert isinstance(report, BatchFinished)  # it works on meanwhile
        _, (_, _, older), (_, cores, newer) = allocator.asked
        sent: list[bytes] = []
        send = case.handle._send
        case.handle._send = lambda data: (sent.append(data), send(data))
        older(Grant(ALL, 2.0))
        assert sent == [], "the worker was asked for something else since"
        assert cores == OTHER
        newer(Grant(ONE, 0.5, "deferred: the node has no room"))
        assert len(sent) == 1
        assert await case.next() == Resized(ONE, "deferred: the node has no room")
        case.handle.kill()
        assert isinstance(await case.next(), ReplicaLost)
        assert allocator.forgotten == [pid]
        sent.clear()
        newer(Grant(OTHER, 1.0))
        await asyncio.sleep(0)
        assert case.quiet
        assert sent == [], "it is dead"


class Full:
    """Gives less than was asked for at first."""

    def grant(self, pid: int, cores: tuple[int, ...], confirm: Confirm) -> None:
        confirm(Grant((), 1.0, "full"))
        asyncio.get_running_loop().call_later(0.02, confirm, Grant(cores, 1.0))

    def forget(self, pid: int) -> None:
        """Nothing is kept."""


async def test_a_worker_that_starts_with_less_says_so_and_again_once_it_has_the_rest(
    models, kit, arena
) -> None:
    async with kit.serving(ProcessExecutor(Full())) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        reports = [await case.next() for _ in range(3)]
        resized = [report for report in reports if isinstance(report, Resized)]
        assert resized == [Resized((), "full"), Resized(ONE)]


async def test_measuring_heeds_no_resize_that_it_has_not_asked_for(models, kit) -> None:
    async with kit.serving(ProcessExecutor(Full())) as executor:
        measured = await measure(executor, kit.source(models.matmul()), cores=[ONE], budget_s=0.1)
        assert measured.record.table.cores == (1,)


async def test_a_worker_has_the_sessions_asked_for_and_tells_what_they_take(
    models, kit, arena
) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena, threads=(1, 2, 4))
        ready = await case.ready()
        assert [size.threads for size in ready.sessions] == [4, 1, 2]
        assert all(isinstance(size, SessionSize) and size.nbytes >= 0 for size in ready.sessions)
        assert ready.note == ""
        # Ours, that of aborts, and three and one of the sessions' pools, at least.
        assert len(os.listdir(f"/proc/{case.handle.pid}/task")) >= 6
        for number, cores in enumerate((ALL, ONE, ALL)):
            case.handle.resize(cores)
            await case.next()
            x = np.full((3, 4), number, np.float32)
            assert isinstance(await case.run(number, kit.put(arena, x)), BatchFinished)
            output = np.frombuffer(case.results[0][0], np.float32).reshape(3, 3)
            assert np.allclose(output, x @ kit.WEIGHT, rtol=1e-5)


@pytest.mark.replaces_parts
def test_the_worker_hears_of_its_cores_in_order_with_its_batches() -> None:
    ours, theirs = socket.socketpair()
    bodies: list[object] = []

    class Runner:
        def execute(self, body: bytes) -> bytes:
            bodies.append(body)
            return b""

    with ours, theirs:
        for number in (1, 2):
            ours.sendall(
                encode_number(FrameKind.CORES, number) + frame(FrameKind.BATCH, b"%d" % number)
            )
        ours.sendall(frame(FrameKind.STOP))
        _serve(theirs, cast(BatchRunner, Runner()), bodies.append, print, nullcontext())
    assert bodies == [1, b"1", 2, b"2"]
