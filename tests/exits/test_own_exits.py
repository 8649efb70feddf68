"""Exits that a model has of its own: chains that hand on several tensors give what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from slacktide.exits.errors import ExitError
from slacktide.exits.own_exits import OwnExit, check_own_exits
from slacktide.exits.ramp_graph import with_own_exits
from slacktide.exits.splitting import StageModel, split

WIDTH = 4
EXITS = [
    OwnExit({"y": f"{exit_name}/y"}, f"{exit_name}/quality") for exit_name in ("first", "second")
]


def model(reads: list[list[int]], ends: tuple[int, int, int]) -> Any:
    """Layers of rows [WIDTH], each of which reads the input (0) or layers before it (1, …), and
    the shape of one of them; `ends`: the layers at which both exits and the model answer."""
    rng = np.random.default_rng(len(reads))
    nodes, weights, value = [], [], helper.make_tensor_value_info
    for layer, sources in enumerate(reads, 1):
        names = [f"t{source}" for source in sources]
        weight = rng.normal(0.0, 0.5, (WIDTH, WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{layer}"))
        nodes += [
            helper.make_node("Sum", names, [f"s{layer}"]),
            helper.make_node("MatMul", [f"s{layer}", f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Tanh", [f"m{layer}"], [f"a{layer}"]),
            helper.make_node("Shape", names[:1], [f"shape{layer}"]),
            helper.make_node("Expand", ["one", f"shape{layer}"], [f"e{layer}"]),
            helper.make_node("Add", [f"a{layer}", f"e{layer}"], [f"t{layer}"]),
        ]
    weights.append(numpy_helper.from_array(np.ones((1, WIDTH), np.float32), "one"))
    outputs = []
    for end, name in zip(ends, ("first/", "second/", ""), strict=True):
        nodes.append(helper.make_node("Identity", [f"t{end}"], [f"{name}y"]))
        outputs.append(value(f"{name}y", TensorProto.FLOAT, ["n", WIDTH]))
        if name:
            mean = helper.make_node("ReduceMean", [f"t{end}"], [f"{name}mean"], axes=[1])
            judge = helper.make_node("Sigmoid", [f"{name}mean"], [f"{name}quality"])
            nodes += [mean, judge]
            outputs.append(value(f"{name}quality", TensorProto.FLOAT, ["n", 1]))
    inputs = [value("t0", TensorProto.FLOAT, ["n", WIDTH])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(onnx_model)
    return onnx_model


@st.composite
def models(draw: st.DrawFn) -> Any:
    layers = draw(st.integers(1, 7))
    sources = st.lists(st.integers(0, layers), min_size=1, max_size=3)
    reads = [[source % layer for source in draw(sources)] for layer in range(1, layers + 1)]
    ends = sorted(draw(st.integers(1, layers)) for _ in range(3))
    return model(reads, (ends[0], ends[1], ends[2]))


def run(content: Any, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    session = onnxruntime.InferenceSession(
        content.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert {declared.name for declared in session.get_inputs()} == feeds.keys()
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def chain(
    stages: list[StageModel], rows: NDArray[Any], stay: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """All that stages make; behind the first only the rows that stay."""
    values: dict[str, NDArray[Any]] = {"t0": rows}
    for at, stage in enumerate(stages):
        if at == 1:
            values = {
                name: array if name.startswith("exits/0") else array[stay]
                for name, array in values.items()
            }
        takes = {name: values[name] for name in (*stage.inputs, *stage.received)}
        stage.declare(dict.fromkeys(stage.received, "tensor(float)"))
        values |= run(stage.model, takes)
    return values


@given(models(), st.integers(1, 5), st.data())
def test_stages_give_what_the_model_gives_though_rows_leave(
    whole: Any, count: int, data: st.DataObject
) -> None:
    stay = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    stay[0] = True
    rows = np.random.default_rng(count).normal(size=(count, WIDTH)).astype(np.float32)
    check_own_exits(whole.graph, EXITS)
    stages = split(with_own_exits(whole, EXITS))
    assert [stage.ramp for stage in stages] == [0, 1, -1]
    expected, outputs = run(whole, {"t0": rows}), chain(stages, rows, stay)
    np.testing.assert_allclose(outputs["exits/0/y"], expected["first/y"], atol=1e-5)
    unsure = 1.0 - expected["first/quality"].reshape(-1)
    np.testing.assert_allclose(outputs["exits/0/uncertainty"], unsure, atol=1e-5)
    np.testing.assert_allclose(outputs["exits/1/y"], expected["second/y"][stay], atol=1e-5)
    np.testing.assert_allclose(outputs["y"][-stay.sum() :], expected["y"][stay], atol=1e-5)


def test_no_layer_runs_twice() -> None:
    whole = model([[0], [1], [1, 2], [3, 1], [4, 2]], (2, 4, 5))
    stages = split(with_own_exits(whole, EXITS))
    tensors_made = [node.output[0] for stage in stages for node in stage.model.graph.node]
    layers = [name for name in tensors_made if name.startswith("m")]
    assert sorted(layers) == ["m1", "m2", "m3", "m4", "m5"]
    assert [sorted(stage.received) for stage in stages] == [[], ["t1", "t2"], ["t2", "t4"]]
    assert [stage.inputs for stage in stages] == [("t0",), (), ()]


@pytest.mark.parametrize(
    ("exit", "message"),
    [
        (OwnExit({"z": "first/y"}, "first/quality"), r"\[0\].outputs: the model has no output 'z'"),
        (OwnExit({"y": "frist/y"}, "first/quality"), r"\[0\].outputs.y: .* no output 'frist/y'"),
        (OwnExit({"y": "first/y"}, "quality"), r"\[0\].quality: the model has no output 'quality'"),
        (OwnExit({"y": "first/quality"}, "first/quality"), "differs from 'y' in datatype or shape"),
        (
            OwnExit({"y": "first/y"}, "kind"),
            r"\[0\].quality: expected an output of floats, got 'kind'",
        ),
    ],
)
def test_wrong_names_are_refused_with_their_key(exit: OwnExit, message: str) -> None:
    whole = model([[0], [1]], (1, 1, 2))
    whole.graph.output.append(helper.make_tensor_value_info("kind", TensorProto.INT64, ["n"]))
    with pytest.raises(ExitError, match=message):
        check_own_exits(whole.graph, [exit])
