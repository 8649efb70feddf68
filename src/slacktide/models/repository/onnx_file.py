"""What can be told of an ONNX file without running it. Needs onnx, loaded when first used.

For `slacktide models check`: the server itself never opens an ONNX file, its workers do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from slacktide.domain.suggestions import shown
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, tensors_of
from slacktide.models.repository.definition import ModelDefinition
from slacktide.models.repository.errors import ModelFileError, Problem, RepositoryError
from slacktide.models.repository.paths import Kind, resolve_inside

_DATATYPES = {
    "FLOAT": Datatype.FP32,
    "DOUBLE": Datatype.FP64,
    "FLOAT16": Datatype.FP16,
    "BFLOAT16": Datatype.BF16,
    "BOOL": Datatype.BOOL,
    "STRING": Datatype.BYTES,
    **{name: Datatype[name] for name in ("UINT8", "UINT16", "UINT32", "UINT64")},
    **{name: Datatype[name] for name in ("INT8", "INT16", "INT32", "INT64")},
}
"""ONNX's names of the element types that the protocol can carry."""

_KNOWN_DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.ms.internal.nhwc"}


class OnnxFile:
    """A parsed ONNX file, without its external data."""

    def __init__(self, definition: ModelDefinition) -> None:
        """Raises ModelFileError if it cannot be parsed, RepositoryError if it cannot be read."""
        import onnx
        from google.protobuf.message import DecodeError

        self._where = definition.where
        self._path = definition.model_path
        self._home = definition.data_root
        try:
            self._model: Any = onnx.load(self._path, load_external_data=False)
        except (DecodeError, ValueError):
            raise ModelFileError(self._where, "expected an ONNX model") from None
        except OSError as error:
            raise ModelFileError(self._where, f"cannot be read: {error.strerror}") from None
        if not self._model.graph.node and not self._model.graph.output:
            raise ModelFileError(self._where, "expected an ONNX model, it holds no graph")

    def check(self) -> None:
        """External data and the rules of ONNX.

        Raises ModelFileError (or OutsideRepositoryError) for the first thing wrong.
        """
        for problem in self._external_data():
            raise problem
        self._check_rules()

    def interface(self, max_batch: int | None) -> ModelInterface | None:
        """Inputs and outputs as the graph declares them; None if it leaves a rank open.

        `max_batch` None: 1 if the first axis of every input is free, else 0. Raises ModelFileError
        if a type cannot be carried, or if an axis contradicts a stated `max_batch`.
        """
        graph = self._model.graph
        constants = {tensor.name for tensor in graph.initializer}
        declared = [value for value in graph.input if value.name not in constants]
        inputs = [self._spec("input", value) for value in declared]
        outputs = [self._spec("output", value) for value in graph.output]
        specs = [spec for spec in (*inputs, *outputs) if spec is not None]
        if len(specs) < len(inputs) + len(outputs):
            return None
        first = [spec.shape[:1] for spec in specs[: len(inputs)]]
        if max_batch is None:
            max_batch = int(bool(first) and all(axis == (-1,) for axis in first))
        elif max_batch > 0:
            self._check_batch_axis(specs, max_batch)
        return ModelInterface(tuple(specs[: len(inputs)]), tuple(specs[len(inputs) :]), max_batch)

    def custom_domains(self) -> tuple[str, ...]:
        """Domains of operators that the runtime does not bring along."""
        functions = {function.domain for function in self._model.functions}
        used = {node.domain for node in self._model.graph.node}
        return tuple(sorted(used - _KNOWN_DOMAINS - functions))

    def _spec(self, kind: str, value: Any) -> TensorSpec | None:
        """One input or output; None if its rank is not declared."""
        import onnx

        field = f"{kind} {value.name!r}"
        if value.type.WhichOneof("value") != "tensor_type":
            raise ModelFileError(self._where, Problem(field, "expected a tensor"))
        tensor = value.type.tensor_type
        values = onnx.TensorProto.DataType.DESCRIPTOR.values_by_number
        known = values.get(tensor.elem_type)
        name = known.name if known is not None else str(tensor.elem_type)
        if name not in _DATATYPES:
            raise ModelFileError(self._where, Problem(field, f"type {name} cannot be served"))
        if not tensor.HasField("shape"):
            return None
        axes = (axis.dim_value if axis.HasField("dim_value") else -1 for axis in tensor.shape.dim)
        return TensorSpec(value.name, _DATATYPES[name], tuple(axes))

    def _check_batch_axis(self, specs: list[TensorSpec], max_batch: int) -> None:
        suitable = {(-1,), (1,)} if max_batch == 1 else {(-1,)}
        for spec in specs:
            if spec.shape[:1] not in suitable:
                found = f"its shape is {list(spec.shape)}"
                message = f"max_batch {max_batch} needs a free first axis, {found}"
                raise ModelFileError(self._where, Problem(repr(spec.name), message))

    def _external_data(self) -> Iterator[RepositoryError]:
        for tensor in tensors_of(self._model):
            entries = {entry.key: entry.value for entry in tensor.external_data}
            if tensor.data_location != tensor.EXTERNAL:
                continue
            location = entries.get("location", "")
            try:
                self._check_extent(location, entries)
            except RepositoryError as error:
                yield error

    def _check_extent(self, location: str, entries: dict[str, str]) -> None:
        """That the bytes an external tensor names exist inside the model's own folder."""
        field = f"external data {shown(location)}"
        relative = PurePosixPath(location)
        if not location or relative.is_absolute() or ".." in relative.parts or "\0" in location:
            raise ModelFileError(self._where, Problem(field, "expected a path below the model"))
        where = f"{self._where}: {field}"
        path = resolve_inside(self._home, self._home / relative, where=where, kind=Kind.FILE)
        try:
            extent = [int(entries.get(key, 0)) for key in ("offset", "length")]
        except ValueError:
            raise ModelFileError(self._where, Problem(field, "expected whole numbers")) from None
        if min(extent) < 0:
            message = f"expected offset and length of 0 or more, got {extent[0]} and {extent[1]}"
            raise ModelFileError(self._where, Problem(field, message))
        end = sum(extent)
        if end > os.path.getsize(path):
            raise ModelFileError(self._where, Problem(field, f"expected at least {end} bytes"))

    def _check_rules(self) -> None:
        import onnx

        external = any(t.data_location == t.EXTERNAL for t in tensors_of(self._model))
        subject = str(self._path) if external else self._model
        try:
            onnx.checker.check_model(subject)
        except (onnx.checker.ValidationError, ValueError) as error:
            raise ModelFileError(self._where, self._first_line(error)) from None

    def _first_line(self, error: Exception) -> str:
        """The first line of a library's message, without the path of this machine."""
        line = next((line for line in str(error).splitlines() if line.strip()), "invalid model")
        for folder in (self._home, Path.cwd()):
            line = line.replace(f"{folder}/", "")
        return line[:300]
