"""`FunctionSettings`: the section `function` of a slacktide.yaml, a Python function as a model.

function:
  name: straighten
  takes: {image: {datatype: UINT8, shape: [-1, 64, 64, 3]}}
  gives: {image: {datatype: UINT8, shape: [-1, 64, 64, 3]}}
  rows: expand
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    StringConstraints,
    model_serializer,
    model_validator,
)

from slacktide.domain.options import OptionError
from slacktide.domain.pipelines import ROWS
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.onnx_file import interface_of
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import FunctionSource
from slacktide.models.plugins import glue_target
from slacktide.models.repository.fields import Section

FRAME = "frame"
TensorName = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class FunctionTensor(Section):
    """A tensor that a function takes or gives."""

    datatype: Literal[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
        "FP16", "FP32", "FP64", "BYTES",
    ]  # fmt: skip
    """Datatype of its elements, as in the Open Inference Protocol."""
    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1, le=2**31)], ...],
        Field(strict=False, min_length=1, max_length=8),
    ]
    """Sizes of its axes; -1 is free. If the first axis of all tensors is free, it counts rows, and
    requests are batched."""


def _registered(name: str) -> str:
    try:
        glue_target(name)
    except OptionError as error:
        raise ValueError("; ".join(message for _, message in error.problems)) from None
    return name


def _specs(stated: Mapping[str, FunctionTensor]) -> list[TensorSpec]:
    tensors = stated.items()
    return [TensorSpec(name, Datatype[spec.datatype], spec.shape) for name, spec in tensors]


FunctionName = Annotated[str, AfterValidator(_registered)]


class SourceFrame(FunctionTensor):
    """An argument with the picture of each row's frame."""

    datatype: Literal["UINT8"] = "UINT8"
    shape: tuple[int, ...] = (-1, -1, -1, 3)

    @model_serializer
    def _word(self) -> str:
        return FRAME


def _argument(value: object) -> object:
    return SourceFrame() if value == FRAME else value


class BeforeSettings(Section):
    """A function that makes the model's inputs."""

    name: FunctionName
    """The function's name, as defined by [`serve --glue`](extending.md) or an entry point. It
    returns the model's inputs: one array, or a tuple of them in the model's order."""
    takes: Annotated[dict[TensorName, FunctionTensor], Field(min_length=1, max_length=64)]
    """Its arguments in order, which clients send instead of the model's inputs."""

    @property
    def source(self) -> FunctionSource:
        """The function, for workers."""
        interface = ModelInterface(tuple(_specs(self.takes)), (), 0)
        return FunctionSource(glue_target(self.name), interface.to_dict(), self.name)


class AfterSettings(Section):
    """A function that makes the answers."""

    name: FunctionName
    """The function's name. It gets the model's outputs in order, after `decode` if that is
    stated."""
    gives: Annotated[dict[TensorName, FunctionTensor], Field(min_length=1, max_length=64)]
    """Its results, which clients get: one array, or a tuple of them in this order."""

    @property
    def source(self) -> FunctionSource:
        """The function, for workers."""
        interface = ModelInterface((), tuple(_specs(self.gives)), 0)
        return FunctionSource(glue_target(self.name), interface.to_dict(), self.name)


class FunctionSettings(Section):
    """A function instead of a model file."""

    name: FunctionName
    """Name of the function or class, as defined by [`serve --glue`](extending.md) or an entry
    point."""
    takes: Annotated[
        dict[TensorName, Annotated[SerializeAsAny[FunctionTensor], BeforeValidator(_argument)]],
        Field(min_length=1, max_length=64),
    ]
    """Its arguments in order, under the names that clients and edges use. In a pipeline, `frame`
    instead of a datatype and shape is [the client's picture](extending.md#functions)."""
    gives: Annotated[dict[TensorName, FunctionTensor], Field(min_length=1, max_length=64)]
    """Its results: one array, or a tuple of them in this order."""
    rows: Literal["expand"] | None = None
    """`expand`: it returns [any number of rows](extending.md#functions), and as its last result the
    row that each came from. Default: a row for each row that it takes."""

    @model_validator(mode="after")
    def _is_consistent(self) -> FunctionSettings:
        if sum(isinstance(spec, SourceFrame) for spec in self.takes.values()) > 1:
            raise OptionError(("takes", f"expected '{FRAME}' for at most one argument"))
        if self.expands and ROWS in self.gives:
            raise OptionError((f"gives.{ROWS}", "this name is reserved with 'rows: expand'"))
        return self

    @property
    def target(self) -> str:
        """The function as `module:name`, for workers."""
        return glue_target(self.name)

    @property
    def expands(self) -> bool:
        """Whether it returns any number of rows, with their parents."""
        return self.rows == "expand"

    @property
    def frame(self) -> str:
        """The argument that is the picture of each row's frame; empty: none."""
        frames = (name for name, spec in self.takes.items() if isinstance(spec, SourceFrame))
        return next(frames, "")

    def source(self, max_batch: int | None) -> FunctionSource:
        """Return the source from which workers open it. Raises the error of `interface`."""
        interface = self.interface(max_batch).to_dict()
        return FunctionSource(self.target, interface, self.name, self.expands, self.frame)

    def interface(self, max_batch: int | None) -> ModelInterface:
        """Return the interface; `max_batch` as stated. With `rows: expand` its last output is
        `rows`, the parents. Raises OptionError if such batches are impossible."""
        parents = [TensorSpec(ROWS, Datatype.INT64, (-1,))] if self.expands else []
        try:
            outputs = [*_specs(self.gives), *parents]
            interface = interface_of(_specs(self.takes), outputs, max_batch)
        except ModelError as error:
            raise OptionError(("max_batch", str(error))) from None
        if self.expands and not interface.batches:
            expected = "expected a free first axis (-1) in all tensors, and not 'max_batch: 0'"
            raise OptionError(("function.rows", expected))
        return interface
