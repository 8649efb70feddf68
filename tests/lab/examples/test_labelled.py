"""Labelled pictures that `models make --samples` writes: the files, and their lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktide.lab.examples import ExamplesError, make_repository
from slacktide.lab.examples.frames import KINDS as FRAME_KINDS
from slacktide.lab.examples.street import KINDS, SIZE


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


@pytest.fixture
def without_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slacktide.lab.examples.labelled.load_opencv", lambda: None)


@pytest.mark.usefixtures("without_opencv")
def test_boxes_and_classes_of_a_detector(tmp_path: Path) -> None:
    (folder,) = make_repository(tmp_path, models=["street"], pictures=4)
    labels = lines(folder / "data")
    assert [line["image"] for line in labels] == [f"images/{i:06}.npy" for i in range(4)]
    for line in labels:
        assert set(line) == {"image", "boxes", "classes"}
        picture = np.load(folder / "data" / line["image"], allow_pickle=False)
        assert (picture.shape, picture.dtype) == ((SIZE, SIZE, 3), np.uint8)
        boxes = np.array(line["boxes"])
        assert boxes.shape == (len(line["classes"]), 4)
        assert boxes.min() >= 0
        assert boxes.max() <= 1
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert set(line["classes"]) <= set(range(len(KINDS)))


@pytest.mark.usefixtures("without_opencv")
def test_labels_of_a_classifier_are_in_equal_parts(tmp_path: Path) -> None:
    (folder,) = make_repository(tmp_path, models=["vehicles"], pictures=20)
    labels = lines(folder / "data")
    assert all(set(line) == {"image", "label"} for line in labels)
    assert sorted(line["label"] for line in labels) == sorted([*range(len(FRAME_KINDS))] * 2)
    assert np.load(folder / "data" / labels[0]["image"]).shape == (96, 96, 3)


def test_pictures_are_added_and_replaced_beside_a_model_that_is_kept(tmp_path: Path) -> None:
    (folder,) = make_repository(tmp_path, models=["vehicles"])
    assert not (folder / "data").exists()
    (folder / "slacktide.yaml").write_text("slo: 1s\n")
    make_repository(tmp_path, models=["vehicles"], pictures=3)
    make_repository(tmp_path, models=["vehicles"], pictures=2)
    assert len(lines(folder / "data")) == len([*(folder / "data" / "images").iterdir()]) == 2
    assert (folder / "slacktide.yaml").read_text() == "slo: 1s\n"
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "vehicles"}


def test_the_same_pictures_are_drawn_each_time(tmp_path: Path) -> None:
    once, again = (
        make_repository(tmp_path / name, models=["street"], pictures=2)[0] for name in "ab"
    )
    assert lines(once / "data") == lines(again / "data")
    for line in lines(once / "data"):
        images = [(folder / "data" / line["image"]).read_bytes() for folder in (once, again)]
        assert images[0] == images[1]


def test_models_that_take_no_pictures_say_which_do(tmp_path: Path) -> None:
    with pytest.raises(ExamplesError, match="valid: street, street_depth, vehicles"):
        make_repository(tmp_path / "repo", models=["mlp"], pictures=2)
    assert not (tmp_path / "repo").exists()
