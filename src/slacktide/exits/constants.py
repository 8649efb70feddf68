"""Folds those constants of a graph that may determine shapes.

Graphs exported by torch compute the amount of a `Pad` with a dozen nodes, which shape inference
does not follow, so the size of everything after the `Pad` would be unknown. Only small tensors are
computed, with the operators used in such computations. If anything fails, the value stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_ELEMENTS = 1024
"""Maximum elements of a tensor that may be a shape."""

Value = NDArray[Any]
Inputs = list[Value | None]
_Attributes = Mapping[str, Any]


def folded(nodes: Iterable[Any], initializers: Iterable[Any]) -> tuple[list[Any], dict[str, Value]]:
    """Split a graph into its variable nodes, and the values of its constant nodes by tensor.
    `nodes` are sorted as ONNX requires; `initializers`: tensors whose values are in the model's
    file."""
    from onnx import numpy_helper

    raw = {
        tensor.name: tensor for tensor in initializers if math.prod(tensor.dims) <= MOST_ELEMENTS
    }
    values: dict[str, Value] = {}
    variable_nodes, constants = [], {}
    for node in nodes:
        for name in node.input if node.op_type in _FOLDS else ():
            if name in raw and name not in values:
                with suppress(Exception):  # a damaged file
                    values[name] = numpy_helper.to_array(raw[name])
        value = _value(node, values)
        if value is None:
            variable_nodes.append(node)
        else:
            constants[node.output[0]] = values[node.output[0]] = value
    return variable_nodes, constants


def _value(node: Any, values: Mapping[str, Value]) -> Value | None:
    """The value that a node computes; None if unknown."""
    fold = _FOLDS.get(node.op_type)
    if fold is None or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
        return None
    if not all(name in values for name in node.input if name):
        return None
    from onnx import helper

    try:
        attributes = {field.name: helper.get_attribute_value(field) for field in node.attribute}
        value = fold([values.get(name) for name in node.input], attributes)
    except Exception:  # an invalid graph, which the check of shapes reports
        return None
    return None if value is None or value.size > MOST_ELEMENTS else value


def _constant(_: Inputs, attributes: _Attributes) -> Value | None:
    from onnx import numpy_helper

    types = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32}
    types["value_floats"] = np.float32
    ((name, value),) = attributes.items()
    if name != "value":
        return np.array(value, types[name])
    small = math.prod(value.dims) <= MOST_ELEMENTS
    return numpy_helper.to_array(value) if small else None


def _constant_of_shape(inputs: Inputs, attributes: _Attributes) -> Value | None:
    from onnx import numpy_helper

    (shape,) = _present(inputs)
    if math.prod(shape.tolist()) > MOST_ELEMENTS:
        return None
    tensor = attributes.get("value")
    value = np.zeros(1, np.float32) if tensor is None else numpy_helper.to_array(tensor)
    return np.full(shape.tolist(), value[0], value.dtype)


def _slice(inputs: Inputs, attributes: _Attributes) -> Value:
    data, starts, ends, axes, steps = _padded(inputs, 5)
    assert data is not None
    first = attributes["starts"] if starts is None else starts.tolist()
    last = attributes["ends"] if ends is None else ends.tolist()
    where = attributes.get("axes", range(len(first))) if axes is None else axes.tolist()
    by = [1] * len(first) if steps is None else steps.tolist()
    chosen = [slice(None)] * data.ndim
    for axis, begin, end, step in zip(where, first, last, by, strict=True):
        size = data.shape[axis]
        if step < 0:  # in NumPy, −1 would be the last element
            stop = None if end < -size else end
            chosen[axis] = slice(begin, stop, step)
        else:
            chosen[axis] = slice(begin, end, step)
    return data[tuple(chosen)]


def _reshape(inputs: Inputs, attributes: _Attributes) -> Value:
    data, shape = _present(inputs)
    keeps = not attributes.get("allowzero")
    sizes = shape.tolist()
    return data.reshape([data.shape[at] if keeps and not n else n for at, n in enumerate(sizes)])


def _cast(inputs: Inputs, attributes: _Attributes) -> Value:
    from onnx import helper

    (data,) = _present(inputs)
    return data.astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))


def _axes(inputs: Inputs, attributes: _Attributes) -> tuple[int, ...] | None:
    tensor = _padded(inputs, 2)[1]
    axes = attributes.get("axes") if tensor is None else tensor.tolist()
    return None if axes is None else tuple(axes)


def _unsqueeze(inputs: Inputs, attributes: _Attributes) -> Value:
    return np.expand_dims(_present(inputs)[0], _axes(inputs, attributes) or ())


def _squeeze(inputs: Inputs, attributes: _Attributes) -> Value:
    return np.squeeze(_present(inputs)[0], _axes(inputs, attributes))


def _gather(inputs: Inputs, attributes: _Attributes) -> Value:
    data, places = _present(inputs)
    return np.asarray(np.take(data, places, axis=attributes.get("axis", 0)))


def _divided(inputs: Inputs, _: _Attributes) -> Value:
    dividend, divisor = _present(inputs)
    if dividend.dtype.kind in "iu":  # ONNX rounds towards zero
        return np.trunc(np.divide(dividend, divisor)).astype(dividend.dtype)
    return np.asarray(dividend / divisor)


def _present(inputs: Inputs) -> list[Value]:
    return [tensor for tensor in inputs if tensor is not None]


def _padded(inputs: Inputs, count: int) -> Inputs:
    return [*inputs, *[None] * count][:count]


_FOLDS: Mapping[str, Callable[[Inputs, _Attributes], Value | None]] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Identity": lambda inputs, _: inputs[0],
    "Shape": lambda inputs, _: np.array(_present(inputs)[0].shape, np.int64),
    "Concat": lambda inputs, of: np.concatenate(_present(inputs), axis=of["axis"]),
    "Transpose": lambda inputs, of: np.transpose(_present(inputs)[0], of.get("perm")),
    "Neg": lambda inputs, _: -_present(inputs)[0],
    "Add": lambda inputs, _: np.asarray(np.add(*_present(inputs))),
    "Sub": lambda inputs, _: np.asarray(np.subtract(*_present(inputs))),
    "Mul": lambda inputs, _: np.asarray(np.multiply(*_present(inputs))),
    "Div": _divided,
    "Slice": _slice,
    "Reshape": _reshape,
    "Cast": _cast,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Gather": _gather,
}
