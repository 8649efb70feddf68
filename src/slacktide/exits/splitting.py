"""A model with ramps as a chain of stages, cut where its ramps hang.

Works on the graph of `with_ramps`, and on the same graph after ONNX Runtime has optimised it as a
whole: what a ramp hangs on is looked for anew, since tensors have other names and layouts there.
Each stage is pruned: ONNX Runtime runs nodes that no output needs. Context (a mask and what is made
of it) is computed anew in each stage from the model's own inputs, so that it fits the rows that are
left when others have left the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        made = dict.fromkeys((*outputs, *given))
        model = self._pruned(at, nodes, leaves, inputs, taken, made)
        return StageModel(model, number, inputs, taken, given, outputs)

    def _earlier(self, node: Any, name: str, at: int) -> bool:
        """Whether a stage in front has to make a tensor: what holds data, or its shape."""
        if is_shape(node):
            source = node.input[0]
            if source not in self._flow.maker or source in self._cuts[at - 1 : at]:
                return False  # the primary input or what this stage takes
            return source in self._flow.data and self._stage(source) < at
        return name in self._flow.data and id(node) in self._place and self._stage(name) < at

    def _pruned(
        self,
        at: int,
        nodes: set[int],
        leaves: Iterable[str],
        inputs: tuple[str, ...],
        taken: tuple[str, ...],
        outputs: Iterable[str],
    ) -> Any:
        import onnx

        whole, used = self._model, set(leaves)
        stage = onnx.ModelProto(ir_version=max(4, whole.ir_version))
        stage.opset_import.extend(whole.opset_import)
        stage.functions.extend(whole.functions)
        graph = stage.graph
        graph.name = f"stage {at}"
        graph.node.extend(node for node in self._flow.nodes if id(node) in nodes)
        graph.initializer.extend(each for each in whole.graph.initializer if each.name in used)
        graph.sparse_initializer.extend(
            each for each in whole.graph.sparse_initializer if each.values.name in used
        )
        graph.input.extend(value for value in whole.graph.input if value.name in inputs)
        graph.input.extend(self._value(name) for name in taken)
        declared = {value.name: value for value in whole.graph.output}
        graph.output.extend(declared.get(name) or self._value(name) for name in outputs)
        return stage

    def _value(self, tensor: str) -> Any:
        """Declares a tensor between stages."""
        import onnx

        element = _INT64
        if tensor in self._cuts:
            element = self._positions[self._ramps[self._cuts.index(tensor)]].element
        elif tensor in self._flow.data:
            raise ExitError(f"tensor {tensor!r} passes by the positions {self._ramps}")
        return onnx.helper.make_tensor_value_info(tensor, element, None)
