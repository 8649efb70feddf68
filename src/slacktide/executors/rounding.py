"""How far answers of a model differ between batches by rounding alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

TOLERANCE: Final = 1e-3
"""Most that a row may differ from itself alone, as a part of the output's largest magnitude."""
HALF_TOLERANCE: Final = 1e-2
"""With 16-bit floats, and on accelerators, which round to as few bits (TF32)."""
QUANTISED_TOLERANCE: Final = 5e-2
"""With 8-bit integers, whose scale may be that of a whole batch."""
_QUANTISED = re.compile(r"uantize|^QLinear|Integer|^QGemm|^QAttention|NBits")
_HALVES: Final = frozenset((10, 16))  # TensorProto.FLOAT16, BFLOAT16


def tolerance_of(model: Any, *, accelerated: bool) -> float:
    """The part of an output's largest magnitude for an onnx.ModelProto."""
    nodes = [*_nodes(model.graph)]
    nodes += [node for function in model.functions for node in function.node]
    if any(_QUANTISED.search(node.op_type) for node in nodes):
        return QUANTISED_TOLERANCE
    graph = model.graph
    elements = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)]
    elements += [tensor.data_type for tensor in graph.initializer]
    for node in nodes:
        elements += [
            attribute.i for attribute in node.attribute if attribute.name == "to"
        ]  # of Cast
        elements += [
            attribute.t.data_type for attribute in node.attribute if attribute.HasField("t")
        ]
    return HALF_TOLERANCE if accelerated or not _HALVES.isdisjoint(elements) else TOLERANCE


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
