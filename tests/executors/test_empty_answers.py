"""Answers without elements, from both executors: numbers, strings, an axis of length 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain import BatchFinished
from slacktide.executors.hand_over.tensor_io import encode_strings
from slacktide.executors.in_process import InProcessExecutor
from slacktide.executors.process import ProcessExecutor

node, value = helper.make_node, helper.make_tensor_value_info
NONE = np.zeros((2, 0), np.float32)


def constant(name: str, content: Any) -> Any:
    return numpy_helper.from_array(np.asarray(content), name)


def detections(kit: Any, folder: Path) -> Path:
    """The places of elements above 0.5; [height, width] -> [1, detections, 2]."""
    return kit.save(
        folder / "model.onnx",
        [
            node("Greater", ["x", "half"], ["above"]),
            node("NonZero", ["above"], ["places"]),
            node("Transpose", ["places"], ["columns"]),
            node("Cast", ["columns"], ["floats"], to=TensorProto.FLOAT),
            node("Unsqueeze", ["floats", "front"], ["y"]),
        ],
        [value("x", TensorProto.FLOAT, ["h", "w"])],
        [value("y", TensorProto.FLOAT, ["batch", "detections", 2])],
        [constant("half", np.float32(0.5)), constant("front", [0])],
    )


def words(kit: Any, folder: Path) -> Path:
    """The words that are kept, of any number."""
    return kit.save(
        folder / "model.onnx",
        [node("Compress", ["x", "keep"], ["y"], axis=0)],
        [value("x", TensorProto.STRING, ["n"]), value("keep", TensorProto.BOOL, ["n"])],
        [value("y", TensorProto.STRING, ["k"])],
    )


def nothing_of(kit: Any, folder: Path) -> Path:
    """No column of x, and all of them; [rows, 4] -> [rows, 0], [rows, 4]."""
    return kit.save(
        folder / "model.onnx",
        [node("Slice", ["x", "zero", "zero", "one"], ["none"]), node("Identity", ["x"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("none", TensorProto.FLOAT, ["n", 0]), value("y", TensorProto.FLOAT, ["n", 4])],
        [constant("zero", [0]), constant("one", [1])],
    )


def identity(kind: int) -> Any:
    def build(kit: Any, folder: Path) -> Path:
        return kit.save(
            folder / "model.onnx",
            [node("Identity", ["x"], ["y"])],
            [value("x", kind, ["n", "k"])],
            [value("y", kind, ["n", "k"])],
        )

    return build


CASES: dict[str, tuple[Any, list[Any], int | None, list[tuple[int, ...]]]] = {
    "detections": (detections, [np.zeros((4, 4), np.float32)], 0, [(1, 0, 2)]),
    "words": (words, [((2,), encode_strings(np.array(["a", "b"]))), np.zeros(2, bool)], 0, [(0,)]),
    "axis": (nothing_of, [np.zeros((3, 4), np.float32)], None, [(3, 0), (3, 4)]),
    "floats": (identity(TensorProto.FLOAT), [NONE], None, [(2, 0)]),
    "strings": (identity(TensorProto.STRING), [((2, 0), b"")], None, [(2, 0)]),
    "bfloats": (identity(TensorProto.BFLOAT16), [((2, 0), b"")], None, [(2, 0)]),
}


@pytest.mark.parametrize("executor_class", [ProcessExecutor, InProcessExecutor])
@pytest.mark.parametrize("name", list(CASES))
async def test_first_answer_of_a_replica_may_have_no_elements(
    name: str, executor_class: Any, kit: Any, arena: Any, tmp_path: Path
) -> None:
    build, inputs, max_batch, shapes = CASES[name]
    path = build(kit, tmp_path)
    first = inputs[0]
    rows = first[0][0] if isinstance(first, tuple) else len(first)

    executor = executor_class()
    try:
        case = kit.Case(executor, path, arena, max_batch=max_batch)
        await case.ready()
        for batch in range(2):
            report = await case.run(batch, kit.put(arena, *inputs, rows=rows))
            assert isinstance(report, BatchFinished), report
            assert case.shapes == [shapes]
            assert case.results[0][0] == b""
    finally:
        await executor.close()


async def test_members_with_and_without_elements_share_a_worker(kit, models, arena) -> None:
    executor = ProcessExecutor()
    try:
        case = kit.Case(executor, models.identity(TensorProto.FLOAT, ("k",)), arena)
        await case.ready()
        full = np.arange(6, dtype=np.float32).reshape(2, 3)
        for batch, array in enumerate([NONE, full, NONE]):
            members = [kit.put(arena, array), kit.put(arena, array)]
            assert isinstance(await case.run(batch, *members), BatchFinished)
            assert case.results == [[array.tobytes()], [array.tobytes()]]
    finally:
        await executor.close()
