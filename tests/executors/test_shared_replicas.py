"""Variants of one file by image size: replicas of their own, one process and session underneath."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from slacktide.domain import BatchFinished, ReplicaLost, ReplicaUp
from slacktide.executors.cores import available_cores
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.ports import BatchOrder, Executor, Resized
from slacktide.executors.process import ProcessExecutor

SIZES = (32, 64, 96)


@pytest.fixture(params=[ProcessExecutor, InProcessExecutor])
def kind(request: pytest.FixtureRequest) -> Callable[[], Executor]:
    """Makes an executor."""
    return request.param


@pytest.fixture
def start(models, kit, arena) -> Callable[..., Any]:
    """Start a variant of one model; further names change its source."""

    path = models.mean()

    def started(executor: Executor, size: int, id: int, **named: Any) -> Any:
        source = {"images": True, "image_sizes": SIZES, "image_size": size, **named}
        return kit.Case(executor, path, source.pop("arena", arena), id=id, **source)

    return started


def pixels_of(case: Any) -> float:
    """At which size its last batch ran."""
    return float(np.frombuffer(case.results[0][0], np.float32)[3])


async def has_run_at(case: Any, size: int, payload: Any) -> bool:
    assert isinstance(await case.run(case.id, payload), BatchFinished)
    return abs(pixels_of(case) - size * size) < 1


async def test_one_session_serves_all_sizes(start, kit, arena, kind) -> None:
    async with kit.serving(kind()) as executor:
        first, second = (start(executor, size, id) for id, size in enumerate((32, 96)))
        for id, case in enumerate((first, second)):
            assert await case.next() == ReplicaUp(id)
            assert case.opened == first.opened
        late = start(executor, 64, 2)
        assert await late.next() == ReplicaUp(2)
        image = kit.put(arena, np.zeros((1, 40, 50, 3), np.uint8))
        for size, case in ((32, first), (96, second), (64, late), (32, first), (64, late)):
            assert await has_run_at(case, size, image)
        second.handle.stop()
        for case in (first, late):
            assert await has_run_at(case, {0: 32, 2: 64}[case.id], image)
        assert all(case.quiet for case in (first, second, late))


async def test_one_more_variant_costs_no_process_and_a_last_stop_ends_it(start, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        cases = [start(executor, size, id) for id, size in enumerate(SIZES)]
        for case in cases:
            await case.ready()
        assert len(executor.worker_pids) == 1
        (pid,) = executor.worker_pids
        assert {case.handle.pid for case in cases} == {pid}
        assert len({case.handle.descriptor for case in cases}) == 1
        elsewhere = [
            start(executor, 32, 3, lane="other"),
            start(executor, 32, 4, generation=1),
            kit.Case(executor, cases[0].path, arena, id=5),
        ]
        for case in elsewhere:
            await case.ready()
        assert len({pid, *(case.handle.pid for case in elsewhere)}) == 4
        pidfd = os.pidfd_open(pid)
        for case in cases:
            case.handle.stop()
        assert await kit.gone(pidfd)
        os.close(pidfd)
        again = start(executor, 64, 6)
        await again.ready()
        assert again.handle.pid not in (None, pid)


async def test_a_kill_in_mid_batch_loses_all_and_a_restart_makes_one(start, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        cases = [start(executor, size, id) for id, size in enumerate(SIZES)]
        for case in cases:
            await case.ready()
        order: list[int] = []
        for case in cases:
            case.on_report = lambda event, id=case.id: order.append(id)
        image = kit.put(arena, np.zeros((1, 900, 900, 3), np.uint8))
        pid = cases[0].handle.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        cases[0].handle.run(BatchOrder(1, [image]))
        os.kill(pid, signal.SIGKILL)
        for case in cases:
            report = await case.next()
            assert isinstance(report, ReplicaLost)
            assert report.replica == case.id
            assert not report.permanent
            assert "signal 9" in report.detail
            assert report.shared == (case is not cases[0])  # it counts against the one that ran
        assert order == [1, 2, 0]  # the one that ran the batch comes last: its lane is not free
        again = [start(executor, size, 10 + id) for id, size in enumerate(SIZES)]
        for case in again:
            await case.ready()
        assert len(executor.worker_pids) == 1
        again[1].handle.kill()
        reports = [await case.next() for case in again]
        assert [report.shared for report in reports] == [True, True, False]  # against one, once
        for case in (*cases, *again):
            case.handle.stop()
            case.handle.kill()
            assert case.quiet


async def test_a_move_is_made_once_and_reported_by_each(start, kit, arena, kind) -> None:
    async with kit.serving(kind()) as executor:
        cases = [start(executor, size, id) for id, size in enumerate(SIZES[:2])]
        for case in cases:
            await case.ready()
        for cores in (available_cores()[-1:], available_cores()[:1], available_cores()[:1]):
            for case in cases:
                case.handle.resize(cores)
            for case in cases:
                assert await case.next() == Resized(cores)
        late = start(executor, SIZES[2], 2)
        await late.ready()
        late.handle.resize(cores)  # it has been there already
        assert await late.next() == Resized(cores)
        assert all(case.quiet for case in cases)


async def test_an_abort_stops_the_batch_of_the_one_that_runs(start, kit, arena, kind) -> None:
    async with kit.serving(kind()) as executor:
        cases = [start(executor, size, id) for id, size in enumerate(SIZES[:2])]
        for case in cases:
            await case.ready()
        image = kit.put(arena, np.zeros((1, 20, 20, 3), np.uint8))
        cases[1].handle.run(BatchOrder(7, [image]))
        cases[1].handle.abort(7)
        await cases[1].next()  # finished or aborted: the two may cross
        assert await has_run_at(cases[0], SIZES[0], image)
        assert cases[1].quiet


async def test_a_size_that_the_model_cannot_run_is_named(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        path = models.mean(24, 24)
        sizes = {"images": True, "image_sizes": (24, 48), "image_size": 24}
        cases = [kit.Case(executor, path, arena, id=id, **sizes) for id in range(2)]
        for case in cases:
            lost = await case.next()
            assert isinstance(lost, ReplicaLost)
            assert lost.permanent
            assert lost.detail.startswith("a row of 48 × 48 pixels fails: ")
