"""A small classifier that can be left after each of its layers, and rows for it, easy and hard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH, CLASSES = 6, 512, 4
EXITS = "early_exit: {accuracy_loss: 10%, ramp_budget: 100%}\nmax_batch: 8\n"


def chain(zoo: Any, name: str, settings: str = EXITS) -> Path:
    """A classifier of rows [WIDTH]: layers that hardly change what the first has found, so that
    ramps agree with its end. Its second output comes at the end alone."""
    rng = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for layer in range(LAYERS):
        weight = np.eye(WIDTH) + rng.normal(0.0, 0.2 / WIDTH**0.5, (WIDTH, WIDTH))
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [before, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        before = f"r{layer}"
    last = rng.normal(0.0, 1.0 / WIDTH**0.5, (WIDTH, CLASSES)).astype(np.float32)
    weights.append(numpy_helper.from_array(last, "last"))
    nodes.append(helper.make_node("MatMul", [before, "last"], ["logits"]))
    nodes.append(helper.make_node("Softmax", ["logits"], ["scores"], axis=-1))
    nodes.append(helper.make_node("Identity", [before], ["state"]))
    value = helper.make_tensor_value_info
    path: Path = zoo.save(
        name,
        nodes,
        [value("x", TensorProto.FLOAT, ["n", WIDTH])],
        [
            value("scores", TensorProto.FLOAT, ["n", CLASSES]),
            value("state", TensorProto.FLOAT, ["n", WIDTH]),
        ],
        weights,
        settings=settings,
    )
    return path


def rows(count: int, seed: int = 1) -> NDArray[np.float32]:
    """Of four kinds, some of them faint."""
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(5).uniform(0.0, 1.0, (CLASSES, WIDTH))
    strength = rng.choice([0.3, 3.0, 9.0], (count, 1))
    drawn = kinds[rng.integers(CLASSES, size=count)] * strength
    return (drawn + rng.normal(0.0, 0.3, drawn.shape)).astype(np.float32)
