"""`DataFlow`: the flow of data from the primary input through an ONNX graph.

A tensor holds *data* if the values of the primary input can change it. The result of a `Shape` node
holds no data, and neither does a tensor computed only from initialisers or other inputs (a mask).
Such tensors are *context*, which may be read anywhere. A node also reads what its subgraphs read
from the outer graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from slacktide.exits.errors import ExitError

_GRAPHS = (5, 10)  # AttributeProto.GRAPH and GRAPHS


class DataFlow:
    """The nodes of a graph that its outputs need, and the tensors between them."""

    def __init__(self, graph: Any, primary: str) -> None:
        """`graph`: an onnx.GraphProto with nodes sorted as ONNX requires; `primary`: name of the
        input whose data is followed. Raises ExitError if a tensor is produced twice."""
        self.constants = {tensor.name for tensor in graph.initializer}
        self.constants.update(sparse.values.name for sparse in graph.sparse_initializer)
        self.inputs = inputs_of(graph)
        self.outputs = [value.name for value in graph.output]
        self.reads: dict[int, tuple[str, ...]] = {}
        """Tensors that a node reads, by the node's identity."""
        self.maker: dict[str, Any] = {}
        """The node that produces a tensor."""
        self._primary = primary
        self.data = {primary}
        """Names of the tensors that hold data."""
        self.nodes: list[Any] = list(graph.node)
        """The nodes that some output needs, sorted."""
        for node in self.nodes:
            read = self.reads[id(node)] = reads(node)
            for name in filter(None, node.output):
                if name in self.maker or name in self.inputs or name in self.constants:
                    raise ExitError(f"tensor {name!r} is produced twice")
                self.maker[name] = node
            if not is_shape(node) and not self.data.isdisjoint(read):
                self.data.update(filter(None, node.output))
        needed = self.needed_for(self.outputs)
        self.nodes = [node for node in self.nodes if id(node) in needed]

    def needed_for(self, tensors: Iterable[str], behind: Iterable[str] = ()) -> set[int]:
        """Identities of the nodes needed to compute `tensors` from the tensors in `behind`, graph
        inputs and initialisers."""
        available, needed, todo = set(behind), set[int](), list(tensors)
        while todo:
            name = todo.pop()
            node = None if name in available else self.maker.get(name)
            if node is not None and id(node) not in needed:
                needed.add(id(node))
                todo.extend(self.reads[id(node)])
        return needed

    def sources(self, node: Any) -> list[str]:
        """The data tensors that a node reads."""
        if is_shape(node):
            return []
        return [name for name in self.reads[id(node)] if name in self.data]

    def trunk(self, end: str) -> list[Any]:
        """The nodes, sorted so that nodes not needed for `end` come as early as possible: a branch
        to another output is finished before the path to `end` continues."""
        main = self.needed_for([end])
        rank: dict[str, int] = {}
        keys: dict[int, tuple[int, int]] = {}
        for at, node in enumerate(self.nodes):
            first = max((rank.get(name, -1) for name in self.reads[id(node)]), default=-1)
            keys[id(node)] = (at if id(node) in main else first, at)
            rank.update(dict.fromkeys(node.output, keys[id(node)][0]))
        return sorted(self.nodes, key=lambda node: keys[id(node)])

    def crossings(self, order: Sequence[Any]) -> dict[str, int]:
        """Tensors through which all data passes, in order, each with the index in `order` of the
        node after which no other tensor is live. Takes a single pass."""
        last: dict[str, int] = {}
        for at, node in enumerate(order):
            last.update(dict.fromkeys(self.sources(node), at))
        live = {self._primary}.intersection(last)
        crossings: dict[str, int] = {}
        for at, node in enumerate(order):
            live.difference_update([name for name in self.sources(node) if last[name] == at])
            live.update(name for name in node.output if last.get(name, -1) > at)
            if len(live) == 1:
                crossings.setdefault(next(iter(live)), at)
        return crossings


def is_shape(node: Any) -> bool:
    """Whether a node returns the shape of its input."""
    return node.op_type in ("Shape", "Size")


def inputs_of(graph: Any) -> list[str]:
    """Names of the graph's inputs, without the initialisers that may be listed among them."""
    constants = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in constants]


def reads(node: Any) -> tuple[str, ...]:
    """All tensors that a node reads, including what its subgraphs read from the outer graph."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        if attribute.type in _GRAPHS:
            for graph in (attribute.g, *attribute.graphs):
                inner = {value.name for value in (*graph.input, *graph.initializer)}
                for inner_node in graph.node:
                    names += [name for name in reads(inner_node) if name not in inner]
                    inner.update(inner_node.output)
                names += [value.name for value in graph.output if value.name not in inner]
    return tuple(dict.fromkeys(names))
