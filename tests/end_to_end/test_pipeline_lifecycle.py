"""Pipelines come and go with their models, and frames under way are answered all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.end_to_end.streets import SEEN, agree, ask_frame, frame, outputs, street

value = helper.make_tensor_value_info

CHAIN = "slo: 60s\nstages: {a: spin, b: tail}\nedges: [{from: a, to: b, tensors: {y: x}}]"
LOAD, UNLOAD = "/v2/repository/models/{}/load", "/v2/repository/models/{}/unload"


def tail(zoo: Any, scale: float, *, width: int = 2, gives: str = "z") -> None:
    zoo.save(
        "tail",
        [helper.make_node("Mul", ["x", "scale"], [gives])],
        [value("x", TensorProto.FLOAT, ["n", width])],
        [value(gives, TensorProto.FLOAT, ["n", width])],
        [numpy_helper.from_array(np.float32(scale), "scale")],
    )


def state(house: Any, name: str = "chain") -> tuple[bool, str, str]:
    """Whether it is ready, its state in the index, and why."""
    entry = house.index()[name]
    ready = house.get(f"/v2/models/{name}/ready").status == 200
    return ready, entry["state"], entry["reason"]


def said(house: Any, turns: int = 1) -> Any:
    answer = house.infer("chain", house.spin_call(turns))
    assert answer.status == 200, answer
    return {output["name"]: output["data"] for output in answer.json["outputs"]}


@pytest.fixture
def server(zoo: Any, serve: Any) -> Iterator[Any]:
    zoo.spin()
    tail(zoo, 10)
    (zoo.root / "chain").mkdir()
    (zoo.root / "chain" / "pipeline.yaml").write_text(CHAIN)
    with serve(zoo, control_port=0) as house:
        yield house


def test_a_pipeline_goes_and_comes_back_with_a_model_of_it(server: Any) -> None:
    assert state(server) == (True, "READY", "")
    assert said(server) == {"a.y": [1, 2], "b.z": [10, 20]}
    assert server.post(UNLOAD.format("tail")).status == 200
    why = "chain/pipeline.yaml: stages.b.model: model 'tail' is not loaded"
    assert state(server) == (False, "UNAVAILABLE", why)
    answer = server.infer("chain", server.spin_call(1))
    assert answer.status in (404, 503)
    assert why in answer.error
    assert server.post(LOAD.format("tail")).status == 200
    assert state(server) == (True, "READY", "")
    assert said(server)["b.z"] == [10, 20]
    (stats,) = server.get("/v2/models/chain/stats").json["model_stats"]
    assert stats["inference_count"] == 2, "counters go on"


def test_a_frame_under_way_ends_with_the_models_that_it_came_to(server: Any) -> None:
    frames = []
    with server.hold():
        frames = [server.later("chain", server.spin_call(1)) for _ in range(3)]
        server.queued("spin", 3)
        tail(server.zoo, 1000)
        loading = server.spawn(server.post, LOAD.format("tail"))
        server.until(
            lambda app: app.catalog.find("chain", None).stages["b"].generation > 2,
            "the pipeline rests on the new load",
        )
        assert state(server)[0]
        late = server.later("chain", server.spin_call(1))
        server.queued("spin", 4)
        assert not loading.done(), "the old load serves the frames that came to it"
    assert [frame.result().json["outputs"][1]["data"] for frame in frames] == [[10, 20]] * 3
    assert late.result().json["outputs"][1]["data"] == [1000, 2000]
    assert loading.result().status == 200


def test_a_frame_under_way_ends_well_though_its_pipeline_goes(server: Any) -> None:
    with server.hold():
        frame = server.later("chain", server.spin_call(1))
        server.queued("spin", 1)
        assert server.post(UNLOAD.format("chain")).status == 200
        assert state(server) == (False, "UNAVAILABLE", "unloaded")
        unloading = server.spawn(server.post, UNLOAD.format("tail"))
        server.until(lambda app: app.catalog.find("tail", None) is None, "the model is gone")
        assert server.infer("chain", server.spin_call(1)).status != 200
    assert frame.result().json["outputs"][1]["data"] == [10, 20]
    assert unloading.result().status == 200
    assert server.post(LOAD.format("chain")).status == 200, "and brings its model back"
    assert said(server)["b.z"] == [10, 20]


def test_a_pipeline_takes_along_what_no_other_needs_if_it_is_told_to(server: Any) -> None:
    (server.zoo.root / "other").mkdir()
    (server.zoo.root / "other" / "pipeline.yaml").write_text("stages: {a: tail}")
    assert server.post(LOAD.format("other")).status == 200
    wanted = {"parameters": {"unload_dependents": True}}
    wrong = server.post(UNLOAD.format("chain"), {"parameters": {"unload_dependents": "yes"}})
    assert wrong.status == 400
    assert "parameters.unload_dependents: expected true or false" in wrong.error
    assert server.post(UNLOAD.format("chain"), wanted).status == 200
    index = server.index()
    states = {name: index[name]["state"] for name in ("chain", "spin", "tail", "other")}
    assert [name for name, word in states.items() if word == "READY"] == ["tail", "other"]
    assert index["spin"]["reason"] == "unloaded"
    assert server.post(UNLOAD.format("tail"), wanted).status == 200, "a model has none"
    assert state(server, "other")[0] is False
    assert server.post(UNLOAD.format("nobody"), wanted).status in (400, 404)


def test_a_reload_that_no_longer_fits_says_so_and_new_output_names_show(server: Any) -> None:
    tail(server.zoo, 2, gives="w")
    assert server.post(LOAD.format("tail")).status == 200
    assert said(server) == {"a.y": [1, 2], "b.w": [2, 4]}
    tail(server.zoo, 2, width=3)
    assert server.post(LOAD.format("tail")).status == 200
    ready, word, why = state(server)
    assert (ready, word) == (False, "UNAVAILABLE")
    assert (
        "chain/pipeline.yaml: edges[0].tensors.y: expected an output that fits the input 'x'" in why
    )
    tail(server.zoo, 2)
    assert server.post(LOAD.format("tail")).status == 200
    assert said(server)["b.z"] == [2, 4]


def test_a_pipeline_is_loaded_anew_from_its_file(server: Any) -> None:
    file = server.zoo.root / "chain" / "pipeline.yaml"
    file.write_text(CHAIN.replace("b: tail", "c: tail").replace("to: b", "to: c"))
    assert server.post(LOAD.format("chain")).status == 200
    assert said(server) == {"a.y": [1, 2], "c.z": [10, 20]}
    file.write_text(CHAIN.replace("to: b", "to: x"))
    answer = server.post(LOAD.format("chain"))
    assert answer.status == 400
    assert "chain/pipeline.yaml: edges[0].to: no such stage" in answer.error
    assert state(server) == (True, "READY", "")
    assert set(said(server)) == {"a.y", "c.z"}, "what served before still does"


def test_a_pipeline_that_names_no_model_is_told_which_was_meant(server: Any) -> None:
    path = server.zoo.root / "chain/pipeline.yaml"
    path.write_text(CHAIN.replace("tail", "tial"))
    refused = server.post(LOAD.format("chain"))
    path.write_text(CHAIN)
    assert (
        "stages.b.model: there is no model 'tial' in the repository; did you mean 'tail'?"
        in refused.error
    )
    assert state(server) == (True, "READY", "")


@pytest.mark.slow
def test_frames_go_on_while_their_models_are_loaded_anew_again_and_again(
    zoo: Any, serve: Any
) -> None:
    """Workers of a new load are given the arenas that frames lie in, old and new."""
    street(zoo)
    with serve(zoo, control_port=0) as house:
        asked, stop = [], threading.Event()

        def camera(number: int) -> None:
            image = frame(*SEEN, seed=number)
            while not stop.is_set():
                agree(outputs(ask_frame(house, image)), image)
                asked.append(number)

        cameras = [house.spawn(camera, number) for number in range(3)]
        for model in ("colour", "detector", "street", "colour", "grade", "detector"):
            assert house.post(LOAD.format(model), {}).status == 200
        stop.set()
        for running in cameras:
            running.result()
        assert set(asked) == {0, 1, 2}
        before = len(asked)
        (stats,) = house.get("/v2/models/street/stats").json["model_stats"]
        assert stats["inference_stats"]["success"]["count"] == before
        assert stats["inference_stats"]["fail"]["count"] == 0
