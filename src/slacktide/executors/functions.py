"""`FunctionSession`: a Python function in place of a model's session.

The worker imports the function and calls it with the arrays that a model would get. The result is
checked: a wrong one fails its batch, as an exception does. A function that expands rows also
returns their parents: for each row that it returns, the number of the batch's row it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slacktide._extensions import load_named
from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec, fits
from slacktide.executors.onnx_runtime import FunctionError as FunctionError
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.ports import FunctionSource

MOST_EXPANDED = 1000
"""Maximum rows that a function may return for one row."""
_MOST_TEXT = 64 << 20
"""Maximum bytes of text in one output of a batch."""


class FunctionSession:
    """Implements the part of ONNX Runtime's InferenceSession that a `ModelSession` uses."""

    def __init__(self, source: FunctionSource, cores: int = 1) -> None:
        """`cores`: passed to the `setup` of a class. Raises the errors of `load_function`."""
        self.interface = source.tensors
        self._source = source
        self._caller = f"function {source.name!r}"
        self._function = load_function(source.target, self._caller, cores)

    def get_inputs(self) -> Sequence[SimpleNamespace]:
        """Names and axes of the inputs."""
        return [SimpleNamespace(name=s.name, shape=s.shape) for s in self.interface.inputs]

    def run(
        self, outputs: Sequence[str], feeds: Mapping[str, NDArray[Any]], options: object = None
    ) -> list[NDArray[Any]]:
        """Call the function, which cannot be stopped. Raises FunctionError, MemoryError."""
        arguments: list[object] = []
        for spec in self.interface.inputs:
            array = feeds[spec.name]
            if spec.name == self._source.frame:
                arguments.append(tuple([_read_only(picture) for picture in array]))
            else:
                arguments.append(_read_only(array))
        returned = called(self._function, arguments, self._caller)
        if not self._source.expands:
            return checked_outputs(returned, self.interface.outputs, self._caller)
        if isinstance(returned, tuple | list) and len(returned) > 1:
            returned = [*returned[:-1], _whole_numbers(returned[-1])]
        arrays = checked_outputs(returned, self.interface.outputs, self._caller)
        names = [spec.name for spec in self.interface.outputs]
        self._check_parents(arrays, names, len(feeds[self.interface.inputs[0].name]))
        return arrays

    def _check_parents(
        self, arrays: Sequence[NDArray[Any]], names: Sequence[str], rows: int
    ) -> None:
        """Check the parents, the last array. Raises FunctionError."""
        *outputs, parents = arrays
        where = f"the {self._caller} returned"
        for array, name in zip(outputs, names[:-1], strict=True):
            if len(array) != len(parents):
                counts = f"{len(array)} rows as {name!r}, but {len(parents)}"
                raise FunctionError(f"{where} {counts} parents as {names[-1]!r}")
        if not len(parents):
            return
        expected = f"as {names[-1]!r}, expected numbers of rows in ascending order"
        if (falls := np.flatnonzero(np.diff(parents) < 0)).size:
            pair = f"{parents[falls[0]]} before {parents[falls[0] + 1]}"
            raise FunctionError(f"{where} {pair} {expected}")
        if parents[0] < 0 or parents[-1] >= rows:
            outside = parents[0] if parents[0] < 0 else parents[-1]
            raise FunctionError(f"{where} {outside} {expected}, 0 to {rows - 1}")
        if (most := np.bincount(parents).max()) > MOST_EXPANDED:
            raise FunctionError(f"{where} {most} rows for one, expected at most {MOST_EXPANDED}")


class InputFunction:
    """A function in front of a model: it makes the model's inputs from those that clients send."""

    def __init__(self, source: FunctionSource, model: ModelInterface, cores: int = 1) -> None:
        """`model`: the interface of the model. Raises the errors of `load_function`, and ModelError
        if the function's arguments have no batch axis, unlike the model."""
        self.inputs = source.tensors.inputs
        self._model = model
        self._caller = f"function {source.name!r}"
        for spec in self.inputs if model.batches else ():
            if spec.shape[0] >= 0:
                expected = "expected a free first axis (-1), as the model has"
                raise ModelError(f"before.takes.{spec.name}.shape: {expected}")
        self._function = load_function(source.target, self._caller, cores)

    def convert(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The model's inputs. Raises FunctionError, MemoryError."""
        arguments = [_read_only(feeds[spec.name]) for spec in self.inputs]
        returned = called(self._function, arguments, self._caller)
        arrays = checked_outputs(returned, self._model.inputs, self._caller)
        if self._model.batches:
            check_row_counts(arrays, self._model.inputs, len(arguments[0]), self._caller)
        names = [spec.name for spec in self._model.inputs]
        return dict(zip(names, arrays, strict=True))


_instances: dict[str, Any] = {}
"""Instances of classes, by target: each is set up once in a process."""


def load_function(target: str, caller: str, cores: int = 1) -> Any:
    """The function that the server's owner named. If the owner named a class: the method `predict`
    of an instance, after a call of the instance's `setup(cores)`, if any. Raises ModelError,
    MemoryError."""
    action = "cannot be used"
    try:
        function = load_named(target)
        if not isinstance(function, type):
            return function
        if target not in _instances:
            instance = function()
            if (setup := getattr(instance, "setup", None)) is not None:
                action = "cannot be set up"
                setup(cores)
            action = "cannot be used"
            _instances[target] = instance.predict
        return _instances[target]
    except MemoryError:
        raise
    except BaseException as error:  # foreign code, which may call sys.exit
        reason = f"{type(error).__name__}: {error}"
        raise ModelError(f"the {caller} {action}: {reason}") from None


def check_row_counts(
    arrays: Sequence[NDArray[Any]], specs: Sequence[TensorSpec], rows: int, caller: str
) -> None:
    """Raise FunctionError unless each array has this many rows."""
    for array, spec in zip(arrays, specs, strict=True):
        if len(array) != rows:
            counts = f"{len(array)} rows as {spec.name!r}, expected {rows}"
            raise FunctionError(f"the {caller} returned {counts}")


def called(function: Any, arguments: Sequence[object], caller: str) -> Any:
    """The result of foreign code, which cannot be stopped. Raises FunctionError, MemoryError."""
    try:
        return function(*arguments)
    except MemoryError:
        raise
    except BaseException as error:  # foreign code, which may call sys.exit
        raise FunctionError(f"the {caller} raised {type(error).__name__}: {error}") from None


def expanded_rows(
    parents: NDArray[np.int64], rows: Sequence[int]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the parents, counted from the first row of their member, and the number of new rows of
    each member. `rows`: the rows that each member had before the function; parents are indices of
    these rows."""
    ends = [*accumulate(rows, initial=0)]
    bounds = np.searchsorted(parents, ends)
    counts = np.diff(bounds)
    return parents - np.repeat(ends[:-1], counts), counts.tolist()


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False  # the next batch is gathered in the same memory
    return view


def _whole_numbers(parents: object) -> object:
    """Parents as INT64, if they are whole numbers of another type."""
    try:
        array = np.asarray(parents)
    except ValueError:
        return parents
    return array.astype(np.int64) if array.dtype.kind in "iu" or not array.size else parents


def checked_outputs(
    returned: object, specs: Sequence[TensorSpec], caller: str
) -> list[NDArray[Any]]:
    """The arrays that foreign code returned: one, or a sequence of them. Raises FunctionError if
    they are not as declared; `caller`: how the message names that code."""
    arrays = returned if isinstance(returned, tuple | list) else (returned,)
    if len(specs) == 1 and specs[0].datatype is Datatype.BYTES and isinstance(returned, list):
        is_array = len(returned) == 1 and isinstance(returned[0], np.ndarray)
        arrays = returned if is_array else (returned,)
    if len(arrays) != len(specs):
        counts = f"{len(arrays)} arrays, expected {len(specs)}"
        raise FunctionError(f"the {caller} returned {counts}")
    return [_checked(array, spec, caller) for array, spec in zip(arrays, specs, strict=True)]


def _checked(array: object, spec: TensorSpec, caller: str) -> NDArray[Any]:
    expected = f"{spec.datatype.wire_name} {list(spec.shape)}"
    got = type(array).__name__
    if spec.datatype is Datatype.BYTES:
        array = _texts(array, spec, caller)
    if isinstance(array, np.ndarray):
        got = f"{array.dtype} {list(array.shape)}"
        if array.dtype == spec.datatype.dtype and fits(array.shape, spec.shape):
            return np.ascontiguousarray(array)
    raise FunctionError(f"the {caller} returned {got} as {spec.name!r}, expected {expected}")


def _texts(array: object, spec: TensorSpec, caller: str) -> object:
    """Text as UTF-8, from an array or nested lists of `str` or `bytes`; anything else as it is.
    Raises FunctionError."""
    if isinstance(array, list):
        try:
            array = np.array(array, object)
        except ValueError:  # lists of unequal length
            return array
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "OSU":
        return array
    where, room = f"the {caller} returned", _MOST_TEXT
    encoded = np.empty(array.size, object)
    for place, text in enumerate(array.ravel()):
        if not isinstance(text, str | bytes):
            kind = type(text).__name__
            raise FunctionError(f"{where} {kind} within {spec.name!r}, expected text")
        content: bytes | None = b""
        if (room := room - len(text)) >= 0:  # before a copy is made
            content = _utf8(text)
            room -= len(content or b"") - len(text)
        if room < 0:
            most = f"{_MOST_TEXT >> 20} MiB in a batch"
            raise FunctionError(f"{where} too much text as {spec.name!r}, expected at most {most}")
        if content is None:
            raise FunctionError(f"{where} text as {spec.name!r} that is not UTF-8")
        encoded[place] = content
    return encoded.reshape(array.shape)


def _utf8(text: str | bytes) -> bytes | None:
    """UTF-8 of a text; None if the text cannot be encoded."""
    try:
        content = text.encode() if isinstance(text, str) else bytes(text)
        if isinstance(text, bytes):
            content.decode()
    except UnicodeError:
        return None
    return content
