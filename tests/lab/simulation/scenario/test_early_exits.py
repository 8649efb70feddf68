"""A model with an exit table: its requests are the inputs of the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.simulation.drawn_exit_tables import DrawnExits
from tests.lab.simulation.drawn_scenes import DrawnScenes

from slacktide.lab.simulation.scenario import ScenarioError, build, run_cell
from slacktide.lab.simulation.scenario.reading import parse_scenario

TEXT = """
duration: 40s
models:
  m:
    exits: drawn.npz
    early_exit: 1%
applications:
  a: {model: m, arrivals: "poisson:20", slo: 60ms}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DrawnExits(inputs=900).table(4).save(tmp_path / "drawn.npz")
    return tmp_path


def test_requests_leave_early_where_settings_say_so(folder: Path) -> None:
    (cell,) = parse_scenario(TEXT, "s.yaml", folder)
    early = run_cell(cell, 1)
    assert early.total.reasons["early_exit"] > 50
    assert run_cell(cell, 1).total == early.total
    (plain,) = parse_scenario(TEXT, "s.yaml", folder, ["models.m.early_exit="])
    assert "early_exit" not in run_cell(plain, 1).total.reasons


def test_a_table_that_is_none_is_named(folder: Path) -> None:
    (folder / "drawn.npz").write_text("no")
    (cell,) = parse_scenario(TEXT, "s.yaml", folder)
    with pytest.raises(ScenarioError, match=r"models\.m\.exits: drawn\.npz is not an exit table"):
        build(cell)


def test_early_exits_need_a_table(folder: Path) -> None:
    text = TEXT.replace("exits: drawn.npz", "latency: {batches: [1], p50: [9ms]}")
    with pytest.raises(ScenarioError, match="early_exit: needs 'exits'"):
        parse_scenario(text, "s.yaml", folder)


def test_answers_are_remembered_where_the_table_has_early_features(folder: Path) -> None:
    changes = ["models.m.early_exit={remember: {frames: 2}}"]
    (cell,) = parse_scenario(TEXT, "s.yaml", folder, changes)
    with pytest.raises(ScenarioError, match=r"models\.m\.exits: exit table: early: expected"):
        build(cell)
    (plain,) = parse_scenario(TEXT, "s.yaml", folder)
    scenes = DrawnScenes(exits=DrawnExits(inputs=900, ability=(-3.0, 0.0)), flicker=0.0)
    scenes.table(4).save(folder / "drawn.npz")
    early = run_cell(cell, 1).total.reasons["early_exit"]
    assert early > 200
    assert early > 2 * run_cell(plain, 1).total.reasons.get("early_exit", 0)
