"""What `decode` and `labels` may say in slacktide.yaml."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slacktide.executors.ports import DecodeSource, FunctionSource
from slacktide.executors.spawning import SpawnRequest
from slacktide.models.plugins import offer_glue
from slacktide.models.replica_launcher import source_of
from slacktide.models.repository.errors import RepositoryError
from slacktide.models.repository.repository import ModelDefinition, Repository

YOLO = "decode: {as: yolo, from: output0, confidence: 0.3, iou: 0.6, max_detections: 20}\n"
SSD = "as: ssd, from: [loc, conf]"
GIVES = "gives: {map: {datatype: FP32, shape: [-1, 64]}}"


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    offer_glue("settings_decoder", "posixpath:join")


def read(root: Path, add_model: Any, text: str, **files: str) -> ModelDefinition:
    folder = add_model("m", yaml=text)
    for place, content in files.items():
        (folder / place.replace("__", "/").replace("_txt", ".txt")).write_text(content)
    return Repository(root).read("m")[0]


def test_settings_reach_the_worker(root: Path, add_model: Callable[..., Path]) -> None:
    definition = read(root, add_model, YOLO + "labels: names.txt\n", names_txt="cat\ndog\n")
    source = source_of(definition)
    assert source.decode == DecodeSource("yolo", ("output0",), None, 0.3, 0.6, 20)
    assert definition.labels == ("cat", "dog")
    assert source.labels == (root / "m" / "names.txt").resolve()
    request = SpawnRequest(1, source, (0,), "cpu")
    assert SpawnRequest.decode(request.encode()) == request


def test_anchors_are_squares_or_pairs(root: Path, add_model: Callable[..., Path]) -> None:
    text = f"decode: {{{SSD}, strides: [8, 16], anchors: [[16, [32, 8]], [64.5]]}}\n"
    source = source_of(read(root, add_model, text))
    assert source.decode is not None
    assert source.decode.anchors == (((16.0, 16.0), (32.0, 8.0)), ((64.5, 64.5),))
    assert (source.decode.strides, source.decode.variance) == ((8, 16), (0.1, 0.2))
    request = SpawnRequest(1, source, (0,), "cpu")
    assert SpawnRequest.decode(request.encode()) == request


def test_a_name_is_short_for_a_decoder(root: Path, add_model: Callable[..., Path]) -> None:
    source = source_of(read(root, add_model, "decode: softmax\n")).decode
    assert source is not None
    assert (source.name, source.top, source.probabilities) == ("softmax", 5, False)


def test_a_function_decodes_by_the_name_of_its_owner(
    root: Path, add_model: Callable[..., Path]
) -> None:
    text = f"decode: {{as: settings_decoder, from: [a, b], {GIVES}}}\n"
    source = source_of(read(root, add_model, text))
    results = [{"name": "map", "datatype": "FP32", "shape": [-1, 64]}]
    interface = {"inputs": [], "outputs": results, "max_batch": 0}
    assert source.decode is not None
    assert source.decode.outputs == ("a", "b")
    assert source.decode.function == FunctionSource("posixpath:join", interface)
    request = SpawnRequest(1, source, (0,), "cpu")
    assert SpawnRequest.decode(request.encode()) == request


def test_labels_of_a_version_go_before_those_of_the_model(
    root: Path, add_model: Callable[..., Path]
) -> None:
    text = "labels: names.txt\n"
    definition = read(root, add_model, text, names_txt="old\n", **{"1__names_txt": "new\n"})
    assert definition.labels == ("new",)


def test_labels_of_a_triton_config_are_read_if_they_can_be(
    root: Path, add_model: Callable[..., Path]
) -> None:
    folder = add_model("m", pbtxt='output [{name: "y" label_filename: "labels.txt"}]')
    assert Repository(root).read("m")[0].labels == ()
    (folder / "labels.txt").write_text("cat\ndog\n")
    assert Repository(root).read("m")[0].labels == ("cat", "dog")
    (folder / "labels.txt").write_text("crane\ncrane\n")
    assert Repository(root).read("m")[0].labels == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("decode: yollo\n", r"decode\.as: expected yolo, ssd, softmax, sigmoid, db, ctc or the n"),
        ("decode: os:system\n", r"decode\.as: expected yolo, .* got 'os:system'"),
        ("decode: {as: yolo, confidense: 1}\n", r"decode\.confidense: unknown key; .*'confidence'"),
        ("decode: {as: yolo, confidence: 2}\n", r"decode\.confidence: expected .*1"),
        ("decode: {as: yolo, version: v6}\n", r"decode\.version: expected 'v5' or 'v8', got 'v6'"),
        ("decode: {as: yolo, top: 3}\n", r"decode\.top: not allowed with 'as: yolo'"),
        ("decode: {as: ssd}\n", r"decode\.from: expected the outputs of boxes and of scores, such"),
        (f"decode: {{{SSD}, strides: [8]}}\n", r"decode\.anchors: expected a list for each of st"),
        (f"decode: {{{SSD}, strides: [8], anchors: [[0]]}}\n", r"anchors.*expected greater than 0"),
        (
            f"decode: {{{SSD}, strides: [8], anchors: [[]]}}\n",
            r"decode\.anchors\[0\]: expected at l",
        ),
        (f"decode: {{{SSD}, strides: [8], anchors: [8]}}\n", r"decode\.anchors\[0\]: expected"),
        (f"decode: {{{SSD}, version: v5}}\n", r"decode\.version: not allowed with 'as: ssd'"),
        ("decode: {as: yolo, anchors: [[8]]}\n", r"decode\.anchors: not allowed with 'as: yolo'"),
        ("decode: {as: softmax, iou: 0.3}\n", r"decode\.iou: not allowed with 'as: softmax'"),
        ("decode: {as: yolo, from: [a, b]}\n", r"decode\.from: expected one output for 'yolo'"),
        ("decode: {as: settings_decoder}\n", r"decode\.gives: expected the results of the funct"),
        ("decode: {from: a}\n", r"decode: expected a key 'as'"),
        ("decode: 3\n", r"decode\.as: expected "),
        ("labels: names.txt\n", r"labels: expected a file 'names\.txt' in m/1 or m, found none"),
        ("labels: ../x.txt\n", r"labels: expected "),
    ],
)
def test_mistakes_name_the_key(
    root: Path, add_model: Callable[..., Path], text: str, message: str
) -> None:
    with pytest.raises(RepositoryError, match=message):
        read(root, add_model, text)


def test_labels_that_are_none_name_the_key(root: Path, add_model: Callable[..., Path]) -> None:
    with pytest.raises(RepositoryError, match=r"labels: line 2: 'cat' is already the name in line"):
        read(root, add_model, "labels: names.txt\n", names_txt="cat\ncat\n")
