"""`slacktide reproduce` as a user has it."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slacktide.cli import output
from slacktide.cli.main import app
from slacktide_papers import command as verb
from slacktide_papers.orloj import paper
from slacktide_papers.orloj.experiments import OrlojScope

TINY = OrlojScope(seeds=1, requests=60, cases=("two-modal",), slos=(2.0,))


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`--quick` is very quick, and the cache folder is here."""
    monkeypatch.setattr(paper, "PAPER", replace(paper.PAPER, quick=TINY))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def call(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["reproduce", "orloj", *map(str, arguments)])


def test_rows_and_goals_are_printed_and_kept_for_the_next_time(tiny: Path):
    done = call("table-3", "--quick", "--setting", "P", "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert "two-modal" in done.output
    assert "11 runs of 60 requests, 0 of them stored" in done.output
    assert "missed" not in done.output
    assert "too short: a quick run cannot decide" in " ".join(done.output.split())
    assert (tiny / "cache" / "slacktide" / "reproduce-orloj.jsonl").is_file()
    again = call("table-3", "--quick", "--setting", "p", "--jobs", "1")
    assert "11 runs of 60 requests, 11 of them stored" in again.output
    fresh = call("table-3", "--quick", "--setting", "P", "--jobs", "1", "--fresh")
    assert "11 runs of 60 requests, 0 of them stored" in fresh.output


def test_files_are_written(tiny: Path):
    paths = {flag: tiny / f"out.{flag}" for flag in ("json", "csv", "html")}
    flags = [word for flag, path in paths.items() for word in (f"--{flag}", path)]
    names = ("table-2", "table-3")
    done = call(*names, "--quick", "--jobs", "1", "--state", tiny / "s.jsonl", *flags)
    assert done.exit_code == 0, done.output
    document = json.loads(paths["json"].read_text())
    assert {row["setting"] for row in document["rows"]} == {"P", "Q"}
    assert document["scope"]["requests"] == 60
    assert paths["csv"].read_text().startswith("experiment,setting,case,slo_x_p99,scheduler,")
    assert paths["html"].read_text().startswith("<!DOCTYPE html>")


def test_json_on_stdout_is_all_there_is(tiny: Path):
    done = call("table-3", "--quick", "--jobs", "1", "--json", "-")
    assert json.loads(done.stdout)["experiments"] == ["table-3"]
    done = call("table-3", "--quick", "--jobs", "1", "--csv", "-")
    assert all(line.count(",") >= 10 for line in done.stdout.splitlines())


def test_a_pipe_has_whole_lines_and_progress_beside_them(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(output, "PROGRESS_EVERY_S", 0.0)
    monkeypatch.delenv("COLUMNS", raising=False)
    done = call("table-3", "--quick", "--setting", "P", "--jobs", "1")
    progress = done.stderr.splitlines()
    assert progress[0] == "0 of 11 runs"
    assert progress[3].startswith("3 of 11 runs (P ")
    assert progress[3].endswith(" left")
    assert len(progress) == 12
    assert "of 11 runs (" not in done.stdout
    assumed = [line for line in done.stdout.splitlines() if line.startswith("  - ")]
    assert max(map(len, assumed)) > 100  # one line each, and nothing behind it
    assert [line.rstrip() for line in assumed] == assumed
    again = call("table-3", "--quick", "--setting", "P", "--jobs", "1", "--csv", "-")
    assert (again.stdout.count("two-modal"), again.stderr) == (11, "")


def test_ctrl_c_says_how_much_is_kept_and_how_to_go_on(tiny: Path, monkeypatch: pytest.MonkeyPatch):
    plays = itertools.count()

    def play(cell: Any) -> Any:
        if next(plays) == 3:
            raise KeyboardInterrupt
        return whole.play(cell)

    whole = paper.PAPER
    monkeypatch.setattr(paper, "PAPER", replace(whole, play=play))
    state = tiny / "s.jsonl"
    flags = ("table-3", "--quick", "--setting", "P", "--jobs", "1", "--state", state)
    done = call(*flags, "--fresh")
    assert done.exit_code == 130
    assert done.stdout == ""
    message = f"interrupted: 3 of 11 runs are stored in {state}; the same command without --fresh"
    assert done.stderr.splitlines()[-1] == f"{message} continues from there"
    assert "11 runs of 60 requests, 3 of them stored" in call(*flags).output


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_all_processes_and_leaks_nothing(
    number: signal.Signals, code: int, tmp_path: Path
):
    state = tmp_path / "s.jsonl"
    flags = ("table-3", "--quick", "--setting", "P", "--jobs", "2", "--state", str(state))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "slacktide", "reproduce", "orloj", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    # The second line shows that the first run is counted.
    while not (state.exists() and state.read_bytes().count(b"\n") > 1):
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    assert (child.returncode, output) == (code, ""), errors
    assert re.fullmatch(r"interrupted: [1-9]\d* of \d+ runs are stored in .*\n", errors), errors


def test_missed_goals_are_an_exit_code_only_where_asked(tiny: Path):
    # So few requests cannot come near the printed figures.
    assert call("table-3", "--quick", "--jobs", "1").exit_code == 0
    done = call("table-3", "--quick", "--jobs", "1", "--check")
    assert done.exit_code == 1
    assert "goals missed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("table-6",), "expected an experiment, got 'table-6'"),
        (("--data", "nowhere"), "--data: expected a folder, got nowhere"),
        (("--html", "nowhere/page.html"), "--html: no such folder: nowhere"),
        (("--json", "-", "--csv", "-"), "cannot both go to stdout"),
        (("--setting", "R"), "'R' is not one of"),
        (("--seeds", "0"), "--seeds"),
    ],
)
def test_bad_usage_is_said_before_any_work(tiny: Path, arguments: tuple[str, ...], complaint: str):
    done = call(*arguments)
    assert done.exit_code == 2
    assert complaint in " ".join(done.stderr.split())
    assert not (tiny / "cache").exists()


def test_a_state_file_of_something_else_is_refused(tiny: Path):
    (tiny / "notes.txt").write_text("shopping\n")
    done = call("table-3", "--quick", "--state", tiny / "notes.txt")
    assert done.exit_code == 2
    assert "line 1: not a result" in done.stderr


def test_the_program_knows_the_verb(run: Any):
    done = run("reproduce", "orloj", "--help")
    assert done.returncode == 0
    assert "figure-14" in done.stdout
    assert verb.__doc__


def test_sponge_has_figures_that_need_no_run(tiny: Path):
    page = tiny / "page.html"
    arguments = ["reproduce", "sponge", "figure-1", "table-1", "--quick", "--html", str(page)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "500 KB" in done.output
    assert page.read_text().count("<svg") == 2


def test_a_slip_with_sponge_is_named(tiny: Path):
    done = CliRunner().invoke(app, ["reproduce", "sponge", "figure-9"])
    assert done.exit_code == 2
    assert "expected an experiment, got 'figure-9'" in done.output
