"""`slacktide profile --accuracy`, on families whose accuracies are known by their making."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from slacktide.lab.examples.street import KINDS, SIZE
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository

Run = Any
FAST = ("--budget", "100ms", "--cores", "1")
BOX = [0.25, 0.25, 0.75, 0.75]
value = helper.make_tensor_value_info


def save(
    path: Path, nodes: Sequence[Any], outputs: Sequence[Any], weights: Any, names: str = ""
) -> None:
    image = value("image", TensorProto.UINT8, ["n", "h", "w", 3])
    held = [numpy_helper.from_array(np.array(values), name) for name, values in weights.items()]
    graph = helper.make_graph(list(nodes), "g", [image], list(outputs), held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if names:
        helper.set_model_props(model, {"names": names})
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))


def detector(path: Path) -> None:
    """Finds a box wherever a pixel is brighter than half: a single one fades where it shrinks."""
    node = helper.make_node
    save(
        path,
        [
            node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            node("ReduceMax", ["x"], ["m"], axes=[1, 2, 3], keepdims=0),
            node("Unsqueeze", ["m", "last"], ["most"]),
            node("Sub", ["most", "half"], ["above"]),
            node("Relu", ["above"], ["scores"]),
            node("Mul", ["most", "none"], ["zero"]),
            node("Cast", ["zero"], ["classes"], to=TensorProto.INT64),
            node("Unsqueeze", ["zero", "last2"], ["zeros"]),
            node("Add", ["zeros", "box"], ["boxes"]),
        ],
        [
            value("boxes", TensorProto.FLOAT, ["n", 1, 4]),
            value("scores", TensorProto.FLOAT, ["n", 1]),
            value("classes", TensorProto.INT64, ["n", 1]),
        ],
        {
            "last": np.array([1]),
            "last2": np.array([2]),
            "half": np.float32(127.0),
            "none": np.float32(0.0),
            "box": np.array([[BOX]], np.float32),
        },
    )


def classifier(path: Path, weights: list[float], names: str = "") -> None:
    """Scores of three classes: the mean of each colour, times its weight."""
    node = helper.make_node
    save(
        path,
        [
            node("Cast", ["image"], ["x"], to=TensorProto.FLOAT),
            node("ReduceMean", ["x"], ["means"], axes=[1, 2], keepdims=0),
            node("Mul", ["means", "weights"], ["scores"]),
        ],
        [value("scores", TensorProto.FLOAT, ["n", 3])],
        {"weights": np.array(weights, np.float32)},
        names,
    )


def write(data: Path, images: Sequence[Any], labels: Sequence[Any]) -> Path:
    (data / "images").mkdir(parents=True)
    lines = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        name = f"images/{number:06d}.npy"
        np.save(data / name, image)
        lines.append(json.dumps({"image": name, **label}))
    (data / "labels.jsonl").write_text("\n".join(lines))
    return data


@pytest.fixture
def stars(tmp_path: Path) -> Path:
    """A bright square on three images, a bright pixel on the fourth, nothing on the last."""
    images = [np.zeros((64, 64, 3), np.uint8) for _ in range(5)]
    for image in images[:3]:
        image[16:48, 16:48] = 255
    images[3][30, 30] = 255
    detections = {"boxes": [BOX], "classes": [0]}
    return write(tmp_path / "data", images, [detections] * 4 + [{"boxes": [], "classes": []}])


def in_force(root: Path, name: str) -> dict[str, float]:
    (definition,) = Repository(root).read(name)
    return ProfileCache(ProfileStore()).accuracies(definition).by_name


def test_sizes_are_scored_through_the_workers_own_resizer(run: Run, tmp_path: Path, stars: Path):
    detector(tmp_path / "m" / "stars" / "1" / "model.onnx")
    (tmp_path / "m" / "stars" / "slacktide.yaml").write_text("max_batch: 2\nvariants: [32, 64]\n")
    done = run("profile", tmp_path / "m" / "stars", *FAST, "--accuracy", stars)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("variants")[2]
    assert re.search(r"accuracy ┃ 95 % +┃ AP50 +┃ F1", table)
    scores = r"1\.000 +│ 1\.000 to 1\.000 +│ 1\.000 +│ 1\.000"
    assert re.search(rf"64 +│ {scores} +│ [\d.]+ ms +│ yes", table)
    assert re.search(r"class +┃ count +┃ 32 AP50:95, F1 +┃ 64 AP50:95, F1", table)
    assert re.search(r"0 +│ 4 +│ 0\.752 0\.857 +│ 1\.000 1\.000", table)
    recalls = pytest.approx(76 / 101)  # three of four: the recalls 0 to 0.75
    assert in_force(tmp_path / "m", "stars") == {"32": recalls, "64": pytest.approx(1.0)}
    kept = json.loads((tmp_path / "m/stars/1/profile.accuracy.json").read_text())["accuracy"]
    assert kept["metric"] == "AP50:95"
    low, high = kept["interval"]["32"]
    assert 0.0 <= low < 0.75 < high <= 1.0
    assert kept["differences"]["64"]["32"][1] > 0.2
    assert kept["ap50"]["32"] == recalls
    assert kept["classes"]["32"]["0"]["count"] == 4
    assert kept["images"] == 5
    assert kept["f1"] == {"32": pytest.approx(6 / 7), "64": 1.0}


def test_measured_accuracy_stands_beside_stated_accuracy(run: Run, tmp_path: Path, stars: Path):
    folder = tmp_path / "m" / "stars"
    detector(folder / "1" / "model.onnx")
    stated = 'variants: {sizes: [32, 64], accuracy: {"32": 0.2, "64": 0.5}}'
    (folder / "slacktide.yaml").write_text(f"max_batch: 2\n{stated}\n")
    done = run("profile", folder, *FAST, "--accuracy", stars)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("variants")[2]
    assert re.search(r"stated ┃ measured ┃ 95 %", table)
    assert re.search(r"32 +│ 0\.200 +│ 0\.752 +│", table)


def test_labels_of_a_classifier_are_refused_for_a_detector(run: Run, tmp_path: Path):
    folder = tmp_path / "m" / "stars"
    detector(folder / "1" / "model.onnx")
    (folder / "slacktide.yaml").write_text("max_batch: 2\nvariants: [32, 64]\n")
    data = write(tmp_path / "data", [np.zeros((8, 8, 3), np.uint8)], [{"label": 0}])
    done = run("profile", folder, *FAST, "--accuracy", data)
    assert done.returncode == 1, done.stdout
    assert "labels.jsonl line 1: expected 'boxes' and 'classes'" in done.stderr
    assert not (folder / "1" / "profile.accuracy.json").exists()


@pytest.mark.slow
def test_files_are_scored_and_one_is_dropped_only_where_it_is_surely_no_better(
    run: Run, tmp_path: Path
):
    folder = tmp_path / "m" / "colours"
    classifier(folder / "1" / "small.onnx", [1.0, 1.0, 0.0])
    classifier(folder / "1" / "middle.onnx", [1.0, 0.0, 1.0])
    classifier(folder / "1" / "large.onnx", [1.0, 1.0, 1.0])
    files = "{small: small.onnx, middle: middle.onnx, large: large.onnx}"
    (folder / "slacktide.yaml").write_text(f"max_batch: 2\nvariants: {{files: {files}}}\n")
    images = [np.zeros((8, 8, 3), np.uint8) for _ in range(3)]
    for colour, image in enumerate(images):
        image[..., colour] = 200
    data = write(tmp_path / "data", images, [{"label": colour} for colour in range(3)])
    done = run("profile", folder, *FAST, "--accuracy", data, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {"1@small", "1@middle", "1@large"} < set(printed)
    scores = {variant["variant"]: variant["accuracy"] for variant in printed["accuracy"]["1"]}
    assert scores == {"small": pytest.approx(2 / 3), "middle": pytest.approx(2 / 3), "large": 1.0}
    middle = next(variant for variant in printed["accuracy"]["1"] if variant["variant"] == "middle")
    assert middle["differences"]["small"] == [-1.0, 1.0]
    checked = run("models", "check", tmp_path / "m", "--files-only")
    assert checked.returncode == 0
    assert "is not served" not in checked.stdout, "three images do not tell two variants apart"
    stated = "accuracy: {small: 0.7, middle: 0.7, large: 0.8}"
    (folder / "slacktide.yaml").write_text(f"variants: {{files: {files}, {stated}}}\n")
    checked = run("models", "check", tmp_path / "m", "--files-only")
    assert "'middle' is not served: its accuracy, 0.7, is not above that" in checked.stdout


@pytest.mark.slow
def test_folders_of_classes_are_scored_whatever_the_format_of_their_images(
    run: Run, tmp_path: Path
):
    folder = tmp_path / "m" / "colours"
    names = "{0: 'Red', 1: 'Green', 2: 'Blue'}"
    classifier(folder / "1" / "model.onnx", [1.0, 0.0, 1.0], names)
    (folder / "slacktide.yaml").write_text("max_batch: 2\nvariants: [8]\n")
    for colour, name in enumerate(("blue", "green", "red")):  # in OpenCV's order
        (tmp_path / "data" / name).mkdir(parents=True)
        for suffix in ("jpg", "png", "bmp", "webp"):
            pixels = np.zeros((16, 12, 3), np.uint8)
            pixels[..., colour] = 200
            cv2.imwrite(str(tmp_path / "data" / name / f"0.{suffix}"), pixels)
    done = run("profile", folder, *FAST, "--accuracy", tmp_path / "data", "--json")
    assert done.returncode == 0, done.stderr
    (score,) = json.loads(done.stdout)["accuracy"]["1"]
    assert score["accuracy"] == pytest.approx(2 / 3)
    shares = {name: class_score["accuracy"] for name, class_score in score["classes"].items()}
    assert shares == {"Blue": 1.0, "Green": 0.0, "Red": 1.0}, "by the names in the file"


def as_coco(data: Path, target: Path) -> Path:
    """Write the labels of an example as COCO has them, with numbers that are far apart."""
    lines = [json.loads(line) for line in (data / "labels.jsonl").read_text().splitlines()]
    images, annotations = [], []
    for number, line in enumerate(lines, 7):
        name = Path(line["image"]).name
        images.append({"id": number, "file_name": name, "width": SIZE, "height": SIZE})
        for box, kind in zip(line["boxes"], line["classes"], strict=True):
            left, top, right, bottom = (SIZE * side for side in box)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": 3 * kind + 5,
                    "bbox": [left, top, right - left, bottom - top],
                    "area": (right - left) * (bottom - top),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": 3 * kind + 5, "name": name} for kind, name in enumerate(KINDS)]
    target.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )
    return target


@pytest.mark.slow
def test_a_coco_file_scores_within_half_a_percent_of_pycocotools_by_hand(run: Run, tmp_path: Path):
    assert not run("models", "make", tmp_path, "--only", "street", "--samples", "20").returncode
    folder = tmp_path / "street"
    file = as_coco(folder / "data", folder / "data" / "instances_val.json")
    (folder / "slacktide.yaml").write_text(f"max_batch: 2\nvariants: [{SIZE}]\n")
    done = run("profile", folder, *FAST, "--accuracy", file, "--json")
    assert done.returncode == 0, done.stderr
    (score,) = json.loads(done.stdout)["accuracy"]["1"]
    assert set(score["classes"]) <= set(KINDS)

    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        detections = []
        for number, image in truth.imgs.items():
            pixels = cv2.imread(str(folder / "data" / "images" / image["file_name"]))[..., ::-1]
            rows = session.run(["boxes", "scores", "classes"], {"image": pixels[None].copy()})
            for box, confidence, kind in zip(*(row[0] for row in rows), strict=True):
                left, top, right, bottom = (SIZE * box).tolist()
                sides = [left, top, right - left, bottom - top]
                detections.append(
                    {
                        "image_id": number,
                        "category_id": 3 * int(kind) + 5,
                        "bbox": sides,
                        "score": float(confidence),
                    }
                )
        by_hand = COCOeval(truth, truth.loadRes(detections), "bbox")
        by_hand.evaluate()
        by_hand.accumulate()
        by_hand.summarize()
    assert score["accuracy"] == pytest.approx(by_hand.stats[0], abs=0.005)
    assert score["ap50"] == pytest.approx(by_hand.stats[1], abs=0.005)
    assert score["interval"][0] < by_hand.stats[0] < score["interval"][1]


@pytest.mark.slow
def test_faults_of_labelled_data_are_named(run: Run, tmp_path: Path, stars: Path):
    folder = tmp_path / "m" / "stars"
    detector(folder / "1" / "model.onnx")
    done = run("profile", folder, *FAST, "--accuracy", stars)
    assert done.returncode == 2
    assert "--accuracy: stars has no variants; add them to its slacktide.yaml" in done.stderr
    (folder / "slacktide.yaml").write_text("max_batch: 2\nvariants: [32]\n")
    labels = stars / "labels.jsonl"
    labels.write_text(labels.read_text() + '\n{"image": "images/9.jpg"}\n')
    done = run("profile", folder, *FAST, "--accuracy", stars)
    assert done.returncode == 2
    assert "--accuracy: labels.jsonl line 6: image: there is no file" in done.stderr
    (stars / "images" / "9.jpg").write_bytes(b"\xff\xd8 no more")
    labels.write_text('{"image": "images/9.jpg", "boxes": [[0, 0, 1, 1]], "classes": [0]}')
    done = run("profile", folder, *FAST, "--accuracy", stars)
    assert done.returncode == 1
    assert "--accuracy: labels.jsonl line 1: " in done.stderr


def test_check_says_what_is_not_known_of_a_family(run: Run, tmp_path: Path):
    detector(tmp_path / "m" / "stars" / "1" / "model.onnx")
    (tmp_path / "m" / "stars" / "slacktide.yaml").write_text("max_batch: 2\nvariants: [32, 64]\n")
    done = run("models", "check", tmp_path / "m")
    assert done.returncode == 0, done.stdout
    assert "the accuracy of 32, 64 is unknown, and is assumed to rise in this order" in done.stdout
    assert "stars/1/model.onnx: no profile of this machine; times are measured" in done.stdout
    (tmp_path / "m" / "stars" / "slacktide.yaml").write_text("variants: {files: {a: a.onnx}}\n")
    done = run("models", "check", tmp_path / "m", "--files-only")
    assert done.returncode == 1
    assert "stars/1/a.onnx: expected a regular file, found none" in done.stdout
