"""`FunctionSession`: a function of the server's owner, where a model's session would be.

It is imported by the worker that calls it, and its arrays are those that a model would get and
give. What it returns is checked: a wrong answer is an error of its batch, as one that it raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide._extensions import load_named
from slacktide.domain.tensors import ModelInterface, TensorSpec, fits
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import FunctionSource


class FunctionError(Exception):
    """It raised, or returned what it should not."""


class FunctionSession:
    """Has of ONNX Runtime's InferenceSession what a `ModelSession` uses."""

    def __init__(self, source: FunctionSource) -> None:
        """Raises ModelError if it cannot be imported."""
        self.interface = ModelInterface.from_dict(source.interface)
        try:
            self._function = load_named(source.target)
        except BaseException as error:  # foreign code, which may call sys.exit
            told = f"{type(error).__name__}: {error}"
            raise ModelError(f"the function cannot be used: {told}") from None

    def get_inputs(self) -> Sequence[SimpleNamespace]:
        """Names and axes."""
        return [SimpleNamespace(name=s.name, shape=s.shape) for s in self.interface.inputs]

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], options: object = None
    ) -> list[NDArray[Any]]:
        """All outputs; a run cannot be stopped. Raises FunctionError, MemoryError."""
        given = []
        for spec in self.interface.inputs:
            view = feeds[spec.name].view()
            view.flags.writeable = False  # the next batch is gathered in the same memory
            given.append(view)
        try:
            made = self._function(*given)
        except MemoryError:
            raise
        except BaseException as error:  # foreign code, which may call sys.exit
            raise FunctionError(f"the function raised {type(error).__name__}: {error}") from None
        specs = self.interface.outputs
        arrays = made if isinstance(made, tuple) else (made,)
        if len(arrays) != len(specs):
            told = f"{len(arrays)} arrays, not {len(specs)}"
            raise FunctionError(f"the function returned {told}")
        return [_checked(array, spec) for array, spec in zip(arrays, specs, strict=True)]


def _checked(array: object, spec: TensorSpec) -> NDArray[Any]:
    wanted = f"{spec.datatype.wire_name} {list(spec.shape)}"
    found = type(array).__name__
    if isinstance(array, np.ndarray):
        found = f"{array.dtype} {list(array.shape)}"
        if array.dtype == spec.datatype.dtype and fits(array.shape, spec.shape):
            return np.ascontiguousarray(array)
    raise FunctionError(f"the function returned {found} as {spec.name!r}, not {wanted}")
