"""The process executor with real processes: results, failures, aborts, deaths, resizes."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from onnx import TensorProto, helper

from slacktide.domain import BatchAborted, BatchFailed, BatchFinished, ReplicaLost
from slacktide.executors import fork_client as fork_client_module
from slacktide.executors.hand_over import worker_handle
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.hand_over.protocol import FinishedMessage, decode_finished
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.ports import (
    BatchOrder,
    BatchOutputs,
    ModelSource,
    OutputRun,
    Payload,
    Report,
    TensorRef,
)
from slacktide.executors.process import ProcessExecutor

LONG = np.array([1 << 40])


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.param


def slice_of(pid: int) -> int:
    """Nanoseconds of the time slice that a process has asked for: sched_getattr(2)."""
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall(number, pid, attributes, 48, 0) == 0
    return int(struct.unpack("=IIQiIQQQ", attributes.raw)[5])


@pytest.mark.usefixtures("run")
async def test_results_equal_a_direct_computation(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        interface = (await case.ready()).interface
        assert (interface.max_batch, interface.outputs[0].shape) == (32, (-1, 3))
        generator = np.random.default_rng(1)
        for number, rows in enumerate([(1,), (2, 1, 5), (3,), (1,) * 32, (700, 900)]):
            arrays = [generator.random((n, 4), np.float32) for n in rows]
            report = await case.run(number, *(kit.put(arena, array) for array in arrays))
            assert isinstance(report, BatchFinished)
            assert report.batch == number
            assert [member[0] for member in case.shapes] == [(n, 3) for n in rows]
            for array, (data,) in zip(arrays, case.results, strict=True):
                output = np.frombuffer(data, np.float32).reshape(-1, 3)
                assert np.allclose(output, array @ kit.WEIGHT, rtol=1e-5)
            assert report.timing.infer_s > 0
            assert report.timing.cpu_s > 0
            assert report.timing.thread_s > 0
        assert case.quiet


async def test_several_replicas_run_at_the_same_time(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        cases = [kit.Case(executor, models.matmul(), arena) for _ in range(3)]
        for case in cases:
            await case.ready()
        assert len({case.handle.pid for case in cases} | {os.getpid()}) == 4
        for scale, case in enumerate(cases):
            case.handle.run(BatchOrder(7, [kit.put(arena, np.full((1, 4), scale, np.float32))]))
        for scale, case in enumerate(cases):
            await case.next()
            output = np.frombuffer(case.results[0][0], np.float32)
            assert np.allclose(output, scale * kit.WEIGHT.sum(0), rtol=1e-5)


async def test_strings(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.identity(TensorProto.STRING), arena)
        await case.ready()
        texts = [[["a", "é"]], [["", "two\nlines"], ["x" * 3000, "0"]]]
        members = [((len(t), 2), encode_strings(np.array(t, object))) for t in texts]
        assert isinstance(await case.run(1, *(kit.put(arena, m) for m in members)), BatchFinished)
        assert [result[0] for result in case.results] == [data for _, data in members]
        bad = await case.run(2, kit.put(arena, ((1, 2), b"\x01\0\0\0\xff\0\0\0\0")))
        assert bad == BatchFailed(2, "a BYTES element is not UTF-8, which ONNX strings must be")


async def test_a_model_without_batch_axis_runs_one_request(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.total(), arena)
        assert (await case.ready()).interface.max_batch == 0
        member = kit.put(arena, np.arange(5, dtype=np.float32), rows=1)
        report = await case.run(1, member)
        assert isinstance(report, BatchFinished)
        assert case.shapes[0][0] == ()
        assert np.frombuffer(case.results[0][0], np.float32) == [10.0]
        assert await case.run(2, member, member) == BatchFailed(2, "the model has no batch axis")


async def test_a_model_that_raises_fails_the_batch_and_lives_on(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.gather(), arena)
        await case.ready()
        report = await case.run(1, kit.put(arena, np.array([9])))
        assert isinstance(report, BatchFailed)
        assert "out of data bounds" in report.detail
        assert "/" not in report.detail
        report = await case.run(2, Payload(1, (TensorRef(1 << 25, 8 << 30, (1 << 30,)),)))
        assert isinstance(report, BatchFailed)
        assert isinstance(await case.run(3, kit.put(arena, np.array([2, 0]))), BatchFinished)
        assert case.results[0][0] == kit.WEIGHT[[2, 0]].tobytes()


async def test_out_of_memory_fails_the_batch_and_the_worker_lives_on(models, kit, arena) -> None:
    path = kit.save(
        models.path("huge"),
        [helper.make_node("ConstantOfShape", ["form"], ["y"])],
        [kit.value("form", TensorProto.INT64, [2])],
        [kit.value("y", TensorProto.FLOAT, ["a", "b"])],
    )

    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, path, arena)
        await case.ready()
        huge = kit.put(arena, np.array([1 << 22, 1 << 22]), rows=1)
        assert await case.run(1, huge) == BatchFailed(1, "out of memory")
        small = kit.put(arena, np.array([2, 3]), rows=1)
        assert isinstance(await case.run(2, small), BatchFinished)
        assert case.results == [[bytes(24)]]


@pytest.mark.usefixtures("run")
async def test_an_abort_stops_a_long_batch_and_spares_the_next(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.spin(), arena)
        await case.ready()
        x = np.ones((1, 2), np.float32)
        case.handle.run(BatchOrder(1, [kit.put(arena, x, LONG)]))
        case.handle.abort(1)
        assert await case.next() == BatchAborted(1)
        case.handle.abort(1)
        assert isinstance(await case.run(2, kit.put(arena, x, np.array([3]))), BatchFinished)
        case.handle.abort(3)  # before its batch: it may overtake
        assert await case.run(3, kit.put(arena, x, LONG)) == BatchAborted(3)
        assert isinstance(await case.run(4, kit.put(arena, x, np.array([3]))), BatchFinished)


@pytest.mark.usefixtures("run")
async def test_kill_minus_nine_is_seen_while_a_batch_runs(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.spin(), arena)
        await case.ready()
        case.handle.run(BatchOrder(1, [kit.put(arena, np.ones((1, 2), np.float32), LONG)]))
        os.kill(case.handle.pid, signal.SIGKILL)
        assert await case.next() == ReplicaLost(0, "the worker process was killed by signal 9")
        case.handle.run(BatchOrder(2, [kit.put(arena, np.ones((1, 2), np.float32), LONG)]))
        case.handle.abort(2)
        case.handle.resize((0,))
        case.handle.kill()
        case.handle.stop()
        again = kit.Case(executor, models.matmul(), arena)
        await again.ready()
        assert case.quiet


async def test_a_hanging_worker_can_be_killed(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.spin(), arena)
        await case.ready()
        case.handle.run(BatchOrder(1, [kit.put(arena, np.ones((1, 2), np.float32), LONG)]))
        os.kill(case.handle.pid, signal.SIGSTOP)  # not even the abort's thread runs now
        case.handle.abort(1)
        await asyncio.sleep(0.2)  # for longer than it computed before it was stopped
        case.handle.kill()
        assert await case.next() == ReplicaLost(0, "the worker process was killed by signal 9")


async def test_a_loss_says_whether_the_worker_computed(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.spin(), arena)
        await case.ready()
        case.handle.run(BatchOrder(1, [kit.put(arena, np.ones((1, 2), np.float32), LONG)]))
        at, before = case.handle._batch_start
        while case.handle._cpu_time() < before + 0.2:
            await asyncio.sleep(0.01)
        # However busy the machine is: as if it had waited for no core.
        case.handle._batch_start = max(at, time.monotonic() - 0.3), before
        case.handle.kill()
        lost = ReplicaLost(0, "the worker process was killed by signal 9", computed=True)
        assert await case.next() == lost


async def test_a_result_sent_before_death_still_counts(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        pid = case.handle.pid
        pidfd = os.pidfd_open(pid)
        case.handle.run(BatchOrder(1, [kit.put(arena, np.ones((1, 4), np.float32))]))
        # Without giving the loop a turn: wait until the result has been sent, then kill.
        while not _has_input(case.handle._control.fileno()):
            pass
        os.kill(pid, signal.SIGKILL)
        assert await kit.gone(pidfd)
        os.close(pidfd)
        assert isinstance(await case.next(), BatchFinished)
        assert isinstance(await case.next(), ReplicaLost)


def _has_input(fd: int) -> bool:
    return bool(select.select([fd], [], [], 10.0)[0])


async def test_stop_lets_the_batch_finish_and_reports_nothing(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        pidfd = os.pidfd_open(case.handle.pid)
        case.handle.stop()
        assert await kit.gone(pidfd)
        os.close(pidfd)
        await executor.close()
        assert case.quiet


async def test_stop_or_kill_while_starting(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        stopped = kit.Case(executor, models.matmul(), arena)
        stopped.handle.stop()
        killed = kit.Case(executor, models.matmul(), arena)
        killed.handle.kill()
        assert await killed.next() == ReplicaLost(0, "the worker process was killed by signal 9")
        with pytest.raises(RuntimeError, match="before it was ready"):
            kit.Case(executor, models.matmul(), arena).handle.run(BatchOrder(1, []))
        await executor.close()
        assert stopped.quiet


@pytest.mark.parametrize("way", ["garbage", "missing", "escape"])
async def test_broken_models_are_lost_for_good(
    way: str, models, kit, arena, tmp_path: Path
) -> None:
    path = models.matmul()
    root = path.parent
    if way == "garbage":
        path.write_bytes(b"no model")
    elif way == "missing":
        path.unlink()
    else:
        root = tmp_path / "elsewhere"
        root.mkdir()

    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, path, arena, root=root)
        report = await case.next()
        assert isinstance(report, ReplicaLost)
        assert report.permanent
        assert str(tmp_path) not in report.detail
        await executor.close()
        assert case.quiet


async def test_a_worker_is_nice_and_the_first_to_go(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        pid = case.handle.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(
            19, os.getpriority(os.PRIO_PROCESS, 0) + 5
        )
        assert os.sched_getscheduler(pid) == os.SCHED_OTHER
        assert slice_of(pid) in (0, 1_000_000)  # Linux before 6.12 has none of one's own
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "500"
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
        report = await case.run(1, kit.put(arena, np.ones((1, 4), np.float32)))
        assert isinstance(report, BatchFinished)


@pytest.mark.parametrize("rows", [1, 200_000])
async def test_results_stay_when_the_next_batch_was_started(models, kit, arena, rows: int) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        results: list[bytes] = []
        first = kit.put(arena, np.full((rows, 4), 1, np.float32))
        second = kit.put(arena, np.full((rows, 4), 2, np.float32))

        def report(event: Report, outputs: BatchOutputs = (), **details: object) -> None:
            if isinstance(event, BatchFinished):
                if len(results) < 10:
                    handle.run(BatchOrder(event.batch + 1, [second if event.batch % 2 else first]))
                    time.sleep(0.01)  # time for the worker to overwrite it where it lay
                results.append(outputs[0][0][1])
                if len(results) > 10:
                    done.set_result(None)
            elif not isinstance(event, BatchFinished):
                handle.run(BatchOrder(0, [second]))

        source: ModelSource = kit.source(models.matmul())
        handle = executor.start(kit.replica(), source, arena, report)
        await asyncio.wait_for(done, kit.PATIENCE)
        for number, data in enumerate(results):
            sums = np.tile(kit.WEIGHT.sum(0), (rows, 1)) * (1 if number % 2 else 2)
            assert np.allclose(np.frombuffer(data, np.float32), sums.ravel(), rtol=1e-5)


@pytest.mark.replaces_parts
@pytest.mark.parametrize(
    ("false", "expected"),
    [
        ({"members": 2}, "expected (1, 1) outputs and members, got (1, 2)"),
        ({"outputs": [[OutputRun(1, 1 << 62, 1, (1,))]]}, f"at {1 << 62} of 4096"),
    ],
)
async def test_a_worker_that_reports_false_results_is_ended(
    models, kit, arena, monkeypatch: pytest.MonkeyPatch, false: dict[str, Any], expected: str
) -> None:
    def falsified(body: bytes) -> FinishedMessage:
        return decode_finished(body)._replace(**false)

    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        monkeypatch.setattr(worker_handle, "decode_finished", falsified)
        report = await case.run(1, kit.put(arena, np.ones((1, 4), np.float32)))
        assert isinstance(report, ReplicaLost)
        assert "the worker sent an invalid message" in report.detail
        assert expected in report.detail


async def test_the_fork_server_has_one_thread(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        await kit.Case(executor, models.matmul(), arena).ready()
        assert len(os.listdir(f"/proc/{executor.fork_server_pid}/task")) == 1


async def test_the_executor_survives_its_fork_server(models, kit, arena) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        executor.warm()
        case = kit.Case(executor, models.matmul(), arena)
        await case.ready()
        first = executor.fork_server_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert isinstance(await case.next(), ReplicaLost)  # its workers go with it
        again = kit.Case(executor, models.matmul(), arena)
        await again.ready()
        assert executor.fork_server_pid not in (None, first)


async def test_a_fork_server_that_dies_before_it_answers_loses_the_replica(
    models, kit, arena
) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        case = kit.Case(executor, models.matmul(), arena)
        os.kill(executor.fork_server_pid, signal.SIGKILL)
        report = await case.next()
        assert isinstance(report, ReplicaLost)
        assert not report.permanent


async def test_a_fork_server_that_hangs_is_replaced_and_its_workers_live_on(
    models, kit, arena, monkeypatch, caplog
) -> None:
    """SIGSTOP: its requests are lost and said so; what comes next goes to another one."""

    async with kit.serving(ProcessExecutor()) as executor:
        old = kit.Case(executor, models.matmul(), arena)
        await old.ready()
        monkeypatch.setattr(fork_client_module, "_ANSWER", 0.1)
        stopped = executor.fork_server_pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        lost = await kit.Case(executor, models.matmul(), arena).next()
        assert lost == ReplicaLost(0, "the process that starts workers does not respond")
        assert f"process {stopped}): replacing it" in caplog.text
        new = kit.Case(executor, models.matmul(), arena)
        await new.ready()
        assert executor.fork_server_pid not in (None, stopped)
        for number, case in enumerate((old, new)):
            given = kit.put(arena, np.ones((1, 4), np.float32))
            assert isinstance(await case.run(number, given), BatchFinished)
        fd = os.pidfd_open(stopped)
        old.handle.stop()  # the last of its workers: nothing needs the old one any more
        await asyncio.to_thread(select.select, [fd], [], [], kit.PATIENCE)
        os.close(fd)
        assert isinstance(await new.run(7, given), BatchFinished)


async def test_a_worker_that_is_started_too_late_is_ended(models, kit, arena, monkeypatch) -> None:
    async with kit.serving(ProcessExecutor()) as executor:
        old = kit.Case(executor, models.matmul(), arena)
        await old.ready()
        monkeypatch.setattr(fork_client_module, "_ANSWER", 0.1)
        stopped = executor.fork_server_pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        assert isinstance(await kit.Case(executor, models.matmul(), arena).next(), ReplicaLost)
        answers = executor._fork_clients[0]._answers
        os.kill(stopped, signal.SIGCONT)  # now it does what it was asked to do
        children = Path(f"/proc/{stopped}/task/{stopped}/children")
        while (
            executor._fork_clients[0]._answers == answers or len(children.read_text().split()) > 1
        ):
            await asyncio.sleep(0.01)
        assert children.read_text().split() == [str(old.handle.pid)]
        given = kit.put(arena, np.ones((1, 4), np.float32))
        assert isinstance(await old.run(1, given), BatchFinished)


def test_close_ends_every_process_and_leaves_no_descriptor(models, kit) -> None:
    async def body() -> None:
        executor = ProcessExecutor()
        arena = Arena(1 << 20)
        cases = [kit.Case(executor, models.spin(), arena) for _ in range(2)]
        for case in cases:
            await case.ready()
        pids = [case.handle.pid for case in cases] + [executor.fork_server_pid]
        cases[0].handle.run(
            BatchOrder(1, [kit.put(arena, np.ones((1, 2), np.float32), np.array([3]))])
        )
        await executor.close()
        await executor.close()
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        with pytest.raises(RuntimeError, match="closed"):
            kit.Case(executor, models.matmul(), arena)
        arena.close()

    before = os.listdir("/proc/self/fd")
    asyncio.run(body())
    assert len(os.listdir("/proc/self/fd")) == len(before)
