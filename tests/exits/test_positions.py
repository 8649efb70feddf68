"""Where a network can be left: the examples, published networks, graphs of a few nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.exits.classifiers import find_positions

from slacktide.exits.data_flow import DataFlow, reads
from slacktide.exits.errors import ExitError
from slacktide.exits.positions import ExitGraph
from slacktide.exits.positions import find_positions as original
from slacktide.lab.examples import example

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def shipped(name: str) -> onnx.ModelProto:
    return onnx.load_from_string(example(name).onnx())


def weight(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.full(shape, 0.01, np.float32), name)


def model(
    *nodes: onnx.NodeProto,
    inputs: dict[str, list[int | str]] | None = None,
    outputs: tuple[str, ...] = ("logits",),
    weights: tuple[TensorProto, ...] = (),
    domains: tuple[str, ...] = (),
    opset: int = 17,
    classes: int = 0,
) -> onnx.ModelProto:
    shape = ["n", classes] if classes else None
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in ({"x": ["n", 8]} if inputs is None else inputs).items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        [*WEIGHTS, *weights],
    )
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(domain, 1) for domain in domains),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


WEIGHTS = (weight("w", 8, 8), weight("v", 8, 4))


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), output.split(), name=f"{output}_made", **attributes)


def tensors(graph: ExitGraph) -> list[str]:
    return [position.tensor for position in graph.positions]


CHAIN = (
    node("MatMul", "x w", "a"),
    node("Relu", "a", "b"),
    node("MatMul", "b w", "c"),
    node("Relu", "c", "d"),
    node("MatMul", "d v", "logits"),
)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("bvlc_alexnet", 7),
        ("densenet121", 62),
        ("inception_v1", 12),
        ("inception_v2", 13),
        ("resnet50", 17),
        ("shufflenet", 17),
        ("squeezenet", 17),
        ("vgg19", 18),
        ("zfnet512", 7),
    ],
)
def test_published_networks(name: str, count: int) -> None:
    network = onnx.load(LIGHT / f"light_{name}.onnx")
    graph = find_positions(network)
    assert len(graph.positions) == count
    assert graph.classes == 1000
    assert graph.outputs == tuple(value.name for value in network.graph.output)
    costs = [position.cost for position in graph.positions]
    assert costs == sorted(costs)
    assert costs[0] > 0
    assert costs[-1] <= 1


def test_the_blocks_of_a_resnet() -> None:
    graph = find_positions(onnx.load(LIGHT / "light_resnet50.onnx"))
    channels = [64] + [256] * 3 + [512] * 4 + [1024] * 6 + [2048] * 3
    assert [position.channels for position in graph.positions] == channels
    features = [128] + [512] * 3 + [1024] * 4 + [1024] * 6 + [2048] * 3  # no maxima beyond 1,024
    assert [position.features for position in graph.positions] == features
    assert graph.positions[0].space == (56, 56)
    assert graph.positions[-1].space == ()


def test_the_residual_example() -> None:
    graph = find_positions(shipped("residual"))
    assert (len(graph.positions), graph.primary, graph.logits) == (10, "frames", "logits")
    assert [position.number for position in graph.positions] == list(range(10))
    assert not any(position.channels_last or position.masked for position in graph.positions)
    assert graph.positions[0].cost == pytest.approx(0.012, abs=0.001)


def test_a_text_goes_by_its_tokens_and_its_mask_is_context() -> None:
    text = shipped("text")
    graph = find_positions(text, mask="attention_mask")
    assert (len(graph.positions), graph.primary, graph.outputs) == (8, "input_ids", ("logits",))
    assert all(position.channels_last and position.masked for position in graph.positions[:-1])
    assert graph.positions[-1].tensor == "embedding"
    assert [position.features for position in graph.positions] == [512] * 7 + [256]
    assert find_positions(text).primary == "input_ids"  # by the names of the others


def test_a_position_stays_between_two_costly_operators() -> None:
    graph = find_positions(model(*CHAIN))
    assert tensors(graph) == ["b", "d"]
    assert [position.cost for position in graph.positions] == [
        pytest.approx(0.4),
        pytest.approx(0.8),
    ]
    assert graph.position("d").number == 1
    with pytest.raises(ExitError, match="'a' is not a position"):
        graph.position("a")


def test_the_smaller_of_two_tensors_stays() -> None:
    wide = (
        node("Conv", "x k", "a"),
        node("GlobalAveragePool", "a", "p"),
        node("Tile", "p times", "t"),
        node("Flatten", "t", "f"),
        node("Gemm", "f g", "logits"),
    )
    weights = (
        weight("k", 8, 3, 3, 3),
        weight("g", 32, 4),
        numpy_helper.from_array(np.array([1, 1, 2, 2]), "times"),
    )
    graph = find_positions(model(*wide, inputs={"x": ["n", 3, 16, 16]}, weights=weights))
    assert tensors(graph) == ["p"]  # 8 features; then of 2 × 2, and flattened they are 32


def test_a_way_around_leaves_no_position() -> None:
    nodes = (*CHAIN[:3], node("Add", "c b", "d"), CHAIN[4])
    assert tensors(find_positions(model(*nodes))) == ["b", "d"]
    around = (*CHAIN[:3], node("Add", "c x", "d"), CHAIN[4])
    assert tensors(find_positions(model(*around))) == ["d"]


def test_shapes_constants_and_dead_nodes_are_not_live() -> None:
    nodes = (
        node("Shape", "x", "shape"),
        node("Relu", "x", "dead"),
        *CHAIN[:4],
        node("Reshape", "d shape", "e"),
        node("MatMul", "e v", "logits"),
    )
    assert tensors(find_positions(model(*nodes))) == ["b", "e"]


def test_tensors_of_another_input_are_context() -> None:
    nodes = (
        node("Relu", "bias", "more"),
        *CHAIN[:3],
        node("Add", "c more", "d"),
        node("MatMul", "d v", "logits"),
    )
    both = model(*nodes, inputs={"x": ["n", 8], "bias": ["n", 8]})
    assert tensors(find_positions(both, primary="x")) == ["b", "d"]
    assert tensors(find_positions(both, primary="bias")) == ["d"]
    with pytest.raises(ExitError, match=r"^primary: expected the input .* one of: x, bias$"):
        find_positions(both)
    with pytest.raises(
        ExitError, match=r"^primary: the model has no input 'bia'; did you mean 'bi"
    ):
        find_positions(both, primary="bia")


def test_outer_reads_of_a_subgraph_count() -> None:
    inner = helper.make_graph(
        [node("Add", "c b", "sum")],
        "g",
        [],
        [helper.make_tensor_value_info("sum", TensorProto.FLOAT, None)],
    )
    condition = numpy_helper.from_array(np.array(True), "yes")
    branch = node("If", "yes", "d", then_branch=inner, else_branch=inner)
    assert reads(branch) == ("yes", "c", "b")
    nodes = (*CHAIN[:3], branch, node("MatMul", "d w", "e"), node("MatMul", "e v", "logits"))
    graph = find_positions(model(*nodes, weights=(condition,)))
    assert tensors(graph) == ["a", "e"]  # c is not alone where the branch reads b as well


def test_an_output_that_leaves_the_way_is_no_obstacle() -> None:
    nodes = (*CHAIN, node("MatMul", "b w", "early"), node("MatMul", "early w", "embedding"))
    graph = find_positions(model(*nodes, outputs=("embedding", "logits")))
    assert tensors(graph) == ["b", "d"]
    flow = DataFlow(model(*nodes, outputs=("embedding", "logits")).graph, "x")
    order = [operator.output[0] for operator in flow.trunk("logits")]
    assert order == ["a", "b", "early", "embedding", "c", "d", "logits"]


def test_the_tail_is_what_a_ramp_can_copy() -> None:
    nodes = (
        *CHAIN[:4],
        node("MatMul", "d v", "z"),
        node("Softmax", "z", "p", axis=1),
        node("ArgMax", "p", "best", axis=1),
        node("Cast", "best", "answer", to=1),
        node("Identity", "d", "embedding"),
    )
    graph = find_positions(model(*nodes, outputs=("embedding", "answer", "p", "z")))
    assert graph.logits == "z"
    assert graph.outputs == ("answer", "p", "z")


def test_add_and_forbid() -> None:
    assert tensors(find_positions(model(*CHAIN), add=["a"])) == ["a", "b", "d"]
    assert tensors(find_positions(model(*CHAIN), forbid=["b"])) == ["d"]
    with pytest.raises(
        ExitError, match=r"^positions: 'bb' is not a tensor of this model; did you mean"
    ):
        find_positions(model(*CHAIN), forbid=["bb"])
    with pytest.raises(
        ExitError, match="'logits' is not a tensor through which all data passes before"
    ):
        find_positions(model(*CHAIN), add=["logits"])
    with pytest.raises(ExitError, match=r"^the model has no position for an early exit$"):
        find_positions(model(*CHAIN), forbid=["b", "d"])


def broken(change: onnx.NodeProto, **extras: object) -> onnx.ModelProto:
    """Two costly operators with one node between them."""
    nodes = (node("MatMul", "x w", "a"), change, node("MatMul", "b v", "logits"))
    return model(*nodes, **extras)  # type: ignore[arg-type]


def loop() -> onnx.NodeProto:
    body = helper.make_graph(
        [node("Relu", "a", "r")],
        "g",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["n", 8])],
    )
    return node("If", "yes", "b", then_branch=body, else_branch=body)


YES = (numpy_helper.from_array(np.array(True), "yes"),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (broken(loop(), weights=YES), r"'a' is at node 'b_made' \(If\), which is control flow"),
        (
            broken(node("Odd", "a", "b", domain="mine"), domains=("mine",), classes=4),
            r"'a' is at node 'b_made' \(Odd\), a custom operator of 'mine'",
        ),
        (model(node("MatMul", "x v", "logits")), "^the model has no position for an early exit$"),
        (
            model(*CHAIN[:4], node("MatMul", "d u", "logits"), weights=(weight("u", 8, 1),)),
            "output 'logits' has only one class",
        ),
        (
            model(*CHAIN[:4], node("MatMul", "d v", "z"), node("Sigmoid", "z", "logits")),
            "output 'logits' is produced by a Sigmoid, which allows several classes",
        ),
        (
            model(*CHAIN, inputs={"x": ["n", 5, 8]}),
            r"output 'logits' is not a vector of classes: its shape is \[3, 5, 4\]",
        ),
        (model(*CHAIN, opset=6), "opset_import: early exits need at least 7, got 6"),
        (
            model(*CHAIN[1:], inputs={"a": []}),
            "primary: input 'a' has no axis of rows",
        ),
        (model(node("Identity", "w", "logits"), inputs={}), "primary: expected the input"),
        (model(*CHAIN[:2], node("Relu", "b", "a"), *CHAIN[2:]), "tensor 'a' is produced twice"),
    ],
)
def test_a_model_without_positions_says_why(given: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ExitError, match=message):
        find_positions(given)


def test_quantised_operators_and_states_are_no_places_to_cut() -> None:
    quantised = (
        *CHAIN[:2],
        node("QuantizeLinear", "b s", "q"),
        node("DequantizeLinear", "q s", "c"),
        node("MatMul", "c w", "d"),
        node("Relu", "d", "e"),
        node("MatMul", "e v", "logits"),
    )
    scale = numpy_helper.from_array(np.float32(0.1), "s")
    assert tensors(find_positions(model(*quantised, weights=(scale,)))) == ["a", "e"]
    with pytest.raises(
        ExitError, match=r"positions: 'b' is at node 'q_made' \(QuantizeLinear\), a qua"
    ):
        find_positions(model(*quantised, weights=(scale,)), add=["b"])
    recurrent = (
        node("MatMul", "x w", "t"),
        node("GRU", "t k r none none h", "y last", layout=1, hidden_size=8),
        node("Squeeze", "last one", "s"),
        node("MatMul", "s v", "logits"),
    )
    recurrent[1].input[3] = recurrent[1].input[4] = ""
    index = numpy_helper.from_array(np.array([1]), "one")
    weights = (weight("k", 1, 24, 8), weight("r", 1, 24, 8), index)
    given = model(
        *recurrent, inputs={"x": ["n", 5, 8], "h": ["n", 1, 8]}, weights=weights, classes=4
    )
    assert tensors(find_positions(given, primary="x")) == ["s"]
    with pytest.raises(
        ExitError, match=r"'t' is at node .* \(GRU\), which takes its state from an input"
    ):
        find_positions(given, primary="x", add=["t"])


def test_an_answer_out_of_control_flow_is_told_by_its_node() -> None:
    inner = helper.make_graph(
        [node("MatMul", "b v", "z")],
        "g",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    branch = node("If", "yes", "logits", then_branch=inner, else_branch=inner)
    with pytest.raises(ExitError, match=r"output 'logits' is at node 'logits_made' \(If\), wh"):
        find_positions(model(*CHAIN[:2], branch, weights=YES))


def test_shapes_that_an_old_model_computes_are_known() -> None:
    nodes = (
        node("Conv", "x k", "a"),
        node("GlobalAveragePool", "a", "p"),
        node("Shape", "p", "s"),
        node("Slice", "s zero one", "rows"),
        node("Concat", "rows rest", "shape", axis=0),
        node("Reshape", "p shape", "f"),
        node("MatMul", "f v", "logits"),
    )
    numbers = {"zero": [0], "one": [1], "rest": [-1]}
    weights = [numpy_helper.from_array(np.array(number), name) for name, number in numbers.items()]
    old = model(
        *nodes,
        inputs={"x": ["n", 3, 9, 9]},
        weights=(weight("k", 8, 3, 3, 3), *weights),
        opset=11,
    )
    graph = find_positions(old)
    assert (tensors(graph), graph.classes) == (["f"], 4)


@pytest.mark.parametrize("shape", [(4, 20, 12), (1, 4, 20, 12), ()])
def test_multiplications_are_counted_for_a_usual_row(shape: tuple[int, ...]) -> None:
    nodes = (
        node("Conv", "x k", "a"),
        node("GlobalAveragePool", "a", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f w", "b"),
        node("Gemm", "b v", "logits"),
    )
    given = model(*nodes, inputs={"x": ["n", 4, "h", "w_"]}, weights=(weight("k", 8, 4, 3, 3),))
    graph = find_positions(given, shapes={"x": shape} if shape else None)
    assert tensors(graph) == ["f", "b"]
    side = (18 * 10) if shape else 222 * 222
    first = side * 8 * 36
    assert graph.positions[0].cost == pytest.approx(first / (first + 64 + 32))


def ending(*nodes: onnx.NodeProto, **extras: object) -> onnx.ModelProto:
    """Two costly operators, and what makes `y` of their `z` [3, 4]."""
    return model(*CHAIN[:4], node("MatMul", "d v", "z"), *nodes, outputs=("y",), **extras)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "nodes",
    [
        (node("Softmax", "z", "y", axis=1),),
        (node("Softmax", "z", "y"),),
        (node("LogSoftmax", "z", "y", axis=-1),),
        (node("Softmax", "z", "p", axis=1), node("Cast", "p", "y", to=1)),
        (node("Softmax", "z", "p", axis=1), node("Identity", "p", "y")),
        (node("Identity", "z", "i"), node("LogSoftmax", "i", "y", axis=1)),
    ],
)
def test_a_softmax_over_classes_makes_a_classifier(nodes: tuple[onnx.NodeProto, ...]) -> None:
    assert original(ending(*nodes)).outputs == ("y",)


@pytest.mark.parametrize(
    "nodes",
    [
        (node("Identity", "z", "y"),),
        (node("Relu", "z", "y"),),
        (node("Softmax", "z", "y", axis=0),),
        (node("Softmax", "z", "p", axis=1), node("Mul", "p z", "y")),
        (node("LpNormalization", "z", "y"),),
    ],
)
def test_other_vectors_are_classes_only_if_that_is_stated(
    nodes: tuple[onnx.NodeProto, ...],
) -> None:
    embedding = ending(*nodes)
    with pytest.raises(ExitError, match=r"^output 'y' may not hold classes.* early_exit.output: y"):
        original(embedding)
    with pytest.raises(ExitError, match=r"^output 'y' may not hold classes"):
        original(embedding, labels=[3, 5])
    assert original(embedding, labels=[3, 4]).outputs == ("y",)
    assert original(embedding, output="y").outputs == ("y",)


def test_an_axis_that_is_not_there_makes_no_classes() -> None:
    with pytest.raises(ExitError, match="output 'y' is not a vector of classes"):
        original(ending(node("Softmax", "z", "y", axis=7)))


def test_the_output_that_is_named_is_the_one_that_leaves() -> None:
    nodes = (*CHAIN, node("MatMul", "d w", "embedding"))
    both = model(*nodes, outputs=("embedding", "logits"))
    assert original(both, output="logits").outputs == ("logits",)
    assert original(both, output="embedding").outputs == ("embedding",)
    with pytest.raises(ExitError, match=r"^output: the model has no output 'logit'; did you mean"):
        original(both, output="logit")
