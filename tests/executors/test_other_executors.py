"""The in-process and the profiled executor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from slacktide.domain import BatchAborted, BatchFailed, BatchFinished, ReplicaLost, Request
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.in_process import InProcessExecutor, ProfiledExecutor
from slacktide.executors.ports import BatchOrder, Executor, OpenedModel, Payload, Resized
from slacktide.executors.process import ProcessExecutor
from slacktide.profiles import BatchTimes


async def test_in_process_results_failures_and_aborts(models, kit, arena) -> None:
    executor = InProcessExecutor()
    case = kit.Case(executor, models.matmul(), arena)
    with pytest.raises(RuntimeError, match="before it was ready"):
        case.handle.run(BatchOrder(0, []))
    assert (await case.ready()).interface.max_batch == 32
    assert case.handle.pid is None
    arrays = [np.full((n, 4), n, np.float32) for n in (1, 3)]
    report = await case.run(1, *(kit.put(arena, array) for array in arrays))
    assert isinstance(report, BatchFinished)
    for array, (data,) in zip(arrays, case.results, strict=True):
        output = np.frombuffer(data, np.float32).reshape(-1, 3)
        assert np.allclose(output, array @ kit.WEIGHT, rtol=1e-5)
    case.handle.run(BatchOrder(2, [kit.put(arena, arrays[0])]))
    case.handle.abort(3)
    case.handle.abort(2)
    assert await case.next() == BatchAborted(2)
    case.handle.resize((3,))
    assert await case.next() == Resized((3,))
    raising = kit.Case(executor, models.gather(), arena)
    await raising.ready()
    failed = await raising.run(1, kit.put(arena, np.array([9])))
    assert isinstance(failed, BatchFailed)
    assert "out of data bounds" in failed.detail
    raising.handle.kill()
    assert isinstance(await raising.next(), ReplicaLost)
    case.handle.run(BatchOrder(5, [kit.put(arena, arrays[0])]))
    await executor.close()
    case.handle.run(BatchOrder(6, [kit.put(arena, arrays[0])]))
    assert case.quiet


async def test_in_process_forgets_what_was_stopped_and_lets_go_of_its_payloads(
    models, kit, arena
) -> None:
    executor = InProcessExecutor()
    case = kit.Case(executor, models.matmul(), arena)
    await case.ready()
    case.handle.stop()
    assert executor._handles == set()
    assert len(case.handle._arena) == 0
    await executor.close()


async def test_in_process_a_broken_model_is_lost_for_good(models, kit, arena) -> None:
    executor = InProcessExecutor()
    path = models.matmul()
    path.write_bytes(b"garbage")
    report = await kit.Case(executor, path, arena).next()
    assert isinstance(report, ReplicaLost)
    assert report.permanent
    await executor.close()


@dataclass
class RowTime:
    """Twice as long in the worst case as in the best."""

    expected: float

    @property
    def p99(self) -> float:
        return 2 * self.expected

    def quantile(self, level: float) -> float:
        return self.expected * (1 + level)

    def on_time(self, budget: float) -> float:
        return float(budget >= self.expected)


class Times(BatchTimes):
    """10 ms per row and core-second."""

    revision = 0
    learns = True

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> RowTime:
        return RowTime(0.01 * rows / cores)

    def observe(self, seconds: float, members: Sequence[Request], rows: int, cores: int) -> None:
        self.revision += 1


INTERFACE = ModelInterface(
    (TensorSpec("x", Datatype.FP32, (-1, 4)),),
    (TensorSpec("y", Datatype.FP64, (-1, 3, -1)), TensorSpec("s", Datatype.BYTES, (-1, 2))),
    8,
)


def profiled() -> ProfiledExecutor:
    return ProfiledExecutor(lambda replica: Times(), lambda replica: INTERFACE)


async def test_profiled_answers_zeros_after_the_expected_time(models, kit, arena) -> None:
    executor = profiled()
    loop = asyncio.get_running_loop()
    case = kit.Case(executor, models.folder / "never-opened.onnx", arena)
    assert await case.ready() == OpenedModel(INTERFACE)
    begin = loop.time()
    report = await case.run(1, Payload(2, ()), Payload(1, ()))
    assert loop.time() - begin >= 0.03 - 1e-3
    assert isinstance(report, BatchFinished)
    assert report.timing.infer_s == pytest.approx(0.03)
    assert case.shapes == [[(2, 3, 1), (2, 2)], [(1, 3, 1), (1, 2)]]
    assert case.results == [[bytes(48), bytes(16)], [bytes(24), bytes(8)]]
    case.handle.resize((0, 1))
    assert await case.next() == Resized((0, 1))
    report = await case.run(2, Payload(2, ()))
    assert isinstance(report, BatchFinished)
    assert report.timing.infer_s == pytest.approx(0.01)
    case.handle.run(BatchOrder(3, [Payload(8, ())]))
    case.handle.abort(3)
    assert await case.next() == BatchAborted(3)
    case.handle.kill()
    assert await case.next() == ReplicaLost(0, "killed")
    await executor.close()
    assert case.quiet


def test_all_executors_keep_the_seams_promise() -> None:
    executors: list[Executor] = [ProcessExecutor(), InProcessExecutor(), profiled()]
    assert len(executors) == 3
    for executor in executors:
        asyncio.run(executor.close())
