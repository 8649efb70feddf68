"""The detectors: `street` sees more in larger pictures, `street_depth` after more of its stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slacktide.lab.examples.street import KINDS, SIZE, Street
from slacktide.models.accuracy import Boxes, score_detections

Open = Callable[[str], Any]

SIZES = range(128, 609, 32)


def shrunk(picture: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The mean of the area that each of size x size pixels covers, as cv2.INTER_AREA has it."""
    if size == len(picture):
        return picture
    edges = np.linspace(0, len(picture), size + 1)
    pixels = np.arange(len(picture))
    low, high = np.maximum(edges[:-1, None], pixels), np.minimum(edges[1:, None], pixels + 1)
    weights = (np.clip(high - low, 0, None) * size / len(picture)).astype(np.float32)
    half = (weights @ picture.reshape(len(picture), -1)).reshape(size, len(picture), 3)
    columns = half.transpose(1, 0, 2).reshape(len(picture), -1)
    whole = (weights @ columns).reshape(size, size, 3).transpose(1, 0, 2)
    return np.rint(whole).astype(np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_it_runs_at_each_size(size: int, open_session: Open) -> None:
    pictures = np.stack([shrunk(Street(seed).scene().picture, size) for seed in (1, 2)])
    boxes, scores, kinds = open_session("street").run(None, {"image": pictures})
    assert (boxes.shape, boxes.dtype) == ((2, 96, 4), np.float32)
    assert (scores.shape, scores.dtype) == ((2, 96), np.float32)
    assert (kinds.shape, kinds.dtype) == ((2, 96), np.int64)
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    assert (boxes[..., 2:] >= boxes[..., :2]).all()
    assert (np.diff(scores, axis=1) <= 0).all()
    assert set(kinds.ravel()) <= set(range(len(KINDS)))


@pytest.mark.slow
def test_larger_pictures_are_worth_their_time(open_session: Open) -> None:
    scenes = [Street(30_000 + seed).scene() for seed in range(60)]
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    scores = {}
    for size in (128, 256, SIZE):
        detections = []
        for scene in scenes:
            rows = open_session("street").run(None, {"image": shrunk(scene.picture, size)[None]})
            boxes, confidence, kinds = (row[0] for row in rows)
            detections.append(Boxes(boxes, kinds, confidence))
        scores[size] = score_detections(detections, truth).ap50
    assert scores[SIZE] >= 0.6
    assert scores[SIZE] >= 2 * scores[128]
    assert scores[128] < scores[256] < scores[SIZE]


@pytest.mark.slow
def test_later_stages_find_more_and_judges_know_where(open_session: Open) -> None:
    scenes = [Street(40_000 + seed).scene() for seed in range(40)]
    truth = [Boxes(scene.boxes(), scene.kinds()) for scene in scenes]
    by_depth: list[list[Boxes]] = [[], [], []]
    quality = []
    for scene in scenes:
        session = open_session("street_depth")
        names = [output.name for output in session.get_outputs()]
        rows = session.run(None, {"image": shrunk(scene.picture, 416)[None]})
        outputs = {name: row[0] for name, row in zip(names, rows, strict=True)}
        for boxes, prefix in zip(by_depth, ("depth1/", "depth2/", ""), strict=True):
            at = [outputs[f"{prefix}{name}"] for name in ("boxes", "classes", "scores")]
            boxes.append(Boxes(*at))
        quality.append([outputs["depth1/quality"], outputs["depth2/quality"]])
    scores = [score_detections(depth, truth).ap50 for depth in by_depth]
    assert scores[0] < scores[1] < scores[2] - 0.01
    assert np.min(quality) >= 0
    assert np.max(quality) <= 1
    # What the first judge lets go is nearer to the whole chain than what it holds back.
    order = np.argsort([-depth[0] for depth in quality])
    lost = []
    for part in (order[:20], order[20:]):
        shallow, deep = (
            score_detections([depth[i] for i in part], [truth[i] for i in part])
            for depth in (by_depth[0], by_depth[2])
        )
        lost.append(deep.ap50 - shallow.ap50)
    assert lost[0] < lost[1]
