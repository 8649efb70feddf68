"""What a graph makes of constants alone is known when its shapes are inferred."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tests.exits.classifiers import find_positions

from slacktide.exits.constants import MOST_ELEMENTS, folded

LEAST = -(2**63) + 1


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def node(op: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def constant(output: str, value: NDArray[np.generic]) -> onnx.NodeProto:
    return node("Constant", "", output, value=numpy_helper.from_array(value))


GRID = np.arange(24, dtype=np.int64).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Identity", [GRID], {}),
        ("Shape", [GRID], {}),
        ("Neg", [GRID], {}),
        ("Add", [GRID, ints(1, 2, 3, 4)], {}),
        ("Sub", [GRID, ints(1, 2, 3, 4)], {}),
        ("Mul", [GRID, ints(3)], {}),
        ("Div", [ints(-7, 7, 9), ints(2, -2, 3)], {}),
        ("Div", [np.array([1.0, 3.0], np.float32), np.array([2.0, 4.0], np.float32)], {}),
        ("Concat", [ints(1, 2), ints(3)], {"axis": 0}),
        ("Transpose", [GRID], {}),
        ("Transpose", [GRID], {"perm": [1, 0, 2]}),
        ("Reshape", [GRID, ints(0, -1)], {}),
        ("Slice", [GRID, ints(1), ints(9)], {}),
        ("Slice", [GRID, ints(-1, 0), ints(LEAST, 2), ints(1, 2), ints(-1, 1)], {}),
        ("Slice", [GRID, ints(2), ints(0), ints(1), ints(-1)], {}),
        ("Slice", [GRID, ints(2), ints(-3), ints(-1), ints(-1)], {}),
        ("Cast", [GRID], {"to": TensorProto.FLOAT}),
        ("Unsqueeze", [GRID, ints(0, -1)], {}),
        ("Squeeze", [GRID[:1], ints(0)], {}),
        ("Squeeze", [GRID[:1]], {}),
        ("Gather", [GRID, np.array([[2, 0], [1, -1]])], {"axis": 1}),
        ("ConstantOfShape", [ints(2, 3)], {}),
        ("ConstantOfShape", [ints(4)], {"value": numpy_helper.from_array(ints(7))}),
    ],
)
def test_an_operator_gives_what_onnx_says(
    op: str, inputs: list[NDArray[np.int64]], attributes: dict[str, object]
) -> None:
    names = [f"in{at}" for at in range(len(inputs))]
    operator = node(op, " ".join(names), "out", **attributes)
    kept, constants = folded([operator], map(numpy_helper.from_array, inputs, names))
    assert kept == []
    unknown = [helper.make_tensor_value_info(name, 0, None) for name in (*names, "out")]
    graph = helper.make_graph([operator], "one", unknown[:-1], unknown[-1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (expected,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    np.testing.assert_array_equal(constants["out"], expected)
    assert constants["out"].dtype == expected.dtype


def test_older_models_state_axes_as_attributes() -> None:
    given = numpy_helper.from_array(GRID, "x")
    nodes = [
        node("Slice", "x", "part", starts=[0, 1], ends=[1, 3], axes=[0, 2]),
        node("Squeeze", "part", "flat", axes=[0]),
        node("Unsqueeze", "flat", "back", axes=[1]),
        node("Constant", "", "two", value_ints=[2, 5]),
    ]
    kept, constants = folded(nodes, [given])
    assert kept == []
    np.testing.assert_array_equal(constants["back"], GRID[0:1, :, 1:3].transpose(1, 0, 2))
    np.testing.assert_array_equal(constants["two"], [2, 5])


def test_large_wrong_and_variable_nodes_stay() -> None:
    nodes = [
        constant("huge", ints(MOST_ELEMENTS, MOST_ELEMENTS)),
        node("ConstantOfShape", "huge", "zeros"),
        node("Identity", "x", "data"),
        node("Add", "huge data", "sum"),
        node("Reshape", "huge three", "bad"),
        helper.make_node("Identity", ["huge"], ["own"], domain="com.example"),
    ]
    kept, constants = folded(nodes, [numpy_helper.from_array(ints(3), "three")])
    assert [remaining.output[0] for remaining in kept] == ["zeros", "data", "sum", "bad", "own"]
    assert set(constants) == {"huge"}


def padded() -> onnx.ModelProto:
    """A network of two convolutions, padded as torch exports it: `Pad` gets its amounts from a list
    that is filled up with zeros, turned round, and cast."""
    weights = [
        numpy_helper.from_array(np.full(shape, 0.01, np.float32), name)
        for name, shape in {"w": (4, 3, 3, 3), "u": (4, 4, 3, 3), "v": (4, 5)}.items()
    ]

    def pad(before: str, after: str) -> list[onnx.NodeProto]:
        names = {letter: f"{after}.{letter}" for letter in "asnzcrtfpq"}
        nodes_before = [
            constant(names["a"], ints(1, 1, 1, 1)),
            constant(names["s"], ints(4)),
            node("ConstantOfShape", names["s"], names["z"], value=numpy_helper.from_array(ints(0))),
            node("Concat", f"{names['a']} {names['z']}", names["c"], axis=0),
            constant(names["n"], ints(-1, 2)),
            node("Reshape", f"{names['c']} {names['n']}", names["r"]),
            *(
                constant(f"{after}.slice{at}", ints(value))
                for at, value in enumerate((-1, LEAST, 0, -1))
            ),
            node("Slice", " ".join([names["r"], *(f"{after}.slice{n}" for n in range(4))]),
                 names["t"]),
            node("Transpose", names["t"], names["f"], perm=[1, 0]),
            constant(f"{after}.flat", ints(-1)),
            node("Reshape", f"{names['f']} {after}.flat", names["p"]),
            node("Cast", names["p"], names["q"], to=TensorProto.INT64),
        ]  # fmt: skip
        return [*nodes_before, node("Pad", f"{before} {names['q']}", after, mode="constant")]

    nodes = [
        *pad("images", "one"),
        node("Conv", "one w", "a"),
        node("Relu", "a", "b"),
        *pad("b", "two"),
        node("Conv", "two u", "c"),
        node("Relu", "c", "d"),
        node("GlobalAveragePool", "d", "mean"),
        node("Flatten", "mean", "flat"),
        node("MatMul", "flat v", "logits"),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 5])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_positions_behind_padding_that_is_computed_are_found() -> None:
    model = padded()
    before = model.SerializeToString()
    graph = find_positions(model)
    assert [(position.tensor, position.space) for position in graph.positions] == [
        ("b", (16, 16)),
        ("flat", ()),
    ]
    assert [position.cost for position in graph.positions] == [
        pytest.approx(3 / 7, abs=0.01),
        pytest.approx(1.0, abs=0.01),
    ]
    assert model.SerializeToString() == before
