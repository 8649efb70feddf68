"""Triton's classification extension: outputs of any kind as strings, checked before they run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.models.repository.settings import ModelSettings
from slacktide.server.calls.classification import (
    MOST_ELEMENTS,
    check_classification,
    classified,
)
from slacktide.wire.calls import OutputValue
from slacktide.wire.errors import BadField
from slacktide.wire.raw_tensors import to_json

LABELS = ("cat", "dog")


def version(datatype: Datatype, *shape: int, max_batch: int = 8) -> Any:
    interface = ModelInterface((), (TensorSpec("y", datatype, shape),), max_batch)
    definition = SimpleNamespace(settings=ModelSettings())
    return SimpleNamespace(interface=interface, labels=LABELS, definition=definition, pools=[])


def classes(array: np.ndarray, datatype: Datatype, count: int, *, max_batch: int = 8) -> Any:
    tensor = (array.shape, array.tobytes())
    owner = version(datatype, *array.shape, max_batch=max_batch)
    output = classified(OutputValue("y", datatype, *tensor), count, owner, (tensor,))
    assert output.datatype is Datatype.BYTES
    strings = to_json(output.data, Datatype.BYTES, output.shape)
    return output.shape, strings


@pytest.mark.parametrize(
    ("datatype", "best"),
    [
        (Datatype.FP32, ["2.500000:2", "1.000000:1:dog"]),
        (Datatype.FP16, ["2.500000:2", "1.000000:1:dog"]),
        (Datatype.FP64, ["2.500000:2", "1.000000:1:dog"]),
        (Datatype.INT32, ["2:2", "1:1:dog"]),
        (Datatype.UINT8, ["253:0:cat", "2:2"]),
    ],
)
def test_values_are_written_as_triton_writes_them(datatype: Datatype, best: list[str]) -> None:
    row = np.array([[-3 if datatype is not Datatype.UINT8 else 253, 1, 2.5]])
    array = row.astype(datatype.dtype)
    assert classes(array, datatype, 2) == ((1, 2), best)
    assert classes(array, datatype, 2, max_batch=0) == ((2,), best)


def test_scores_of_a_decoder_belong_to_its_classes_also_in_a_family() -> None:
    specs = (
        TensorSpec("classes", Datatype.INT64, (-1, 2)),
        TensorSpec("scores", Datatype.FP32, (-1, 2)),
    )
    definition = SimpleNamespace(settings=ModelSettings(decode={"as": "softmax"}))
    owner: Any = SimpleNamespace(
        interface=ModelInterface((), specs, 8),
        labels=LABELS,
        definition=SimpleNamespace(settings=ModelSettings()),
        pools=[SimpleNamespace(definition=definition)],
    )
    numbers = ((1, 2), np.array([[1, 0]]).tobytes())
    values = ((1, 2), np.array([[0.75, 0.25]], np.float32).tobytes())
    for name, datatype, tensor in (
        ("scores", Datatype.FP32, values),
        ("classes", Datatype.INT64, numbers),
    ):
        output = OutputValue(name, datatype, *tensor)
        answer = classified(output, 2, owner, (numbers, values))
        strings = to_json(answer.data, Datatype.BYTES, answer.shape)
        assert strings == ["0.750000:1:dog", "0.250000:0:cat"]


def test_further_axes_are_one_row_of_classes() -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert classes(array, Datatype.FP32, 1) == ((2, 1), ["3.000000:3", "7.000000:3"])
    assert classes(array, Datatype.FP32, 1, max_batch=0) == ((1,), ["7.000000:7"])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, MOST_ELEMENTS)])
def test_outputs_without_classes_or_with_too_many_give_none(shape: tuple[int, int]) -> None:
    shape_of_classes, strings = classes(np.zeros(shape, np.float32), Datatype.FP32, 2)
    assert shape_of_classes == (shape[0], 0)
    assert not np.array(strings, object).size


def test_an_output_that_cannot_be_sorted_is_refused_before_the_request_runs() -> None:
    with pytest.raises(BadField, match="classification of output 'y': expected an output of numb"):
        check_classification({"y": 1}, version(Datatype.BOOL, -1, 3), 1)
    check_classification({"x": 1}, version(Datatype.BOOL, -1, 3), 1)
    check_classification({"y": 1}, version(Datatype.FP32, -1, 1000), 200)
    with pytest.raises(BadField, match=f"at most {MOST_ELEMENTS} elements"):
        check_classification({"y": 1}, version(Datatype.FP32, -1, 1000), 300)
