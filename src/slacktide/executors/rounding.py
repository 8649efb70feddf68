"""How much a model's answers may differ between batches because of rounding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

TOLERANCE: Final = 1e-3
"""Largest change of a row's answer in a batch, relative to the output's largest magnitude."""
HALF_TOLERANCE: Final = 1e-2
"""Tolerance for 16-bit floats, and for accelerators, which round to as few bits (TF32)."""
QUANTISED_TOLERANCE: Final = 5e-2
"""Tolerance for 8-bit integers, whose scale may depend on the whole batch."""
_QUANTISED = re.compile(r"uantize|^QLinear|Integer|^QGemm|^QAttention|NBits")
_HALVES: Final = frozenset((10, 16))  # TensorProto.FLOAT16, BFLOAT16


def tolerance_of(model: Any, *, accelerated: bool) -> float:
    """The tolerance for an onnx.ModelProto, relative to an output's largest magnitude."""
    nodes = [*_nodes(model.graph)]
    nodes += [node for function in model.functions for node in function.node]
    if any(_QUANTISED.search(node.op_type) for node in nodes):
        return QUANTISED_TOLERANCE
    graph = model.graph
    elements = [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)]
    elements += [tensor.data_type for tensor in graph.initializer]
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name == "to":  # of Cast
                elements.append(attribute.i)
            if attribute.HasField("t"):
                elements.append(attribute.t.data_type)
    return HALF_TOLERANCE if accelerated or not _HALVES.isdisjoint(elements) else TOLERANCE


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)
