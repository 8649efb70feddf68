"""`FunctionSettings`: the section `function` of a slacktide.yaml, a Python function as a model.

function:
  name: straighten
  takes: {image: {datatype: UINT8, shape: [-1, 64, 64, 3]}}
  gives: {image: {datatype: UINT8, shape: [-1, 64, 64, 3]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from slacktide.domain.options import OptionError
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.onnx_file import interface_of
from slacktide.executors.onnx_runtime import ModelError
from slacktide.models.plugins import glue_target
from slacktide.models.repository.fields import Section

TensorName = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class FunctionTensor(Section):
    """A tensor that a function takes or gives."""

    datatype: Literal[
        "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
        "FP16", "FP32", "FP64",
    ]  # fmt: skip
    """Datatype of its elements, as in the Open Inference Protocol."""
    shape: Annotated[
        tuple[Annotated[int, Field(ge=-1, le=2**31)], ...],
        Field(strict=False, min_length=1, max_length=8),
    ]
    """Sizes of its axes; -1 is free. If the first axis of all tensors is free, it counts rows, and
    requests are batched."""


class FunctionSettings(Section):
    """A function instead of a model file."""

    name: str
    """The function's name, as defined by [`serve --glue`](extending.md) or an entry point."""
    takes: Annotated[dict[TensorName, FunctionTensor], Field(min_length=1, max_length=64)]
    """Its arguments in order, under the names that clients and edges use."""
    gives: Annotated[dict[TensorName, FunctionTensor], Field(min_length=1, max_length=64)]
    """Its results: one array, or a tuple of them in this order."""

    @model_validator(mode="after")
    def _is_known(self) -> FunctionSettings:
        try:
            glue_target(self.name)
        except OptionError as error:
            reasons = "; ".join(message for _, message in error.problems)
            raise OptionError(("name", reasons)) from None
        return self

    @property
    def target(self) -> str:
        """The function as `module:name`, for workers."""
        return glue_target(self.name)

    def interface(self, max_batch: int | None) -> ModelInterface:
        """Return the interface; `max_batch` as stated. Raises OptionError if such batches are
        impossible."""

        def specs(stated: Mapping[str, FunctionTensor]) -> list[TensorSpec]:
            tensors = stated.items()
            return [TensorSpec(name, Datatype[spec.datatype], spec.shape) for name, spec in tensors]

        try:
            return interface_of(specs(self.takes), specs(self.gives), max_batch)
        except ModelError as error:
            raise OptionError(("max_batch", str(error))) from None
