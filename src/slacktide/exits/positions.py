"""Finds positions for early exits: tensors through which all data of the primary input passes.

A scan over the sorted nodes tracks the live tensors (`data_flow`). Where only one tensor is live,
and it is a float tensor with an axis of rows, the network can be cut. Between two costly operators
(those that multiply matrices) only one position is used: the one with the fewest channels, then the
fewest elements, then the last. It lies after pooling and before padding. In a ResNet-50 these are
the stem and the 16 blocks, as in Apparate (SOSP 2024, §3.1).

A *ramp* at a position computes its own logits. The part of the model after its logits (the *tail*)
is copied for it, so that a ramp's outputs look like the model's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from slacktide.domain.suggestions import suggestion
from slacktide.exits.data_flow import DataFlow, inputs_of
from slacktide.exits.errors import ExitError
from slacktide.exits.tensor_shapes import COSTLY, Shape, TensorShapes

_CONTROL = ("If", "Loop", "Scan", "SequenceMap")
_RECURRENT = ("LSTM", "GRU", "RNN")
_SELECTING = ("Softmax", "LogSoftmax", "Hardmax", "ArgMax", "TopK")
"""Operators after the logits that keep the order of classes."""
_TAIL = frozenset(
    (
        *_SELECTING,
        *("Cast", "Identity", "Dropout", "Gather", "ReduceMax"),
        *("Flatten", "Reshape", "Squeeze", "Unsqueeze"),
    )
)
_SPATIAL = frozenset(
    (
        *("Conv", "ConvTranspose", "DeformConv", "LRN"),
        *("AveragePool", "MaxPool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"),
        *("BatchNormalization", "InstanceNormalization"),
    )
)
"""Operators with channels in axis 1."""
_FLOATS = (1, 10, 11, 16)  # TensorProto.FLOAT, FLOAT16, DOUBLE, BFLOAT16
_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
MOST_FEATURES = 1024
"""Maximum number of means and maxima: the time to learn grows with the cube of this number."""
_OLDEST_OPSET = 7  # the first with broadcasting operators


@dataclass(frozen=True, slots=True)
class Position:
    """A tensor of the graph to which a ramp can be attached."""

    number: int
    """Number of the position, from 0 at the front."""
    tensor: str
    channels_last: bool
    channels: int
    space: tuple[int, ...]
    """Sizes of the pooled axes; −1 if clients choose the input's size."""
    masked: bool
    """Whether the padding mask applies to those axes."""
    cost: float
    """Approximate share of the model's multiplications before it."""
    element: int
    """Datatype, as in onnx.TensorProto.DataType."""

    @property
    def maximum(self) -> bool:
        """Whether the maximum over space or words is pooled too, if the number of features allows:
        a small object or a single word hardly changes the mean."""
        return any(size != 1 for size in self.space) and 2 * self.channels <= MOST_FEATURES

    @property
    def features(self) -> int:
        """Pooled numbers per row."""
        return 2 * self.channels if self.maximum else self.channels


@dataclass(frozen=True, slots=True)
class ExitGraph:
    """The properties of a model's graph that early exits need."""

    positions: tuple[Position, ...]
    primary: str
    """The input whose data is followed."""
    mask: str
    """The input with the padding mask; empty if there is none."""
    logits: str
    """Tensor [rows, classes], possibly with further axes of size one."""
    outputs: tuple[str, ...]
    """The graph outputs that a ramp can provide."""
    classes: int
    axes: int
    """Number of axes of the logits."""
    element: int
    """Datatype of the logits, as in onnx.TensorProto.DataType."""

    def position(self, tensor: str) -> Position:
        """The position of a tensor. Raises ExitError if there is none."""
        for position in self.positions:
            if position.tensor == tensor:
                return position
        raise ExitError(f"tensor {tensor!r} is not a position of this model")


def find_positions(
    model: Any,
    *,
    primary: str = "",
    mask: str = "",
    add: Collection[str] = (),
    forbid: Collection[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    output: str = "",
    labels: Collection[int] = (),
) -> ExitGraph:
    """Find the positions of an onnx.ModelProto. Needs no weights and changes nothing.

    `primary` and `mask` name inputs; the default primary input is the only one that is not a mask.
    `add` names tensors to use although this module's rule skips them, `forbid` positions to skip.
    `shapes`: usual shape of a row by input, with or without an axis of rows, for counting
    multiplications. `output` names the output with classes, `labels` gives known numbers of
    classes; otherwise the output is one that ends in a Softmax or the like. Raises ExitError naming
    the field, node or tensor.
    """
    graph = model.graph
    primary = _primary(graph, primary, mask)
    flow = DataFlow(graph, primary)
    _check_opset(model)
    sizes = TensorShapes(model, primary, shapes or {})
    if output and output not in flow.outputs:
        hint = suggestion(output, flow.outputs, noun="outputs")
        raise ExitError(f"output: the model has no output {output!r}; {hint}")
    logits, outputs = _answers(flow, sizes, output, labels, opset_of(model))
    order = flow.trunk(logits)
    main = flow.needed_for([logits])
    costly = list(accumulate(id(node) in main and node.op_type in COSTLY for node in order))
    work = list(accumulate(sizes.work(node) if id(node) in main else 0.0 for node in order))
    shares = work if work[-1] else costly
    axes = _channel_axes(flow, order, sizes)
    obstacles = _Obstacles(flow, order)
    groups: dict[int, list[Position]] = {}
    usable: dict[str, Position] = {}
    refused: dict[str, str] = {}
    for tensor, at in flow.crossings(order).items():
        if tensor == primary or costly[at] == costly[-1]:
            continue
        if why := _unfit(sizes, tensor) or obstacles.at(tensor):
            refused[tensor] = why
            continue
        position = _position(sizes, tensor, axes.get(tensor), mask, shares[at] / shares[-1])
        usable[tensor] = position
        if costly[at]:
            groups.setdefault(costly[at], []).append(position)
    chosen = [_cheapest(group, sizes).tensor for group in groups.values()]
    chosen = [tensor for tensor in usable if tensor in {*chosen, *add} and tensor not in forbid]
    for name in (*add, *forbid):
        if name not in usable:
            raise ExitError(f"positions: {name!r} is {_absence(name, flow, usable, refused)}")
    if not chosen:
        refusal = next(iter(refused.items()), None)
        why = "" if refusal is None else f": {refusal[0]!r} is {refusal[1]}"
        raise ExitError(f"the model has no position for an early exit{why}")
    positions = tuple(replace(usable[tensor], number=at) for at, tensor in enumerate(chosen))
    return ExitGraph(
        positions,
        primary,
        mask,
        logits,
        outputs,
        classes=sizes.dims[logits][1],
        axes=len(sizes.dims[logits]),
        element=sizes.elements[logits],
    )


def _cheapest(group: Sequence[Position], sizes: TensorShapes) -> Position:
    """The position with the fewest channels in a group between the same costly operators,
    then the fewest elements; of several, the last."""
    return min(
        reversed(group),
        key=lambda position: (position.channels, sizes.elements_of_row(position.tensor)),
    )


def _absence(
    name: str, flow: DataFlow, usable: Mapping[str, Position], refused: Mapping[str, str]
) -> str:
    """Why `name` is not a position, to complete "it is ..."."""
    if name in refused:
        return refused[name]
    if name in flow.data:
        return "not a tensor through which all data passes before the last costly operator"
    return f"not a tensor of this model; {suggestion(name, usable, noun='possible')}"


def _primary(graph: Any, primary: str, mask: str) -> str:
    inputs = inputs_of(graph)
    for field, name in (("primary", primary), ("mask", mask)):
        if name and name not in inputs:
            hint = suggestion(name, inputs, noun="inputs")
            raise ExitError(f"{field}: the model has no input {name!r}; {hint}")
    if primary:
        return primary
    likely = [name for name in inputs if name != mask]
    if len(likely) > 1:
        likely = [name for name in likely if not _secondary(name)]
    if len(likely) != 1:
        names = ", ".join(inputs) if inputs else "none"
        raise ExitError(f"primary: expected the input that ramps look at, one of: {names}")
    return likely[0]


def _secondary(name: str) -> bool:
    return any(word in name.lower() for word in ("mask", "type_id", "position_id", "length"))


def _check_opset(model: Any) -> None:
    opset = opset_of(model)
    if opset < _OLDEST_OPSET:
        raise ExitError(f"opset_import: early exits need at least {_OLDEST_OPSET}, got {opset}")


def opset_of(model: Any) -> int:
    """The model's version of the standard operators."""
    return max(
        (opset.version for opset in model.opset_import if opset.domain in _STANDARD[:2]), default=1
    )


def tail_chain(flow: DataFlow, output: str) -> list[str]:
    """The tensors from an output back through cheap operators with a single data input."""
    chain = [output]
    while (node := flow.maker.get(chain[-1])) is not None:
        sources = flow.sources(node)
        if node.op_type not in _TAIL or node.domain not in _STANDARD or len(sources) != 1:
            break
        chain.append(sources[0])
    return chain


def _answers(
    flow: DataFlow, sizes: TensorShapes, output: str, labels: Collection[int], opset: int
) -> tuple[str, tuple[str, ...]]:
    """The logits, and the outputs computed from them by a cheap tail."""
    chains = {name: tail_chain(flow, name) for name in flow.outputs if name in flow.data}
    ranked: list[tuple[tuple[bool, int, int], str]] = []
    reasons = []
    for name, chain in chains.items():
        if output not in ("", name):
            continue
        selecting = [
            at for at, tensor in enumerate(chain[:-1]) if _selects(flow, sizes, tensor, opset)
        ]
        options = chain[selecting[-1] + 1 :] if selecting else [name]
        logits = next(
            (tensor for tensor in options if -1 not in sizes.dims.get(tensor, [0, -1])[1:]),
            options[0],
        )
        if why := _no_answer(flow, sizes, logits):
            reasons.append(f"output {name!r} {why}")
            continue
        if not (selecting or output or sizes.dims[logits][1] in labels):
            reasons.append(
                f"output {name!r} may not hold classes, because no Softmax produces it; set "
                f"early_exit.output: {name} if it does"
            )
            continue
        users = sum(logits in members for members in chains.values())
        ranked.append(((bool(selecting), users, len(flow.needed_for([logits]))), logits))
    if not ranked:
        raise ExitError([*reasons, "no output depends on the primary input"][0])
    logits = max(ranked, key=lambda candidate: candidate[0])[1]
    return logits, tuple(name for name, chain in chains.items() if logits in chain)


def _no_answer(flow: DataFlow, sizes: TensorShapes, logits: str) -> str:
    """Why a tensor is not a vector of classes; empty if it is one."""
    dims, maker = sizes.dims.get(logits, []), flow.maker.get(logits)
    if maker is not None and maker.op_type in _CONTROL:
        return f"is {_obstacle(maker, ())}"
    if _op(flow, logits) == "Sigmoid":
        return "is produced by a Sigmoid, which allows several classes"
    if len(dims) < 2 or dims[1] < 1 or any(size != 1 for size in dims[2:]):
        return f"is not a vector of classes: its shape is {sizes.text(logits)}"
    if dims[1] == 1:
        return "has only one class"
    return "" if sizes.elements.get(logits) in _FLOATS else "is not a float tensor"


def _selects(flow: DataFlow, sizes: TensorShapes, tensor: str, opset: int) -> bool:
    """Whether the tensor's producer orders the elements of an axis, other than the axis of rows or
    an axis of size one."""
    node = flow.maker[tensor]
    if node.op_type not in _SELECTING:
        return False
    usual = {"ArgMax": 0, "TopK": -1}.get(node.op_type, -1 if opset >= 13 else 1)
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), usual)
    dims = sizes.dims.get(node.input[0], [])
    if not dims:
        return axis != 0
    if not -len(dims) <= axis < len(dims):
        return False  # a damaged model, which ONNX Runtime refuses
    return axis % len(dims) > 0 and dims[axis] != 1


def _op(flow: DataFlow, tensor: str) -> str:
    node = flow.maker.get(tensor)
    return "" if node is None else str(node.op_type)


class _Obstacles:
    """Finds operators next to which a graph cannot be cut."""

    def __init__(self, flow: DataFlow, order: Sequence[Any]) -> None:
        self._flow = flow
        self._readers: dict[str, list[Any]] = {}
        for node in order:
            for name in flow.sources(node):
                self._readers.setdefault(name, []).append(node)

    def at(self, tensor: str) -> str:
        """Why the graph cannot be cut at this tensor; empty if it can."""
        nodes = (self._flow.maker[tensor], *self._readers.get(tensor, ()))
        return next(filter(None, (_obstacle(node, self._flow.inputs) for node in nodes)), "")


def _obstacle(node: Any, inputs: Collection[str]) -> str:
    """Why a graph cannot be cut next to this node; empty if it can."""
    where = f"at node {node.name or node.output[0]!r} ({node.op_type}), "
    if node.op_type in _CONTROL:
        return f"{where}which is control flow"
    if node.domain not in _STANDARD:
        return f"{where}a custom operator of {node.domain!r}"
    if any(word in node.op_type for word in ("uantize", "QLinear", "Integer")):
        return f"{where}a quantised operator"
    if node.op_type in _RECURRENT and any(name in inputs for name in node.input[5:7]):
        return f"{where}which takes its state from an input"
    return ""


def _unfit(sizes: TensorShapes, tensor: str) -> str:
    """Why a ramp cannot be attached to this tensor; empty if it can."""
    if sizes.elements.get(tensor) not in _FLOATS:
        return "not a float tensor"
    dims = sizes.dims.get(tensor, [])
    if len(dims) < 2 or -1 in dims[1:]:
        return f"a tensor of unknown size: its shape is {sizes.text(tensor)}"
    if dims[0] not in (sizes.rows, -1):
        return f"without a row for each row of the input: its shape is {sizes.text(tensor)}"
    return ""


def _position(
    sizes: TensorShapes, tensor: str, axis: int | None, mask: str, cost: float
) -> Position:
    dims = sizes.dims[tensor]
    axis = (1 if len(dims) != 3 else 2) if axis is None else axis
    space = dims[1:axis] + dims[axis + 1 :]
    masked = bool(mask) and len(space) == 1 and space == sizes.dims.get(mask, [])[1:]
    return Position(
        -1,
        tensor,
        channels_last=len(dims) > 2 and axis == len(dims) - 1,
        channels=dims[axis],
        space=tuple(-1 if sizes.free else size for size in space),
        masked=masked,
        cost=cost,
        element=sizes.elements[tensor],
    )


def _channel_axes(flow: DataFlow, order: Sequence[Any], sizes: TensorShapes) -> dict[str, int]:
    """The axis of channels by tensor, deduced from the operators before it."""
    axes: dict[str, int] = {}
    for node in order:
        sources = [name for name in flow.sources(node) if name in sizes.dims]
        for name in node.output:
            dims = sizes.dims.get(name, [])
            if len(dims) < 2 or not sources:
                continue
            if node.op_type in _SPATIAL:
                axis: int | None = 1
            elif node.op_type in COSTLY or node.op_type == "LayerNormalization":
                axis = len(dims) - 1
            elif node.op_type == "Transpose":
                axis = _permuted(node, axes.get(sources[0]), len(dims))
            else:
                axis = _inherited(sources, axes, dims, sizes)
            if axis is not None:
                axes[name] = axis
    return axes


def _permuted(node: Any, axis: int | None, rank: int) -> int | None:
    for attribute in node.attribute:
        if attribute.name == "perm" and axis is not None:
            return list(attribute.ints).index(axis)
    return None if axis is None else rank - 1 - axis


def _inherited(
    sources: Sequence[str], axes: Mapping[str, int], dims: Shape, sizes: TensorShapes
) -> int | None:
    """The axis of channels of a source, if the result still has it."""
    for source in sources:
        axis = axes.get(source)
        if axis is None:
            continue
        source_dims = sizes.dims[source]
        if len(source_dims) == len(dims):
            return axis
        channels = source_dims[axis]
        for candidate in (axis, len(dims) - 1):
            if candidate < len(dims) and dims[candidate] == channels:
                return candidate
    return None
