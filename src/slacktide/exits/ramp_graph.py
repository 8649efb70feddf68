"""Adds ramps to a model's graph: pooling at a position, one Gemm, and a copy of the model's tail.

Added names begin with `exits/`. A ramp's outputs have the names (after `exits/N/`), datatypes and
shapes of the model's outputs. All operators used exist since version 7 of the standard; if an
operator has changed its form since, the form of the model's version is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide.exits.data_flow import DataFlow
from slacktide.exits.errors import ExitError
from slacktide.exits.manifest import Ramp
from slacktide.exits.own_exits import OwnExit
from slacktide.exits.positions import ExitGraph, Position, opset_of

PREFIX = "exits/"
_GLOBAL = {"Mean": "GlobalAveragePool", "Max": "GlobalMaxPool"}
_FLOAT, _INT64 = 1, 7  # TensorProto


def with_features(model: Any, graph: ExitGraph) -> Any:
    """Copy a model and add outputs: `exits/features/N`, float32 [rows, features], for each
    position, and `exits/logits`, float32 [rows, classes]."""
    out = _Writer(model)
    for position in graph.positions:
        pooled = _pooled(out.at(f"{PREFIX}features/{position.number}"), graph, position)
        out.output(pooled, f"{PREFIX}features/{position.number}", _FLOAT)
    logits = out.at(f"{PREFIX}logits").add("Flatten", graph.logits, axis=1)
    out.output(out.add("Cast", logits, to=_FLOAT), f"{PREFIX}logits", _FLOAT)
    return out.model


def with_memory(model: Any, graph: ExitGraph, means: str) -> Any:
    """Copy a model and add what tells whether an answer may be reused: the output `means`, float32
    [rows, channels], the means at its first position; and `exits/uncertainty`, float32 [rows],
    1 − the largest probability of the model's own answer."""
    out = _Writer(model)
    position = graph.positions[0]
    pooled = _pooled(out.at(f"{PREFIX}means"), graph, position, statistics=("Mean",))
    out.output(pooled, means, _FLOAT)
    flat = out.at(f"{PREFIX}unsure").add("Flatten", graph.logits, axis=1)
    out.output(_uncertainty(out, out.add("Cast", flat, to=_FLOAT)), f"{PREFIX}uncertainty", _FLOAT)
    return out.model


def with_ramps(model: Any, graph: ExitGraph, ramps: Sequence[Ramp], *, front: int = 0) -> Any:
    """Copy a model and add outputs for each ramp, at position N: `exits/N/uncertainty`, float32
    [rows]; `exits/N/answer`, int64 [rows], the class; and `exits/N/NAME` for each output NAME that
    ramps provide. Also add `exits/answer`, int64 [rows], the model's own class.

    A row's uncertainty is 1 − its largest probability in the softmax of logits ÷ temperature.
    `front`: number of ramps of another kind that come before these; it is added to N.
    Raises ExitError if a ramp does not fit its position, or an output's name begins with `exits/`.
    """
    out = _Writer(model)
    flow = DataFlow(out.graph, graph.primary)
    for name in flow.outputs:
        if name.startswith(PREFIX):
            raise ExitError(
                f"output {name!r}: names beginning with {PREFIX!r} are reserved for ramps"
            )
    tail = _tail(flow, graph)
    for ramp in ramps:
        position = graph.position(ramp.tensor)
        prefix = f"{PREFIX}{position.number + front}/"
        pooled = _pooled(out.at(f"{prefix}pooled"), graph, position)
        expected = (position.features, graph.classes)
        if ramp.weights.shape != expected or ramp.bias.shape != expected[1:]:
            raise ExitError(
                f"the ramp of {ramp.tensor!r} has weights {ramp.weights.shape}; expected {expected}"
            )
        out.at(f"{prefix}logits")
        logits = out.add("Gemm", pooled, out.constant(ramp.weights), out.constant(ramp.bias))
        out.at(f"{prefix}sure")
        scaled = out.add("Mul", logits, out.constant(np.float32(1 / ramp.temperature)))
        out.output(_uncertainty(out, scaled), f"{prefix}uncertainty", _FLOAT)
        out.output(out.add("ArgMax", logits, axis=1, keepdims=0), f"{prefix}answer", _INT64)
        _copy_tail(out.at(f"{prefix}tail"), tail, graph, logits, prefix)
    flat = out.at(f"{PREFIX}end").add("Flatten", graph.logits, axis=1)
    out.output(out.add("ArgMax", flat, axis=1, keepdims=0), f"{PREFIX}answer", _INT64)
    return out.model


def with_own_exits(model: Any, exits: Sequence[OwnExit]) -> Any:
    """Copy a model with built-in exits and add the outputs of each exit, from the front, under the
    names of `with_ramps`. The uncertainty is 1 − the exit's quality; there is no `answer`."""
    out = _Writer(model)
    final_outputs = [output for output in out.graph.output if output.name in exits[0].outputs]
    del out.graph.output[:]
    out.graph.output.extend(final_outputs)
    for number, exit_ in enumerate(exits):
        prefix = f"{PREFIX}{number}/"
        out.at(f"{prefix}quality")
        quality = out.add("Cast", exit_.quality, to=_FLOAT)
        flat = out.add("Reshape", quality, out.constant(np.array([-1])))
        unsure = out.add("Sub", out.constant(np.float32(1)), flat)
        out.output(unsure, f"{prefix}uncertainty", _FLOAT)
        for name, tensor in exit_.outputs.items():
            out.output(tensor, f"{prefix}{name}", like=name)
    return out.model


def _uncertainty(out: _Writer, logits: str) -> str:
    """1 − the largest probability of logits [rows, classes]."""
    greatest = out.reduce("ReduceMax", out.add("Softmax", logits, axis=1), [1])
    return out.add("Sub", out.constant(np.float32(1)), greatest)


def _tail(flow: DataFlow, graph: ExitGraph) -> list[Any]:
    """The nodes between the logits and the outputs that ramps provide, including those that compute
    shapes in between."""
    needed = flow.needed_for(graph.outputs, behind=[graph.logits])
    behind = {graph.logits}
    tail = []
    for node in flow.nodes:
        if id(node) in needed and not behind.isdisjoint(flow.reads[id(node)]):
            behind.update(node.output)
            tail.append(node)
    return tail


def _copy_tail(
    out: _Writer, tail: Sequence[Any], graph: ExitGraph, logits: str, prefix: str
) -> None:
    """Compute the model's outputs from a ramp's logits, float32 [rows, classes]."""
    if graph.element != _FLOAT:
        logits = out.add("Cast", logits, to=graph.element)
    if graph.axes > 2:
        shape = np.array([-1, graph.classes] + [1] * (graph.axes - 2))
        logits = out.add("Reshape", logits, out.constant(shape))
    names = {graph.logits: logits}
    for node in tail:
        names.update({name: f"{prefix}tail/{name}" for name in node.output if name})
        copy = out.graph.node.add()
        copy.CopyFrom(node)
        copy.name = f"{prefix}tail/{node.name or node.output[0]}"
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
    for name in graph.outputs:
        out.output(names[name], f"{prefix}{name}", like=name)


def _pooled(
    out: _Writer,
    graph: ExitGraph,
    position: Position,
    statistics: Sequence[str] = ("Mean", "Max"),
) -> str:
    """Add the pooling at a position: float32 [rows, features]."""
    pooled = position.tensor
    names = statistics if position.maximum else ("Mean",)
    if position.masked:
        parts = [_masked_mean(out, graph.mask, position)]
        parts += [_masked_maximum(out, graph.mask, position)] if "Max" in names else []
    elif position.channels_last:
        axes = list(range(1, 1 + len(position.space)))
        parts = [out.reduce(f"Reduce{statistic}", pooled, axes) for statistic in names]
    elif position.space:
        parts = [out.add(_GLOBAL[statistic], pooled) for statistic in names]
    else:
        parts = [pooled]
    pooled = out.add("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]
    if position.space and not (position.masked or position.channels_last):
        pooled = out.add("Flatten", pooled, axis=1)
    return pooled if position.element == _FLOAT else out.add("Cast", pooled, to=_FLOAT)


def _masked_mean(out: _Writer, mask: str, position: Position) -> str:
    """Add the mean over everything but padding; 0 if all is padding."""
    weights = out.add("Cast", mask, to=_FLOAT)
    count = out.add(
        "Max", out.reduce("ReduceSum", weights, [1], keep=1), out.constant(np.float32(1))
    )
    share = out.add("Cast", out.add("Div", weights, count), to=position.element)
    if position.channels_last:
        row = out.add("Reshape", share, out.constant(np.array([0, 1, -1])))
        return out.add("Flatten", out.add("MatMul", row, position.tensor), axis=1)
    column = out.add("Reshape", share, out.constant(np.array([0, -1, 1])))
    return out.add("Flatten", out.add("MatMul", position.tensor, column), axis=1)


def _masked_maximum(out: _Writer, mask: str, position: Position) -> str:
    """Add the maximum over everything but padding, at least 0, because padding counts as 0."""
    words = out.add("Cast", mask, to=position.element)
    last = position.channels_last
    words = out.add("Reshape", words, out.constant(np.array([0, -1, 1] if last else [0, 1, -1])))
    masked = out.add("Mul", position.tensor, words)
    return out.add("Relu", out.reduce("ReduceMax", masked, [1 if last else 2]))


class _Writer:
    """Copies a model and adds nodes and outputs to it."""

    def __init__(self, model: Any) -> None:
        import onnx

        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.graph = self.model.graph
        self._opset = opset_of(model)
        self._make = onnx.helper
        self._tensor: Callable[..., Any] = onnx.numpy_helper.from_array
        self._declared = {value.name: value for value in model.graph.output}
        self._prefix = PREFIX
        self._count = 0

    def at(self, prefix: str) -> _Writer:
        """Set the prefix of the following names."""
        self._prefix, self._count = prefix, 0
        return self

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        self._count += 1
        name = f"{self._prefix}.{operator}.{self._count}"
        self.graph.node.append(
            self._make.make_node(operator, inputs, [name], name=name, **attributes)
        )
        return name

    def reduce(self, operator: str, tensor: str, axes: list[int], keep: int = 0) -> str:
        """Add a reduction. `axes` became an input in version 13 for ReduceSum, 18 for others."""
        if self._opset < (13 if operator == "ReduceSum" else 18):
            return self.add(operator, tensor, axes=axes, keepdims=keep)
        return self.add(operator, tensor, self.constant(np.array(axes)), keepdims=keep)

    def constant(self, array: NDArray[Any] | np.generic) -> str:
        self._count += 1
        name = f"{self._prefix}.constant.{self._count}"
        self.graph.initializer.append(self._tensor(np.asarray(array), name))
        return name

    def output(self, tensor: str, name: str, element: int = 0, like: str = "") -> None:
        """Make a tensor the output `name`, declared like the output `like`, or without a shape."""
        self.graph.node.append(self._make.make_node("Identity", [tensor], [name], name=name))
        if like:
            self.graph.output.append(self._declared[like])
            self.graph.output[-1].name = name
        else:
            self.graph.output.append(self._make.make_tensor_value_info(name, element, None))
