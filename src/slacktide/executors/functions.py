"""`FunctionSession`: a Python function in place of a model's session.

The worker imports the function and calls it with the arrays that a model would get. The result is
checked: a wrong one fails its batch, as an exception does.
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
    """The function raised an exception, or returned a wrong result."""


class FunctionSession:
    """Implements the part of ONNX Runtime's InferenceSession that a `ModelSession` uses."""

    def __init__(self, source: FunctionSource) -> None:
        """Raises ModelError if the function cannot be imported."""
        self.interface = ModelInterface.from_dict(source.interface)
        try:
            self._function = load_named(source.target)
        except BaseException as error:  # foreign code, which may call sys.exit
            reason = f"{type(error).__name__}: {error}"
            raise ModelError(f"the function cannot be used: {reason}") from None

    def get_inputs(self) -> Sequence[SimpleNamespace]:
        """Names and axes of the inputs."""
        return [SimpleNamespace(name=s.name, shape=s.shape) for s in self.interface.inputs]

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], options: object = None
    ) -> list[NDArray[Any]]:
        """Call the function, which cannot be stopped. Raises FunctionError, MemoryError."""
        arrays_in = []
        for spec in self.interface.inputs:
            view = feeds[spec.name].view()
            view.flags.writeable = False  # the next batch is gathered in the same memory
            arrays_in.append(view)
        try:
            returned = self._function(*arrays_in)
        except MemoryError:
            raise
        except BaseException as error:  # foreign code, which may call sys.exit
            raise FunctionError(f"the function raised {type(error).__name__}: {error}") from None
        return checked_outputs(returned, self.interface.outputs, "function")


def checked_outputs(
    returned: object, specs: Sequence[TensorSpec], caller: str
) -> list[NDArray[Any]]:
    """The arrays that foreign code returned: one, or a sequence of them. Raises FunctionError if
    they are not as declared; `caller`: how the message names that code."""
    arrays = returned if isinstance(returned, tuple | list) else (returned,)
    if len(arrays) != len(specs):
        counts = f"{len(arrays)} arrays, expected {len(specs)}"
        raise FunctionError(f"the {caller} returned {counts}")
    return [_checked(array, spec, caller) for array, spec in zip(arrays, specs, strict=True)]


def _checked(array: object, spec: TensorSpec, caller: str) -> NDArray[Any]:
    expected = f"{spec.datatype.wire_name} {list(spec.shape)}"
    got = type(array).__name__
    if isinstance(array, np.ndarray):
        got = f"{array.dtype} {list(array.shape)}"
        if array.dtype == spec.datatype.dtype and fits(array.shape, spec.shape):
            return np.ascontiguousarray(array)
    raise FunctionError(f"the {caller} returned {got} as {spec.name!r}, expected {expected}")
