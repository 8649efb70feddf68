"""`TensorShapes`: infers datatypes and shapes of a model's tensors, and the work of its nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slacktide.exits.constants import MOST_ELEMENTS, folded
from slacktide.exits.errors import ExitError

COSTLY = frozenset(
    (
        *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"),
        *("Gemm", "MatMul", "MatMulInteger", "QLinearMatMul", "Einsum", "Attention"),
        *("LSTM", "GRU", "RNN"),
    )
)
"""Operators that multiply matrices."""

_ROWS, _PIXELS, _TOKENS = 3, 224, 64
"""Assumed sizes of free axes for counting multiplications. A fixed first axis rarely has size 3, so
a first axis of 3 is taken for the axis of rows."""

Shape = list[int]


class TensorShapes:
    """Datatypes and shapes of a model's tensors, with assumed sizes for free axes."""

    def __init__(self, model: Any, primary: str, rows: Mapping[str, Sequence[int]]) -> None:
        import onnx

        light = onnx.ModelProto(ir_version=max(model.ir_version, 4))
        light.opset_import.extend(model.opset_import)
        light.functions.extend(model.functions)
        graph = light.graph
        graph.name = "shapes"
        inside = [
            tensor for tensor in model.graph.initializer if tensor.data_location != tensor.EXTERNAL
        ]
        nodes, values = folded(model.graph.node, inside)
        graph.node.extend(nodes)
        graph.initializer.extend(
            onnx.numpy_helper.from_array(value, name) for name, value in values.items()
        )
        constants = {tensor.name for tensor in model.graph.initializer}
        self.free = False
        """Whether the primary input has free axes other than rows."""
        for value in model.graph.input:
            if value.name not in constants:
                graph.input.append(value)
                self._fix(graph.input[-1], rows.get(value.name), value.name == primary)
        for tensor in model.graph.initializer:
            if math.prod(tensor.dims) <= MOST_ELEMENTS and tensor.data_location != tensor.EXTERNAL:
                graph.initializer.append(tensor)
            else:
                graph.input.append(
                    onnx.helper.make_tensor_value_info(
                        tensor.name, tensor.data_type, list(tensor.dims)
                    )
                )
        graph.output.extend(model.graph.output)
        self.dims: dict[str, Shape] = {}
        """Sizes of axes by tensor, −1 if unknown. Tensors of unknown rank are left out."""
        self.elements: dict[str, int] = {}
        """Datatypes by tensor, as in TensorProto.DataType."""
        self._infer(light)
        if not all(name in self.dims for node in graph.node for name in node.output if name):
            self._infer(_newer(light))
        if not self.dims.get(primary):
            raise ExitError(f"primary: input {primary!r} has no axis of rows")
        self.rows = self.dims[primary][0]
        """Size of the axis of rows."""

    def _infer(self, light: Any) -> None:
        import onnx

        try:
            inferred = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
        except Exception as error:  # errors of protobuf and of the checker have no common base
            raise ExitError(f"shapes cannot be inferred: {str(error).splitlines()[0]}") from None
        for value in (*inferred.value_info, *inferred.output, *inferred.input):
            tensor = value.type.tensor_type
            if tensor.HasField("shape"):
                self.dims[value.name] = [
                    axis.dim_value if axis.HasField("dim_value") else -1
                    for axis in tensor.shape.dim
                ]
            self.elements[value.name] = tensor.elem_type
        self.dims.update({tensor.name: list(tensor.dims) for tensor in light.graph.initializer})

    def _fix(self, value: Any, row: Sequence[int] | None, primary: bool) -> None:
        """Set the free axes of an input to an assumed size."""
        axes = value.type.tensor_type.shape.dim
        for at, axis in enumerate(axes):
            if axis.dim_value <= 0:
                sizes = [0] * (len(axes) - len(row or ())) + list(row or ())
                usual = sizes[at] if at and len(sizes) == len(axes) else 0
                likely = _PIXELS if len(axes) == 4 else _TOKENS
                self.free |= primary and at > 0
                axis.dim_value = usual if usual > 0 else likely if at else _ROWS

    def text(self, tensor: str) -> str:
        """The shape of a tensor, for messages."""
        dims = self.dims.get(tensor)
        return "unknown" if dims is None else str(dims).replace("-1", "?")

    def elements_of_row(self, tensor: str) -> int:
        """Elements of a row, with assumed sizes of free axes."""
        return math.prod(abs(size) for size in self.dims[tensor][1:])

    def work(self, node: Any) -> float:
        """Approximate multiplications of a node; 0 if shapes are unknown."""
        if node.op_type not in COSTLY:
            return 0.0
        dims = self.dims.get(node.output[0] or node.output[-1], [])
        of = [self.dims.get(name, []) for name in node.input]
        if not dims or len(of) < 2 or not of[0] or not of[1]:
            return 0.0
        count = float(math.prod(abs(size) for size in dims))
        weight = of[3] if node.op_type == "QLinearConv" and len(of) > 3 else of[1]
        if node.op_type == "ConvTranspose":
            return float(math.prod(abs(size) for size in of[0]) * math.prod(weight[1:]))
        if "Conv" in node.op_type:
            return count * math.prod(weight[1:])
        if node.op_type in ("LSTM", "GRU", "RNN"):
            steps = math.prod(of[0][:2])
            return float(steps * math.prod(weight[-2:]) * (1 + (dims[-1] / max(1, weight[-1]))))
        return count * abs(of[0][-1])


def _newer(light: Any) -> Any:
    """Convert a model to the first operator version whose computed shapes can be inferred. Returns
    the model itself if that fails."""
    from onnx import version_converter

    try:
        newer = version_converter.convert_version(light, 14)
    except Exception:  # the converter's errors have no common base
        return light
    del newer.graph.value_info[:]
    return newer
