"""Ramps in graphs: what they compute, and that what the model computes stays."""

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
from slacktide.exits.ramp_graph import with_features, with_ramps
from slacktide.lab.examples import example

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
Array = np.ndarray[Any, Any]


def shipped(name: str) -> onnx.ModelProto:
    return onnx.load_from_string(example(name).onnx())


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def made_up(graph: ExitGraph, numbers: range, features: dict[int, int]) -> list[Ramp]:
    random = np.random.default_rng(5)
    ramps = []
    for number in numbers:
        shape = (features.get(number, graph.positions[number].features), graph.classes)
        weights = random.standard_normal(shape).astype(np.float32)
        bias = random.standard_normal(graph.classes).astype(np.float32)
        tensor = graph.positions[number].tensor
        ramps.append(Ramp(number, tensor, weights, bias, 2.0, 1.0, 0.5))
    return ramps


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def texts(*lengths: int) -> dict[str, Array]:
    random = np.random.default_rng(3)
    longest = max(lengths)
    mask = (np.arange(longest) < np.array(lengths)[:, None]).astype(np.int64)
    tokens = random.integers(1, 240, (len(lengths), longest)) * mask
    names = [declared.name for declared in shipped("text").graph.input]
    return dict(zip(names, (tokens, mask), strict=True))


def test_features_of_images_are_means_and_maxima_over_space() -> None:
    model = shipped("residual")
    graph = find_positions(model)
    frames = np.random.default_rng(1).integers(0, 256, (3, 3, 96, 96), dtype=np.uint8)
    second = graph.positions[2].tensor
    model.graph.output.append(helper.make_tensor_value_info(second, TensorProto.FLOAT, None))
    whole = run(model, {"frames": frames})
    outputs = run(with_features(model, graph), {"frames": frames})
    tensor = whole[second]
    pooled = np.concatenate([tensor.mean(axis=(2, 3)), tensor.max(axis=(2, 3))], axis=1)
    np.testing.assert_allclose(outputs["exits/features/2"], pooled, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs["exits/logits"], whole["logits"], rtol=1e-5)
    assert outputs["exits/features/9"].shape == (3, graph.positions[9].features)


def test_features_of_texts_are_means_and_maxima_over_what_is_no_padding() -> None:
    model = shipped("text")
    graph = find_positions(model, mask="attention_mask")
    features = with_features(model, graph)
    both, alone = run(features, texts(5, 9)), run(features, texts(5, 5))
    third = graph.positions[3].tensor
    model.graph.output.append(helper.make_tensor_value_info(third, TensorProto.FLOAT, None))
    words = run(model, texts(5, 9))[third][0, :5]
    pooled = np.concatenate([words.mean(axis=0), np.maximum(words.max(axis=0), 0.0)])
    np.testing.assert_allclose(both["exits/features/3"][0], pooled, rtol=1e-3, atol=1e-4)
    for number in range(8):
        name = f"exits/features/{number}"
        np.testing.assert_allclose(both[name][0], alone[name][0], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["residual", "text", "mlp"])
def test_ramps_of_the_examples(name: str) -> None:
    model = shipped(name)
    graph = find_positions(model, mask="attention_mask" if name == "text" else "")
    feeds = (
        texts(6, 6) if name == "text" else example(name).draw(4, np.random.default_rng(2)).batch()
    )
    rows = len(next(iter(feeds.values())))
    numbers = range(0, len(graph.positions), 2)
    ramps = made_up(graph, numbers, {})
    whole, features = run(model, feeds), run(with_features(model, graph), feeds)
    outputs = run(with_ramps(model, graph, ramps), feeds)
    for ramp in ramps:
        prefix = f"exits/{ramp.position}/"
        logits = ramp.logits(features[f"exits/features/{ramp.position}"])
        np.testing.assert_allclose(outputs[f"{prefix}logits"], logits, rtol=1e-3, atol=1e-3)
        assert outputs[f"{prefix}answer"].tolist() == logits.argmax(axis=1).tolist()
        sure = softmax(logits / ramp.temperature).max(axis=1)
        np.testing.assert_allclose(outputs[f"{prefix}uncertainty"], 1 - sure, atol=1e-4)
        assert outputs[f"{prefix}uncertainty"].shape == (rows,)
        assert f"{prefix}embedding" not in outputs
    for output in whole:
        np.testing.assert_allclose(outputs[output], whole[output], rtol=1e-4, atol=1e-5)
    assert outputs["exits/answer"].tolist() == whole["logits"].argmax(axis=1).tolist()


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_ramps_of_published_networks_have_the_tail_of_theirs(name: str) -> None:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = find_positions(model)
    (output,) = graph.outputs
    [value] = [declared for declared in model.graph.input if declared.name == graph.primary]
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim]
    frames = np.random.default_rng(1).random(shape, np.float32)
    outputs = run(
        with_ramps(model, graph, made_up(graph, range(1, 3), {})), {graph.primary: frames}
    )
    for number in (1, 2):
        mine = outputs[f"exits/{number}/{output}"]
        assert (mine.shape, mine.dtype) == (outputs[output].shape, outputs[output].dtype)
        assert mine.sum() == pytest.approx(1, rel=1e-4)
        assert int(mine.argmax()) == outputs[f"exits/{number}/answer"][0]


def tailed(opset: int, element: int) -> onnx.ModelProto:
    """A chain of this datatype whose answers are probabilities and a class."""
    kind = helper.tensor_dtype_to_np_dtype(element)
    weights = [
        numpy_helper.from_array(np.random.default_rng(at).random(shape).astype(kind), name)
        for at, (name, shape) in enumerate({"w": (8, 8), "u": (8, 8), "v": (8, 4)}.items())
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "u"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["z"]),
        helper.make_node("Shape", ["z"], ["shape"]),
        helper.make_node("Reshape", ["z", "shape"], ["again"]),
        helper.make_node("Softmax", ["again"], ["p"], axis=1),
        helper.make_node("ArgMax", ["p"], ["class"], axis=1, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", element, ["n", 5, 8] if opset == 0 else ["n", 8])],
        [
            helper.make_tensor_value_info("class", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("p", element, ["n", 4]),
        ],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("opset", [9, 13, 18])
@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_outputs_of_a_ramp_are_of_the_types_of_the_models(opset: int, element: int) -> None:
    model = tailed(opset, element)
    graph = find_positions(model)
    assert graph.logits in ("z", "again")
    feeds = {"x": np.random.default_rng(1).random((3, 8)).astype(np.float32)}
    if element == TensorProto.FLOAT16:
        feeds = {"x": feeds["x"].astype(np.float16)}
    outputs = run(with_ramps(model, graph, made_up(graph, range(2), {})), feeds)
    for name in ("class", "p"):
        mine = outputs[f"exits/1/{name}"]
        assert (mine.shape, mine.dtype) == (outputs[name].shape, outputs[name].dtype)
    assert outputs["exits/1/class"].tolist() == outputs["exits/1/answer"].tolist()


def test_a_ramp_that_does_not_fit_is_refused() -> None:
    model = shipped("mlp")
    graph = find_positions(model)
    ramps = made_up(graph, range(1), {0: 7})
    with pytest.raises(ExitError, match=r"has weights \(7, 10\); expected \(512, 10\)"):
        with_ramps(model, graph, ramps)


def test_channels_behind_space_are_pooled_alike() -> None:
    weights = [
        numpy_helper.from_array(np.random.default_rng(at).random(shape, np.float32), name)
        for at, (name, shape) in enumerate({"w": (6, 6), "v": (6, 4)}.items())
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("ReduceMean", ["b"], ["c"], axes=[1, 2], keepdims=0),
        helper.make_node("MatMul", ["c", "v"], ["logits"]),
    ]
    shape: list[int | str] = ["n", 5, 7, 6]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 4])],
            weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    graph = find_positions(model)
    first = graph.positions[0]
    assert (first.channels_last, first.channels, first.features) == (True, 6, 12)
    x = np.random.default_rng(1).standard_normal((2, 5, 7, 6)).astype(np.float32)
    features = run(with_features(model, graph), {"x": x})["exits/features/0"]
    tensor = x @ numpy_helper.to_array(weights[0])
    pooled = np.concatenate([tensor.mean(axis=(1, 2)), tensor.max(axis=(1, 2))], axis=1)
    np.testing.assert_allclose(features, pooled, rtol=1e-4, atol=1e-5)
