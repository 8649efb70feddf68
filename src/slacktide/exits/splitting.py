"""A model with ramps as a chain of stages, cut where its ramps hang.

Works on the graph of `with_ramps`, and on the same graph after ONNX Runtime has optimised it as a
whole: what a ramp hangs on is looked for anew, since tensors have other names and layouts there.
Each stage is pruned: ONNX Runtime runs nodes that no output needs. Context (a mask and what is made
of it) is computed anew in each stage from the model's own inputs, so that it fits the rows that are
left when others have left the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slacktide.exits.data_flow import DataFlow, is_shape
from slacktide.exits.errors import ExitError
from slacktide.exits.positions import ExitGraph
from slacktide.exits.ramp_graph import PREFIX

_END = f"{PREFIX}answer"
_MULTIPLYING = (
    "Conv",
    "Gemm",
    "MatMul",
    "Attention",
    "LSTM",
    "GRU",
)  # also as part of a fused name
_INT64 = 7


@dataclass(frozen=True, slots=True)
class StageModel:
    """One stage. Its model takes `inputs` and `taken`, and gives `outputs` and `given`."""

    model: Any
    """An onnx.ModelProto."""
    ramp: int
    """Position whose ramp answers at its end; −1 in the last stage."""
    inputs: tuple[str, ...]
    """Inputs of the whole model."""
    taken: tuple[str, ...]
    """Tensors of stages before. The first has one row for each of the batch's. Others are shapes of
    the whole batch: where there are any, rows must not leave the batch."""
    given: tuple[str, ...]
    """Tensors for stages behind, the first as for `taken`; one may be among the outputs, too."""
    outputs: tuple[str, ...]
    """Outputs of the whole model: its own and those of ramps."""


def split(model: Any, graph: ExitGraph) -> list[StageModel]:
    """Cut a model that `with_ramps` made, with its weights, at each of its ramps.

    Raises ExitError where one of them no longer hangs on a single tensor.
    """
    return _Cutter(model, graph).stages()


class _Cutter:
    def __init__(self, model: Any, graph: ExitGraph) -> None:
        self._model = model
        self._flow = flow = DataFlow(model.graph, graph.primary)
        self._positions = graph.positions
        ramps: dict[int, list[str]] = {}
        own = []
        for name in flow.outputs:
            number = name.removeprefix(PREFIX).partition("/")[0]
            if name.startswith(PREFIX) and number.isdecimal():
                ramps.setdefault(int(number), []).append(name)
            else:
                own.append(name)
        if not own or max(ramps, default=0) >= len(graph.positions):
            raise ExitError(
                f"outputs whose names begin with {PREFIX!r} are not of this model's ramps"
            )
        end = _END if _END in own else own[0]
        self._trunk = flow.needed_for(own)
        order = [node for node in flow.trunk(end) if id(node) in self._trunk]
        self._place = {id(node): at for at, node in enumerate(order)}
        self._crossings = flow.crossings(order)
        self._ramps = sorted(ramps)
        self._cuts = [self._cut(number, ramps[number]) for number in self._ramps]
        if len(set(self._cuts)) < len(self._cuts):
            raise ExitError(f"positions {self._ramps}: two of them cannot be told apart")
        self._given = [*([cut] for cut in self._cuts), []]
        self._outputs = [*(ramps[number] for number in self._ramps), []]
        for name in own:
            self._outputs[self._stage(name)].append(name)

    def stages(self) -> list[StageModel]:
        found = []
        for at in reversed(range(len(self._outputs))):
            found.append(self._build(at))
            for name in found[-1].taken:
                made = self._given[self._stage(name)]
                if name not in made:
                    made.append(name)
        return found[::-1]

    def _cut(self, number: int, outputs: Iterable[str]) -> str:
        """The tensor to cut at, for a ramp: what it hangs on, or the last one in front of that
        through which all data passes."""
        nodes = self._flow.needed_for(outputs) - self._trunk
        hangs_on = (
            self._place.get(id(self._flow.maker.get(name)), -1)
            for node in self._flow.nodes
            if id(node) in nodes
            for name in self._flow.sources(node)
        )
        at = max(hangs_on, default=-1)
        fronts = [
            tensor
            for tensor in self._crossings
            if tensor in self._flow.maker and self._place[id(self._flow.maker[tensor])] <= at
        ]
        if not fronts:
            raise ExitError(f"no single tensor to cut at in front of position {number}")
        behind = self._flow.needed_for(outputs, behind=fronts[-1:]) & self._trunk
        for node in self._flow.nodes:
            if id(node) in behind and any(word in node.op_type for word in _MULTIPLYING):
                raise ExitError(
                    f"position {number}: node {node.name!r} ({node.op_type}) would run twice"
                )
        return fronts[-1]

    def _stage(self, tensor: str) -> int:
        """The first stage that can make a tensor."""
        node = self._flow.maker.get(tensor)
        if node is not None and is_shape(node):
            return self._stage(node.input[0])
        if node is None or id(node) not in self._place or tensor not in self._flow.data:
            return 0
        place = self._place[id(node)]
        return sum(self._crossings[cut] < place for cut in self._cuts)

    def _build(self, at: int) -> StageModel:
        flow, first = self._flow, self._cuts[at - 1 : at] if at else []
        nodes: set[int] = set()
        leaves: dict[str, None] = {}
        handed: dict[str, None] = {}
        outputs, given = tuple(self._outputs[at]), tuple(self._given[at])
        todo = [*outputs, *given]
        while todo:
            name = todo.pop()
            node = flow.maker.get(name)
            if name in first or node is None:
                leaves[name] = None
            elif self._earlier(node, name, at):
                handed[name] = None
            elif id(node) not in nodes:
                nodes.add(id(node))
                todo.extend(flow.reads[id(node)])
        inputs = tuple(name for name in flow.inputs if name in leaves)
        taken = (*(name for name in first if name in leaves), *handed)
        number = self._ramps[at] if at < len(self._cuts) else -1
        value = {name: self._value(name) for name in (*taken, *given)}
        model = _pruned(self._model, flow, nodes, leaves, taken, (*outputs, *given), value)
        return StageModel(model, number, inputs, taken, given, outputs)

    def _earlier(self, node: Any, name: str, at: int) -> bool:
        """Whether a stage in front has to make a tensor: what holds data, or its shape."""
        if is_shape(node):
            source = node.input[0]
            if source not in self._flow.maker or source in self._cuts[at - 1 : at]:
                return False  # the primary input or what this stage takes
            return source in self._flow.data and self._stage(source) < at
        return name in self._flow.data and id(node) in self._place and self._stage(name) < at

    def _value(self, tensor: str) -> Any:
        """Declares a tensor between stages."""
        import onnx

        element = _INT64
        if tensor in self._cuts:
            element = self._positions[self._ramps[self._cuts.index(tensor)]].element
        elif tensor in self._flow.data:
            raise ExitError(f"tensor {tensor!r} passes by the positions {self._ramps}")
        return onnx.helper.make_tensor_value_info(tensor, element, None)


def split_at_own_exits(
    model: Any, elements: Callable[[Any, Sequence[str]], Mapping[str, int]]
) -> list[StageModel]:
    """Cut a model that `with_own_exits` made, with its weights: a stage is what an exit needs and
    no exit in front of it does. Stages hand on as many tensors as it takes, all with rows: shapes
    are taken anew in each stage.

    `elements` finds datatypes of tensors of the model, as numbers of onnx.TensorProto.DataType.
    """
    import onnx

    flow = DataFlow(model.graph, "")
    exits: dict[int, list[str]] = {}
    own: list[str] = []
    for name in flow.outputs:
        number = name.removeprefix(PREFIX).partition("/")[0]
        (exits.setdefault(int(number), []) if name.startswith(PREFIX) else own).append(name)
    rows = set(flow.inputs)
    for node in flow.nodes:
        if not is_shape(node) and not rows.isdisjoint(flow.reads[id(node)]):
            rows.update(node.output)
    ramps, ends = [*sorted(exits), -1], [*(exits[each] for each in sorted(exits)), own]
    made_in: dict[str, int] = {}
    for at, end in enumerate(ends):
        needed = flow.needed_for(end)
        made = {name for node in flow.nodes if id(node) in needed for name in node.output}
        made_in.update(dict.fromkeys(made & rows - made_in.keys(), at))
    outputs = [
        [name for name in flow.outputs if made_in.get(name, 0) == at] for at in range(len(ends))
    ]
    given: list[dict[str, None]] = [{} for _ in ends]
    parts = []
    for at in reversed(range(len(ends))):
        nodes, leaves, taken = set[int](), dict[str, None](), dict[str, None]()
        todo = [*outputs[at], *given[at]]
        while todo:
            name = todo.pop()
            node = flow.maker.get(name)
            if node is None:
                leaves[name] = None
            elif made_in.get(name, at) < at:
                taken[name] = given[made_in[name]][name] = None
            elif id(node) not in nodes:
                nodes.add(id(node))
                todo.extend(flow.reads[id(node)])
        parts.append((nodes, leaves, tuple(taken)))
    handed = [name for names in given for name in names]
    value = {
        name: onnx.helper.make_tensor_value_info(name, element, None)
        for name, element in elements(model, handed).items()
    }
    return [
        StageModel(
            _pruned(model, flow, nodes, leaves, taken, (*made, *gives), value),
            ramp,
            tuple(name for name in flow.inputs if name in leaves),
            taken,
            tuple(gives),
            tuple(made),
        )
        for ramp, (nodes, leaves, taken), made, gives in zip(
            ramps, reversed(parts), outputs, given, strict=True
        )
    ]


def _pruned(
    whole: Any,
    flow: DataFlow,
    nodes: Container[int],
    leaves: Container[str],
    taken: Sequence[str],
    made: Iterable[str],
    value: Mapping[str, Any],
) -> Any:
    """A stage: these nodes. `leaves`: inputs and weights that it reads; `value`: declarations of
    what stages hand on."""
    import onnx

    stage = onnx.ModelProto(ir_version=max(4, whole.ir_version))
    stage.opset_import.extend(whole.opset_import)
    stage.functions.extend(whole.functions)
    graph = stage.graph
    graph.name = "stage"
    graph.node.extend(node for node in flow.nodes if id(node) in nodes)
    graph.initializer.extend(each for each in whole.graph.initializer if each.name in leaves)
    graph.sparse_initializer.extend(
        each for each in whole.graph.sparse_initializer if each.values.name in leaves
    )
    inputs = (each for each in whole.graph.input if each.name in flow.inputs)
    graph.input.extend(each for each in inputs if each.name in leaves)
    graph.input.extend(value[name] for name in taken)
    declared = {each.name: each for each in whole.graph.output}
    graph.output.extend(declared.get(name) or value[name] for name in dict.fromkeys(made))
    return stage
