"""A server that places its pipelines: what it decides is told, recorded and replayed, and answers
stay what they are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.streets import SEEN, agree, ask_frame, frame, outputs, pipeline, street

from slacktide.engine import EngineSettings
from slacktide.lab.replay import replay
from slacktide.recording import Recording

EYES = """
slo: 20s
variants:
  sizes: [32, 64]
  accuracy: {"32": 0.3, "64": 0.8}
"""
IMAGE = frame(*SEEN)
LIMIT_S = 60.0


def page_of(house: Any) -> str:
    return str(house.ask(house.server.metrics_port, "GET", "/metrics").body.decode())


def placed(house: Any, name: str, count: int) -> dict[str, Any]:
    """What is told of the placement of a pipeline, once so many were computed while frames come."""
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        for pipeline_name in ("street", "watch"):
            assert ask_frame(house, IMAGE, name=pipeline_name).status == 200
        (stats,) = house.get(f"/v2/models/{name}/stats").json["model_stats"]
        if stats["placement"]["placements"] >= count and stats["placement"]["stages"][0]["lanes"]:
            return dict(stats["placement"])
    raise AssertionError(stats["placement"])


def test_stages_are_placed_as_frames_come(
    tmp_path: Path, zoo: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    street(zoo)
    zoo.sight("eyes", settings=EYES)
    pipeline(zoo, "watch", "slo: 20s\nstages: {see: eyes}")
    path = tmp_path / "server.rec"
    patient = EngineSettings(hang_floor=30.0)
    monkeypatch.setattr("slacktide.server.app.EngineSettings", lambda: patient)
    options = {"placement": "pipeline", "control_port": 0, "hang_floor": 30.0, "record": path}
    with serve(zoo, **options) as house:
        (stats,) = house.get("/v2/models/street/stats").json["model_stats"]
        assert stats["placement"]["placements"] == 0
        placement = placed(house, "watch", 1)
        assert "expected in time" in placement["reason"]
        (stage,) = placement["stages"]
        assert stage["stage"] == "see"
        assert stage["largest_variant"] in (None, "32", "64")  # as fast as this machine is
        assert stage["lanes"] == ["shared"]
        agree(outputs(ask_frame(house, IMAGE)), IMAGE)
        # Models that are loaded anew, and pipelines that come and go, are placed as they are then.
        assert house.post("/v2/repository/models/colour/load", {}).status == 200
        assert house.post("/v2/repository/models/watch/unload", {}).status == 200
        agree(outputs(ask_frame(house, IMAGE)), IMAGE)
        assert house.post("/v2/repository/models/watch/load", {}).status == 200
        placement = placed(house, "street", 2)
        assert {stage["stage"] for stage in placement["stages"]} == {
            "detect",
            "look",
            "shade",
            "grade",
        }
        assert all(stage["lanes"] == ["shared"] for stage in placement["stages"])
        page = page_of(house)
        assert "slacktide_placements_total" in page
        agree(outputs(ask_frame(house, IMAGE)), IMAGE)
    assert replay(Recording(path)).difference is None


def test_frames_of_any_size_run_at_most_at_the_largest_variant(zoo: Any, serve: Any) -> None:
    """OctopInf knows no accuracy: its bound is the smallest."""
    zoo.sight("eyes", settings=EYES)
    pipeline(zoo, "watch", "slo: 20s\nstages: {see: eyes}")
    with serve(zoo, placement="octopinf") as house:
        limit = time.monotonic() + LIMIT_S
        ran: list[str] = []
        while ran[-1:] != ["32"] and time.monotonic() < limit:
            answer = ask_frame(house, IMAGE, name="watch", report_timing=True)
            ran.append(answer.json["parameters"]["see.variant"])
        assert ran[-1] == "32", "its picture is of 64 pixels"
        (stats,) = house.get("/v2/models/watch/stats").json["model_stats"]
        assert stats["placement"]["stages"][0]["largest_variant"] == "32"
        named = ask_frame(house, IMAGE, name="watch", report_timing=True, variant="64")
        assert named.json["parameters"]["see.variant"] == "64"


def test_without_a_placement_nothing_is_said_of_it(zoo: Any, serve: Any) -> None:
    street(zoo)
    with serve(zoo) as house:
        (stats,) = house.get("/v2/models/street/stats").json["model_stats"]
        assert "placement" not in stats
        assert "slacktide_placements_total" not in page_of(house)


def test_other_planners_go_on_within_what_is_told(zoo: Any, serve: Any) -> None:
    """Of two models whose cores have a range each leaves the other what that needs; no variant is
    chosen that is less accurate than a pipeline wants."""
    zoo.sight("eyes", settings=EYES)
    zoo.sight("more", settings=EYES.replace("variants", "cores: {min: 1, max: 2}\nvariants"))
    pipeline(zoo, "street", "slo: 20s\nstages: {see: {model: eyes, accuracy: 0.5}}")
    pipeline(zoo, "watch", "slo: 20s\nstages: {see: more}")
    with serve(zoo, placement="pipeline", hang_floor=30.0) as house:
        placement = placed(house, "watch", 1)
        (stage,) = placement["stages"]
        assert stage["most_cores"] in (None, 1, 2)
        assert stage["early_exits"] is True
        (stage,) = placed(house, "street", 1)["stages"]
        assert stage["largest_variant"] == "64"
        assert stage["most_cores"] is None  # its cores have no range
        assert ask_frame(house, IMAGE).status == 200


def test_an_accuracy_that_no_variant_has_is_refused(zoo: Any, serve: Any) -> None:
    zoo.sight("eyes", settings=EYES)
    pipeline(zoo, "watch", "slo: 20s\nstages: {see: {model: eyes, accuracy: 0.9}}")
    with serve(zoo) as house:
        (index,) = [
            entry
            for entry in house.post("/v2/repository/index", {}).json
            if entry["name"] == "watch"
        ]
        assert "stages.see.accuracy: expected at most 0.8" in index["reason"]
