"""Evaluations that others wrote: `slacktide reproduce` has a command for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slacktide.cli.main import app

PAPER = """\
from dataclasses import dataclass
from slacktide_papers.harness import (
    Contender, Experiment, ExperimentCell, Goal, Point, Publication, ResultRow, TraceScope
)

@dataclass(frozen=True, slots=True)
class Score:
    share: float

@dataclass(frozen=True, slots=True)
class Row(ResultRow):
    share: float

def points(scope):
    seeds = range(scope.seeds)
    return [Point("table-1", tuple(ExperimentCell("A", Contender("x", "x"), s) for s in seeds))]

def play(cell):
    return Score(cell.seed / 4)

def conclude(experiments, scope, measured):
    rows = [Row(p.experiment, p.setting, sum(o.share for o in seen)) for p, seen in measured]
    return rows, [Goal("A", "share", f"{rows[0].share}", "0.75", rows[0].share == 0.75)], None

PAPER = Publication(
    title="Quarters (2026)", code=(__file__,), experiments={"table-1": Experiment("Q", points)},
    scope=TraceScope(seeds=3, duration=9), quick=TraceScope(seeds=2, duration=1),
    play=play, outcome=Score, row=Row, conclude=conclude,
)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quarters.py").write_text(PAPER)
    monkeypatch.syspath_prepend(tmp_path)


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", ["quarters", "quarters:PAPER"])
def test_one_runs_like_ours(install: Any, tmp_path: Path, name: str, jobs: int) -> None:
    install("shop-papers", "1.0", "publications", quarters="quarters:PAPER", orloj="no:PAPER")
    state = tmp_path / "state.jsonl"
    common = ("--state", str(state), "--jobs", str(jobs))
    result = invoke(name, "--json", "-", *common)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["paper"] == "Quarters (2026)"
    assert document["rows"] == [{"experiment": "table-1", "setting": "A", "share": 0.75}]
    again = invoke(name, "--check", *common)
    assert again.exit_code == 0, again.output
    assert "3 runs of 9 s, 3 of them stored earlier" in " ".join(again.output.split())
    assert "0.75" in again.output
    assert invoke(name, "--data", str(tmp_path), *common).exit_code == 2


def test_the_help_lists_them_without_an_import(install: Any) -> None:
    install("shop-papers", "1.0", "publications", quarters="no:PAPER", orloj="no:PAPER")
    text = invoke("--help").output
    assert "From shop-papers 1.0." in text
    assert text.count("orloj") == 1
    assert "did you mean" in invoke("quarter").output.lower()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no:PAPER", "publication 'no:PAPER' cannot be used: ModuleNotFoundError"),
        ("quarters:play", "publication 'quarters:play' cannot be used: expected a Publication, "),
        ("broken", "publication 'broken' (no:PAPER of shop-papers 1.0) cannot be used: ModuleNot"),
    ],
)
def test_an_entry_that_is_no_publication_is_named(install: Any, name: str, message: str) -> None:
    install("shop-papers", "1.0", "publications", broken="no:PAPER")
    result = invoke(name)
    assert result.exit_code == 2
    assert message in result.stderr
