"""A detector with exits of its own, served for real: pictures leave on the word of its judge."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from numpy.typing import NDArray
from onnxruntime import InferenceSession

from slacktide.lab.examples import example
from slacktide.lab.examples.street import Street

WHOLE = ("boxes", "scores", "classes")
SIDE = 96
SETTINGS = """\
max_batch: 4
inputs: {{image: {{shape: [{side}, {side}, 3]}}}}
early_exit:
  mode: {mode}
  judged:
  - outputs: {{boxes: {early}/boxes, scores: depth1/scores, classes: depth1/classes}}
    quality: depth1/quality
    threshold: {threshold}
"""


def pictures() -> NDArray[np.uint8]:
    """Streets: of noise, some processors compute a quality of 0 for every picture."""
    return np.stack([Street(seed).scene(size=SIDE).picture for seed in range(8)])


def whole() -> dict[str, NDArray[Any]]:
    """All that the file gives for these pictures."""
    content = example("street_depth").onnx()
    session = InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"image": pictures()}), strict=True))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, zoo_at: Any, serve: Any) -> Iterator[Any]:
    zoo = zoo_at(tmp_path_factory.mktemp("judged") / "repository")
    zoo.matmul()
    threshold = round(1.0 - float(np.median(whole()["depth1/quality"])), 6)
    for name, mode, early in (
        ("leaves", "shrink", "depth1"),
        ("runs_on", "release", "depth1"),
        ("wrong", "shrink", "dpeth1"),
    ):
        folder = zoo.root / name / "1"
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(example("street_depth").onnx())
        settings = SETTINGS.format(side=SIDE, mode=mode, early=early, threshold=threshold)
        (folder.parent / "slacktide.yaml").write_text(settings)
    with serve(zoo) as house:
        yield house


@pytest.mark.parametrize("model", ["leaves", "runs_on"])
def test_pictures_that_the_judge_finds_good_leave_with_what_its_head_found(
    house: Any, model: str
) -> None:
    def is_cut(app: Any) -> bool:
        states = [state for pool, state in app.exits.states.items() if pool.model == model]
        return any(state.ramps and state.open_chain == state.ramps for state in states)

    house.until(is_cut, f"the stages of {model!r} are open")
    expected, images = whole(), pictures()
    quality = expected["depth1/quality"].reshape(-1)
    with tritonclient.http.InferenceServerClient(house.http) as client:
        metadata = client.get_model_metadata(model)
        assert [output["name"] for output in metadata["outputs"]] == list(WHOLE)

        def ask(first: int, count: int = 1, **parameters: bool) -> tuple[str, Any]:
            asked = tritonclient.http.InferInput("image", [count, SIDE, SIDE, 3], "UINT8")
            asked.set_data_from_numpy(images[first : first + count])
            all_parameters = {"report_timing": True, **parameters}
            answer = client.infer(model, [asked], parameters=all_parameters)
            return str(answer.get_response()["parameters"]["exit"]), answer

        left = []
        for place in range(len(images)):
            exit, answer = ask(place)
            prefix = "depth1/" if exit else ""
            for name in WHOLE:
                np.testing.assert_allclose(
                    answer.as_numpy(name)[0], expected[f"{prefix}{name}"][place], atol=1e-5
                )
            left += [place] if exit else []
            assert exit in ("", "depth1/quality")
        assert left == np.flatnonzero(quality > np.median(quality)).tolist()
        assert ask(left[0], final=True)[0] == ""
        unsure = [place for place in range(len(images) - 1) if place not in left]
        assert ask(unsure[0], 2)[0] == "", "a request leaves where the last of its rows would"
    (stats,) = house.get(f"/v2/models/{model}/stats").json["model_stats"]
    (ramp,) = stats["exit_stats"]["ramps"]
    assert (ramp["tensor"], ramp["request_count"]) == ("depth1/quality", len(left))
    assert ramp["judged_rows"] == 0, "no class is held against another"
    assert stats["exit_stats"]["accuracy"] is None


def test_a_name_that_the_file_does_not_have_is_told_with_its_key(house: Any) -> None:
    index = house.post("/v2/repository/index", {}).json
    (reason,) = [entry["reason"] for entry in index if entry["name"] == "wrong"]
    assert "early_exit.judged[0].outputs.boxes: the model has no output 'dpeth1/boxes'" in reason
