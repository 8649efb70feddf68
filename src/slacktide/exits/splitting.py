"""Splits a model with ramps or built-in exits into a chain of stages.

A stage has the nodes that its ramp needs but no earlier ramp needs; the last stage has the
remaining nodes. Other outputs (pooled features, an embedding) come from the first stage that can
compute them. Stages pass on any number of tensors, all with an axis of rows. Each stage computes
tensors without rows (shapes, constants and tensors that depend on nothing else) again, so that they
match the rows still in the batch.

This works wherever ramps are attached, and even after ONNX Runtime has optimised the whole graph,
which changes the names and layouts of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from slacktide.exits.data_flow import DataFlow, is_shape
from slacktide.exits.ramp_graph import PREFIX

NO_SHAPES: Mapping[str, Sequence[int | None]] = MappingProxyType({})
_END = f"{PREFIX}answer"


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage. Its model takes `inputs` and `received`, and returns `outputs` and `passed_on`."""

    model: Any
    """An onnx.ModelProto. Received tensors have no datatype before `declare`."""
    ramp: int
    """Position of the ramp at its end; −1 for the last stage."""
    inputs: tuple[str, ...]
    """Inputs of the whole model."""
    received: tuple[str, ...]
    """Tensors from earlier stages, with a row for each row of the batch."""
    passed_on: tuple[str, ...]
    """Tensors for later stages, some of which may also be outputs."""
    outputs: tuple[str, ...]
    """Outputs of the whole model, including those of ramps."""

    def declare(
        self, types: Mapping[str, str], shapes: Mapping[str, Sequence[int | None]] = NO_SHAPES
    ) -> None:
        """Declare the datatypes of received tensors, in ONNX Runtime's form ("tensor(float)"), and
        their `shapes` if the backend needs them; None: a free axis. They are known once earlier
        stages are open."""
        import onnx

        for value in self.model.graph.input:
            if value.name not in self.received:
                continue
            declared = value.type.tensor_type
            name = types[value.name].removeprefix("tensor(").removesuffix(")")
            declared.elem_type = onnx.TensorProto.DataType.Value(name.upper())
            if value.name in shapes:
                declared.ClearField("shape")
                declared.shape.SetInParent()
            for size in shapes.get(value.name, ()):
                axis = declared.shape.dim.add()
                if size is not None:
                    axis.dim_value = size


def split(model: Any) -> list[StageModel]:
    """Split a model made by `with_ramps` or `with_own_exits`, with its weights, at its exits."""
    flow = DataFlow(model.graph, "")
    exits: dict[int, list[str]] = {}
    final: list[str] = []
    for name in flow.outputs:
        number = name.removeprefix(PREFIX).partition("/")[0]
        early = name.startswith(PREFIX) and number.isdecimal()
        (exits.setdefault(int(number), []) if early else final).append(name)
    ramps = [*sorted(exits), -1]
    ends = [*(exits[ramp] for ramp in ramps[:-1]), [_END] if _END in final else final]
    needed: dict[int, int] = {}
    """The first stage whose end needs a node, by the node's identity."""
    for at, end in enumerate(ends):
        for node in flow.needed_for(end):
            needed.setdefault(node, at)
    made_in: dict[str, int] = {}
    rows = {*flow.inputs}
    for node in flow.nodes:
        read = flow.reads[id(node)]
        first = max((made_in.get(name, 0) for name in read), default=0)
        made_in.update(dict.fromkeys(node.output, needed.get(id(node), first)))
        if not is_shape(node) and not rows.isdisjoint(read):
            rows.update(node.output)
    gives: list[dict[str, None]] = [{} for _ in ends]
    stages = []
    for at in reversed(range(len(ends))):
        outputs = [name for name in flow.outputs if made_in.get(name, 0) == at]
        nodes, leaves, takes = set[int](), set[str](), dict[str, None]()
        todo = [*outputs, *gives[at]]
        while todo:
            name = todo.pop()
            maker = flow.maker.get(name)
            if maker is None:
                leaves.add(name)
            elif name in rows and made_in[name] < at:
                takes[name] = gives[made_in[name]][name] = None
            elif id(maker) not in nodes:
                nodes.add(id(maker))
                todo.extend(flow.reads[id(maker)])
        stages.append(
            StageModel(
                _pruned(model, flow, nodes, leaves, takes, dict.fromkeys([*outputs, *gives[at]])),
                ramps[at],
                tuple(name for name in flow.inputs if name in leaves),
                tuple(takes),
                tuple(gives[at]),
                tuple(outputs),
            )
        )
    return stages[::-1]


def _pruned(
    whole: Any,
    flow: DataFlow,
    nodes: set[int],
    leaves: set[str],
    takes: Mapping[str, None],
    produced: Mapping[str, None],
) -> Any:
    """The model of a stage. `leaves`: inputs and weights that it reads."""
    import onnx

    stage = onnx.ModelProto(ir_version=max(4, whole.ir_version))
    stage.opset_import.extend(whole.opset_import)
    stage.functions.extend(whole.functions)
    graph = stage.graph
    graph.name = "stage"
    graph.node.extend(node for node in flow.nodes if id(node) in nodes)
    graph.initializer.extend(tensor for tensor in whole.graph.initializer if tensor.name in leaves)
    graph.sparse_initializer.extend(
        tensor for tensor in whole.graph.sparse_initializer if tensor.values.name in leaves
    )
    inputs = (graph_input for graph_input in whole.graph.input if graph_input.name in flow.inputs)
    graph.input.extend(graph_input for graph_input in inputs if graph_input.name in leaves)
    graph.input.extend(onnx.helper.make_tensor_value_info(name, 0, None) for name in takes)
    declared = {output.name: output for output in whole.graph.output}
    graph.output.extend(declared.get(name) or onnx.ValueInfoProto(name=name) for name in produced)
    return stage
