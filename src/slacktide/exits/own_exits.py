"""`OwnExit`: an exit that a model has of its own, as a detector may: a head in the middle, and a
judge beside it that says how good what the head found is.
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
    """One of them. All names are of outputs of the model file."""

    outputs: Mapping[str, str]
    """By output of the whole model: what the exit gives in its place."""
    quality: str
    """How good that is, from 0 to 1, one number a row."""


def check_own_exits(graph: Any, exits: Sequence[OwnExit]) -> None:
    """Whether an onnx.GraphProto has what they name, alike in datatype and axes. Raises ExitError,
    which names the key of the settings."""
    outputs = {value.name: value.type.tensor_type for value in graph.output}

    def found(field: str, name: str) -> Any:
        if name not in outputs:
            hint = suggestion(name, outputs, noun="outputs")
            raise ExitError(f"{field}: the model has no output {name!r}; {hint}")
        return outputs[name]

    for at, exit_ in enumerate(exits):
        field = f"early_exit.judged[{at}]"
        for name, early in exit_.outputs.items():
            whole = found(f"{field}.outputs", name)
            early_type = found(f"{field}.outputs.{name}", early)
            if early_type.elem_type != whole.elem_type or not _alike(early_type, whole):
                raise ExitError(
                    f"{field}.outputs.{name}: {early!r} has another datatype or shape than {name!r}"
                )
        if found(f"{field}.quality", exit_.quality).elem_type not in _FLOATS:
            raise ExitError(f"{field}.quality: expected floats, {exit_.quality!r} holds none")


def _alike(early: Any, whole: Any) -> bool:
    """Whether axes are as many, and of one size where both state it."""
    sizes = [[axis.dim_value for axis in tensor.shape.dim] for tensor in (early, whole)]
    return len(sizes[0]) == len(sizes[1]) and all(
        a == b or not a or not b for a, b in zip(*sizes, strict=True)
    )
