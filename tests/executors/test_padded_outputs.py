"""How outputs grow with padded inputs is found out from runs with a few lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain.padding import PaddedInput, PaddedOutput, Padding
from slacktide.executors.onnx_runtime import ModelError
from slacktide.executors.padded_outputs import Shapes, find_padded_outputs

NOTHING = Padding({"x": PaddedInput(3)}, {})


def outputs_of(
    length_of: Callable[[int], int | None],
    lengths: tuple[int, int],
    stated: dict[str, PaddedOutput] | None = None,
) -> dict[str, PaddedOutput]:
    """Axis and stride found for an output `y`, [1, length_of(inputs), 7]; None: the model fails."""

    def run(length: int) -> Shapes | None:
        size = length_of(length)
        return None if size is None else {"y": (1, size, 7), "fixed": (1, 5)}

    runs = {length: shapes for length in lengths if (shapes := run(length)) is not None}
    return find_padded_outputs(
        Padding({"x": PaddedInput(3)}, stated or {}), stated or {}, runs, run
    )


@given(
    st.integers(1, 40), st.integers(0, 39), st.lists(st.integers(40, 700), min_size=2, unique=True)
)
def test_any_stride_and_rounding_are_found(stride: int, added: int, lengths: list[int]) -> None:
    truth = PaddedOutput(1, stride, min(added, stride - 1))
    shorter, longer = min(lengths), max(lengths)
    if truth.length(shorter) == truth.length(longer):
        return  # an output that does not grow is not cut back
    outputs = outputs_of(truth.length, (shorter, longer))
    assert set(outputs) == {"y"}
    for length in range(1, longer + 1):
        assert outputs["y"].length(length) == truth.length(length)


def test_layers_that_round_up_and_down_are_found_in_few_runs() -> None:
    """A quarter rounded up, then half of it rounded down, as in a recogniser of text."""
    lengths: list[int] = []

    def length_of(length: int) -> int:
        lengths.append(length)
        return -(-length // 4) // 2

    outputs = outputs_of(length_of, (160, 320))
    assert outputs["y"] == PaddedOutput(1, 8, 3)
    assert len(lengths) <= 2 + 3


def test_strides_found_before_are_kept_if_they_fit() -> None:
    lengths: list[int] = []

    def run(length: int) -> Shapes:
        lengths.append(length)
        return {"y": (1, -(-length // 4) // 2)}

    runs = {length: run(length) for length in (160, 320)}
    for axis, stride, added, more in ((1, 8, 3, 0), (1, 4, 3, 3), (2, 8, 3, 3)):
        lengths.clear()
        earlier = {"y": PaddedOutput(axis, stride, added), "other": PaddedOutput(1, 1)}
        outputs = find_padded_outputs(Padding(NOTHING.inputs, {}, (), earlier), {}, runs, run)
        assert outputs["y"].axis == 1
        assert outputs["y"].stride == 8
        assert len(lengths) == more, "a wrong one costs a search"
    stated = {"y": PaddedOutput(1, 8)}
    padding = Padding(NOTHING.inputs, stated, (), {"y": PaddedOutput(1, 8, 3)})
    assert find_padded_outputs(padding, stated, runs, run)["y"].added == 3


def test_a_model_that_takes_only_some_lengths_needs_no_rounding() -> None:
    outputs = outputs_of(lambda length: None if length % 32 else length // 8, (160, 320))
    assert [outputs["y"].length(length) for length in (32, 160, 320)] == [4, 20, 40]


def test_a_stated_stride_must_fit() -> None:
    eighth = PaddedOutput(1, 8)
    outputs = outputs_of(lambda length: length // 8, (160, 320), {"y": eighth})
    assert outputs["y"] == PaddedOutput(1, 8)
    message = r"outputs.y.pad.stride: 4 does not fit axis 1, which is 20 for inputs of 160, 40"
    with pytest.raises(ModelError, match=message):
        outputs_of(lambda length: length // 8, (160, 320), {"y": PaddedOutput(1, 4)})
    with pytest.raises(ModelError, match=r"outputs.y.pad: expected an axis as long as the inputs"):
        outputs_of(lambda length: 2 * length, (160, 320), {"y": PaddedOutput(1)})


def test_an_output_that_grows_in_two_ways_needs_a_key() -> None:
    runs = {4: {"y": (1, 4, 4)}, 6: {"y": (1, 6, 6)}}
    message = r"output 'y' is \[1, 4, 4\] for inputs of length 4 and \[1, 6, 6\] for 6: state"
    with pytest.raises(ModelError, match=message):
        find_padded_outputs(NOTHING, {}, runs, lambda length: None)
    stated = {"y": PaddedOutput(2)}
    padding = Padding(NOTHING.inputs, stated)
    outputs = find_padded_outputs(padding, stated, runs, lambda length: None)
    assert outputs["y"].axis == 2


def test_one_length_alone_tells_nothing() -> None:
    assert find_padded_outputs(NOTHING, {}, {4: {"y": (1, 4)}}, lambda length: None) == {}
