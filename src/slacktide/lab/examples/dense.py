"""The weight-bound network: seeded random weights, written when a repository is made.

One row needs each of 23 million weights once, so at batch 1 the time is that of reading them from
memory; larger batches read them no more often, so batching pays. The outputs mean nothing.
Activations keep their size through the layers (He et al. 2015) only so that nothing overflows or
dies out.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slacktide.lab.examples.vectors import FEATURES

WIDTHS: Final = (FEATURES, 3328, 3328, 3328, 100)
"""Values between layers: 93 MB of FP32 weights, more than most caches of one core hold."""
SEED: Final = 20_260

_OPSET: Final = 17
_IR_VERSION: Final = 8
"""The version that belongs to opset 17, so that older runtimes can also read the file."""


def dense_model(seed: int = SEED) -> bytes:
    """Return the ONNX file: `features` FP32 (batch, FEATURES) to `scores` FP32 (batch, 100)."""
    import onnx  # 0.1 s, and only needed here
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights = [], []
    values = "features"
    for i, weight in enumerate(layer_weights(seed)):
        last = i == len(WIDTHS) - 2
        bias = np.zeros(weight.shape[1], np.float32)
        weights += [
            numpy_helper.from_array(weight, f"weight{i}"),
            numpy_helper.from_array(bias, f"bias{i}"),
        ]
        sums = "scores" if last else f"sums{i}"
        nodes.append(helper.make_node("Gemm", [values, f"weight{i}", f"bias{i}"], [sums]))
        if not last:
            values = f"values{i}"
            nodes.append(helper.make_node("Relu", [sums], [values]))
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", WIDTHS[0]])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", WIDTHS[-1]])],
        weights,
    )
    model = helper.make_model(
        graph,
        producer_name="slacktide",
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    description = "Seeded random weights, bound by reading them: batching pays"
    model.doc_string = description
    helper.set_model_props(model, {"description": description, "seed": str(seed)})
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def layer_weights(seed: int) -> list[NDArray[np.float32]]:
    """Return a matrix (inputs, outputs) per layer, uniform, variance 2 ÷ inputs, made from the raw
    stream of the Philox generator, which NumPy promises never to change (it does not promise that
    of its distributions): one seed gives the same weights everywhere."""
    stream = np.random.Philox(key=seed)
    layers = []
    for inputs, outputs in pairwise(WIDTHS):
        # Every size is even: two weights from each 64-bit word, 24 bits to each.
        words = stream.random_raw(inputs * outputs // 2).astype("<u8", copy=False).view("<u4")
        unit = (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)
        layers.append(unit.reshape(inputs, outputs) * np.float32(np.sqrt(6 / inputs)))
    return layers
