"""Functions in place of models: what each member of a batch gets of their rows."""

from __future__ import annotations

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.functions import (
    FunctionError,
    FunctionSession,
    expanded_rows,
    load_function,
)
from slacktide.executors.onnx_runtime import Fault, ModelError, client_detail, fault_of
from slacktide.executors.ports import FunctionSource


@pytest.mark.parametrize(
    ("parents", "rows", "own", "counts"),
    [
        ([0, 0, 1, 3, 3, 3], [2, 1, 1], [0, 0, 1, 0, 0, 0], [3, 0, 3]),
        ([2, 3], [2, 2, 1], [0, 1], [0, 2, 0]),
        ([], [1, 2], [], [0, 0]),
    ],
)
def test_members_get_their_rows_with_parents_of_their_own(
    parents: list[int], rows: list[int], own: list[int], counts: list[int]
) -> None:
    their_parents, their_counts = expanded_rows(np.array(parents, np.int64), rows)
    assert (their_parents.tolist(), their_counts) == (own, counts)


def text_of(returned: object, rows: int = 2) -> list[bytes]:
    """The text that a session makes of what a function returned."""
    specs = (TensorSpec("x", Datatype.INT64, (-1,)),), (TensorSpec("y", Datatype.BYTES, (-1,)),)
    source = FunctionSource("builtins:id", ModelInterface(*specs, 8).to_dict(), "reader")
    session = FunctionSession(source)
    session._function = lambda x: returned
    (array,) = session.run(["y"], {"x": np.arange(rows)})
    return array.tolist()


@pytest.mark.parametrize(
    "returned",
    [
        ["a", "ä"],
        (["a", "ä"],),
        np.array(["a", "ä"]),
        np.array(["a", "ä".encode()], object),
        [np.array(["a", "ä"])],
    ],
)
def test_text_may_be_a_list_or_an_array(returned: object) -> None:
    assert text_of(returned) == [b"a", "ä".encode()]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("ab", "returned str as 'y', expected BYTES [-1]"),
        ([["a"], ["b"]], "returned object [2, 1] as 'y', expected BYTES [-1]"),
        ([["a"], ["b", "c"]], "returned list within 'y', expected text"),
        ([b"\xff", "b"], "returned text as 'y' that is not UTF-8"),
        (["a" * (40 << 20), b"b" * (40 << 20)], "returned too much text as 'y'"),
        (["€" * (30 << 20)], "returned too much text as 'y'"),
    ],
)
def test_anything_else_is_refused_with_its_names(returned: object, message: str) -> None:
    with pytest.raises(FunctionError) as caught:
        text_of(returned)
    assert str(caught.value).startswith("the function 'reader' ")
    assert message in str(caught.value)


def test_a_quoted_input_is_no_lack_of_memory() -> None:
    for text in ("out of memory", "CUDA failure 700: x", "bad_alloc"):
        error = FunctionError(f"the function 'reader' raised ValueError: no date: {text!r}")
        assert fault_of(error) is Fault.MODEL
        assert client_detail(error) != "out of memory"
    assert fault_of(MemoryError()) is Fault.MEMORY


class Adder:
    """A class of an owner's."""

    def __init__(self) -> None:
        self.setups: list[int] = []

    def setup(self, cores: int) -> None:
        self.setups.append(cores)

    def predict(self, x: object) -> list[int]:
        return self.setups


class Leaver(Adder):
    def setup(self, cores: int) -> None:
        raise SystemExit("no weights")


def test_a_class_is_set_up_once_however_many_sessions_open() -> None:
    first, second = (load_function(f"{__name__}:Adder", "function 'a'", n) for n in (4, 2))
    assert first(0) == second(0) == [4]


def test_an_error_in_setup_is_a_fault_of_the_model() -> None:
    with pytest.raises(ModelError, match="the function 'a' cannot be set up: SystemExit: no wei"):
        load_function(f"{__name__}:Leaver", "function 'a'")
    with pytest.raises(ModelError, match="the function 'a' cannot be used: ModuleNotFoundError"):
        load_function("nowhere:Leaver", "function 'a'")
