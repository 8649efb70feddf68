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
from slacktide.lab.cli.demo.mechanisms import Acted, acted, equip
from slacktide.lab.cli.demo.pipeline import PipelineRun, judge, judged_frame
from slacktide.lab.cli.demo.pipeline_report import (
    Judged,
    JudgedFrame,
    pipeline_report,
    show_pipeline,
)
from slacktide.lab.cli.demo.shared import show_parts
from slacktide.lab.examples import make_repository
from slacktide.lab.examples.street import BRANDS, CHARACTERS, KINDS, RoadUser, Scene
from slacktide.lab.load import played_calls
from slacktide.lab.load.played_calls import MetricSample, get_metrics
from slacktide.models.check import Severity, check_repository

RUN = PipelineRun("traffic", seconds=2.0, loads=(0.5, 1.5))
MEASURED = {"cores": ((0,), (1,)), "cpu_share": 1.0}
CAR = RoadUser(0, (0.1, 0.1, 0.3, 0.3), "left", BRANDS[2], "A0X7")
SCENE = Scene(np.zeros((8, 8, 3), np.uint8), (CAR,))


def outputs(plate: str = "A0X7") -> dict[str, Any]:
    """Two boxes, of which the second shows the car and the first no road user."""
    boxes = np.array([[[0.6, 0.6, 0.9, 0.9], [0.1, 0.1, 0.31, 0.3], [0, 0, 0, 0]]])
    brands = np.eye(len(BRANDS))[[2, 5]]
    letters = np.eye(len(CHARACTERS))[[CHARACTERS.index(each) for each in plate]]
    return {
        "street.boxes": boxes,
        "street.classes": np.array([[3, 0, 0]]),
        "brand.logits": brands,
        "brand.rows": np.array([1, 0]),
        "plate.logits": letters[None],
        "plate.rows": np.array([1]),
    }


def test_what_was_said_of_each_box_stands_beside_what_is_so() -> None:
    car, empty = judge(SCENE, ["brand", "plate"], outputs())
    assert car.said == car.true == {"brand": BRANDS[2], "plate": "A0X7"}
    assert (car.kind, empty.kind) == (0, 3)
    assert (empty.said, empty.true) == ({"brand": BRANDS[5]}, {"brand": None})
    (only,) = judge(SCENE, ["plate"], outputs())
    assert only.said == {"plate": "A0X7"}


def test_an_empty_street_is_judged_as_such() -> None:
    nothing = outputs()
    for name in ("brand", "plate"):
        nothing |= {f"{name}.{each}": nothing[f"{name}.{each}"][:0] for each in ("logits", "rows")}
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
        "parameters": {**parameters, "budget_us": 5, "street.budget_us": 20_000},
        "outputs": [
            {"name": name, "data": array.ravel().tolist(), "shape": list(array.shape)}
            for name, array in outputs().items()
            if name.partition(".")[0] not in missing
        ],
    }
    frame = judged_frame(SCENE, ["brand", "plate"], 200, 0.1, answer)
    assert (frame.reason, frame.missing, frame.slack) == (reason, missing, {"street": 0.02})
    assert len(frame.boxes) == 2
    refused = judged_frame(SCENE, ["brand"], 504, 0.01, {"error": "no", "reason": "expired"})
    assert (refused.reason, refused.boxes) == ("expired", ())


@pytest.fixture
def report() -> dict[str, Any]:
    right = Judged((0.1, 0.2, 0.3, 0.4), 0, {"brand": "aster", "plate": "1"}, {"brand": "aster"})
    right.true["plate"] = "1"
    wrong = Judged((0.0, 0.0, 1.0, 1.0), 3, {"brand": "borea"}, {"brand": "jovex"})
    unknown = Judged((0.5, 0.5, 1.0, 1.0), 5, {"brand": "delmo"}, {"brand": None})
    slack = {"street": 0.030, "brand": 0.050}
    calm = [JudgedFrame(0.1, "complete", (), slack, (right, wrong, unknown))] * 4
    busy = [
        calm[0],
        JudgedFrame(0.15, "partial", ("plate",), {"street": 0.010}, ()),
        JudgedFrame(0.3, "late"),
        JudgedFrame(0.01, "expired"),
    ]
    stats = {"stage_stats": [1]}
    did = [Acted("placement", "traffic", 7, "as frames came")]
    made = pipeline_report(RUN, "200ms", 10.0, {0.5: calm, 1.5: busy}, stats, did)
    return made | MEASURED


def test_loads_are_summed_up_one_by_one(report: Any) -> None:
    calm, busy = report["loads"]
    assert (calm["rate"], calm["complete"], calm["boxes"]) == (5.0, 1.0, 3.0)
    assert (busy["complete"], busy["partial"], busy["late"]) == (0.25, 0.25, 0.25)
    assert busy["refused"] == {"expired": 0.25}
    assert busy["missing"] == {"plate": 0.25}
    assert busy["slack"]["street"] == pytest.approx({"p50": 0.020, "p5": 0.011})
    assert calm["seconds"] == pytest.approx({"p50": 0.1, "p99": 0.1})
    assert report["right"] == {"brand": 0.5, "plate": 1.0}
    assert report["server"] == [1]


def test_the_tables_say_so(report: Any) -> None:
    out = Console(width=160, record=True, file=StringIO())
    show_parts(show_pipeline(json.loads(json.dumps(report))), out)
    text = out.export_text()
    for part in (
        "At 1.5 x capacity 50% of the frames were answered within 200ms: 25% by all stages, 25%",
        "no plate",
        "0.100 0.200 0.300 0.400",
        "borea (jovex)",
        "delmo (no road user)",
        KINDS[3],
        "10.0 frames/s with 3.0 boxes each",
        "Right, of all boxes on a road user: brand 50%,",
        "What acted",
        "as frames came",
    ):
        assert part in text, text


def test_a_run_in_which_nothing_was_answered_is_shown_as_well() -> None:
    nothing = {1.0: [JudgedFrame(0.01, "expired")]}
    out = Console(width=120, record=True, file=StringIO())
    report = pipeline_report(RUN, "200ms", 10.0, nothing, {}) | MEASURED
    show_parts(show_pipeline(report), out)
    assert "At 1 x capacity 0% of the frames" in out.export_text()


def test_there_is_no_headline_where_other_programs_held_the_cores(report: Any) -> None:
    out = Console(width=160, record=True, file=StringIO())
    show_parts(show_pipeline({**report, "cpu_share": 0.5}), out)
    text = out.export_text()
    assert "other programs used 50 % of these cores" in text
    assert "of the frames were answered within" not in text
    assert "no plate" in text


def test_models_are_equipped_as_one_lane_whose_classifier_is_left_early(tmp_path: Path) -> None:
    make_repository(tmp_path, models=["traffic"])
    equip(tmp_path, "traffic", 2)
    settings = {
        name: yaml.safe_load((tmp_path / name / "slacktide.yaml").read_text())
        for name in ("street", "brand", "plate")
    }
    assert {each["lane"] for each in settings.values()} == {"traffic"}
    assert all(each["cores"] == {"min": 1, "max": 2} for each in settings.values())
    assert [name for name, each in settings.items() if "early_exit" in each] == ["brand"]
    assert settings["plate"]["lengths"] == [48, 112, 208]
    found = check_repository(tmp_path)
    assert not [each for each in found if each.severity is Severity.ERROR]


def test_what_acted_is_read_off_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path, models=["traffic"])
    sizes = [
        {"rows": rows, "cores": 1, "size": size, "p50_s": rows * size}
        for rows in (1, 32)
        for size in (0.5, 2.0)
    ]
    profile = tmp_path / "plate" / "1" / "profile.abc.json"
    profile.write_text(json.dumps({"profile": {"record": {"sizes": sizes}}}))
    variants = [
        {"variant": each, "inference_count": count}
        for each, count in (("128", 0), ("256", 3), ("576", 9))
    ]
    exits = {
        "ramps": [{"request_count": 4}, {"request_count": 1}],
        "accuracy": 0.995,
        "reason": "tuned",
    }
    stage = {"stage": "street", "lanes": ["traffic"], "largest_variant": "416"}
    placed = {
        "placements": 3,
        "early_placements": 2,
        "rebounds": 1,
        "stages": [stage],
        "reason": "why",
    }
    stats = {
        "street": {"variant_stats": variants},
        "brand": {"exit_stats": exits, "outcome_stats": {"on_time": 20, "early_exit": 5}},
        "traffic": {"placement": placed},
    }
    monkeypatch.setattr(
        played_calls,
        "get_json",
        lambda target, path: {"model_stats": [stats[path.split("/")[3]]]},
    )
    metrics = [
        MetricSample("slacktide_variant_switches_total", {"model": "street"}, 2.0),
        MetricSample("slacktide_rescued_total", {"model": "street"}, 5.0),
        MetricSample("slacktide_rescued_total", {"model": "other"}, 99.0),
        MetricSample("slacktide_resizes_total", {"outcome": "confirmed"}, 6.0),
        MetricSample("slacktide_lane_core_seconds_total", {"lane": "traffic"}, 41.7),
    ]
    nowhere: Any = None
    found = list(acted(nowhere, metrics, "traffic", tmp_path))
    assert [(entry.mechanism, entry.stage, entry.count) for entry in found] == [
        ("variants", "street", 7),
        ("early exits", "brand", 5),
        ("times by width", "plate", 3),
        ("cores that move", "traffic", 6),
        ("placement", "traffic", 3),
    ]
    told = " ".join(entry.told for entry in found)
    for part in (
        "2 sizes answered, 256 to 576",
        "of 25 requests",
        "99.5%",
        "48 to 208 pixels",
        "4.0 times as long",
        "42 core-seconds",
        "street at most 416",
    ):
        assert part in told


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
        (["--loads", "1,fast"], "--loads: expected numbers above 0"),
        (["--loads", "0"], "--loads: expected numbers above 0"),
        (["--pipeline", "trafic"], "no example pipeline is called 'trafic'"),
    ],
)
def test_what_cannot_be_played_is_named(
    flags: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "pipeline", *flags])
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.slow
def test_a_short_run_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--pipeline", "surveillance", "--seconds", "1", "--loads", "0.5"]
    done = CliRunner().invoke(app, ["demo", "pipeline", *flags])
    assert done.exit_code == 0, done.output
    assert "written: pipeline-report.json" in done.stdout
    found = json.loads((tmp_path / "pipeline-report.json").read_text())
    assert found["capacity"] > 0
    assert found["loads"][0]["frames"] > 0
    assert {each["stage"] for each in found["server"]} == {"street", "clothing", "direction"}
    did = {each["mechanism"] for each in found["acted"]}
    assert did == {"variants", "early exits", "cores that move", "placement"}
