"""Families served for real: sizes of one file, and files of one task."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper

from slacktide.planning.variants import Family, FamilyVariant
from slacktide.wire.proto import messages

value = helper.make_tensor_value_info

SIZES = """
slo: 20s
max_batch: 4
variants:
  sizes: [32, 64, 96, 128]
  accuracy: {"32": 0.3, "64": 0.5, "96": 0.5, "128": 0.8}
  planner: none
"""
FILES = """
slo: 20s
max_batch: 4
variants:
  files: {small: small.onnx, medium: medium.onnx, large: large.onnx}
  memory: {medium: 1MiB}
  resident: 2
  planner: none
"""


DEPTHS = """
slo: 20s
max_batch: 4
variants:
  depths: {shallow: [side], deep: [mean]}
  planner: none
"""


def sized(size: int) -> np.ndarray:
    return np.full((1, size, size, 3), 7, np.uint8)


def files(zoo: Any, name: str = "depths", settings: str = FILES) -> None:
    for shift, file in enumerate(("small", "medium", "large")):
        zoo.sight(name, file=f"{file}.onnx", size=64, shift=shift, settings=settings)


UNLIKE = """
slo: 20s
max_batch: 4
variants:
  files:
    pixels: small.onnx
    planes: {file: planes.onnx, image: {resize: letterbox, pad_value: 0}, output_names: {mean: m}}
    single: {file: single.onnx, image: {scale: 1, resize: cover}}
  planner: none
"""


def unlike(zoo: Any) -> None:
    """A family of files with other inputs, layouts, sizes and names of outputs."""
    mean = helper.make_node("ReduceMean", ["image"], ["all"], axes=[1, 2, 3], keepdims=0)
    zoo.save(
        "unlike",
        [
            helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floats"], ["mean"], axes=[1, 2, 3], keepdims=0),
        ],
        [value("image", TensorProto.UINT8, ["n", 32, 32, 3])],
        [value("mean", TensorProto.FLOAT, ["n"])],
        file="small.onnx",
        settings=UNLIKE,
    )
    zoo.save(
        "unlike",
        [mean, *(helper.make_node("Identity", ["all"], [name]) for name in ("m", "leftover"))],
        [value("image", TensorProto.FLOAT, ["n", 3, 48, 48])],
        [value(name, TensorProto.FLOAT, ["n"]) for name in ("m", "leftover")],
        file="planes.onnx",
    )
    zoo.save(
        "unlike",
        [helper.make_node("ReduceMean", ["x"], ["result"], axes=[1, 2, 3], keepdims=0)],
        [value("x", TensorProto.FLOAT, ["n", 64, 64, 3])],
        [value("result", TensorProto.FLOAT, ["n"])],
        file="single.onnx",
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("families") / "repository")
    zoo.sight("sizes", settings=SIZES)
    zoo.sight("one", settings="variants: [64]\n")
    files(zoo)
    files(zoo, "planned", FILES.replace("  planner: none\n", ""))
    zoo.sight("chain", size=64, settings=DEPTHS)
    unlike(zoo)
    zoo.sight("wrong", size=64, settings=DEPTHS.replace("[side]", "[width]"))
    zoo.matmul()
    with serve(zoo, control_port=0) as house:
        yield house


@pytest.fixture
def families(server: Any) -> Iterator[Any]:
    yield server
    server.settle()


def ask(house: Any, model: str, image: np.ndarray, **parameters: Any) -> Any:
    """The answer to an image, as tritonclient has it over HTTP."""
    with tritonclient.http.InferenceServerClient(house.http) as client:
        asked = tritonclient.http.InferInput("image", list(image.shape), "UINT8")
        asked.set_data_from_numpy(image)
        return client.infer(model, [asked], parameters=parameters or None)


def variant_of(answer: Any) -> str:
    return str(answer.get_response()["parameters"]["variant"])


@pytest.mark.slow
def test_every_variant_of_one_file_that_is_worth_it_is_served(families: Any):
    house = families
    assert house.get("/v2/health/ready").status == 200
    assert house.get("/v2/models/sizes/ready").status == 200
    version = house.look(lambda app: app.catalog.find("sizes", None))
    assert [pool.variant for pool in version.pools] == ["32", "64", "128"], "96 is no better"
    assert version.pool.variant == "128"
    assert version.family == Family(
        (
            FamilyVariant("32", 0.3, 32),
            FamilyVariant("64", 0.5, 64),
            FamilyVariant("128", 0.8, 128),
        ),
        planner="none",
    )
    expected = [pool.times.of(1, pool.cores).expected for pool in version.pools]
    assert all(seconds > 0.0 for seconds in expected)
    shown = house.get("/v2/models/sizes").json["inputs"]
    assert shown == [{"name": "image", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}]
    config = house.get("/v2/models/sizes/config").json
    assert config["parameters"]["variants"] == {"string_value": "32,64,96,128"}


def test_a_variant_may_be_named_and_the_answer_names_it(families: Any):
    house = families
    for name in ("32", "64", "128"):
        answer = ask(house, "sizes", sized(int(name)), variant=name)
        assert variant_of(answer) == name
        assert answer.as_numpy("side") == int(name)
    for name, shift in (("small", 0.0), ("large", 2.0)):
        answer = ask(house, "depths", sized(64), variant=name)
        assert variant_of(answer) == name
        assert answer.as_numpy("mean") == pytest.approx(7.0 + shift)
    document = house.call_of({"image": ("UINT8", [1, 32, 32, 3], [0] * 3072)})
    answer = house.infer("sizes", document, {"slacktide-variant": "32"})
    assert answer.json["parameters"] == {"variant": "32"}


def test_depths_of_one_file_answer_with_their_part_under_one_name(families: Any):
    for name, expected in (("shallow", 64.0), ("deep", 7.0)):
        answer = ask(families, "chain", sized(64), variant=name)
        assert variant_of(answer) == name
        assert answer.as_numpy("mean") == pytest.approx(expected)
    shown = families.get("/v2/models/chain").json["outputs"]
    assert [output["name"] for output in shown] == ["mean"]


def test_a_depth_of_an_output_that_the_file_has_not_is_told(families: Any):
    reason = families.index()["wrong"]["reason"]
    assert "variants: the model has no output 'width'; it has mean, side" in reason


def test_a_variant_that_is_not_loaded_is_answered_by_the_next_larger_one(families: Any):
    answer = ask(families, "depths", sized(64), variant="medium")
    assert variant_of(answer) == "large"


@pytest.mark.parametrize(
    ("side", "variant"), [(20, "32"), (32, "32"), (40, "64"), (64, "64"), (65, "128"), (999, "128")]
)
def test_pixels_go_to_the_variant_of_their_size_or_to_the_next_larger_one(
    families: Any, side: int, variant: str
):
    answer = ask(families, "sizes", sized(side))
    assert variant_of(answer) == variant
    assert answer.as_numpy("side") == int(variant), "it was resized"
    assert answer.as_numpy("mean") == pytest.approx(7.0)


def test_images_of_unlike_sizes_share_a_variants_batches(families: Any):
    house = families
    sizes = [(8, 20), (30, 12), (16, 16)]
    calls = [
        house.call_of({"image": ("UINT8", [1, *size, 3], [9] * (size[0] * size[1] * 3))})
        for size in sizes * 4
    ]
    answers = [house.later("sizes", call) for call in calls]
    for answer in answers:
        assert answer.result().status == 200, answer.result()
        assert answer.result().json["parameters"] == {"variant": "32"}
        assert answer.result().json["outputs"][0]["data"] == pytest.approx([9.0])


def test_files_of_a_fixed_size_take_images_of_any(families: Any):
    answer = ask(families, "depths", sized(40), variant="small")
    assert answer.as_numpy("side") == 64
    assert variant_of(ask(families, "depths", sized(40))) == "large", (
        "pixels choose among sizes only"
    )


def test_files_that_a_planner_moves_are_up_as_soon_as_some_of_them_are(families: Any):
    house = families
    assert house.get("/v2/models/planned/ready").status == 200
    first = variant_of(ask(house, "planned", sized(64)))
    assert first in ("small", "medium", "large")
    house.until(
        lambda app: 1 <= sum(share["replicas"] > 0 for share in shares(app, "planned")) <= 2,
        "a lane holds two files at most",
    )
    assert house.post("/v2/repository/models/planned/load").status == 200
    assert ask(house, "planned", sized(64)).as_numpy("side") == 64
    assert house.post("/v2/repository/models/planned/unload").status == 200
    assert house.post("/v2/repository/models/planned/load").status == 200


def shares(app: Any, model: str) -> Any:
    version = app.catalog.find(model, None)
    return [{"replicas": len(pool.replicas_up)} for pool in version.pools]


def test_all_sizes_of_a_file_are_one_process(families: Any):
    def processes(app: Any) -> set[int]:
        replicas = app.driver.replicas
        return {
            replicas._handles[replica.id].pid
            for replica in replicas._replicas.values()
            if replica.pool.model == "sizes"
        }

    lanes = families.look(lambda app: len(app.engine.state.lanes))
    assert len(families.look(processes)) <= lanes


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("sizes", "expected one of '32', '64', '128', got '96'"),
        ("depths", "expected one of 'small', 'medium', 'large', got '96'"),
        ("matmul", "expected none: 'matmul' has no variants, got '96'"),
    ],
)
def test_an_unknown_variant_is_a_mistake_of_the_client(families: Any, model: str, expected: str):
    document = families.call_of({"image": ("UINT8", [1, 64, 64, 3], [0] * 12288)}, variant="96")
    if model == "matmul":
        document = families.matmul_call(variant="96")
    answer = families.infer(model, document)
    assert answer.status == 400
    assert answer.error == f"parameters.variant: {expected}"


def test_grpc_clients_name_variants_as_well(families: Any):
    with tritonclient.grpc.InferenceServerClient(families.grpc) as client:
        asked = tritonclient.grpc.InferInput("image", [1, 32, 32, 3], "UINT8")
        asked.set_data_from_numpy(sized(32))
        answer = client.infer("sizes", [asked], parameters={"variant": "32"})
        assert answer.get_response().parameters["variant"].string_param == "32"
        config = client.get_model_config("sizes").config
        assert config.parameters["variants"].string_value == "32,64,96,128"
    with grpc.insecure_channel(families.grpc) as channel:
        ready = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelReady",
            messages.ModelReadyRequest.SerializeToString,
            messages.ModelReadyResponse.FromString,
        )
        assert ready(messages.ModelReadyRequest(name="depths")).ready


def test_statistics_count_batches_by_variant(families: Any):
    house = families
    before = {variant["variant"]: variant for variant in stats(house)}
    for _ in range(3):
        ask(house, "sizes", sized(32), variant="32")
    after = {variant["variant"]: variant for variant in stats(house)}
    assert after["32"]["execution_count"] == before["32"]["execution_count"] + 3
    assert after["32"]["inference_count"] == before["32"]["inference_count"] + 3
    assert after["64"] == before["64"]
    assert [variant["replicas"] for variant in stats(house, "depths")] == [1, 0, 1]
    plain = house.get("/v2/models/matmul/stats").json["model_stats"][0]
    assert "variant_stats" not in plain


def test_the_end_of_a_process_is_told_once_for_all_sizes_and_why(
    families: Any, caplog: pytest.LogCaptureFixture
):
    house = families
    with house.taken_to_hang_after(1.5):
        os.kill(house.worker("sizes"), signal.SIGSTOP)
        assert ask(house, "sizes", sized(32), variant="64").as_numpy("mean") == pytest.approx(7.0)
    messages = [text for text in caplog.messages if text.startswith("replica")]
    assert len(messages) == 1
    assert "64" in messages[0]
    assert "hung on a batch: killing it" in messages[0]
    os.kill(house.worker("sizes"), signal.SIGKILL)
    house.until(lambda app: len(caplog.messages) > 1, "it is lost")
    assert ask(house, "sizes", sized(32), variant="32").as_numpy("mean") == pytest.approx(7.0)
    messages = [text for text in caplog.messages if text.startswith("replica")]
    assert len(messages) == 2
    assert "killed by signal 9" in messages[1]


def stats(house: Any, model: str = "sizes") -> Any:
    return house.get(f"/v2/models/{model}/stats").json["model_stats"][0]["variant_stats"]


def test_files_have_profiles_of_their_own_and_a_lane_keeps_what_it_may(families: Any):
    house = families
    version = house.look(lambda app: app.catalog.find("depths", None))
    assert [pool.at_first for pool in version.pools] == [True, False, True]
    assert version.pool.variant == "large"
    assert version.family is not None
    small, medium, large = version.family.variants
    assert medium.nbytes == 1 << 20
    assert small.nbytes > 0 < large.nbytes
    assert [variant.accuracy for variant in version.family.variants] == pytest.approx(
        [0.25, 0.5, 0.75]
    )
    folder = house.zoo.root / "depths" / "1"
    kept = {path.name.partition("@")[2] for path in folder.glob("profile.*@*.json")}
    assert kept >= {"small.json", "medium.json", "large.json"}


def test_a_family_of_one_is_served(families: Any):
    assert variant_of(ask(families, "one", sized(64))) == "64"


def test_a_family_is_reloaded_unloaded_and_refused_where_a_file_differs(families: Any):
    house = families
    files(house.zoo, "changing")
    assert house.post("/v2/repository/models/changing/load").status == 200
    assert ask(house, "changing", sized(64), variant="small").as_numpy("mean") == pytest.approx(7.0)
    house.zoo.sight("changing", file="small.onnx", size=64, shift=5.0)
    assert house.post("/v2/repository/models/changing/load").status == 200
    assert ask(house, "changing", sized(64), variant="small").as_numpy("mean") == pytest.approx(12)
    house.zoo.matmul("other")
    shutil.copy(house.zoo.root / "other/1/model.onnx", house.zoo.root / "changing/1/large.onnx")
    refused = house.post("/v2/repository/models/changing/load")
    assert refused.status == 400
    assert "changing/1/large.onnx: inputs: expected 'image' UINT8 [-1, -1, -1, 3]" in refused.error
    (house.zoo.root / "changing/1/large.onnx").write_bytes(b"this is no model")
    refused = house.post("/v2/repository/models/changing/load")
    assert "changing/1/large.onnx: " in refused.error
    assert house.get("/v2/models/changing/ready").status == 200, "what served before still serves"
    assert house.post("/v2/repository/models/changing/unload").status == 200
    assert house.get("/v2/models/changing/ready").status in (400, 404)
    house.good()


def test_each_size_keeps_its_own_learnt_times(families: Any):
    house = families
    for _ in range(3):
        ask(house, "sizes", sized(64), variant="64")
    assert house.post("/v2/repository/models/sizes/load").status == 200
    learnt = {path.name.partition("@")[2] for path in (house.zoo.root / "sizes/1").glob("*@*.json")}
    assert "64.learnt.json" in learnt
    assert all(name.endswith(".learnt.json") for name in learnt), "sizes share one profile"


def test_files_of_other_inputs_and_outputs_are_one_family(families: Any) -> None:
    wide = np.full((1, 20, 40, 3), 200, np.uint8)
    expected = {"pixels": 200, "planes": 100 / 255, "single": 200}
    with tritonclient.http.InferenceServerClient(families.http) as client:
        about = client.get_model_metadata("unlike")
        assert [tensor["name"] for tensor in (*about["inputs"], *about["outputs"])] == [
            "image",
            "mean",
        ]
    for variant, mean in expected.items():
        answer = ask(families, "unlike", wide, variant=variant)
        assert variant_of(answer) == variant
        assert answer.as_numpy("mean") == pytest.approx([mean], rel=1e-3)
