"""What goes wrong with a stage, or with a client, costs no more than it must: the rest of the frame
is answered, other frames are not disturbed, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper
from tests.end_to_end.streets import (
    CAR,
    SEEN,
    agree,
    ask_frame,
    colour,
    detector,
    frame,
    outputs,
    pipeline,
    street,
    value,
)

from slacktide.engine import EngineSettings
from slacktide.lab.load.report import Provenance
from slacktide.lab.replay import replay
from slacktide.lab.simulation import predict
from slacktide.recording import Recording

APART = "lane: apart\ncores: 1\n"
"""The last stage's lane, which tests keep busy."""
GLUE = """
import time
def raises(crop): raise RuntimeError("no")
def nonsense(crop): return "a picture"
def hangs(crop): time.sleep(1000)
"""
NARROW = """
slo: 20s
stages: {detect: broad, look: single, small: small}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.5}}
  - {from: look, to: small, tensors: {mean: x}}
"""
"""Each row is kept apart, in an arena that has room for 64."""
TIGHT = """
slo: 20s
stages: {detect: detector, look: single, grade: wide, both: both}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.5}}
  - {from: look, to: grade, tensors: {mean: x}}
  - {from: look, to: both, tensors: {mean: a}}
  - {from: grade, to: both, tensors: {y: b}}
"""
DEADLY = "slo: 20s\nstages: {first: whole, last: divide}\nedges: [{from: first, to: last}]\n"
GLUED = """
slo: 20s
stages:
  detect: {{model: detector, classes: [sky, car, van]}}
  look: {{model: glued, crop: {{function: {name}}}}}
  shade: colour
edges:
  - {{from: detect, to: look, each: box, when: {{class: [car, van], score: 0.5}}}}
  - {{from: detect, to: shade, each: box}}
"""
IMAGE = frame(*SEEN, seed=5)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("faults")
    zoo = zoo_at(folder / "repository")
    street(zoo, grade=APART)
    zoo.spin(settings=f"max_batch: 8\n{APART}")
    detector(zoo, "broad", width=256)
    colour(zoo, "single", settings="max_batch: 1\n")
    zoo.double("small", settings="limits: {memory: 1KiB}\n")
    pipeline(zoo, "narrow", NARROW)
    zoo.double("wide")
    ends = [value(name, TensorProto.FLOAT, ["n", 3]) for name in ("a", "b", "sum")]
    added = helper.make_node("Add", ["a", "b"], ["sum"])
    limited = "max_batch: 4\nlimits: {memory: 1KiB}\n"
    zoo.save("both", [added], ends[:2], ends[2:], settings=limited)
    pipeline(zoo, "tight", TIGHT)
    zoo.divide(settings="max_batch: 8\n")
    whole = [value(name, TensorProto.INT64, ["n", 2]) for name in ("i", "d")]
    zoo.save("whole", [helper.make_node("Identity", ["i"], ["d"])], whole[:1], whole[1:])
    pipeline(zoo, "deadly", DEADLY)
    (folder / "street_glue.py").write_text(GLUE)
    names = ("raises", "nonsense", "hangs")
    street_of_glue(zoo, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        glue = {name: f"street_glue:{name}" for name in names}
        with serve(zoo, control_port=0, glue=glue) as house:
            yield house


def street_of_glue(zoo: Any, names: tuple[str, ...]) -> None:
    colour(zoo, "glued")
    for name in names:
        pipeline(zoo, name, GLUED.format(name=name))


@pytest.fixture
def house(shared: Any) -> Iterator[Any]:
    yield shared
    shared.settle()
    assert shared.look(lambda app: app.driver.frames.open_frames) == 0


def waiting_at_grade(house: Any, **parameters: Any) -> Any:
    """A frame that waits for its last stage, whose lane is held."""
    answer = house.spawn(ask_frame, house, IMAGE, **parameters)
    house.queued("grade", 1)
    return answer


@pytest.mark.slow
def test_late_stages_are_left_out_and_named(house: Any) -> None:
    with house.hold():
        answer = ask_frame(house, IMAGE, timeout=1_500_000, report_timing=True)
    agree(outputs(answer, partial="grade"), IMAGE, lacks=("grade",))
    parameters = answer.json["parameters"]
    assert "look.compute_us" in parameters
    assert "grade.compute_us" not in parameters
    assert house.counts("street") == {}  # the engine knows stages only
    (stats,) = house.get("/v2/models/street/stats").json["model_stats"]
    ended = stats["outcome_stats"]
    assert ended.get("partial", 0) + ended.get("after_deadline", 0) >= 1


@pytest.mark.slow
def test_a_frame_whose_source_is_not_done_in_time_has_no_answer(house: Any) -> None:
    answer = ask_frame(house, IMAGE, timeout=1)
    assert answer.status == 504
    assert answer.headers["slacktide-reason"] == "expired"


def test_a_client_that_goes_takes_its_whole_frame_along(house: Any) -> None:
    shape = [1, *IMAGE.shape]
    call = house.call_of({"image": ("UINT8", shape, IMAGE.ravel().tolist())})
    with house.hold():
        with house.open_call("street", call) as connection:
            house.queued("grade", 1)
            connection.close()
        house.until(lambda app: app.driver.frames.open_frames == 0, "the frame is gone")
        assert house.look(lambda app: app.catalog.find("detector", None).arena.bytes_in_use) == 0
    (stats,) = house.get("/v2/models/street/stats").json["model_stats"]
    assert stats["outcome_stats"]["disconnected"] >= 1


def test_a_body_that_comes_slowly_is_announced_and_one_that_never_comes_leaves_nothing(
    house: Any,
) -> None:
    body = IMAGE.tobytes()
    head = (
        "POST /v2/models/street/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: 0\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", house.server.http_port), 30) as connection:
        connection.sendall(head + body[:1000])
        house.until(lambda app: app.driver.frames.open_frames == 1, "it is announced")
        connection.sendall(body[1000:])
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
    house.until(lambda app: app.driver.frames.open_frames == 0, "it is answered")
    with socket.create_connection(("127.0.0.1", house.server.http_port), 30) as connection:
        connection.sendall(head + body[:1000])
        house.until(lambda app: app.driver.frames.open_frames == 1, "it is announced")
    house.until(lambda app: app.driver.frames.open_frames == 0, "it is gone")


def test_a_stage_whose_worker_dies_runs_again(house: Any) -> None:
    worker = house.worker("colour")
    os.kill(worker, signal.SIGSTOP)
    answers = [house.spawn(ask_frame, house, IMAGE) for _ in range(3)]
    house.running("colour")
    os.kill(worker, signal.SIGKILL)
    for answer in answers:
        agree(outputs(answer.result()), IMAGE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "input 'image': its glue function raised"),
        ("nonsense", "input 'image': its glue function returned"),
        ("hangs", ""),
    ],
)
def test_a_glue_function_that_fails_costs_its_stage_alone(
    house: Any, name: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with house.taken_to_hang_after(1.5):
        images = [frame(*SEEN, seed=seed) for seed in (10, 11)]
        answers = [house.spawn(ask_frame, house, image, name) for image in images]
        whole = [house.spawn(ask_frame, house, IMAGE) for _ in range(2)]
        for image, answer in zip(images, answers, strict=True):
            partial = outputs(answer.result(), partial="look")
            agree(partial, image, lacks=("look", "grade"))
        for answer in whole:
            agree(outputs(answer.result()), IMAGE)
    house.until(lambda app: app.driver.frames.open_frames == 0, "stages are counted")
    (stats,) = house.get(f"/v2/models/{name}/stats").json["model_stats"]
    (look,) = [stage for stage in stats["stage_stats"] if stage["stage"] == "look"]
    assert look["outcome_stats"] == {"runtime_error" if message else "crashed": 2}
    warnings = [text for text in caplog.messages if text.startswith(f"{name}: stage 'look' has no")]
    assert len(warnings) == bool(message)  # once in ten seconds
    assert all(message in text for text in warnings)


def test_rows_for_which_there_is_no_memory_are_left_out(house: Any) -> None:
    boxes = [(at * 2, 10, at * 2 + 30, 200, 255 - at, CAR) for at in range(100)]
    few = ask_frame(house, frame(*boxes[:4], width=256), "narrow")
    assert outputs(few)["small.y"].shape == (4, 3)
    many = outputs(ask_frame(house, frame(*boxes, width=256), "narrow"), partial="small")
    assert many["look.mean"].shape == (100, 3)


def test_a_join_for_which_there_is_no_memory_is_left_out(house: Any) -> None:
    boxes = [(at * 7, 10, at * 7 + 30, 200, 255 - at, CAR) for at in range(30)]
    assert outputs(ask_frame(house, frame(*boxes[:8]), "tight"))["both.sum"].shape == (8, 3)
    partial = outputs(ask_frame(house, frame(*boxes), "tight"), partial="both")
    assert partial["grade.y"].shape == (30, 3)


def test_a_frame_of_which_a_stage_dies_is_not_run_again(house: Any) -> None:
    def ask(number: int) -> Any:
        return house.infer("deadly", house.call_of({"i": ("INT64", [1, 2], [number, 1])}))

    assert outputs(ask(1))["last.y"].tolist() == [[-(2**62), -(2**62)]]
    first = ask(-2)
    assert outputs(first, partial="last")["first.d"].tolist() == [[-2, 1]]
    again = ask(-2)
    assert (again.status, again.headers["slacktide-reason"]) == (422, "crashed_before")
    assert outputs(ask(1))["last.y"].tolist() == [[-(2**62), -(2**62)]]


def test_a_stage_is_loaded_anew_under_frames(house: Any) -> None:
    with house.hold():
        before = waiting_at_grade(house)
        loading = house.spawn(house.server.load, "grade")
        house.until(
            lambda app: (
                app.catalog.find("street", "1").stages["grade"].generation > 0
                and app.catalog.find("street", "1").open_frames == 0
            ),
            "the pipeline is made anew",
        )
        after = house.spawn(ask_frame, house, IMAGE)
        house.until(lambda app: app.catalog.find("street", "1").open_frames == 1, "it is here")
        assert not loading.done()  # the old one is still needed
    for answer in (before, after):
        agree(outputs(answer.result()), IMAGE)
    loading.result()
    agree(outputs(ask_frame(house, IMAGE)), IMAGE)


def test_a_stage_is_unloaded_under_frames_and_comes_again(house: Any) -> None:
    with house.hold():
        before = waiting_at_grade(house)
        unloading = house.spawn(house.server.unload, "grade")
        house.until(lambda app: app.catalog.find("street", None) is None, "it is withdrawn")
        refused = ask_frame(house, IMAGE)
        assert refused.status == 503
        assert "model 'grade' is not loaded" in refused.error
        assert house.index()["street"]["state"] == "UNAVAILABLE"
        assert house.get("/v2/models/street/ready").status != 200
    agree(outputs(before.result()), IMAGE)
    unloading.result()
    house.server.load("grade")
    agree(outputs(ask_frame(house, IMAGE)), IMAGE)


def test_a_pipeline_is_unloaded_and_loaded_by_clients(house: Any) -> None:
    with house.hold():
        before = waiting_at_grade(house)
        assert house.post("/v2/repository/models/street/unload", {}).status == 200
        assert ask_frame(house, IMAGE).status == 503
    agree(outputs(before.result()), IMAGE)
    house.until(
        lambda app: (
            app.catalog.find("colour", None).frame_arenas.keys()
            == {
                number
                for name in ("raises", "nonsense", "hangs")
                for stage, number in app.catalog.find(name, None).arena_numbers.items()
                if stage == "shade"
            }
        ),
        "frames of the pipeline are read no more",
    )
    assert house.post("/v2/repository/models/street/load", {}).status == 200
    agree(outputs(ask_frame(house, IMAGE)), IMAGE)


@pytest.mark.slow
def test_a_live_run_replays_to_the_bit_and_is_predicted(
    tmp_path: Path, zoo: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    street(zoo, grade=APART)
    zoo.spin(settings=f"max_batch: 8\n{APART}")
    path = tmp_path / "server.rec"
    # What is taken to hang must be what the header says, so it is set before the engine is made.
    patient = EngineSettings(hang_floor=30.0)
    monkeypatch.setattr("slacktide.server.app.EngineSettings", lambda: patient)
    with serve(zoo, hang_floor=30.0, record=path) as house:
        answers = [house.spawn(ask_frame, house, IMAGE) for _ in range(20)]
        assert {answer.result().status for answer in answers} == {200}
        with house.hold():
            assert outputs(ask_frame(house, IMAGE, timeout=800_000), partial="grade")
        house.server.load("colour")
        agree(outputs(ask_frame(house, IMAGE)), IMAGE)
    replayed = replay(Recording(path))
    assert replayed.difference is None
    text = path.read_text()
    for word in ("FrameArrived", "StageYielded", "PreparePayload", "FreeFrame", "PipelinesChanged"):
        assert word in text
    comparison = predict(Recording(path), seeds=(1,), provenance=Provenance("", {}, ""))
    (lived,) = [stream for stream in comparison.recorded.streams if stream.model == "street"]
    left_out = {"partial", "after_deadline"} & set(lived.reasons)  # late by a little, where starved
    assert lived.reasons == {"on_time": 21, **dict.fromkeys(left_out, 1)}
    assert len(left_out) == 1
    (drawn,) = [stream for stream in comparison.predicted[0].streams if stream.model == "street"]
    assert drawn.submitted == 22
