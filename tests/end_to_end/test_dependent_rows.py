"""Models whose first free axis is no batch axis: every client gets its own answer."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain import Request

node, value = helper.make_node, helper.make_tensor_value_info
RANDOM = np.random.default_rng(5)
TWO_STAGES = """
stages: {first: negated, second: kept}
edges:
  - {from: first, to: second, tensors: {y: x}}
"""


def write(zoo: Any, name: str, nodes: list[Any], settings: str = "", **weights: Any) -> None:
    zoo.save(
        name,
        nodes,
        [value("x", TensorProto.FLOAT, ["n", 4])],
        [value("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(array), key) for key, array in weights.items()],
        settings=settings,
    )


def softmax(rows: Any) -> Any:
    powers = np.exp(rows - rows.max(axis=0))
    return powers / powers.sum(axis=0)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("dependent") / "repository")
    over_rows = [node("Softmax", ["x"], ["y"], axis=0)]
    write(zoo, "plain", over_rows)
    write(zoo, "stated", over_rows, "max_batch: 8")
    write(zoo, "unbatched", over_rows, "max_batch: 0")
    keep = [  # rows of small numbers, as all made-up ones are
        node("ReduceMax", ["x"], ["most"], axes=[1], keepdims=0),
        node("Less", ["most", "limit"], ["small"]),
        node("Compress", ["x", "small"], ["y"], axis=0),
    ]
    write(zoo, "filter", keep, limit=np.float32(1e6))
    write(zoo, "kept", keep, limit=np.float32(1e6))
    # What waits together runs together, whatever a busy machine has made of the profile.
    write(zoo, "negated", [node("Neg", ["x"], ["y"])], "scheduler: fifo\n")
    folder = zoo.root / "chain"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text(TWO_STAGES)
    zoo.matmul()
    zoo.spin(settings="max_batch: 8\n")
    with serve(zoo) as house:
        yield house


@pytest.fixture
def house(running: Any) -> Iterator[Any]:
    yield running
    running.settle()


def ask_at_once(house: Any, model: str, arrays: list[Any]) -> list[Any]:
    """Answers to requests that have waited together."""
    with house.hold():
        calls = [
            house.call_of({"x": ("FP32", list(array.shape), array.ravel().tolist())})
            for array in arrays
        ]
        answers = [house.later(model, call) for call in calls]
        waiting = f"{len(arrays)} requests of {model!r} wait"
        house.until(lambda app: in_engine(app, model) == len(arrays), waiting)
    return [answer.result() for answer in answers]


def in_engine(app: Any, model: str) -> int:
    """Requests of `model` whose bodies have arrived: those only announced join no batch."""
    requests = [entry.request for entry in app.engine.state.request_table.entries.values()]
    return sum(isinstance(request, Request) and request.model == model for request in requests)


def outputs(answers: list[Any]) -> list[Any]:
    assert [answer.status for answer in answers] == [200] * len(answers)
    first_outputs = [answer.json["outputs"][0] for answer in answers]
    return [np.array(output["data"]).reshape(output["shape"]) for output in first_outputs]


def executions(house: Any, model: str) -> int:
    return int(house.get(f"/v2/models/{model}/stats").json["model_stats"][0]["execution_count"])


@pytest.mark.parametrize("model", ["plain", "stated", "unbatched"])
def test_requests_that_wait_together_get_what_they_get_alone(house: Any, model: str) -> None:
    arrays = [RANDOM.standard_normal((rows, 4)) for rows in (1, 3, 1, 2, 1)]
    before = executions(house, model)
    for output, array in zip(outputs(ask_at_once(house, model, arrays)), arrays, strict=True):
        assert output == pytest.approx(softmax(array), abs=1e-5)
    assert executions(house, model) == before + 5


def test_rows_that_do_not_influence_each_other_still_share_batches(house: Any) -> None:
    arrays = [RANDOM.standard_normal((1, 4)) for _ in range(5)]
    before = executions(house, "negated")
    for output, array in zip(outputs(ask_at_once(house, "negated", arrays)), arrays, strict=True):
        assert output == pytest.approx(-array, abs=1e-5)
    assert executions(house, "negated") == before + 1


def test_a_number_of_rows_that_differs_while_serving_stops_batching(
    house: Any, caplog: pytest.LogCaptureFixture
) -> None:
    small, large = np.ones((1, 4)), np.full((1, 4), 1e7)
    mixed = [small, large, small * 2]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            selected = outputs(ask_at_once(house, "filter", mixed))
            assert [rows.tolist() for rows in selected] == [[[1.0] * 4], [], [[2.0] * 4]]
    messages = [text for text in caplog.messages if "max_batch" in text]
    assert len(messages) == 1
    assert messages[0].startswith("filter: requests run one at a time")
    before = executions(house, "filter")
    outputs(ask_at_once(house, "filter", [small] * 5))
    assert executions(house, "filter") == before + 5


def test_in_a_pipeline_it_costs_the_stage(house: Any) -> None:
    """Pipelines count rows: what is behind would be of other rows than it says."""
    document = house.call_of({"x": ("FP32", [1, 4], [-1.0] * 4)})
    whole = house.infer("chain", document)
    assert "parameters" not in whole.json or "partial" not in whole.json["parameters"]
    document = house.call_of({"x": ("FP32", [1, 4], [-1e7] * 4)})
    answer = house.infer("chain", document)
    assert answer.json["parameters"]["partial"] == "second"
