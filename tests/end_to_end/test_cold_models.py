"""A real server and a model of which no made-up row runs: it serves, and learns from its requests.

The model is like a voice detector: it passes a state in and out, takes a rate, and has no batch
axis. Its rate must be 16000, which nothing tells the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain import Request

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
value = helper.make_tensor_value_info


def voice(zoo: Any, name: str, settings: str = "") -> None:
    """next = state + the mean of the sound; other rates than 16000 are an index out of range."""
    constants = {"least": np.array(16000), "gains": np.array([1, 1], np.float32)}
    zoo.save(
        name,
        [
            helper.make_node("Sub", ["rate", "least"], ["index"]),
            helper.make_node("Gather", ["gains", "index"], ["gain"]),
            helper.make_node("Mul", ["sound", "gain"], ["louder"]),
            helper.make_node("ReduceMean", ["louder"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("Add", ["state", "mean"], ["next"]),
        ],
        [
            value("sound", FLOAT, [1, None]),
            value("state", FLOAT, [2, 1, 4]),
            value("rate", INT64, []),
        ],
        [value("next", FLOAT, [2, 1, 4])],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
        settings=settings,
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("cold") / "repository")
    voice(zoo, "cold")
    voice(zoo, "told", "inputs: {rate: {value: 16000}}")
    with serve(zoo) as house:
        yield house


@pytest.fixture
def house(running: Any) -> Iterator[Any]:
    yield running
    running.settle()


def call(house: Any, state: list[float], length: int, rate: int = 16000, **more: Any) -> Any:
    tensors = {
        "sound": ("FP32", [1, length], [1.0] * length),
        "state": ("FP32", [2, 1, 4], state),
        "rate": ("INT64", [], [rate]),
    }
    return house.call_of(tensors, **more)


def measured(house: Any, model: str, length: int) -> bool:
    request = Request(0, model, 0.0, 1.0, signature=((1, length), (2, 1, 4), ()))

    def look(app: Any) -> bool:
        version = app.catalog.find(model, None)
        return bool(version.pool.times.measured(request))

    return bool(house.look(look))


def test_it_serves_passes_its_state_and_learns(house: Any) -> None:
    assert not measured(house, "cold", 64)
    state = [0.0] * 8
    for turn in range(5):
        answer = house.infer("cold", call(house, state, 64, timeout=20_000_000))
        assert answer.status == 200, answer
        state = answer.json["outputs"][0]["data"]
        assert state == [turn + 1.0] * 8
    assert measured(house, "cold", 64)
    assert not measured(house, "cold", 65)


def test_requests_at_once_are_all_answered(house: Any) -> None:
    calls = [call(house, [0.0] * 8, length, timeout=20_000_000) for length in (32, 48, 96) * 5]
    answers = [house.later("cold", call) for call in calls]
    assert [answer.result().status for answer in answers] == [200] * 15


def test_a_request_that_fails_is_the_only_one(house: Any) -> None:
    wrong = house.infer("cold", call(house, [0.0] * 8, 77, rate=5))
    assert wrong.status == 500
    assert house.infer("cold", call(house, [0.0] * 8, 78)).status == 200


def test_a_stated_value_has_it_measured_at_the_start(house: Any) -> None:
    assert measured(house, "told", 128)
    answer = house.infer("told", call(house, [0.0] * 8, 128, timeout=20_000_000))
    assert answer.status == 200
