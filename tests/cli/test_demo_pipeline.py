"""The demo of a pipeline: what a client makes of answers, its report, and one short run."""

from __future__ import annotations

import json
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.lab.cli.demo.mechanisms import counted, equip
from slacktide.lab.cli.demo.pipeline import (
    JudgedBox,
    JudgedFrame,
    PipelineRun,
    judge,
    judged_frame,
    pipeline_report,
    show_pipeline,
)
from slacktide.lab.cli.demo.shared import print_report
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.street import BRANDS, CHARACTERS, KINDS, RoadUser, Scene
from slacktide.lab.load.played_calls import MetricSample, get_metrics
from slacktide.models.check import Severity, check_repository

RUN = PipelineRun("traffic", seconds=2.0, loads=(0.5, 1.5))
MEASURED = {"cores": ((0,), (1,))}
CAR = RoadUser(0, (0.1, 0.1, 0.3, 0.3), "left", BRANDS[2], "A0X7")
SCENE = Scene(np.zeros((8, 8, 3), np.uint8), (CAR,))


def outputs(plate: str = "A0X7") -> dict[str, Any]:
    """Two boxes, of which the second shows the car and the first no road user."""
    boxes = np.array([[[0.6, 0.6, 0.9, 0.9], [0.1, 0.1, 0.31, 0.3], [0, 0, 0, 0]]])
    brands = np.eye(len(BRANDS))[[2, 5]]
    letters = np.eye(len(CHARACTERS))[[CHARACTERS.index(letter) for letter in plate]]
    return {
        "street.boxes": boxes,
        "street.classes": np.array([[3, 0, 0]]),
        "brand.logits": brands,
        "brand.rows": np.array([1, 0]),
        "plate.logits": letters[None],
        "plate.rows": np.array([1]),
    }


def test_each_box_has_its_answers_and_the_truth() -> None:
    car, empty = judge(SCENE, ["brand", "plate"], outputs())
    assert car.answers == car.true == {"brand": BRANDS[2], "plate": "A0X7"}
    assert (car.kind, empty.kind) == (KINDS[0], KINDS[3])
    assert (empty.answers, empty.true) == ({"brand": BRANDS[5]}, {"brand": None})
    (only,) = judge(SCENE, ["plate"], outputs())
    assert only.answers == {"plate": "A0X7"}


def test_an_empty_street_is_judged_as_such() -> None:
    nothing = outputs()
    for name in ("brand", "plate"):
        nothing |= {
            f"{name}.{tensor}": nothing[f"{name}.{tensor}"][:0] for tensor in ("logits", "rows")
        }
    assert judge(SCENE, ["brand", "plate"], nothing) == ()
    assert judge(Scene(SCENE.picture, ()), ["plate"], outputs())[0].true == {"plate": None}


@pytest.mark.parametrize(
    ("parameters", "reason", "missing"),
    [
        ({"late": False}, "complete", ()),
        ({"late": False, "partial": "plate"}, "partial", ("plate",)),
        ({"late": True}, "late", ()),
    ],
)
def test_an_answer_is_complete_partial_or_late(
    parameters: dict[str, Any], reason: str, missing: tuple[str, ...]
) -> None:
    answer = {
        "parameters": parameters,
        "outputs": [
            {"name": name, "data": array.ravel().tolist(), "shape": list(array.shape)}
            for name, array in outputs().items()
            if name.partition(".")[0] not in missing
        ],
    }
    frame = judged_frame(SCENE, ["brand", "plate"], 200, 0.1, answer)
    assert (frame.reason, frame.missing) == (reason, missing)
    assert len(frame.boxes) == 2
    refused = judged_frame(SCENE, ["brand"], 504, 0.01, {"error": "no", "reason": "expired"})
    assert (refused.reason, refused.boxes) == ("expired", ())


@pytest.fixture
def report() -> dict[str, Any]:
    true = {"brand": "aster", "plate": "1"}
    right = JudgedBox(KINDS[0], true, true)
    wrong = JudgedBox(KINDS[3], {"brand": "borea"}, {"brand": "jovex"})
    unknown = JudgedBox(KINDS[5], {"brand": "delmo"}, {"brand": None})
    calm = [JudgedFrame(0.1, "complete", (), (right, wrong, unknown))] * 4
    busy = [
        calm[0],
        JudgedFrame(0.15, "partial", ("plate",)),
        JudgedFrame(0.3, "late"),
        JudgedFrame(0.01, "expired"),
    ]
    did = [("placement", "as frames came", 7)]
    return pipeline_report(RUN, "200ms", 10.0, {0.5: calm, 1.5: busy}, did) | MEASURED


def test_loads_are_summed_up_one_by_one(report: Any) -> None:
    calm, busy = report["loads"]
    assert (calm["rate"], calm["complete"], calm["boxes"]) == (5.0, 1.0, 3.0)
    assert (busy["complete"], busy["partial"], busy["late"]) == (0.25, 0.25, 0.25)
    assert busy["refused"] == {"expired": 0.25}
    assert busy["missing"] == {"plate": 0.25}
    assert calm["seconds"] == pytest.approx({"median": 0.1, "p99": 0.1})
    assert report["right"] == {"brand": 0.5, "plate": 1.0}


def test_the_tables_say_so(report: Any) -> None:
    out = Console(width=160, record=True, file=StringIO())
    print_report(json.loads(json.dumps(report)), show_pipeline, out)
    text = out.export_text()
    for part in (
        "At 1.5 x capacity 50% of the frames were answered within 200ms: 25% by all stages, 25%",
        "no plate",
        "borea (jovex)",
        "delmo (no road user)",
        KINDS[3],
        "10.0 frames/s with 3.0 classified boxes each",
        "Correct answers for boxes on a road user: brand 50%,",
        "Actions of each mechanism",
        "as frames came",
    ):
        assert part in text, text


def test_a_run_in_which_nothing_was_answered_is_shown_as_well() -> None:
    nothing = {1.0: [JudgedFrame(0.01, "expired")]}
    out = Console(width=120, record=True, file=StringIO())
    report = pipeline_report(RUN, "200ms", 10.0, nothing) | MEASURED
    print_report(report, show_pipeline, out)
    assert "At 1 x capacity 0% of the frames" in out.export_text()


def test_models_are_equipped_as_one_lane_whose_classifier_is_left_early(tmp_path: Path) -> None:
    make_repository(tmp_path, models=["traffic"])
    equip(tmp_path, "traffic", 2)
    settings = {
        name: yaml.safe_load((tmp_path / name / "slacktide.yaml").read_text())
        for name in ("street", "brand", "plate")
    }
    assert {setting["lane"] for setting in settings.values()} == {"traffic"}
    assert all(setting["cores"] == {"min": 1, "max": 2} for setting in settings.values())
    assert [name for name, setting in settings.items() if "early_exit" in setting] == ["brand"]
    assert settings["plate"]["lengths"] == [48, 112, 208]
    findings = check_repository(tmp_path)
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]


def test_actions_are_counted_by_the_metrics() -> None:
    metrics = [
        MetricSample("slacktide_variant_switches_total", {"model": "street"}, 2.0),
        MetricSample("slacktide_rescued_total", {"model": "street"}, 5.0),
        MetricSample("slacktide_early_exits_total", {"model": "brand", "exit": "a"}, 4.0),
        MetricSample("slacktide_early_exits_total", {"model": "brand", "exit": "b"}, 1.0),
        MetricSample("slacktide_resizes_total", {"outcome": "confirmed"}, 6.0),
        MetricSample("slacktide_resizes_total", {"outcome": "failed"}, 9.0),
        MetricSample("slacktide_lane_core_seconds_total", {"lane": "traffic"}, 41.7),
        MetricSample("slacktide_placements_total", {}, 3.0),
    ]
    assert [(mechanism, count) for mechanism, _, count in counted(metrics)] == [
        ("variants", 2),
        ("variants", 5),
        ("early exits", 5),
        ("moving cores", 6),
        ("moving cores", 42),
        ("placement", 3),
        ("placement", 0),
        ("placement", 0),
    ]


def test_a_page_of_metrics_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    page = b'# TYPE a gauge\na 1\na_total{model="m",x="y z"} 2.5\n\nnot a sample\n'
    monkeypatch.setattr(
        "slacktide.lab.load.played_calls.urlopen", lambda address, timeout: BytesIO(page)
    )
    assert get_metrics(8002) == [
        MetricSample("a", {}, 1.0), MetricSample("a_total", {"model": "m", "x": "y z"}, 2.5)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--load", "fast"], "Invalid value for '--load'"),
        (["--load", "0"], "Invalid value for '--load'"),
        (["--pipeline", "trafic"], "no example pipeline is called 'trafic'"),
    ],
)
def test_an_impossible_demo_is_refused(
    flags: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "pipeline", *flags])
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes minutes
def test_a_short_run_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--pipeline", "surveillance", "--seconds", "1", "--load", "0.5"]
    done = CliRunner().invoke(app, ["demo", "pipeline", *flags])
    assert done.exit_code == 0, done.output
    assert "written: pipeline-report.json" in done.stdout
    report = json.loads((tmp_path / "pipeline-report.json").read_text())
    assert report["capacity"] > 0
    assert report["loads"][0]["frames"] > 0
    did = {mechanism for mechanism, *_ in report["actions"]}
    assert did == {"variants", "early exits", "moving cores", "placement"}
