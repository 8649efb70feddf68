"""Small ONNX models, and a harness that starts replicas and waits for their reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.exits.classifiers import find_positions

from slacktide.domain import BatchFinished, PoolId, Replica, ReplicaUp
from slacktide.executors.cores import available_cores
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.ports import (
    NO_FAULTS,
    BatchOrder,
    BatchOutputs,
    Executor,
    ExitSource,
    MemberFault,
    ModelSource,
    OpenedModel,
    Payload,
    ReplicaHandle,
    Report,
    TensorRef,
)
from slacktide.exits.manifest import ExitManifest, Ramp

value = helper.make_tensor_value_info


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
) -> Path:
    """Write a model of these nodes."""
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    return path


WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


class Models:
    """Writes models below a folder; each method returns the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / name / "1" / "model.onnx"

    def matmul(self) -> Path:
        """y = x W; [rows, 4] -> [rows, 3]."""
        return save(
            self.path("matmul"),
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [value("x", TensorProto.FLOAT, ["n", 4])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [numpy_helper.from_array(WEIGHT, "w")],
        )

    def identity(self, kind: int, tail: Sequence[int | str] = (2,)) -> Path:
        """y = x of one type; [rows, *tail]."""
        return save(
            self.path(f"identity{kind}"),
            [helper.make_node("Identity", ["x"], ["y"])],
            [value("x", kind, ["n", *tail])],
            [value("y", kind, ["n", *tail])],
        )

    def total(self) -> Path:
        """A scalar from a vector of any length: no batch axis."""
        return save(
            self.path("total"),
            [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
            [value("x", TensorProto.FLOAT, ["length"])],
            [value("y", TensorProto.FLOAT, [])],
        )

    def gather(self) -> Path:
        """Rows of a table of four; an index out of range raises."""
        return save(
            self.path("gather"),
            [helper.make_node("Gather", ["w", "i"], ["y"])],
            [value("i", TensorProto.INT64, ["n"])],
            [value("y", TensorProto.FLOAT, ["n", 3])],
            [numpy_helper.from_array(WEIGHT, "w")],
        )

    def mean(self, height: int | str = "h", width: int | str = "w") -> Path:
        """Mean colour and number of pixels of an image, after a convolution that changes nothing;
        [rows, height, width, 3] of uint8 -> [rows, 4]."""
        same = np.zeros((3, 3, 1, 1), np.float32)
        same[range(3), range(3)] = 1
        node = helper.make_node
        return save(
            self.path(f"mean{height}"),
            [
                node("Cast", ["image"], ["f"], to=TensorProto.FLOAT),
                node("Transpose", ["f"], ["t"], perm=[0, 3, 1, 2]),
                node("Conv", ["t", "same"], ["c"]),
                node("ReduceMean", ["c"], ["mean"], axes=[2, 3], keepdims=0),
                node("Mul", ["c", "zero"], ["nothing"]),
                node("Add", ["nothing", "third"], ["each"]),
                node("ReduceSum", ["each", "axes"], ["pixels"], keepdims=0),
                node("Unsqueeze", ["pixels", "one"], ["column"]),
                node("Concat", ["mean", "column"], ["y"], axis=1),
            ],
            [value("image", TensorProto.UINT8, ["n", height, width, 3])],
            [value("y", TensorProto.FLOAT, ["n", 4])],
            [
                numpy_helper.from_array(same, "same"),
                numpy_helper.from_array(np.array(0, np.float32), "zero"),
                numpy_helper.from_array(np.array(1 / 3, np.float32), "third"),
                numpy_helper.from_array(np.array([1, 2, 3]), "axes"),
                numpy_helper.from_array(np.array([1]), "one"),
            ],
        )

    def layers(self, rows: int | str = "n") -> Path:
        """Three convolutions; class probabilities that ramps can make, and an embedding that they
        cannot; [rows, 3, 8, 8] -> [rows, 4], [rows, 6]."""
        node, random = helper.make_node, np.random.default_rng(5)
        nodes, weights, tensor = [], [], "x"
        for at, (before, after) in enumerate([(3, 8), (8, 8), (8, 6)]):
            kernel = random.standard_normal((after, before, 3, 3)).astype(np.float32) / before
            weights.append(numpy_helper.from_array(kernel, f"w{at}"))
            nodes.append(node("Conv", [tensor, f"w{at}"], [f"c{at}"], pads=[1, 1, 1, 1]))
            tensor = f"r{at}"
            nodes.append(node("Relu", [f"c{at}"], [tensor]))
        last = random.standard_normal((6, 4)).astype(np.float32)
        weights.append(numpy_helper.from_array(last, "w"))
        nodes += [
            node("GlobalAveragePool", [tensor], ["pooled"]),
            node("Flatten", ["pooled"], ["embedding"]),
            node("Gemm", ["embedding", "w"], ["logits"]),
            node("Softmax", ["logits"], ["y"]),
        ]
        return save(
            self.path(f"layers{rows}"),
            nodes,
            [value("x", TensorProto.FLOAT, [rows, 3, 8, 8])],
            [
                value("y", TensorProto.FLOAT, [rows, 4]),
                value("embedding", TensorProto.FLOAT, [rows, 6]),
            ],
            weights,
        )

    def spin(self) -> Path:
        """y = x, after max(times) turns of a loop of a dozen small nodes: as long as one likes."""
        chain = [helper.make_node("Relu", ["s_in"], ["s0"])]
        chain += [helper.make_node("Relu", [f"s{i}"], [f"s{i + 1}"]) for i in range(12)]
        body = helper.make_graph(
            [
                *chain,
                helper.make_node("Identity", ["s12"], ["s_out"]),
                helper.make_node("Identity", ["c_in"], ["c_out"]),
            ],
            "body",
            [
                value("i", TensorProto.INT64, []),
                value("c_in", TensorProto.BOOL, []),
                value("s_in", TensorProto.FLOAT, ["n", 2]),
            ],
            [value("c_out", TensorProto.BOOL, []), value("s_out", TensorProto.FLOAT, ["n", 2])],
        )
        return save(
            self.path("spin"),
            [
                helper.make_node("ReduceMax", ["times"], ["turns"], keepdims=0),
                helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body),
            ],
            [value("x", TensorProto.FLOAT, ["n", 2]), value("times", TensorProto.INT64, ["n"])],
            [value("y", TensorProto.FLOAT, ["n", 2])],
        )


def write_ramps(path: Path, revision: int = 1, *, classes: int = 0) -> ExitSource:
    """Ramps of no use, but different ones, at every position of a model, beside it."""
    graph = find_positions(onnx.load(str(path)))
    random = np.random.default_rng(revision + 3)
    classes = classes or graph.classes
    ramps = [
        Ramp(
            position.number,
            position.tensor,
            random.standard_normal((position.features, classes)).astype(np.float32) * 2,
            np.zeros(classes, np.float32),
            1.0,
            0.9,
            position.cost,
        )
        for position in graph.positions
    ]
    manifest = ExitManifest("0" * 64, revision, 100, "samples", graph.outputs, tuple(ramps))
    folder = path.parent / "exits"
    folder.mkdir(exist_ok=True)
    document, weights = manifest.encode()
    (folder / manifest.weights_file).write_bytes(weights)
    (folder / "manifest.json").write_bytes(document)
    return ExitSource(folder)


class Case:
    """One replica under test: its handle and its reports, in order."""

    def __init__(
        self,
        executor: Executor,
        path: Path,
        arena: Arena,
        lane: str = "lane",
        *,
        id: int = 0,
        generation: int = 0,
        **source: Any,
    ) -> None:
        self.arena = arena
        self.path = path
        self.id = id
        self.on_report: Callable[[Report], object] = lambda event: None
        self.results: list[list[bytes]] = []
        """Bytes of the last results, by member and output."""
        self.shapes: list[list[tuple[int, ...]]] = []
        """Their shapes."""
        self.opened: OpenedModel | None = None
        self.out_of_memory = False
        self.faults: dict[int, str] = {}
        self.glue_faults: list[int] = []
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self.handle: ReplicaHandle = executor.start(
            Kit.replica(lane, id, generation), Kit.source(path, **source), arena, self._on_report
        )

    def _on_report(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
        faults: Mapping[int, MemberFault] = NO_FAULTS,
    ) -> None:
        self.faults = {place: fault.detail for place, fault in faults.items()}
        self.glue_faults = [place for place, fault in faults.items() if fault.of_glue]
        if isinstance(event, BatchFinished):
            self.results = [[data for _, data in member] for member in outputs]
            self.shapes = [[shape for shape, _ in member] for member in outputs]
        self.opened, self.out_of_memory = opened or self.opened, out_of_memory
        self._reports.put_nowait(event)
        self.on_report(event)

    async def next(self) -> Report:
        return await asyncio.wait_for(self._reports.get(), Kit.PATIENCE)

    async def ready(self) -> OpenedModel:
        report = await self.next()
        assert isinstance(report, ReplicaUp), report
        assert self.opened is not None
        return self.opened

    async def run(self, batch: int, *members: Payload, size: int = 0) -> Report:
        self.handle.run(BatchOrder(batch, members, size))
        return await self.next()

    @property
    def quiet(self) -> bool:
        """No report waits."""
        return self._reports.empty()


class Kit:
    """What tests of executors share."""

    PATIENCE = 30.0
    WEIGHT = WEIGHT
    save = staticmethod(save)
    write_ramps = staticmethod(write_ramps)
    value = staticmethod(value)
    Case = Case

    @staticmethod
    def source(path: Path, **fields: Any) -> ModelSource:
        return ModelSource(
            name="m", version="1", path=path, root=fields.pop("root", path.parent), **fields
        )

    @staticmethod
    def replica(lane: str = "lane", id: int = 0, generation: int = 0) -> Replica:
        pool = PoolId("m", "1", "", generation)
        return Replica(id, pool, lane, available_cores()[:1], 32)

    @staticmethod
    def put(arena: Arena, *tensors: Any, rows: int | None = None) -> Payload:
        """Write arrays, or (shape, bytes) pairs, to slots, as ingress does."""
        refs = []
        for tensor in tensors:
            if isinstance(tensor, tuple):
                shape, data = tensor
            else:
                shape, data = tensor.shape, np.ascontiguousarray(tensor).tobytes()
            slot = arena.allocate(len(data))
            arena.view(slot)[:] = data
            refs.append(TensorRef(slot.offset, slot.nbytes, shape))
        return Payload(refs[0].shape[0] if rows is None else rows, tuple(refs))

    @staticmethod
    @asynccontextmanager
    async def serving(executor: Any) -> AsyncIterator[Any]:
        """An executor that is closed whatever happens."""
        try:
            yield executor
        finally:
            await executor.close()

    @staticmethod
    async def gone(pidfd: int) -> bool:
        """Whether the process behind a pidfd ends within our patience."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(pidfd, lambda: ended.done() or ended.set_result(True))
        try:
            return bool(await asyncio.wait_for(ended, Kit.PATIENCE))
        finally:
            loop.remove_reader(pidfd)


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(tmp_path / "models")


@pytest.fixture
def kit() -> type[Kit]:
    return Kit


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(1 << 26)
    yield arena
    arena.close()
