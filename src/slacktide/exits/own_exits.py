"""`OwnExit`: an early exit built into a model, such as a detector with an intermediate head and a
judge that rates the head's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slacktide.domain.suggestions import suggestion
from slacktide.exits.errors import ExitError

_FLOATS = (1, 10, 11)  # TensorProto.FLOAT, FLOAT16, DOUBLE


@dataclass(frozen=True, slots=True)
class OwnExit:
    """An early exit built into a model. All names are outputs of the model file."""

    outputs: Mapping[str, str]
    """For each output of the whole model, the exit's output that replaces it."""
    quality: str
    """Output with the quality of the exit's result, 0 to 1, one number per row."""


def check_own_exits(graph: Any, exits: Sequence[OwnExit]) -> None:
    """Check that an onnx.GraphProto has the named outputs, with matching datatypes and axes. Raises
    ExitError naming the key of the settings."""
    outputs = {value.name: value.type.tensor_type for value in graph.output}

    def output_type(field: str, name: str) -> Any:
        if name not in outputs:
            hint = suggestion(name, outputs, noun="outputs")
            raise ExitError(f"{field}: the model has no output {name!r}; {hint}")
        return outputs[name]

    for at, exit_ in enumerate(exits):
        field = f"early_exit.judged[{at}]"
        for name, early in exit_.outputs.items():
            whole = output_type(f"{field}.outputs", name)
            early_type = output_type(f"{field}.outputs.{name}", early)
            if early_type.elem_type != whole.elem_type or not _alike(early_type, whole):
                raise ExitError(
                    f"{field}.outputs.{name}: {early!r} differs from {name!r} in datatype or shape"
                )
        if output_type(f"{field}.quality", exit_.quality).elem_type not in _FLOATS:
            raise ExitError(f"{field}.quality: expected an output of floats, got {exit_.quality!r}")


def _alike(early: Any, whole: Any) -> bool:
    """Whether two tensors have the same number of axes, of equal sizes where both declare them."""
    sizes = [[axis.dim_value for axis in tensor.shape.dim] for tensor in (early, whole)]
    return len(sizes[0]) == len(sizes[1]) and all(
        a == b or not a or not b for a, b in zip(*sizes, strict=True)
    )
