"""`OnnxFile`: reads an ONNX file, and checks that ONNX Runtime may open it.

ONNX Runtime looks for external data next to the path that it opens, which may be a link: in the
cache of Hugging Face, the model and its data are links into a folder of blobs. A location such as
`../../etc/secret`, or a link to the outside, would let a model read foreign files. So every
location is resolved first, including links, and must lie below the folder of the model's path, or
below the folder of the file that this path links to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from slacktide._files import open_file
from slacktide.domain.preprocessing import Preprocessing, StatedPreprocessing, complete
from slacktide.domain.suggestions import escaped
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.file_kinds import misplaced_kind
from slacktide.executors.onnx_runtime import ModelError, client_detail
from slacktide.executors.ports import TokenSource
from slacktide.exits.data_flow import DataFlow
from slacktide.exits.errors import ExitError
from slacktide.exits.own_exits import OwnExit, check_own_exits

DEFAULT_MAX_BATCH = 32
"""Limit on rows of a model with a batch axis, if none is configured."""

Shape = tuple[int, ...] | None
"""Axes of an input or output, −1: free; None: unknown."""

_DATATYPES = {
    "float": Datatype.FP32,
    "double": Datatype.FP64,
    "float16": Datatype.FP16,
    "bfloat16": Datatype.BF16,
    "string": Datatype.BYTES,
    **{
        f"{sign}int{bits}": Datatype[f"{sign}int{bits}".upper()]
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    "bool": Datatype.BOOL,
}
"""Datatypes by ONNX element type: `tensor(float)` in ONNX Runtime, FLOAT in a file."""

_TWO_SIZES = re.compile(r"\s*\[\s*(\d{2,4})\s*,\s*(\d{2,4})\s*\]\s*", re.ASCII)
_LARGEST_IMAGE = 2048
"""Largest height and width of images to try."""

_MOST_BYTES = 1 << 31
"""Approximate limit on bytes of a protobuf message."""

_KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc"}


class OnnxFile:
    """A parsed ONNX file without its external data. Needs onnx, which is loaded on first use."""

    def __init__(
        self,
        path: Path,
        root: Path,
        outputs: Mapping[str, str] = MappingProxyType({}),
        own_exits: Sequence[OwnExit] = (),
        expose: Sequence[str] = (),
    ) -> None:
        """Parse the file, and check that it and its weights lie in allowed folders. If `outputs` or
        `expose` (as in ModelSource) are given, the model is cut to the part that they need. Checks
        `own_exits`. Maps that a classifier returns (ZipMap) become tensors, [rows, classes].

        Raises ModelError, with a reason that names no path; so do all methods.
        """
        import onnx

        self._path = path
        self._root = root
        home = root.resolve()
        real = path.resolve()
        if not real.is_relative_to(home):
            raise ModelError("the model file is a link out of its folder")
        try:
            with open_file(path) as file:
                self._model: Any = onnx.load_from_string(file.read())
        except FileNotFoundError:
            raise ModelError("the model file is missing") from None
        except OSError as error:
            raise ModelError(f"the model file cannot be read: {error.strerror}") from None
        except Exception as error:  # protobuf's errors share no useful base class
            if kind := misplaced_kind(path):
                raise ModelError(f"not an ONNX model but {kind}") from None
            damaged = f"not an ONNX model, or a truncated one ({path.stat().st_size} bytes)"
            raise ModelError(f"{damaged}: {client_detail(error, path, root)}") from None
        if not self._model.graph.node and not self._model.graph.output:
            kind = misplaced_kind(path)
            raise ModelError(f"not an ONNX model{f' but {kind}' if kind else ': it has no graph'}")
        self._external = [
            tensor for tensor in _tensors(self._model) if tensor.data_location == tensor.EXTERNAL
        ]
        folders = tuple(dict.fromkeys((path.parent.resolve(), real.parent)))
        folder = next((place for place in folders if _has_data(place, self._external)), folders[0])
        self.opened = real if folder == real.parent else folder / path.name
        """The path to open, next to the external data."""
        self._places = [_data_place(tensor, folder, folders) for tensor in self._external]
        try:
            check_own_exits(self._model.graph, own_exits)
        except ExitError as error:
            raise ModelError(str(error)) from None
        self.content: bytes | None = None
        """Content to open instead of the path: a part of the file, or the whole file if its path is
        not UTF-8, which ONNX Runtime cannot open."""
        if escaped(str(self.opened)) != str(self.opened):
            if self._external:
                raise ModelError("a model with external data needs a UTF-8 path")
            self.content = path.read_bytes()
        self.hidden: frozenset[str] = frozenset()
        """Outputs that are not exposed."""
        self._reduce(outputs, expose)

    def _reduce(self, outputs: Mapping[str, str], expose: Sequence[str]) -> None:
        """Cut the model to what is served, with tensors in place of maps."""
        graph = self._model.graph
        if outputs and self._external:
            raise ModelError("a part of a file needs all of its weights in that file")
        is_changed = _maps_as_tensors(graph)
        names = [value.name for value in graph.output]
        for name in expose:
            if name not in names:
                had = ", ".join(names)
                raise ModelError(f"expose: the model has no output {name!r}; it has {had}")
        if expose:
            self.hidden = frozenset(names) - {*expose}
        if self.hidden and not self._external:
            outputs = {name: name for name in names if name in expose}
        if outputs:
            self._model = _part(self._model, outputs)
        if (outputs or is_changed) and not self._external:
            self.content = self._model.SerializeToString()

    @property
    def model(self) -> Any:
        """The onnx.ModelProto; read-only."""
        return self._model

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of inputs and outputs, by name."""
        graph = self._model.graph
        return {value.name: _shape(value) for value in (*graph.input, *graph.output)}

    def image_sizes(self) -> list[tuple[int, int]]:
        """Heights and widths in the file's metadata (`imgsz`, from exporters of detectors) and in
        sizes of Resize nodes. At most four, without duplicates."""
        sizes = []
        for entry in self._model.metadata_props:
            if entry.key == "imgsz" and (match := _TWO_SIZES.fullmatch(entry.value)):
                sizes.append((int(match[1]), int(match[2])))
        constants = {tensor.name: tensor for tensor in self._model.graph.initializer}
        for node in self._model.graph.node:
            if node.op_type == "Constant" and len(node.output) == len(node.attribute) == 1:
                constants[node.output[0]] = node.attribute[0].t
        for node in self._model.graph.node:
            if node.op_type == "Resize" and len(node.input) == 4 and node.input[3] in constants:
                sizes += _last_two(constants[node.input[3]])
        return [size for size in dict.fromkeys(sizes) if max(size) <= _LARGEST_IMAGE][:4]

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that its exporter wrote."""
        return {entry.key: entry.value for entry in self._model.metadata_props}

    def preprocessing(
        self, stated: StatedPreprocessing, interface: ModelInterface, sizes: Sequence[int]
    ) -> Preprocessing:
        """Complete the `stated` preprocessing from the file, for a family's `sizes`. `interface`:
        of the file. Raises ModelError."""
        try:
            preprocessing = complete(stated, interface, self.metadata, sizes)
        except ValueError as error:
            raise ModelError(str(error)) from None
        if preprocessing.interpolation in ("cubic", "lanczos") and find_spec("cv2") is None:
            raise ModelError(
                f"inputs.{stated.input}.image.interpolation: {preprocessing.interpolation!r} needs "
                "OpenCV: pip install 'slacktide[images]'"
            )
        if not interface.batches:
            raise ModelError(
                f"inputs.{stated.input}.image: expected a model whose first axes are all free, or "
                "all 1"
            )
        return preprocessing

    def interface(self, max_batch: int | None, *, one_row: bool = False) -> ModelInterface | None:
        """The interface that the graph declares; None if a rank is unknown. Arguments as in
        `interface_of`.
        """
        graph = self._model.graph
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [_spec(value, "input") for value in graph.input if value.name not in constants]
        outputs = [_spec(v, "output") for v in graph.output if v.name not in self.hidden]
        if None in self.shapes.values():
            return None
        outputs = with_rows(inputs, outputs, max_batch)
        return interface_of(inputs, outputs, max_batch, one_row=one_row)

    def check_vocabulary(self, tokens: TokenSource | None) -> None:
        """Raise ModelError if the table of embeddings, as far as it can be found, lacks rows for
        the tokenizer's ids. None: there is no tokenizer."""
        if tokens is None:
            return
        graph = self._model.graph
        sizes = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
        names = {tokens.ids}
        for node in graph.node:  # in the order of computation
            reads = {*node.input} & names
            if reads and node.op_type in ("Cast", "Identity"):
                names.update(node.output)
            place = {"Gather": 0, "EmbedLayerNormalization": 2}.get(node.op_type)
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            if not reads or place is None or place >= len(node.input) or axis:
                continue
            size, largest = sizes.get(node.input[place]), tokens.ranges[tokens.ids][1]
            if size is not None and largest >= size:
                raise ModelError(
                    f"{tokens.key}: its largest id is {largest}, but the model knows {size} "
                    f"tokens ({node.input[place]!r}): it belongs to another model"
                )

    def custom_domains(self) -> tuple[str, ...]:
        """Domains of operators that ONNX Runtime does not include."""
        functions = {function.domain for function in self._model.functions}
        used = {node.domain for node in self._model.graph.node}
        return tuple(sorted(used - _KNOWN_DOMAINS - functions))

    def with_weights(self) -> Any:
        """The onnx.ModelProto including its external data. The library onnx itself would refuse
        links, which have been checked here. Raises OSError."""
        import onnx

        if not self._external:
            return self._model
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        external = (t for t in _tensors(model) if t.data_location == t.EXTERNAL)
        for tensor, place in zip(external, self._places, strict=True):
            next(e for e in tensor.external_data if e.key == "location").value = place.name
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(place.parent))
            tensor.ClearField("data_location")
            del tensor.external_data[:]
        return model

    def check_rules(self) -> None:
        """Check the model against the rules of ONNX. Reads the weights. Raises ModelError."""
        import onnx

        subject: Any = str(self.opened) if self._external else self._model
        folder = self.opened.parent
        if any(not place.is_relative_to(folder) for place in self._places):
            if sum({place: place.stat().st_size for place in self._places}.values()) >= _MOST_BYTES:
                return  # too large for one message; opening the model will show any errors
            subject = self.with_weights()
        try:
            onnx.checker.check_model(subject)
        except (onnx.checker.ValidationError, ValueError) as error:
            detail = client_detail(error, self.opened, self._path, self._root, Path.cwd())
            raise ModelError(detail) from None


def _maps_as_tensors(graph: Any) -> bool:
    """Replace each ZipMap whose maps are an output by its tensor of scores. Returns whether there
    was one."""
    import onnx

    maps = {node.output[0]: node for node in graph.node if node.op_type == "ZipMap"}
    values = [value for value in graph.output if value.name in maps]
    for value in values:
        node = maps[value.name]
        classes = max((len(a.ints) or len(a.strings) for a in node.attribute), default=0)
        shape = [None, classes or None]
        scores = onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape)
        value.CopyFrom(scores)
        node.CopyFrom(onnx.helper.make_node("Identity", node.input, node.output))
    return bool(values)


def _part(model: Any, outputs: Mapping[str, str]) -> Any:
    """The part of a model that these outputs need, with new names for them. Raises ModelError."""
    import onnx

    graph = model.graph
    declared = {value.name: value for value in graph.output}
    for name in outputs:
        if name not in declared:
            had = ", ".join(declared)
            raise ModelError(f"variants: the model has no output {name!r}; it has {had}")
    flow = DataFlow(graph, "")
    needed = flow.needed_for(outputs)
    nodes = [node for node in flow.nodes if id(node) in needed]
    read = {name for node in nodes for name in flow.reads[id(node)]} | set(outputs)
    produced = {name for node in nodes for name in node.output}
    part = onnx.ModelProto()
    part.CopyFrom(model)
    for field, elements in (
        (part.graph.node, nodes),
        (part.graph.initializer, [tensor for tensor in graph.initializer if tensor.name in read]),
        (part.graph.output, [declared[name] for name in outputs]),
    ):
        del field[:]
        field.extend(elements)
    for value, (name, shown) in zip(part.graph.output, outputs.items(), strict=True):
        if name != shown:
            if shown in produced:
                raise ModelError(f"variants: {name!r} cannot take the name of {shown!r}, its input")
            part.graph.node.append(onnx.helper.make_node("Identity", [name], [shown]))
            value.name = shown
    return part


def session_interface(
    session: Any,
    declared: dict[str, Shape],
    max_batch: int | None,
    hidden: Collection[str] = (),
    *,
    one_row: bool = False,
) -> ModelInterface:
    """The interface of a session of ONNX Runtime, without `hidden` outputs. Raises the errors of
    `interface_of`.

    `declared` distinguishes scalars from unknown shapes, which look the same in ONNX Runtime. An
    output of unknown shape is assumed to have the batch axis, which the warm-up checks, and is
    shown as one free axis. For outputs that claim one row, see `with_rows`.
    """

    def specs(arguments: Sequence[Any], role: str) -> list[TensorSpec]:
        specs_of_role = []
        for argument in arguments:
            axes = argument.shape or ()
            shape = tuple(axis if isinstance(axis, int) and axis >= 0 else -1 for axis in axes)
            if not shape and declared.get(argument.name) is None:
                shape = (-1,)
            specs_of_role.append(_tensor_spec(argument.name, role, argument.type, shape))
        return specs_of_role

    shown = [argument for argument in session.get_outputs() if argument.name not in hidden]
    inputs, outputs = specs(session.get_inputs(), "input"), specs(shown, "output")
    outputs = with_rows(inputs, outputs, max_batch)
    return interface_of(inputs, outputs, max_batch, one_row=one_row)


def with_rows(
    inputs: Sequence[TensorSpec], outputs: list[TensorSpec], max_batch: int | None
) -> list[TensorSpec]:
    """The outputs, with a free first axis if they claim one row although all inputs may have more,
    as exports of decision trees do. `max_batch` as in ModelSource: 0 leaves them as they are."""
    if max_batch == 0 or any(spec.shape[:1] != (-1,) for spec in inputs):
        return outputs
    return [
        replace(spec, shape=(-1, *spec.shape[1:])) if spec.shape[:1] == (1,) else spec
        for spec in outputs
    ]


def interface_of(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch: int | None,
    *,
    one_row: bool = False,
) -> ModelInterface:
    """The interface with these inputs and outputs. They have a batch axis if the first axis of each
    is free; with `one_row` also if each is 1: then batches have one row. `max_batch` as in
    ModelSource. Raises ModelError if `max_batch` is set without such an axis."""
    single = all(spec.shape[:1] == (1,) for spec in (*inputs, *outputs))
    if one_row and single and inputs and max_batch in (None, 1):
        return ModelInterface(tuple(inputs), tuple(outputs), 1)
    fixed = [spec.name for spec in (*inputs, *outputs) if spec.shape[:1] != (-1,)]
    if max_batch is None:
        max_batch = DEFAULT_MAX_BATCH if inputs and not fixed else 0
    elif max_batch > 0 and (fixed or not inputs):
        reason = f"the first axis of {fixed[0]!r} is not free" if fixed else "it has no inputs"
        raise ModelError(f"max_batch is {max_batch}, but the model has no batch axis: {reason}")
    return ModelInterface(tuple(inputs), tuple(outputs), max_batch)


def _last_two(tensor: Any) -> list[tuple[int, int]]:
    """Height and width in a tensor of sizes of a Resize node; empty if it has none."""
    from onnx import numpy_helper

    if tensor.data_location == tensor.EXTERNAL or list(tensor.dims) not in ([2], [4]):
        return []
    try:
        height, width = (int(size) for size in numpy_helper.to_array(tensor)[-2:])
    except Exception:  # a malformed tensor, which ONNX Runtime will report
        return []
    return [(height, width)] if min(height, width) > 1 else []


def _location(tensor: Any) -> Any:
    """Path of a tensor's external data, relative to the model; bytes if it is not UTF-8."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def _has_data(folder: Path, tensors: Sequence[Any]) -> bool:
    """Whether `folder` seems to hold all external data."""
    try:
        return all((folder / _location(tensor)).is_file() for tensor in tensors)
    except (OSError, ValueError, TypeError):
        return False


def _data_place(tensor: Any, folder: Path, folders: Sequence[Path]) -> Path:
    """The file with a tensor's external data, after following links. The tensor names it relative
    to `folder`, and it must lie below one of `folders`. Raises ModelError."""
    data = f"the external data of tensor {tensor.name!r}"
    fields = {entry.key: entry.value for entry in tensor.external_data}
    try:
        name = Path(os.path.normpath(folder / _location(tensor)))
        place = name.resolve()
        is_file = place.is_file()
    except (OSError, ValueError, TypeError, RuntimeError):  # not a file name, or a loop of links
        raise ModelError(f"{data} is missing") from None
    if not name.is_relative_to(folder):
        raise ModelError(f"{data} is a link out of the folder")
    below = [place.relative_to(folder) for folder in folders if place.is_relative_to(folder)]
    if not below:
        raise ModelError(f"{data} is a link to another folder")
    if all(any(part.startswith(".") for part in path.parts) for path in below):
        # It may be a secret, if the model file lies in a home folder.
        raise ModelError(f"{data} is a hidden file")
    if not is_file:
        raise ModelError(f"{data} is {'not a regular file' if place.exists() else 'missing'}")
    try:
        offset, length = (int(fields.get(key, 0)) for key in ("offset", "length"))
    except ValueError:
        offset = length = -1
    if min(offset, length) < 0 or offset + length > place.stat().st_size:
        kind = misplaced_kind(place)
        reason = f": {place.name} is {kind}" if kind else ""
        raise ModelError(f"{data} reaches beyond its file{reason}")
    return place


def _shape(value: Any) -> Shape:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return tuple(
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value >= 0 else -1
        for axis in tensor.shape.dim
    )


def _spec(value: Any, role: str) -> TensorSpec:
    """An input or output of a graph, without axes if its rank is not declared."""
    import onnx

    kind = value.type.WhichOneof("value") or "value without a type"
    if kind == "tensor_type":
        element = value.type.tensor_type.elem_type
        datatype = onnx.TensorProto.DataType.DESCRIPTOR.values_by_number.get(element)
        kind = f"tensor({element if datatype is None else datatype.name.lower()})"
    elif value.type.sequence_type.elem_type.HasField("map_type"):
        kind = "seq(map)"
    return _tensor_spec(value.name, role, kind, _shape(value) or ())


def _tensor_spec(name: str, role: str, kind: str, shape: tuple[int, ...]) -> TensorSpec:
    datatype = _DATATYPES.get(kind.removeprefix("tensor(").removesuffix(")"))
    if datatype is None:
        advice = ": state the others as 'expose'" if role == "output" else ""
        raise ModelError(f"{role} {name!r} is a {kind}, which cannot be served{advice}")
    return TensorSpec(name, datatype, shape)


def _tensors(model: Any) -> Iterator[Any]:
    """All TensorProtos of a model: weights and attributes, in all graphs and functions."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)


def _graph_tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for graph in (attribute.g, *attribute.graphs):
                yield from _graph_tensors(graph)
