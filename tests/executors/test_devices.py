"""Models on a GPU that fails: whose fault it was, and what is heard of it.

No GPU is used: a stand-in raises what ONNX Runtime's CUDA provider raises (tests/stand_ins).
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from slacktide.domain import BatchFailed, BatchFinished, PoolId, Replica, ReplicaLost, ReplicaUp
from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.executors import model_opening, session_opener
from slacktide.executors.hand_over.arena import map_read_only
from slacktide.executors.onnx_runtime import Fault, ModelError, client_detail, fault_of
from slacktide.executors.ports import BatchOrder
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.session import ModelSession
from slacktide.executors.session_pool import SessionPool

STAND_INS = Path(__file__).parents[1] / "stand_ins"


def _stand_in() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_stand_in", STAND_INS / "onnxruntime.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu: Any = _stand_in()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Any:
    """ONNX Runtime with two GPUs, in this process."""
    runtime = gpu.Runtime(onnxruntime)
    for module in (model_opening, session_opener):
        monkeypatch.setattr(module, "load_onnxruntime", lambda: runtime)
    return runtime


def opened(source: Any, device: str = "cuda:0") -> ModelSession:
    session = ModelSession.open(source, threads=1, device=device)
    session.warm_up()
    return session


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "fault", "detail"),
    [
        (gpu.ARENA, Fault.MEMORY, "out of memory"),
        (gpu.MEMORY, Fault.MEMORY, "out of memory"),
        (gpu.CUBLAS_MEMORY, Fault.MEMORY, "out of memory"),
        ("std::bad_alloc", Fault.MEMORY, "out of memory"),
        (
            gpu.ILLEGAL,
            Fault.DEVICE,
            "CUDA failure 700: an illegal memory access was encountered",
        ),
        (gpu.LAUNCH, Fault.DEVICE, "CUDA failure 719: unspecified launch failure"),
        (
            gpu.UNAVAILABLE,
            Fault.DEVICE,
            "CUDA failure 46: all CUDA-capable devices are busy or unavailable",
        ),
        (
            gpu.CUDNN_INTERNAL,
            Fault.DEVICE,
            "Name:'/layer1/MatMul' Status Message: CUDNN failure 4: CUDNN_STATUS_INTERNAL_ERROR",
        ),
        (
            gpu.CUDNN_PARAMETER,
            Fault.MODEL,
            "Name:'/layer1/MatMul' Status Message: CUDNN failure 3: CUDNN_STATUS_BAD_PARAM",
        ),
        (
            gpu.INVALID,
            Fault.MODEL,
            "Name:'/layer1/MatMul' Status Message: CUDA failure 9: invalid configuration argument",
        ),
        (gpu.NO_SUCH, Fault.MODEL, "CUDA failure 101: invalid device ordinal"),
        (gpu.ENQUEUE, Fault.MODEL, "Status Message: TensorRT EP execution context enqueue failed."),
        ("; hostname=a-host ; expr=f()", Fault.MODEL, "unknown error"),
    ],
)
def test_three_kinds_of_errors_and_nothing_of_the_host(
    text: str, fault: Fault, detail: str
) -> None:
    assert fault_of(text) is fault
    detail_shown = client_detail(text)
    assert detail_shown.endswith(detail)
    for secret in (gpu.HOST, "hostname", "onnxruntime_src", ".cc", "expr="):
        assert secret not in detail_shown


# ── opening and warming up ───────────────────────────────────────────────────────────────────────


def test_a_session_on_a_gpu_never_falls_back_to_the_cpu(
    runtime: Any, models: Any, kit: Any
) -> None:
    opened(kit.source(models.matmul()), "cuda:1")
    (providers, others), *_ = runtime.opened
    assert providers == [(gpu.CUDA, {"device_id": "1"}), (gpu.CPU, {})]
    assert others == {"enable_fallback": 0}


def test_memory_that_one_row_does_not_fit_in_is_no_broken_model(
    runtime: Any, models: Any, kit: Any
) -> None:
    models.folder = models.folder / "huge"
    with pytest.raises(runtime.error) as raised:
        opened(kit.source(models.matmul()))
    assert client_detail(raised.value) == "out of memory"


@pytest.mark.parametrize(("stated", "most"), [(None, 8), (13, 8), (8, 8), (5, 5)])
def test_memory_decides_on_the_largest_batch(
    runtime: Any, models: Any, kit: Any, stated: int | None, most: int
) -> None:
    models.folder = models.folder / "tight"
    source = kit.source(models.matmul(), max_batch=stated, warm_up_s=0.0)  # not for devices
    assert opened(source).interface.max_batch == most


def test_memory_decides_also_where_a_longer_input_needs_more(
    runtime: Any, models: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kit.save(
        models.path("long"),
        [helper.make_node("Identity", ["x"], ["y"])],
        [kit.value("x", TensorProto.FLOAT, ["n", "length"])],
        [kit.value("y", TensorProto.FLOAT, ["n", "length"])],
    )
    real = gpu.Session.run

    def run(self: Any, outputs: Any, feeds: dict[str, Any], options: Any = None) -> Any:
        self._room = 160 // feeds["x"].shape[1]
        return real(self, outputs, feeds, options)

    monkeypatch.setattr(gpu.Session, "run", run)
    padding = Padding({"x": PaddedInput(1, 0)}, {"y": PaddedOutput(1)}, (5, 40))
    source = kit.source(path, padding=padding, warmup_shapes={"x": (5,)})
    assert opened(source).interface.max_batch == 4
    padding = Padding({"x": PaddedInput(1, 0)}, {"y": PaddedOutput(1)}, (5, 161))
    with pytest.raises(runtime.error, match="Failed to allocate"):
        opened(kit.source(path, padding=padding, warmup_shapes={"x": (5,)}))


def test_a_further_session_with_less_room_is_left_out(
    runtime: Any, models: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(kit.source(models.matmul()), "cuda:0")
    real = gpu.Session.__init__

    def init(self: Any, *args: Any) -> None:
        real(self, *args)
        self._room = 4

    monkeypatch.setattr(gpu.Session, "__init__", init)
    with pytest.raises(MemoryError):
        session.add(2)
    assert session.interface.max_batch == 32


def test_a_device_that_fails_while_warming_up_is_worth_another_try(
    runtime: Any, models: Any, kit: Any
) -> None:
    session = ModelSession.open(kit.source(models.matmul()), threads=1, device="cuda:0")
    runtime.fail(0)
    with pytest.raises(runtime.error, match="INTERNAL_ERROR"):
        session.warm_up()
    with pytest.raises(RuntimeError, match="CUDA failure 46"):
        opened(kit.source(models.matmul()))
    models.folder = models.folder / "full"
    with pytest.raises(RuntimeError, match="ALLOC_FAILED"):
        opened(kit.source(models.matmul()), "cuda:1")


def test_a_device_that_is_not_there_is_not(runtime: Any, models: Any, kit: Any) -> None:
    with pytest.raises(ModelError) as refused:
        opened(kit.source(models.matmul()), "cuda:7")
    assert str(refused.value) == (
        "the model cannot be opened: CUDA failure 101: invalid device ordinal"
    )


@pytest.mark.parametrize(
    ("code", "fault"),
    [(2, Fault.MEMORY), (9, Fault.MODEL), (11, Fault.DEVICE), (700, Fault.DEVICE)],
)
def test_whether_the_device_still_answers_is_tried_where_the_text_does_not_tell(
    runtime: Any, models: Any, kit: Any, arena: Any, code: int, fault: Fault
) -> None:
    session = opened(kit.source(models.matmul()))
    member = kit.put(arena, np.full((1, 4), code, np.float32))
    with pytest.raises(runtime.error) as raised:
        session.run([member], map_read_only(arena.fd))
    assert session.fault(raised.value) is fault


# ── workers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def workers_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS), prepend=os.pathsep)


class OnGpu:
    """A replica on a device: its handle and its reports."""

    def __init__(self, executor: Any, source: Any, arena: Any, device: str) -> None:
        self.reports: asyncio.Queue[Any] = asyncio.Queue()
        self.sums: list[float] = []
        replica = Replica(0, PoolId("m", "1"), device, (), 32, device)
        self.handle = executor.start(replica, source, arena, self._heard)

    def _heard(self, report: Any, outputs: Any = (), **details: Any) -> None:
        if isinstance(report, BatchFinished):
            _, data = outputs[0][0]
            self.sums.append(float(np.frombuffer(data, np.float32).min()))
        self.reports.put_nowait(report)

    async def next(self) -> Any:
        return await asyncio.wait_for(self.reports.get(), 30)

    async def run(self, batch: int, *members: Any) -> Any:
        self.handle.run(BatchOrder(batch, members))
        return await self.next()


async def test_a_worker_tells_memory_device_and_input_apart(
    workers_with_gpus: None, models: Any, kit: Any, arena: Any
) -> None:
    executor = ProcessExecutor()
    try:
        replica = OnGpu(executor, kit.source(models.matmul()), arena, "cuda:1")
        assert isinstance(await replica.next(), ReplicaUp)

        def row(number: int) -> Any:
            return kit.put(arena, np.full((1, 4), number, np.float32))

        assert isinstance(await replica.run(0, row(0)), BatchFinished)
        assert replica.sums[0] >= 1000  # the second GPU
        assert await replica.run(1, row(2)) == BatchFailed(1, "out of memory")
        failed = await replica.run(2, row(9))
        assert isinstance(failed, BatchFailed)
        assert failed.detail.endswith("CUDA failure 9: invalid configuration argument")
        assert isinstance(await replica.run(3, row(0)), BatchFinished)
        lost = await replica.run(4, row(700))
        assert lost == ReplicaLost(0, "CUDA failure 700: an illegal memory access was encountered")
        again = OnGpu(executor, kit.source(models.matmul()), arena, "cuda:0")
        assert isinstance(await again.next(), ReplicaUp)
        assert isinstance(await again.run(0, row(11)), ReplicaLost)
        models.folder = models.folder / "huge"
        huge = OnGpu(executor, kit.source(models.matmul()), arena, "cuda:0")
        assert await huge.next() == ReplicaLost(0, "out of memory")
    finally:
        await executor.close()


def test_a_pool_on_a_gpu_is_one_session(runtime: Any, models: Any, kit: Any) -> None:
    pool = SessionPool.open(kit.source(models.matmul(), threads=(1, 2)), cores=0, device="cuda:0")
    assert [size.threads for size in pool.sizes] == [1]
