"""Three groups of the ten classes of the frame nets, merged without training.

A group's logit is the log-sum-exp of its classes' logits, so a group is as probable as its classes
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUPED = "groups"
"""Name of the class set, and of the output that `with_groups` adds."""
GROUPS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "nobody": ("empty",),
        "people and two-wheelers": ("pedestrian", "bicycle", "motorcycle"),
        "vehicles": ("car", "taxi", "van", "pickup", "truck", "bus"),
    }
)
"""Classes of each group."""


def merged(logits: NDArray[Any], classes: Sequence[str]) -> NDArray[np.float32]:
    """Logits [n, groups] from logits [n, classes]."""
    groups = [np.logaddexp.reduce(logits[:, numbers], axis=1) for numbers in _numbers(classes)]
    return np.stack(groups, axis=1).astype(np.float32)


def with_groups(proto: Any, classes: Sequence[str]) -> Any:
    """A copy of the model (opset 11 to 17) with the output `GROUPED` [n, groups] beside its first,
    which holds logits [n, classes]."""
    from onnx import ModelProto, TensorProto, helper, numpy_helper

    model = ModelProto()
    model.CopyFrom(proto)
    graph, parts = model.graph, []
    for place, numbers in enumerate(_numbers(classes)):
        chosen, logits, part = (f"{GROUPED}/{place}/{name}" for name in ("of", "logits", "sum"))
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), chosen))
        gather = helper.make_node("Gather", [graph.output[0].name, chosen], [logits], axis=1)
        reduce = helper.make_node("ReduceLogSumExp", [logits], [part], axes=[1])
        graph.node.extend((gather, reduce))
        parts.append(part)
    graph.node.append(helper.make_node("Concat", parts, [GROUPED], axis=1))
    shape: list[str | int | None] = ["batch", len(parts)]
    graph.output.append(helper.make_tensor_value_info(GROUPED, TensorProto.FLOAT, shape))
    return model


def _numbers(classes: Sequence[str]) -> list[list[int]]:
    """Numbers of the classes of each group."""
    return [[classes.index(name) for name in group] for group in GROUPS.values()]
