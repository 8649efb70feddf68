"""Pipelines as clients see them: one model, one deadline; what stages give is what they would give
by themselves."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from itertools import count
from queue import SimpleQueue as Queue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from tests.end_to_end.streets import (
    CAR,
    DETECTED,
    SEEN,
    agree,
    ask_frame,
    crops,
    detector,
    expected,
    frame,
    outputs,
    pipeline,
    street,
    value,
)

from slacktide.executors.pictures import encode_jpeg
from slacktide.wire.proto import messages as m

EYES = """
slo: 20s
variants:
  sizes: [32, 64]
  accuracy: {"32": 0.3, "64": 0.8}
"""
WIDE = """
stages: {detect: panorama, look: colour, grade: grade}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.1, most: 1000}}
  - {from: look, to: grade, tensors: {mean: x}}
"""
JOINED = """
stages: {detect: detector, look: colour, grade: grade, both: both}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.5}}
  - {from: look, to: grade, tensors: {mean: x}}
  - {from: look, to: both, tensors: {mean: a}}
  - {from: grade, to: both, tensors: {y: b}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("pipelines") / "repository")
    street(zoo)
    ends = [value(name, TensorProto.FLOAT, ["n", 3]) for name in ("a", "b", "sum")]
    added = helper.make_node("Add", ["a", "b"], ["sum"])
    zoo.save("both", [added], ends[:2], ends[2:], settings="max_batch: 4\n")
    pipeline(zoo, "joined", JOINED)
    zoo.sight("eyes", settings=EYES)
    pipeline(zoo, "watch", "stages: {see: eyes}")
    detector(zoo, "panorama", width=2000)
    pipeline(zoo, "wide", WIDE)
    with serve(zoo, control_port=0) as house:
        yield house


def test_a_pipeline_answers_what_its_models_do_one_by_one(server: Any) -> None:
    image = frame(*SEEN)
    answer = ask_frame(server, image)
    agree(outputs(answer), image)
    assert answer.json["model_name"] == "street"
    assert "parameters" not in answer.json


def test_stock_clients_over_http_see_one_model(server: Any) -> None:
    client = tritonclient.http.InferenceServerClient(server.http)
    assert client.is_model_ready("street")
    metadata = client.get_model_metadata("street")
    assert metadata["platform"] == "ensemble"
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["image"]
    assert "look.rows" in [tensor["name"] for tensor in metadata["outputs"]]
    image = frame(*SEEN, seed=2)
    asked = tritonclient.http.InferInput("image", [1, *image.shape], "UINT8")
    asked.set_data_from_numpy(image[None])
    result = client.infer("street", [asked])
    agree({name: result.as_numpy(name) for name in (*expected(image), *DETECTED)}, image)
    wanted = [tritonclient.http.InferRequestedOutput(name) for name in ("grade.y", "look.rows")]
    some = client.infer("street", [asked], outputs=wanted)
    assert [tensor["name"] for tensor in some.get_response()["outputs"]] == ["grade.y", "look.rows"]
    client.close()


def test_stock_clients_over_grpc_see_one_model(server: Any) -> None:
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    assert client.is_model_ready("street")
    assert client.get_model_metadata("street").platform == "ensemble"
    config = client.get_model_config("street").config
    assert [step.model_name for step in config.ensemble_scheduling.step] == [
        "detector", "colour", "colour", "grade",
    ]  # fmt: skip
    image = frame(*SEEN, seed=3)
    asked = tritonclient.grpc.InferInput("image", [1, *image.shape], "UINT8")
    asked.set_data_from_numpy(image[None])
    result = client.infer("street", [asked])
    agree({name: result.as_numpy(name) for name in (*expected(image), *DETECTED)}, image)
    client.close()


def test_a_jpeg_is_a_frame_as_well(server: Any) -> None:
    smooth = np.full((96, 128, 3), (40, 90, 200), np.uint8)
    jpeg = encode_jpeg(smooth, 95)
    call = server.call_of({"image": ("BYTES", [1], [base64.b64encode(jpeg).decode()])})
    call["inputs"][0]["parameters"] = {"content_type": "base64"}
    answer = outputs(server.infer("street", call))
    for row in answer["shade.mean"]:
        assert row == pytest.approx((40, 90, 200), abs=3)


def test_statistics_index_and_timing_name_the_stages(server: Any) -> None:
    began = int(time.time() * 1000)
    answer = ask_frame(server, frame(*SEEN), report_timing=True)
    parameters = answer.json["parameters"]
    for stage in ("detect", "look", "shade", "grade"):
        assert parameters[f"{stage}.compute_us"] > 0
        assert parameters[f"{stage}.budget_us"] > 0
    assert parameters["budget_us"] < 20_000_000
    assert "variant" not in parameters  # stages have them
    (statistics,) = server.get("/v2/models/street/stats").json["model_stats"]
    assert (
        statistics["outcome_stats"]["on_time"]
        == statistics["inference_stats"]["success"]["count"]
        >= 1
    )
    assert began <= statistics["last_inference"] <= time.time() * 1000
    assert statistics["execution_count"] == 0  # batches are its models'
    stages = {stage["stage"]: stage for stage in statistics["stage_stats"]}
    (own,) = server.get("/v2/models/grade/stats").json["model_stats"]
    assert own["inference_stats"]["success"]["count"] == sum(server.counts("grade").values()) > 0
    assert stages["grade"]["model"] == "grade"
    assert stages["grade"]["success"]["count"] >= 1
    assert server.index()["street"]["state"] == "READY"
    page = server.ask(server.server.metrics_port, "GET", "/metrics").body.decode()
    assert 'slacktide_outcomes_total{model="street",version="1",outcome="served"' in page
    line = (
        'slacktide_stage_requests_total{model="street",version="1",stage="look",outcome="served"}'
    )
    assert line in page


def test_timing_names_the_variant_of_a_stage(server: Any) -> None:
    image = np.full((64, 64, 3), 7, np.uint8)
    parameters = ask_frame(server, image, name="watch", report_timing=True).json["parameters"]
    assert parameters["see.variant"] == "64"
    assert "see.exit" not in parameters


def test_a_frame_asks_for_no_variant_by_its_size(server: Any) -> None:
    """Pixels sent to a family itself do; a pipeline's are as large as crops are to be sharp."""
    small = np.full((20, 20, 3), 7, np.uint8)
    parameters = ask_frame(server, small, name="watch", report_timing=True).json["parameters"]
    assert parameters["see.variant"] == "64"
    named = ask_frame(server, small, name="watch", report_timing=True, variant="32")
    assert named.json["parameters"]["see.variant"] == "32"
    assert ask_frame(server, small, name="eyes").json["parameters"]["variant"] == "32"


def test_a_join_takes_what_belongs_together(server: Any) -> None:
    boxes = [(at * 7, 10, at * 7 + 30, 200, 255 - at, CAR) for at in range(30)]
    image = frame(*boxes)
    for _ in range(5):
        joined = outputs(ask_frame(server, image, name="joined"))
        wanted = crops(image, *boxes).astype(np.float32).mean((1, 2))
        assert joined["look.rows"].tolist() == list(range(30))
        assert joined["grade.y"] == pytest.approx(2 * wanted, abs=2e-2)
        assert joined["both.sum"] == pytest.approx(3 * wanted, abs=3e-2)


@pytest.mark.slow
def test_streams_of_frames_are_told_the_sizes_of_the_source(server: Any) -> None:
    requests: Queue[bytes | None] = Queue()
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.stream_stream(f"/{m.FRAME_SERVICE}/StreamFrames")
        stream = call(iter(requests.get, None), timeout=4 * server.PATIENCE)
        hello = m.Hello(model="watch", rate=10.0, slo_ms=8_000.0)
        requests.put(m.ClientMessage(hello=hello).SerializeToString())
        welcome = m.ServerMessage.FromString(next(stream)).welcome
        assert [variant.size for variant in welcome.variants] == [32, 64]
        assert welcome.input == "image"
        kinds = (m.ServerMessage.FromString(chunk) for chunk in stream)
        request = m.ModelInferRequest(model_name="watch", raw_input_contents=[bytes(4800)])
        request.inputs.add(name="image", datatype="UINT8", shape=[1, 40, 40, 3])
        sides = []
        for id in count(1):  # what its link carries shows in its frames; a silent client is closed
            announced = m.Announcement(id=id, bytes=4800)
            requests.put(m.ClientMessage(announcement=announced).SerializeToString())
            requests.put(m.ClientMessage(frame=m.Frame(id=id, request=request)).SerializeToString())
            answer = next(kind.answer for kind in kinds if kind.WhichOneof("message") == "answer")
            names = [output.name for output in answer.response.outputs]
            assert names == ["see.mean", "see.side"]
            (side,) = np.frombuffer(answer.response.raw_output_contents[1], "<f4")
            sides.append(side)
            if side == 64:  # the largest
                break
            time.sleep(0.1)  # ten a second, as the hello says
        assert set(sides[:-1]) <= {32}
        requests.put(None)
        list(stream)
    server.until(lambda app: not len(app.data.sessions), "the session has ended")


def test_no_box_is_complete_and_a_thousand_are_split(server: Any) -> None:
    nothing = ask_frame(server, frame(width=2000), name="wide")
    answer = outputs(nothing)
    assert [answer[f"look.{name}"].shape for name in ("rows", "mean", "bright")] == [
        (0,), (0, 3), (0,),
    ]  # fmt: skip
    assert answer["grade.y"].shape == (0, 3)
    before = server.counts("colour")["on_time"]
    boxes = [(at % 200, 10, at % 200 + 30, 200, 255 - at % 50, CAR) for at in range(1000)]
    image = frame(*boxes, width=2000)
    answer = outputs(ask_frame(server, image, name="wide"))
    rows = answer["look.rows"]
    assert sorted(rows) == list(range(1000))
    assert np.all(np.diff(answer["detect.scores"][0][rows]) <= 0)
    wanted = crops(image, *(boxes[row] for row in rows)).astype(np.float32).mean((1, 2))
    assert answer["look.mean"] == pytest.approx(wanted, abs=1e-2)
    assert answer["grade.y"] == pytest.approx(2 * wanted, abs=2e-2)
    assert server.counts("colour")["on_time"] - before == 1000 // 8
