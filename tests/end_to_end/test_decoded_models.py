"""Models behind decoders, and classes with labels, asked by stock clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper, numpy_helper
from tests.end_to_end.streets import ask_frame, colour, outputs, pipeline
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from slacktide.models.check import Severity, check_repository

CLIENTS = {"http": tritonclient.http, "grpc": tritonclient.grpc}
FLOAT = TensorProto.FLOAT
CODE = """
import numpy as np

def centres(arrays, placements, extent):
    (raw,) = arrays
    if raw.max() > 100:
        raise ValueError("too large")
    best = raw[:, 4:].max(1).argmax(1)
    return raw[np.arange(len(raw)), :2, best], np.tile(extent, (len(raw), 1))
"""
OWNER = """
max_batch: 8
decode:
  as: centres
  gives: {centre: {datatype: FP32, shape: [-1, 2]}, extent: {datatype: INT64, shape: [-1, 2]}}
"""
SPOTS = """
slo: 20s
decode: {as: yolo, max_detections: 4, confidence: 0.1}
max_batch: 4
variants:
  sizes: [32, 96]
  planner: none
"""
DOGS = """
slo: 20s
stages: {detect: spots, look: colour}
edges:
  - {from: detect, to: look, each: box, when: {class: dog}}
"""
WALK = """
slo: 20s
stages: {detect: spots, look: colour}
edges:
  - {from: detect, to: look, each: box, when: {score: 0.2}}
"""


def raw_head(zoo: Any, name: str, settings: str, shape: list[Any], metadata: Any = None) -> None:
    """A model whose only output is its input."""
    path = zoo.save(
        name,
        [helper.make_node("Identity", ["raw"], ["output0"])],
        [helper.make_tensor_value_info("raw", FLOAT, shape)],
        [helper.make_tensor_value_info("output0", FLOAT, shape)],
        settings=settings,
    )
    if metadata:
        model = onnx.load(path)
        helper.set_model_props(model, metadata)
        onnx.save(model, path)


FRACTIONS = np.array([[0.1, 0.2, 0.5, 0.6], [0.6, 0.5, 1.0, 0.9]], np.float32)


def state_names(path: Any, names: str) -> None:
    """Write names of classes into a model's file, as exporters do."""
    model = onnx.load(path)
    helper.set_model_props(model, {"names": names})
    onnx.save(model, path)


def spots(zoo: Any, name: str, settings: str) -> None:
    """A YOLO of images of any size that sees the same two boxes in all of them, of classes 1 and 0,
    and is the surer of them the brighter the image is."""
    sides = (FRACTIONS[:, :2] + FRACTIONS[:, 2:]) / 2, FRACTIONS[:, 2:] - FRACTIONS[:, :2]
    places = np.zeros((1, 4, 9), np.float32)
    places[0, :, [3, 5]] = np.concatenate(sides, axis=1)
    certain = np.zeros((1, 2, 9), np.float32)
    certain[0, 1, 3], certain[0, 0, 5] = 1 / 255, 0.9 / 255
    path = zoo.save(
        name,
        [
            helper.make_node("Cast", ["image"], ["x"], to=FLOAT),
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0),
            helper.make_node("ReduceMean", ["mean"], ["light"], axes=[1], keepdims=1),
            helper.make_node("Unsqueeze", ["light", "two"], ["lights"]),
            helper.make_node("Mul", ["lights", "certain"], ["scores"]),
            helper.make_node("Shape", ["image"], ["height"], start=1, end=2),
            helper.make_node("Cast", ["height"], ["side"], to=FLOAT),
            helper.make_node("Mul", ["places", "side"], ["pixels"]),
            helper.make_node("Mul", ["lights", "nothing"], ["zeros"]),
            helper.make_node("Add", ["pixels", "zeros"], ["boxes"]),
            helper.make_node("Concat", ["boxes", "scores"], ["output0"], axis=1),
        ],
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["n", "h", "w", 3])],
        [helper.make_tensor_value_info("output0", FLOAT, ["n", 6, 9])],
        [
            numpy_helper.from_array(places, "places"),
            numpy_helper.from_array(certain, "certain"),
            numpy_helper.from_array(np.array([2]), "two"),
            numpy_helper.from_array(np.float32(0), "nothing"),
        ],
        settings=settings,
    )
    state_names(path, "{0: 'cat', 1: 'dog'}")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("decoded")
    (folder / "owners_decoders.py").write_text(CODE)
    zoo = zoo_at(folder / "repository")
    settings = "decode: {as: yolo, max_detections: 4}\nmax_batch: 8\n"
    raw_head(zoo, "boxes", settings, ["n", 6, 84], {"names": "{0: 'cat', 1: 'dog'}"})
    raw_head(zoo, "fixed", settings.replace("max_batch: 8", ""), [1, 6, 84])
    raw_head(zoo, "near", settings + "executor: in_process\n", ["n", 6, 84])
    raw_head(zoo, "owner", OWNER, ["n", 6, 84])
    zoo.matmul("kind", settings="decode: {as: softmax, top: 2}\nlabels: labels.txt\n")
    zoo.matmul("plain", settings="labels: labels.txt\n")
    for name in ("kind", "plain"):
        (zoo.root / name / "labels.txt").write_text("red\ngreen\nblue\n")
    zoo.matmul("bare")
    zoo.text()
    spots(zoo, "spots", SPOTS)
    colour(zoo, settings="max_batch: 8\n")
    pipeline(zoo, "walk", WALK)
    pipeline(zoo, "dogs", DOGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        with serve(zoo, glue={"centres": "owners_decoders:centres"}) as running:
            yield running


@pytest.fixture
def decoded(house: Any) -> Iterator[Any]:
    yield house
    house.settle()


def ask(
    house: Any, protocol: str, model: str, tensor: Any, counts: dict[str, int] | None = None
) -> Any:
    module = CLIENTS[protocol]
    name = "x" if model in ("kind", "plain", "bare", "text") else "raw"
    sent = module.InferInput(name, list(tensor.shape), np_to_triton_dtype(tensor.dtype))
    sent.set_data_from_numpy(tensor)
    requested = [
        module.InferRequestedOutput(output, class_count=count)
        for output, count in (counts or {}).items()
    ]
    with module.InferenceServerClient(getattr(house, protocol)) as client:
        return client.infer(model, [sent], outputs=requested or None)


def heads(rows: int) -> np.ndarray:
    raw = np.zeros((rows, 6, 84), np.float32)
    raw[:, :4, 5], raw[:, 5, 5] = (0.5, 0.5, 0.2, 0.4), 0.75
    raw[:, :4, 7], raw[:, 4, 7] = (0.2, 0.2, 0.2, 0.2), 0.5
    return raw


ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def plain_classes(house: Any) -> list[list[str]]:
    values = ROWS @ house.WEIGHT
    names = ("red", "green", "blue")
    return [
        [f"{row[at]:f}:{at}:{names[at]}" for at in np.argsort(-row, kind="stable")[:2]]
        for row in values
    ]


@pytest.mark.parametrize("protocol", CLIENTS)
def test_boxes_come_out_of_a_raw_head(decoded: Any, protocol: str) -> None:
    answer = ask(decoded, protocol, "boxes", heads(3))
    scores, classes = answer.as_numpy("scores"), answer.as_numpy("classes")
    assert scores.tolist() == [[0.75, 0.5, 0, 0]] * 3
    assert classes.tolist() == [[1, 0, -1, -1]] * 3
    np.testing.assert_allclose(answer.as_numpy("boxes")[2, 0], [0.4, 0.3, 0.6, 0.7], rtol=1e-6)
    answer = ask(decoded, protocol, "boxes", heads(1), {"scores": 3})
    assert answer.as_numpy("scores").tolist() == [
        [b"0.750000:1:dog", b"0.500000:0:cat", b"0.000000:-1"]
    ]


def test_other_executors_and_fixed_batches_decode_too(decoded: Any) -> None:
    for model in ("fixed", "near"):
        answer = ask(decoded, "grpc", model, heads(1))
        assert answer.as_numpy("scores").tolist() == [[0.75, 0.5, 0, 0]]
        assert answer.as_numpy("boxes").shape == (1, 4, 4)
    best = ask(decoded, "http", "fixed", heads(1), {"scores": 1}).as_numpy("scores")
    assert best.tolist() == [b"0.750000:1"]  # without a batch axis


def test_a_function_of_the_owner_decodes(decoded: Any) -> None:
    answer = ask(decoded, "http", "owner", heads(2))
    np.testing.assert_allclose(answer.as_numpy("centre"), [[0.5, 0.5]] * 2)
    assert answer.as_numpy("extent").tolist() == [[0, 0]] * 2
    with pytest.raises(InferenceServerException, match="the model failed on this request"):
        ask(decoded, "http", "owner", heads(1) * 1000)
    assert ask(decoded, "http", "owner", heads(1)).as_numpy("centre").shape == (1, 2)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_classes_of_a_plain_output_have_values_and_labels(decoded: Any, protocol: str) -> None:
    expected = plain_classes(decoded)
    for _ in range(2):  # the second time from the caches of the front end
        answer = ask(decoded, protocol, "plain", ROWS, {"y": 2})
        rows = answer.as_numpy("y").tolist()
        assert [[text.decode() for text in row] for row in rows] == expected
    assert ask(decoded, protocol, "plain", ROWS, {"y": 9}).as_numpy("y").shape == (2, 3)
    assert ask(decoded, protocol, "plain", ROWS).as_numpy("y").dtype == np.float32
    (first, *_), _ = ask(decoded, protocol, "bare", ROWS, {"y": 1}).as_numpy("y").tolist()
    assert first.decode() == expected[0][0].rpartition(":")[0]


@pytest.mark.parametrize("protocol", CLIENTS)
def test_classes_of_a_decoded_classifier_are_those_of_its_scores(
    decoded: Any, protocol: str
) -> None:
    answer = ask(decoded, protocol, "kind", ROWS)
    values = np.exp(ROWS @ decoded.WEIGHT)
    values /= values.sum(1, keepdims=True)
    order = np.argsort(-values, axis=1)[:, :2]
    assert answer.as_numpy("classes").tolist() == order.tolist()
    scores = answer.as_numpy("scores")
    np.testing.assert_allclose(scores, np.take_along_axis(values, order, 1), rtol=1e-5)
    names = ("red", "green", "blue")
    for output in ("scores", "classes"):
        answer = ask(decoded, protocol, "kind", ROWS, {output: 1})
        (first,), _ = answer.as_numpy(output).tolist()
        assert first.decode() == f"{scores[0, 0]:f}:{order[0, 0]}:{names[order[0, 0]]}"


@pytest.mark.parametrize("variant", ["32", "96"])
def test_a_family_of_sizes_answers_in_fractions(decoded: Any, variant: str) -> None:
    image = np.full((1, 50, 80, 3), 204, np.uint8)
    call = decoded.call_of({"image": ("UINT8", image.shape, image.ravel().tolist())})
    call["parameters"] = {"variant": variant}
    answer = decoded.infer("spots", call).json
    assert answer["parameters"]["variant"] == variant
    data = {output["name"]: output["data"] for output in answer["outputs"]}
    np.testing.assert_allclose(np.reshape(data["boxes"], (4, 4))[:2], FRACTIONS, atol=1e-6)
    assert data["scores"] == pytest.approx([0.8, 0.72, 0, 0])
    assert data["classes"] == [1, 0, -1, -1]


def test_a_pipeline_cuts_out_what_a_decoder_found(decoded: Any) -> None:
    image = np.full((60, 80, 3), 255, np.uint8)
    image[12:36, 8:40] = 102, 153, 204
    image[30:54, 48:80] = 204, 153, 102
    answer = outputs(ask_frame(decoded, image, "walk"))
    np.testing.assert_allclose(answer["detect.boxes"][0, :2], FRACTIONS, atol=1e-6)
    np.testing.assert_allclose(answer["look.mean"], [[102, 153, 204], [204, 153, 102]], atol=1)
    dogs = outputs(ask_frame(decoded, image, "dogs"))  # by the names in the model's metadata
    np.testing.assert_allclose(dogs["look.mean"], [[102, 153, 204]], atol=1)


def test_classes_in_json(decoded: Any) -> None:
    call = decoded.call_of({"x": ("FP32", ROWS.shape, ROWS.ravel().tolist())})
    call["outputs"] = [{"name": "y", "parameters": {"classification": 2}}]
    answer = decoded.infer("plain", call)
    (output,) = answer.json["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [2, 2])
    assert output["data"] == [*chain.from_iterable(plain_classes(decoded))]


def test_text_has_no_classes(decoded: Any) -> None:
    tensor = np.array([["a"]], object)
    for protocol in CLIENTS:
        with pytest.raises(InferenceServerException, match="an output of numbers, got 'BYTES'"):
            ask(decoded, protocol, "text", tensor, {"y": 2})


def test_labels_are_in_metadata_and_configuration(decoded: Any) -> None:
    assert "classification" in decoded.get("/v2").json["extensions"]
    for model, labels in (("boxes", ["cat", "dog"]), ("kind", ["red", "green", "blue"])):
        metadata = decoded.get(f"/v2/models/{model}").json
        assert metadata["labels"] == labels
        config = decoded.get(f"/v2/models/{model}/config").json
        assert json.loads(config["parameters"]["labels"]["string_value"]) == labels
        with tritonclient.grpc.InferenceServerClient(decoded.grpc) as client:
            stated = client.get_model_config(model).config.parameters["labels"].string_value
            assert json.loads(stated) == labels
    assert "labels" not in decoded.get("/v2/models/bare").json
    stated_outputs = decoded.get("/v2/models/boxes").json["outputs"]
    assert [(output["name"], output["shape"]) for output in stated_outputs] == [
        ("boxes", [-1, 4, 4]),
        ("scores", [-1, 4]),
        ("classes", [-1, 4]),
    ]


@pytest.mark.parametrize(
    ("settings", "metadata", "message"),
    [
        ("decode: softmax\n", {}, "decode.as: expected [rows, classes] for 'output0', got"),
        ("decode: yolo\n", {"task": "pose"}, "decode.as: expected a model of task 'detect'"),
        ("decode: yolo\n", {"names": "['a']"}, "labels: expected 2 names"),
        ("decode: {as: yolo, from: out}\n", {}, "decode.from: the model has no output 'out'"),
    ],
)
def test_a_decoder_that_does_not_fit_refuses_the_model(
    zoo: Any, settings: str, metadata: dict[str, str], message: str
) -> None:
    raw_head(zoo, "boxes", settings, ["n", 6, 84], metadata)
    (finding,) = check_repository(zoo.root)
    assert finding.severity is Severity.ERROR
    assert message in finding.message


@pytest.mark.parametrize(
    ("task", "decoder"),
    [("detect", "decode: yolo"), ("classify", "decode: {as: softmax, probabilities: true}")],
)
def test_a_check_says_what_decodes_a_head(zoo: Any, task: str, decoder: str) -> None:
    raw_head(zoo, "boxes", "", ["n", 6, 84], {"task": task})
    (finding,) = check_repository(zoo.root)
    assert finding.severity is Severity.NOTE
    assert f"the file's task is {task!r}; to have raw outputs decoded" in finding.message
    assert decoder in finding.message
