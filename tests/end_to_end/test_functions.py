"""Functions of the server's owner as models: stages of their own, run once for all they feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.end_to_end.streets import (
    SEEN,
    SIDE,
    ask_frame,
    colour,
    crops,
    detector,
    frame,
    outputs,
    pipeline,
)

CODE = """
import time
import numpy as np

def turn(image):
    first = int(image[0, 0, 0, 0])
    if first <= 5 and (image == first).all():  # as no made-up image is
        if first == 1:
            raise RuntimeError("no")
        if first == 2:
            return "a picture"
        if first == 3:
            return image[:0], image.mean((1, 2, 3), dtype=np.float32)
        if first == 4:
            image[0] = 0  # it is not its own
        if first == 5:
            time.sleep(1000)
    return 255 - image, image.mean((1, 2, 3), dtype=np.float32)

def shift(x):
    return x + 1
"""
TURN = f"""
max_batch: 8
function:
  name: turn
  takes: {{image: {{datatype: UINT8, shape: [-1, {SIDE}, {SIDE}, 3]}}}}
  gives:
    image: {{datatype: UINT8, shape: [-1, {SIDE}, {SIDE}, 3]}}
    light: {{datatype: FP32, shape: [-1]}}
"""
TURNED = """
slo: 20s
stages: {detect: detector, turn: turn, look: colour, shade: colour}
edges:
  - {from: detect, to: turn, each: box, when: {score: 0.5}}
  - {from: turn, to: look}
  - {from: turn, to: shade}
"""
SHIFT = """
function:
  name: shift
  takes: {x: {datatype: INT32, shape: [3]}}
  gives: {y: {datatype: INT32, shape: [3]}}
"""


def function(zoo: Any, name: str, text: str) -> None:
    (zoo.root / name).mkdir()
    (zoo.root / name / "slacktide.yaml").write_text(text)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("functions")
    zoo = zoo_at(folder / "repository")
    detector(zoo)
    colour(zoo, settings="max_batch: 8\n")
    function(zoo, "turn", TURN)
    function(zoo, "shift", SHIFT)
    function(zoo, "unknown", SHIFT.replace("name: shift", "name: shifty"))
    pipeline(zoo, "turned", TURNED)
    (folder / "street_functions.py").write_text(CODE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        glue = {name: f"street_functions:{name}" for name in ("turn", "shift")}
        with serve(zoo, control_port=0, glue=glue) as served:
            served.folder = folder
            yield served


def counted(house: Any, model: str) -> int:
    (stats,) = house.get(f"/v2/models/{model}/stats").json["model_stats"]
    return int(stats["inference_count"])


def whole(tensors: Any, image: Any) -> None:
    """By hand: boxes by score, turned, and their mean colour."""
    expected = crops(image, *(SEEN[place] for place in (1, 2, 0)))
    np.testing.assert_allclose(tensors["turn.image"], 255 - expected, atol=0)
    np.testing.assert_allclose(tensors["turn.light"], expected.mean((1, 2, 3)), rtol=1e-5)
    for stage in ("look", "shade"):
        np.testing.assert_allclose(tensors[f"{stage}.mean"], 255 - expected.mean((1, 2)), atol=1e-2)


def test_a_function_that_feeds_two_stages_runs_once_for_both(house: Any) -> None:
    before = counted(house, "turn"), counted(house, "colour")
    for seed in (1, 2):
        image = frame(*SEEN, seed=seed)
        whole(outputs(ask_frame(house, image, "turned")), image)
    assert (counted(house, "turn"), counted(house, "colour")) == (before[0] + 6, before[1] + 12)


def test_a_function_is_a_model_like_others(house: Any) -> None:
    call = house.call_of({"x": ("INT32", [3], [1, 2, 3])})
    assert outputs(house.infer("shift", call))["y"].tolist() == [2, 3, 4]
    about = house.get("/v2/models/turn").json
    assert [output["name"] for output in about["outputs"]] == ["image", "light"]
    assert about["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, SIDE, SIDE, 3]}]
    assert list((house.folder / "repository" / "turn").glob("profile.*.json"))


@pytest.mark.parametrize(
    ("shade", "reason"),
    [
        (1, "the function 'turn' raised RuntimeError: no"),
        (2, "the function 'turn' returned 1 arrays, expected 2"),
        (3, "the function 'turn' returned 0 rows as 'image', expected 1"),
        (4, "ValueError: assignment destination is read-only"),
    ],
)
def test_a_faulty_function_costs_its_branch_alone(house: Any, shade: int, reason: str) -> None:
    image = frame(*SEEN, seed=3)
    image[1:] = shade
    answers = [
        house.spawn(ask_frame, house, picture, "turned") for picture in (image, frame(*SEEN))
    ]
    partial = outputs(answers[0].result(), partial="turn,look,shade")
    assert {name.partition(".")[0] for name in partial} == {"detect"}
    whole(outputs(answers[1].result()), frame(*SEEN))
    flat = np.full((1, SIDE, SIDE, 3), shade)
    call = house.call_of({"image": ("UINT8", flat.shape, flat.ravel().tolist())})
    answer = house.infer("turn", call)
    assert answer.status == 500
    assert reason in answer.json["error"]


@pytest.mark.slow
def test_one_that_hangs_is_ended_and_comes_back(house: Any) -> None:
    image = frame(*SEEN, seed=3)
    image[1:] = 5
    with house.taken_to_hang_after(1.5):
        outputs(ask_frame(house, image, "turned"), partial="turn,look,shade")
    image = frame(*SEEN, seed=4)
    whole(outputs(ask_frame(house, image, "turned")), image)


def test_a_name_that_nothing_was_registered_under_is_refused_with_its_key(house: Any) -> None:
    index = {model["name"]: model for model in house.post("/v2/repository/index").json}
    assert index["unknown"]["state"] == "UNAVAILABLE"
    assert "function.name: expected the name of a glue function" in index["unknown"]["reason"]
    assert "did you mean 'shift'" in index["unknown"]["reason"]


def test_a_repository_cannot_name_a_module(tmp_path: Path, zoo_at: Any) -> None:
    from slacktide.models.repository.errors import SettingsError
    from slacktide.models.repository.repository import Repository

    zoo = zoo_at(tmp_path / "repository")
    function(zoo, "evil", SHIFT.replace("name: shift", "name: 'os:system'"))
    with pytest.raises(SettingsError, match=r"function\.name: expected the name"):
        Repository(zoo.root).read("evil")
