"""Functions before and after a model, in its worker, and classes with `setup` and `predict`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.end_to_end.streets import outputs, pipeline

CODE = """
import os
import time
import numpy as np

def lengths(text, factor):
    rows = np.zeros((len(text), 3), np.float32)
    for row, (line, times) in enumerate(zip(text, factor)):
        rows[row, 0] = len(line) * times
    match [word for line in text for word in line.split() if word in ("raise", "short", "wide")]:
        case ["raise"]: raise RuntimeError("no text")
        case ["short"]: return rows[1:]
        case ["wide"]: return np.zeros((len(text), 4), np.float32)
    time.sleep(0.005)
    return rows

def spell(y):
    if (y == -2).any():
        return ["only one"]
    return [" ".join(f"{number:g}" for number in row) for row in y]

class Counter:
    def setup(self, cores):
        Counter.setups = getattr(Counter, "setups", 0) + 1
        self.cores, self.pid = cores, os.getpid()

    def predict(self, x):
        facts = (self.setups, self.pid, os.getpid())
        return x + self.cores, np.array([facts] * len(x), np.int64)

class Broken:
    def setup(self, cores):
        raise FileNotFoundError("weights.bin")

    def predict(self, x):
        return x

class Plain:
    def predict(self, x):
        return -x
"""
COUNTER = """
cores: 1
function:
  name: counter
  takes: {x: {datatype: INT64, shape: [-1]}}
  gives:
    y: {datatype: INT64, shape: [-1]}
    facts: {datatype: INT64, shape: [-1, 3]}
"""
PLAIN = """
function:
  name: plain
  takes: {x: {datatype: INT64, shape: [-1]}}
  gives: {y: {datatype: INT64, shape: [-1]}}
"""
AROUND = """
before:
  name: lengths
  takes: {text: {datatype: BYTES, shape: [-1]}, factor: {datatype: INT64, shape: [-1]}}
after: {name: spell, gives: {answer: {datatype: BYTES, shape: [-1]}}}
"""
TRITON = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_INT64 dims: [ 2 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ 2 ] }
parameters { key: "class" value { string_value: "plain" } }
"""
NAMES = {
    "lengths": "lengths",
    "spell": "spell",
    "counter": "Counter",
    "broken": "Broken",
    "plain": "Plain",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("around")
    zoo = zoo_at(folder / "repository")
    zoo.double("around", settings=AROUND)
    for name, text in {
        "counter": COUNTER,
        "plain": PLAIN,
        "broken": PLAIN.replace("plain", "broken"),
    }.items():
        (zoo.root / name).mkdir()
        (zoo.root / name / "slacktide.yaml").write_text(text)
    zoo.double(
        "square",
        settings=AROUND.replace("{datatype: INT64, shape: [-1]}", "{datatype: INT64, shape: [1]}"),
    )
    pipeline(
        zoo, "chain", "stages: {n: plain, m: plain}\nedges: [{from: n, to: m, tensors: {y: x}}]"
    )
    (zoo.root / "triton" / "1").mkdir(parents=True)
    (zoo.root / "triton" / "1" / "model.py").write_text("raise SystemExit")
    (zoo.root / "triton" / "config.pbtxt").write_text(TRITON)
    (folder / "around_models.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        glue = {name: f"around_models:{target}" for name, target in NAMES.items()}
        with serve(zoo, control_port=0, glue=glue) as served:
            yield served


def ask(house: Any, *texts: str, factor: int = 1) -> Any:
    tensors = {
        "text": ("BYTES", [len(texts)], list(texts)),
        "factor": ("INT64", [len(texts)], [factor] * len(texts)),
    }
    return house.infer("around", house.call_of(tensors))


def number(house: Any, model: str, *values: int) -> Any:
    return house.infer(model, house.call_of({"x": ("INT64", [len(values)], list(values))}))


def test_clients_send_and_get_what_the_functions_take_and_give(house: Any) -> None:
    answer = outputs(ask(house, "four", "", factor=5))
    assert answer["answer"].tolist() == ["40 0 0", "0 0 0"]
    about = house.get("/v2/models/around").json
    assert [tensor["name"] for tensor in about["inputs"]] == ["text", "factor"]
    assert about["outputs"] == [{"name": "answer", "datatype": "BYTES", "shape": [-1]}]


def test_both_count_in_the_times_of_the_model(house: Any) -> None:
    (profile,) = (house.zoo.root / "around" / "1").glob("profile.*.json")
    assert profile.exists()
    (stats,) = house.get("/v2/models/around/stats").json["model_stats"]
    before = stats["inference_stats"]["compute_input"]
    ask(house, "one")
    (stats,) = house.get("/v2/models/around/stats").json["model_stats"]
    after = stats["inference_stats"]["compute_input"]
    assert after["ns"] - before["ns"] > 4_000_000


@pytest.mark.parametrize(
    ("text", "factor", "message"),
    [
        ("raise", 1, "the function 'lengths' raised RuntimeError: no text"),
        ("short", 1, "the function 'lengths' returned 0 rows as 'x', expected 1"),
        ("wide", 1, "the function 'lengths' returned float32 [1, 4] as 'x', expected FP32 [-1, 3]"),
        ("a", -1, "the function 'spell' returned 1 rows as 'answer', expected 2"),
    ],
)
def test_an_error_names_the_function_and_ends_only_its_request(
    house: Any, text: str, factor: int, message: str
) -> None:
    beside = house.spawn(ask, house, "beside")
    answer = ask(house, text, *["b"] * (factor < 0), factor=factor)
    assert answer.status == 500
    assert message in answer.json["error"]
    assert outputs(beside.result())["answer"].tolist() == ["12 0 0"]
    assert outputs(ask(house, "b", "cc"))["answer"].tolist() == ["2 0 0", "4 0 0"]


def test_a_class_is_set_up_once_in_its_worker_with_its_cores(house: Any) -> None:
    for values in ([1], [2, 3]):
        answer = outputs(number(house, "counter", *values))
        assert answer["y"].tolist() == [value + 1 for value in values]
        ((setups, set_up_in, ran_in),) = {tuple(row) for row in answer["facts"].tolist()}
        assert (setups, set_up_in) == (1, ran_in)
        assert ran_in != os.getpid()


def test_a_class_without_setup_may_be_a_stage(house: Any) -> None:
    assert outputs(number(house, "plain", 4))["y"].tolist() == [-4]
    assert outputs(number(house, "chain", 4, 5))["m.y"].tolist() == [4, 5]


def test_a_model_of_tritons_python_backend_is_served_by_the_registered_class(house: Any) -> None:
    call = house.call_of({"x": ("INT64", [2, 2], [1, 2, 3, 4])})
    assert outputs(house.infer("triton", call))["y"].tolist() == [[-1, -2], [-3, -4]]
    config = house.get("/v2/models/triton/config").json
    assert (config["backend"], config["max_batch_size"]) == ("python", 4)
    assert config["input"][0]["dims"] == [2]


def test_functions_that_do_not_work_are_not_served(house: Any) -> None:
    index = {model["name"]: model for model in house.post("/v2/repository/index").json}
    assert "the function 'broken' cannot be set up: FileNotFoundError" in index["broken"]["reason"]
    expected = "before.takes.factor.shape: expected a free first axis (-1), as the model has"
    assert expected in index["square"]["reason"]


def test_a_class_needs_a_method_predict() -> None:
    from slacktide.domain.options import OptionError
    from slacktide.models.plugins import offer_glue

    with pytest.raises(
        OptionError, match="expected a function, or a class with a method 'predict'"
    ):
        offer_glue("none", "logging:Logger")
