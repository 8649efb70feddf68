"""Pipelines as clients see them: one model, one deadline; what stages give is what they would give
by themselves."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper

from slacktide.domain.crops import crop_extent
from slacktide.executors.images import encode_jpeg, made_up_image, resize_into

HEIGHT, WIDTH, SIDE = 48, 64, 8
BOXES = WIDTH // 2
value = helper.make_tensor_value_info


def detector(zoo: Any, name: str = "detector", *, width: int = WIDTH, settings: str = "") -> None:
    """Boxes are written in the first line of an image: six bytes each, of which the last two are
    the score and the class."""
    zoo.save(
        name,
        [
            helper.make_node("Slice", ["image", "zero", "one", "down"], ["line"]),
            helper.make_node("Cast", ["line"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("Reshape", ["x", "shape"], ["said"]),
            helper.make_node("Div", ["said", "most"], ["parts"]),
            helper.make_node("Slice", ["parts", "zero", "four", "last"], ["boxes"]),
            helper.make_node("Gather", ["parts", "at4"], ["scores"], axis=2),
            helper.make_node("Gather", ["said", "at5"], ["kind"], axis=2),
            helper.make_node("Cast", ["kind"], ["classes"], to=TensorProto.INT64),
        ],
        [value("image", TensorProto.UINT8, ["n", HEIGHT, width, 3])],
        [
            value("boxes", TensorProto.FLOAT, ["n", width // 2, 4]),
            value("scores", TensorProto.FLOAT, ["n", width // 2]),
            value("classes", TensorProto.INT64, ["n", width // 2]),
        ],
        [
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([1]), "one"),
            numpy_helper.from_array(np.array([1]), "down"),
            numpy_helper.from_array(np.array([2]), "last"),
            numpy_helper.from_array(np.array([4]), "four"),
            numpy_helper.from_array(np.int64(4), "at4"),
            numpy_helper.from_array(np.int64(5), "at5"),
            numpy_helper.from_array(np.array([-1, width // 2, 6]), "shape"),
            numpy_helper.from_array(np.float32(255), "most"),
        ],
        settings=settings,
    )


def colour(zoo: Any, name: str = "colour", settings: str = "") -> None:
    """The mean colour of a crop, and how bright it is: [rows, 3] and [rows]."""
    zoo.save(
        name,
        [
            helper.make_node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0),
            helper.make_node("ReduceMean", ["x"], ["bright"], axes=[1, 2, 3], keepdims=0),
        ],
        [value("image", TensorProto.UINT8, ["n", SIDE, SIDE, 3])],
        [value("mean", TensorProto.FLOAT, ["n", 3]), value("bright", TensorProto.FLOAT, ["n"])],
        settings=settings,
    )


def frame(*said: tuple[int, ...], width: int = WIDTH, seed: int = 1) -> Any:
    """An image with these boxes: (x0, y0, x1, y1, score, class), in 255ths."""
    image = made_up_image(HEIGHT, width, np.random.default_rng(seed))
    line = np.zeros((width // 2, 6), np.uint8)
    line[: len(said)] = np.array(said, np.uint8).reshape(-1, 6)
    image[0] = line.reshape(width, 3)
    return image


def crops(image: Any, *said: tuple[int, ...], margin: float = 0.0) -> Any:
    """What a stage behind gets of them."""
    out = np.empty((len(said), SIDE, SIDE, 3), np.uint8)
    for row, box in zip(out, said, strict=True):
        parts = np.array(box[:4], np.float32) / np.float32(255)
        extent = crop_extent(parts, image.shape[1], image.shape[0], margin)
        assert extent is not None
        left, top, right, bottom = extent
        resize_into(image[top:bottom, left:right], row)
    return out


CAR, VAN, TREE = 1, 2, 7
DETECTED = ("detect.boxes", "detect.classes")
SEEN = ((10, 20, 90, 120, 200, CAR), (100, 60, 200, 250, 250, VAN), (30, 30, 60, 90, 240, TREE))


STREET = """
slo: 20s
stages:
  detect: {model: detector, classes: [sky, car, van]}
  look: {model: colour, crop: {margin: 0.1}}
  shade: colour
  grade: grade
edges:
  - {from: detect, to: look, each: box, when: {class: [car, van], score: 0.5}}
  - {from: detect, to: shade, each: box}
  - {from: look, to: grade, tensors: {mean: x}}
"""


WIDE = """
stages: {detect: panorama, look: colour, grade: grade}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.1, most: 1000}}
  - {from: look, to: grade, tensors: {mean: x}}
"""


def street(zoo: Any, text: str = STREET, name: str = "street") -> None:
    detector(zoo)
    colour(zoo, settings="max_batch: 8\n")
    zoo.save(
        "grade",
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 3])],
        [value("y", TensorProto.FLOAT, ["n", 3])],
    )
    pipeline(zoo, name, text)


def pipeline(zoo: Any, name: str, text: str) -> None:
    (zoo.root / name).mkdir(exist_ok=True)
    (zoo.root / name / "pipeline.yaml").write_text(text)


def ask_frame(house: Any, image: Any, name: str = "street", **parameters: Any) -> Any:
    shape = [1, *image.shape]
    call = house.call_of({"image": ("UINT8", shape, image.ravel().tolist())}, **parameters)
    return house.infer(name, call)


def outputs(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer
    assert "partial" not in answer.json.get("parameters", {}), answer.json["parameters"]
    return {
        each["name"]: np.array(each["data"]).reshape(each["shape"])
        for each in answer.json["outputs"]
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("pipelines") / "repository")
    street(zoo)
    detector(zoo, "panorama", width=2000)
    pipeline(zoo, "wide", WIDE)
    with serve(zoo, control_port=0) as house:
        yield house


def expected(image: Any) -> dict[str, Any]:
    """By hand: what each model says of what it is to get."""
    at = [1, 0]  # by score; a tree is no vehicle
    cars = crops(image, *(SEEN[each] for each in at), margin=0.1).astype(np.float32)
    all_of = [1, 2, 0]
    seen = crops(image, *(SEEN[each] for each in all_of)).astype(np.float32)
    return {
        "look.rows": at,
        "look.mean": cars.mean((1, 2)),
        "look.bright": cars.mean((1, 2, 3)),
        "shade.rows": all_of,
        "shade.mean": seen.mean((1, 2)),
        "shade.bright": seen.mean((1, 2, 3)),
        "grade.y": 2 * cars.mean((1, 2)),
    }


def agree(found: Any, image: Any, tolerance: float = 1e-2) -> None:
    for name, wanted in expected(image).items():
        assert found[name] == pytest.approx(np.array(wanted), abs=tolerance), name
    line = image[0].reshape(BOXES, 6)
    assert found["detect.boxes"][0] == pytest.approx(line[:, :4] / 255, abs=1e-6)
    assert found["detect.classes"][0].tolist() == line[:, 5].tolist()


def test_a_pipeline_answers_what_its_models_do_one_by_one(server: Any) -> None:
    image = frame(*SEEN)
    answer = ask_frame(server, image)
    agree(outputs(answer), image)
    assert answer.json["model_name"] == "street"
    assert "parameters" not in answer.json


def test_stock_clients_over_http_see_one_model(server: Any) -> None:
    client = tritonclient.http.InferenceServerClient(server.http)
    assert client.is_model_ready("street")
    told = client.get_model_metadata("street")
    assert told["platform"] == "ensemble"
    assert [each["name"] for each in told["inputs"]] == ["image"]
    assert "look.rows" in [each["name"] for each in told["outputs"]]
    image = frame(*SEEN, seed=2)
    asked = tritonclient.http.InferInput("image", [1, *image.shape], "UINT8")
    asked.set_data_from_numpy(image[None])
    result = client.infer("street", [asked])
    agree({name: result.as_numpy(name) for name in (*expected(image), *DETECTED)}, image)
    wanted = [tritonclient.http.InferRequestedOutput(name) for name in ("grade.y", "look.rows")]
    some = client.infer("street", [asked], outputs=wanted)
    assert [each["name"] for each in some.get_response()["outputs"]] == ["grade.y", "look.rows"]
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
    found = outputs(server.infer("street", call))
    for row in found["shade.mean"]:
        assert row == pytest.approx((40, 90, 200), abs=3)


def test_statistics_index_and_timing_name_the_stages(server: Any) -> None:
    answer = ask_frame(server, frame(*SEEN), report_timing=True)
    told = answer.json["parameters"]
    for stage in ("detect", "look", "shade", "grade"):
        assert told[f"{stage}.compute_us"] > 0
        assert told[f"{stage}.budget_us"] > 0
    assert told["budget_us"] < 20_000_000
    (found,) = server.get("/v2/models/street/stats").json["model_stats"]
    assert found["outcome_stats"]["on_time"] == found["inference_stats"]["success"]["count"] >= 1
    stages = {each["stage"]: each for each in found["stage_stats"]}
    assert stages["grade"]["model"] == "grade"
    assert stages["grade"]["success"]["count"] >= 1
    assert server.index()["street"]["state"] == "READY"
    page = server.ask(server.server.metrics_port, "GET", "/metrics").body.decode()
    assert 'slacktide_outcomes_total{model="street",version="1",outcome="served"' in page
    line = (
        'slacktide_stage_requests_total{model="street",version="1",stage="look",outcome="served"}'
    )
    assert line in page


def test_no_box_is_complete_and_a_thousand_are_split(server: Any) -> None:
    nothing = ask_frame(server, frame(width=2000), name="wide")
    found = outputs(nothing)
    assert [found[f"look.{name}"].shape for name in ("rows", "mean", "bright")] == [
        (0,), (0, 3), (0,),
    ]  # fmt: skip
    assert found["grade.y"].shape == (0, 3)
    before = server.counts("colour")["on_time"]
    boxes = [(at % 200, 10, at % 200 + 30, 200, 255 - at % 50, CAR) for at in range(1000)]
    image = frame(*boxes, width=2000)
    found = outputs(ask_frame(server, image, name="wide"))
    rows = found["look.rows"]
    assert sorted(rows) == list(range(1000))
    assert np.all(np.diff(found["detect.scores"][0][rows]) <= 0)
    wanted = crops(image, *(boxes[row] for row in rows)).astype(np.float32).mean((1, 2))
    assert found["look.mean"] == pytest.approx(wanted, abs=1e-2)
    assert found["grade.y"] == pytest.approx(2 * wanted, abs=2e-2)
    assert server.counts("colour")["on_time"] - before == 1000 // 8
