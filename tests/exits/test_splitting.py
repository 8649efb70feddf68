"""Chains of stages: they give what the whole model gives, also where it was optimised first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.exits.classifiers import find_positions

from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import Ramp
from slacktide.exits.positions import ExitGraph
from slacktide.exits.ramp_graph import with_ramps
from slacktide.exits.splitting import StageModel, split
from slacktide.lab.examples import example

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
AS_IT_IS = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]


def opened(model: onnx.ModelProto, *, optimise: bool = True, saved: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = AS_IT_IS
    if saved is not None:
        options.optimized_model_filepath = str(saved)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def outputs_of(model: onnx.ModelProto, feeds: Tensors) -> Tensors:
    names = [declared.name for declared in model.graph.output]
    return dict(zip(names, opened(model).run(names, feeds), strict=True))


def optimised(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    path = folder / "optimised.onnx"
    opened(model, saved=path)
    return onnx.load(path)


def chain(stages: list[StageModel], feeds: Tensors, *, optimise: bool) -> list[Tensors]:
    """Outputs by stage. Every stage is given what it says it takes and nothing else."""
    values, by_stage, types = dict(feeds), [], dict[str, str]()
    for stage in stages:
        stage.declare(types)
        names = list(dict.fromkeys((*stage.outputs, *stage.passed_on)))
        takes = {name: values[name] for name in (*stage.inputs, *stage.received)}
        session = opened(stage.model, optimise=optimise)
        assert {declared.name for declared in session.get_inputs()} == set(takes)
        assert {declared.name for declared in session.get_outputs()} == set(names)
        types |= {output.name: output.type for output in session.get_outputs()}
        outputs = dict(zip(names, session.run(names, takes), strict=True))
        by_stage.append({name: outputs[name] for name in stage.outputs})
        values.update({name: outputs[name] for name in stage.passed_on})
    return by_stage


def ramps_at(graph: ExitGraph, *numbers: int) -> list[Ramp]:
    random = np.random.default_rng(5)
    ramps = []
    for number in numbers:
        position = graph.positions[number]
        weights = random.standard_normal((position.features, graph.classes)).astype(np.float32)
        bias = np.zeros(graph.classes, np.float32)
        ramps.append(Ramp(number, position.tensor, weights / 10, bias, 1.0, 1.0, 0.5))
    return ramps


def examples() -> list[tuple[str, tuple[int, ...]]]:
    return [("residual", (1, 4, 9)), ("text", (0, 3, 7)), ("mlp", (0, 1))]


@pytest.mark.parametrize("optimise_first", [False, True])
@pytest.mark.parametrize(("name", "numbers"), examples())
def test_chains_of_the_examples(
    name: str, numbers: tuple[int, ...], optimise_first: bool, tmp_path: Path
) -> None:
    model = onnx.load_from_string(example(name).onnx())
    feeds = example(name).draw(4, np.random.default_rng(2)).batch()
    graph = find_positions(model, mask="attention_mask" if name == "text" else "")
    ramped = with_ramps(model, graph, ramps_at(graph, *numbers))
    whole, bare = outputs_of(ramped, feeds), outputs_of(model, feeds)
    stages = split(optimised(ramped, tmp_path) if optimise_first else ramped)
    assert [stage.ramp for stage in stages] == [*numbers, -1]
    few = 4 if name == "text" else 1  # what is made of the mask is handed on, too
    assert all(len(stage.received) <= few for stage in stages)
    assert all("input_ids" not in stage.inputs for stage in stages[1:])
    by_stage = chain(stages, feeds, optimise=not optimise_first)
    together = {key: value for outputs in by_stage for key, value in outputs.items()}
    assert together.keys() == whole.keys()
    for key, value in together.items():
        np.testing.assert_allclose(value, whole[key], atol=1e-5, rtol=1e-4)
    for key, value in bare.items():
        np.testing.assert_allclose(together[key], value, atol=1e-5)
    assert all(f"exits/{number}/logits" in by_stage[at] for at, number in enumerate(numbers))
    assert "exits/answer" in by_stage[-1]


def test_no_weight_is_in_two_stages() -> None:
    model = onnx.load_from_string(example("residual").onnx())
    graph = find_positions(model)
    stages = split(with_ramps(model, graph, ramps_at(graph, 2, 5)))
    weights = [
        {weight.name for weight in stage.model.graph.initializer if len(weight.raw_data) > 1000}
        for stage in stages
    ]
    assert all(weights)
    assert len(set.union(*weights)) == sum(map(len, weights))
    assert sum(len(stage.model.graph.node) for stage in stages) <= len(model.graph.node) + 40


def test_rows_that_leave_a_batch_take_what_is_made_of_their_mask_along() -> None:
    model = onnx.load_from_string(example("whereabouts").onnx())
    feeds = example("whereabouts").draw(6, np.random.default_rng(4)).batch()
    graph = find_positions(model, mask="attention_mask")
    first, behind = split(with_ramps(model, graph, ramps_at(graph, 2)))
    assert not {"Cast", "Where", "Sub"} & {node.op_type for node in behind.model.graph.node[:6]}
    session = opened(first.model)
    passed_on = dict(zip(first.passed_on, session.run(list(first.passed_on), feeds), strict=True))
    behind.declare({output.name: output.type for output in session.get_outputs()})
    rest = [1, 4, 5]
    takes = {name: (passed_on | feeds)[name][rest] for name in (*behind.inputs, *behind.received)}
    (logits,) = opened(behind.model).run(["logits"], takes)
    whole = outputs_of(model, {key: value[rest] for key, value in feeds.items()})
    np.testing.assert_allclose(logits, whole["logits"], atol=1e-5)


@pytest.mark.parametrize("optimise_first", [False, True])
@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_chains_of_published_networks(name: str, optimise_first: bool, tmp_path: Path) -> None:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = find_positions(model)
    [value] = [declared for declared in model.graph.input if declared.name == graph.primary]
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    feeds = {graph.primary: np.random.default_rng(1).random(shape, np.float32)}
    ramped = with_ramps(model, graph, ramps_at(graph, 2, 6, len(graph.positions) - 1))
    whole = outputs_of(ramped, feeds)
    stages = split(optimised(ramped, tmp_path) if optimise_first else ramped)
    by_stage = chain(stages, feeds, optimise=not optimise_first)
    together = {key: value for outputs in by_stage for key, value in outputs.items()}
    assert together.keys() == whole.keys()
    for key, value in together.items():
        np.testing.assert_allclose(value, whole[key], atol=1e-5, rtol=1e-4)


def made(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("logits",)) -> onnx.ModelProto:
    random = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in {"w": (8, 8), "v": (8, 4)}.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None]) for name in outputs],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


X = {"x": np.random.default_rng(3).standard_normal((3, 8)).astype(np.float32)}


def test_shapes_are_computed_anew_so_that_they_fit_the_rows_that_are_left() -> None:
    model = made(
        node("Shape", "x", "shape"),
        node("MatMul", "x w", "a"),
        node("MatMul", "a w", "b"),
        node("Shape", "a", "inner"),
        node("MatMul", "b w", "c"),
        node("Reshape", "c shape", "d"),
        node("Reshape", "d inner", "e"),
        node("MatMul", "e v", "logits"),
    )
    graph = find_positions(model)
    assert [position.tensor for position in graph.positions] == ["a", "b", "e"]
    ramped = with_ramps(model, graph, ramps_at(graph, 0, 1))
    stages = split(ramped)
    assert [stage.received for stage in stages] == [(), ("a",), ("a", "b")]
    assert [stage.passed_on for stage in stages] == [("a",), ("b",), ()]
    assert stages[2].inputs == ("x",)  # for its shape
    whole = outputs_of(ramped, X)
    for outputs in chain(stages, X, optimise=True):
        for key, value in outputs.items():
            np.testing.assert_allclose(value, whole[key], atol=1e-5)


def test_an_output_comes_from_the_first_stage_that_can_make_it() -> None:
    model = made(
        node("MatMul", "x w", "a"),
        node("MatMul", "a w", "b"),
        node("MatMul", "b w", "c"),
        node("MatMul", "c v", "logits"),
        node("Relu", "b", "embedding"),
        outputs=("logits", "embedding", "b"),
    )
    graph = find_positions(model)
    ramped = with_ramps(model, graph, ramps_at(graph, 0, 1))
    stages = split(ramped)
    assert [("embedding" in stage.outputs, "b" in stage.outputs) for stage in stages] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    whole = outputs_of(ramped, X)
    for outputs in chain(stages, X, optimise=True):
        for key, value in outputs.items():
            np.testing.assert_allclose(value, whole[key], atol=1e-5)


def test_an_exit_may_hang_on_anything() -> None:
    """Also where several tensors pass by it, and where it needs what nothing else does."""
    model = made(
        node("MatMul", "x w", "a"),
        node("MatMul", "x w", "b"),
        node("Relu", "a", "c"),
        node("MatMul", "a w", "alone"),
        node("ReduceMax", "alone", "exits/0/uncertainty"),
        node("Add", "c b", "d"),
        node("MatMul", "d v", "logits"),
        outputs=("logits", "exits/0/uncertainty"),
    )
    first, behind = stages = split(model)
    assert [operator.name for operator in first.model.graph.node] == [
        "a",
        "alone",
        "exits/0/uncertainty",
    ]
    assert (behind.received, behind.inputs) == (("a",), ("x",))
    whole = outputs_of(model, X)
    for outputs in chain(stages, X, optimise=True):
        for key, value in outputs.items():
            np.testing.assert_allclose(value, whole[key], atol=1e-5)


def test_outputs_that_are_named_as_those_of_ramps_are_refused() -> None:
    model = made(
        node("MatMul", "x w", "a"),
        node("MatMul", "a v", "logits"),
        node("Relu", "a", "exits/7/answer"),
        outputs=("logits", "exits/7/answer"),
    )
    graph = find_positions(model)
    with pytest.raises(ExitError, match="output 'exits/7/answer': names beginning with 'exits/'"):
        with_ramps(model, graph, ramps_at(graph, 0))
