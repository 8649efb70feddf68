"""Rows that influence each other are found, and all others are left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain import BatchFailed, BatchFinished
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.cores import available_cores
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.measuring import Measurement, measure
from slacktide.executors.ports import FunctionSource, ModelSource, RowsMismatch
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.rounding import (
    HALF_TOLERANCE,
    QUANTISED_TOLERANCE,
    TOLERANCE,
    tolerance_of,
)
from slacktide.executors.row_check import RANDOM

node, value = helper.make_node, helper.make_tensor_value_info
FLOAT, UINT8, INT64, TEXT = (
    TensorProto.FLOAT,
    TensorProto.UINT8,
    TensorProto.INT64,
    TensorProto.STRING,
)


def constant(name: str, content: Any) -> Any:
    return numpy_helper.from_array(np.asarray(content), name)


class Graph:
    """Nodes between one input x and one output y, [n, *tail] both."""

    def __init__(
        self,
        *nodes: Any,
        kind: int = FLOAT,
        tail: Sequence[int | str] = (4,),
        gives: int | None = None,
        out: Sequence[int | str] | None = None,
        **weights: Any,
    ) -> None:
        self.nodes = nodes
        self.inputs = [value("x", kind, ["n", *tail])]
        self.outputs = [value("y", gives or kind, ["n", *(tail if out is None else out)])]
        self.weights = [constant(name, content) for name, content in weights.items()]

    def save(self, kit: Any, folder: Path) -> Path:
        path: Path = kit.save(
            folder / "model.onnx", self.nodes, self.inputs, self.outputs, self.weights
        )
        return path


def branch(operator: str) -> Any:
    return helper.make_graph(
        [node(operator, ["x"], [operator])], operator, [], [value(operator, FLOAT, None)]
    )


RANDOM_NUMBERS = np.random.default_rng(3).standard_normal
DEPENDENT = {
    "GRU over time": Graph(
        node("GRU", ["x", "w", "r"], ["all", ""], hidden_size=3),
        node("Squeeze", ["all", "one"], ["y"]),
        tail=("batch", 2),
        out=("batch", 3),
        w=RANDOM_NUMBERS((1, 9, 2)).astype(np.float32),
        r=RANDOM_NUMBERS((1, 9, 3)).astype(np.float32),
        one=[1],
    ),
    "softmax over rows": Graph(node("Softmax", ["x"], ["y"], axis=0)),
    "largest of all": Graph(
        node("ReduceMax", ["x"], ["most"], keepdims=0), node("Div", ["x", "most"], ["y"])
    ),
    "largest pixel": Graph(
        node("Cast", ["x"], ["floats"], to=FLOAT),
        node("ReduceMax", ["floats"], ["most"], keepdims=0),
        node("Div", ["floats", "most"], ["y"]),
        kind=UINT8,
        gives=FLOAT,
        tail=(3, 8, 8),
    ),
    "a branch for all": Graph(
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], then_branch=branch("Neg"), else_branch=branch("Identity")),
        zero=np.float32(0),
    ),
    "first row for all": Graph(
        node("Gather", ["x", "zero"], ["first"], axis=0),
        node("Shape", ["x"], ["shape"]),
        node("Expand", ["first", "shape"], ["y"]),
        kind=INT64,
        zero=[0],
    ),
    "first text for all": Graph(
        node("Gather", ["x", "zero"], ["first"], axis=0),
        node("Shape", ["x"], ["shape"]),
        node("Expand", ["first", "shape"], ["y"]),
        kind=TEXT,
        zero=[0],
    ),
    "rows that are dropped": Graph(
        node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        node("Less", ["most", "limit"], ["keep"]),
        node("Compress", ["x", "keep"], ["y"], axis=0),
        limit=np.float32(8),
    ),
    "rows once each": Graph(node("Unique", ["x"], ["y"], axis=0)),
}
REVERSED = Graph(
    node("Slice", ["x", "last", "before", "zero", "last"], ["y"]),
    last=[-1],
    before=[-(2**31)],
    zero=[0],
)
INDEPENDENT = {
    "matmul": Graph(node("MatMul", ["x", "w"], ["y"]), w=RANDOM_NUMBERS((4, 4)).astype(np.float32)),
    "softmax": Graph(node("Softmax", ["x"], ["y"], axis=1)),
    "not a number": Graph(node("Sqrt", ["x"], ["y"])),
    "no elements": Graph(node("Slice", ["x", "none", "none", "one"], ["y"]), none=[0], one=[1]),
    "text": Graph(node("Identity", ["x"], ["y"]), kind=TEXT),
    "indices": Graph(
        node("Gather", ["w", "x"], ["y"]),
        kind=INT64,
        gives=FLOAT,
        out=(4, 3),
        w=RANDOM_NUMBERS((2, 3)).astype(np.float32),
    ),
    "zero divides": Graph(
        node("ReduceMax", ["x"], ["most"], axes=[1]), node("Div", ["x", "most"], ["y"])
    ),
    "quantised": Graph(
        node("DynamicQuantizeLinear", ["x"], ["small", "scale", "zero"]),
        node("DequantizeLinear", ["small", "scale", "zero"], ["y"]),
        tail=(64,),
    ),
}


def counted(step: float) -> Graph:
    """Every row of n is x · (1 + (n − 1) · step): sums in another order, made visible."""
    return Graph(
        node("Shape", ["x"], ["shape"], end=1),
        node("Cast", ["shape"], ["rows"], to=FLOAT),
        node("Sub", ["rows", "one"], ["more"]),
        node("Mul", ["more", "step"], ["change"]),
        node("Add", ["change", "one"], ["by"]),
        node("Mul", ["x", "by"], ["y"]),
        one=np.float32([1]),
        step=np.float32(step),
    )


def dependence(path: Path, **stated: Any) -> Measurement:
    async def body() -> Measurement:
        executor = InProcessExecutor()
        try:
            source = ModelSource("m", "1", path, path.parent, **stated)
            cores = available_cores()[:1]
            return await measure(executor, source, cores=[cores], budget_s=0.01, check_rows=True)
        finally:
            await executor.close()

    return asyncio.run(body())


@pytest.mark.parametrize("name", list(DEPENDENT))
def test_rows_that_influence_each_other_are_found(name: str, kit: Any, tmp_path: Path) -> None:
    check = dependence(DEPENDENT[name].save(kit, tmp_path))
    assert check.dependence
    assert check.dependence != RANDOM
    assert check.interface.batches, "what becomes of it others decide"


@pytest.mark.parametrize("name", list(INDEPENDENT))
def test_rows_that_do_not_are_left_alone(name: str, kit: Any, tmp_path: Path) -> None:
    assert dependence(INDEPENDENT[name].save(kit, tmp_path)).dependence == ""


def test_only_their_content_makes_rows_dependent_not_how_their_number_rounds(
    kit: Any, tmp_path: Path
) -> None:
    """Magika's softmax makes 0.4 % of another order of sums, which is the same beside any row."""
    assert dependence(counted(0.004).save(kit, tmp_path)).dependence == ""
    assert "differs between a batch" in dependence(counted(0.04).save(kit, tmp_path)).dependence
    mixed = Graph(
        node("ReduceMean", ["x"], ["mean"], axes=[0]),
        node("Mul", ["mean", "part"], ["bit"]),
        node("Add", ["x", "bit"], ["y"]),
        part=np.float32(0.004),
    )
    assert "differs between a batch" in dependence(mixed.save(kit, tmp_path)).dependence


def repeated(x: Any) -> Any:
    return np.repeat(x, 3, 0), np.repeat(np.arange(len(x)), 3)


def of_the_batch(x: Any) -> Any:
    return np.repeat(x * len(x), 3, 0), np.repeat(np.arange(len(x)), 3)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(repeated, ""), (of_the_batch, "differs between a batch and the row")],
)
def test_a_row_of_a_function_may_become_several(
    function: Any, expected: str, tmp_path: Path
) -> None:
    rows, parents = (
        TensorSpec("x", Datatype.FP32, (-1, 2)),
        TensorSpec("rows", Datatype.INT64, (-1,)),
    )
    interface = ModelInterface((rows,), (TensorSpec("y", Datatype.FP32, (-1, 2)), parents), 8)
    target = f"{__name__}:{function.__name__}"
    source = FunctionSource(target, interface.to_dict(), "f", expands=True)
    reason = dependence(tmp_path, function=source).dependence
    assert expected in reason
    assert bool(expected) == bool(reason)


def test_rows_that_come_back_swapped_are_called_so(kit: Any, tmp_path: Path) -> None:
    check = dependence(REVERSED.save(kit, tmp_path))
    assert check.dependence == "a batch returns two rows in the wrong order"


@pytest.mark.parametrize(
    "graph",
    [
        Graph(node("RandomNormalLike", ["x"], ["noise"]), node("Add", ["x", "noise"], ["y"])),
        Graph(
            node("Dropout", ["x", "ratio", "training"], ["y"]),
            ratio=np.float32(0.5),
            training=np.bool_(True),
            tail=(64,),
        ),
    ],
)
def test_random_answers_are_called_so(graph: Graph, kit: Any, tmp_path: Path) -> None:
    assert dependence(graph.save(kit, tmp_path)).dependence == RANDOM


def test_samples_and_constants_of_the_owner_are_kept(kit: Any, tmp_path: Path) -> None:
    """Whole numbers of samples stay as they are: any other would be outside of the table."""
    table = RANDOM_NUMBERS((500, 3)).astype(np.float32)
    graph = Graph(
        node("Sub", ["x", "low"], ["index"]),
        node("Gather", ["w", "index"], ["y"]),
        kind=INT64,
        gives=FLOAT,
        tail=(2,),
        out=(2, 3),
        w=table,
        low=np.int64(100),
    )
    path = graph.save(kit, tmp_path)
    np.savez(tmp_path / "rows.npz", x=np.array([[100, 120], [130, 599]]))
    check = dependence(path, samples=tmp_path / "rows.npz")
    assert (check.dependence, check.guess) == ("", "")


def test_a_process_that_the_check_ends_costs_nothing_else(kit: Any, tmp_path: Path) -> None:
    """−2^63 ÷ −1, which the processor refuses, for large numbers only."""
    graph = Graph(
        node("Greater", ["x", "limit"], ["large"]),
        node("Cast", ["large"], ["one"], to=INT64),
        node("Sub", ["two", "one"], ["three"]),
        node("Sub", ["three", "one"], ["four"]),
        node("Sub", ["four", "one"], ["by"]),
        node("Div", ["least", "by"], ["y"]),
        gives=INT64,
        limit=np.float32(20),
        two=np.int64(2),
        least=np.int64(-(2**63)),
        tail=(64,),
    )
    path = graph.save(kit, tmp_path)

    async def body() -> Measurement:
        executor = ProcessExecutor()
        try:
            source, cores = kit.source(path), available_cores()[:1]
            return await measure(executor, source, cores=[cores], budget_s=0.01, check_rows=True)
        finally:
            await executor.close()

    check = asyncio.run(body())
    assert check.dependence == ""
    assert check.record.table.batches[0] == 1


@pytest.mark.parametrize("executor_class", [ProcessExecutor, InProcessExecutor])
async def test_another_number_of_rows_is_reported_and_answers_a_request_alone(
    executor_class: Any, kit: Any, arena: Any, tmp_path: Path
) -> None:
    graph = Graph(
        node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        node("Less", ["most", "limit"], ["keep"]),
        node("Compress", ["x", "keep"], ["y"], axis=0),
        limit=np.float32(1000),
    )
    path = graph.save(kit, tmp_path)
    few, many = np.full((1, 4), 5, np.float32), np.full((1, 4), 5000, np.float32)

    executor = executor_class()
    try:
        case = kit.Case(executor, path, arena)
        await case.ready()
        assert isinstance(await case.run(0, kit.put(arena, few)), BatchFinished)
        assert isinstance(await case.run(1, kit.put(arena, many)), RowsMismatch)
        assert isinstance(await case.next(), BatchFinished)
        assert case.shapes == [[(0, 4)]]
        both = [kit.put(arena, few), kit.put(arena, many)]
        assert isinstance(await case.run(2, *both), RowsMismatch)
        assert isinstance(await case.next(), BatchFailed)
    finally:
        await executor.close()


def test_rounding_is_judged_by_the_operators_and_types_of_a_model(kit: Any, tmp_path: Path) -> None:
    import onnx

    def tolerance(graph: Graph, *, accelerated: bool = False) -> float:
        model = onnx.load(str(graph.save(kit, tmp_path)))
        return tolerance_of(model, accelerated=accelerated)

    plain = INDEPENDENT["matmul"]
    assert tolerance(plain) == TOLERANCE
    assert tolerance(plain, accelerated=True) == HALF_TOLERANCE
    halves = Graph(node("Identity", ["x"], ["y"]), kind=TensorProto.FLOAT16)
    assert tolerance(halves) == HALF_TOLERANCE
    assert tolerance(INDEPENDENT["quantised"]) == QUANTISED_TOLERANCE
