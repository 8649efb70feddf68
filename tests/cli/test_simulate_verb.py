"""`slacktide simulate`: the examples of the repository, the flags, the exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.lab.reports import Report
from slacktide.lab.simulation import scenario
from slacktide.lab.simulation.scenario import run_cell

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "scenarios"


def call(*arguments: str | Path) -> Any:
    """`slacktide` with these arguments, in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_runs(path: Path):
    done = call("simulate", path, "--duration", "1s", "--seed", "3", "--jobs", "1")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "goodput" in done.stdout


def test_a_single_run_gives_the_report_that_load_gives(tmp_path: Path):
    done = call(
        *("simulate", EXAMPLES / "recorded.yaml", "--json", "--duration", "5s"),
        *("--html", tmp_path / "page.html", "--csv", tmp_path / "table.csv"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    report = Report.from_json(done.stdout)
    assert (report.kind, report.title, report.seed) == ("simulate", "recorded", 0)
    assert [stream.application for stream in report.streams] == ["mail", "reports"]
    assert report.configuration["duration"] == "5s"
    assert "<svg" in (tmp_path / "page.html").read_text()
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [line["stream"] for line in lines] == ["encoder/mail", "encoder/reports", "total"]


def test_a_grid_over_seeds_in_two_processes_gives_a_sweep(tmp_path: Path):
    done = call(
        *("simulate", EXAMPLES / "two-modal.yaml", "--json", "--duration", "2s", "--jobs", "2"),
        *("--set", "grid={scheduler: [slack, edf]}", "--seed", "1", "--seed", "2"),
        *("--html", tmp_path / "page.html"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    sweep = json.loads(done.stdout)
    assert sweep["kind"] == "sweep"
    assert [row["labels"] for row in sweep["rows"]] == [
        {"scheduler": "slack"},
        {"scheduler": "edf"},
    ]
    assert all(row["seeds"] == [1, 2] for row in sweep["rows"])
    alone = call(
        *("simulate", EXAMPLES / "two-modal.yaml", "--json", "--duration", "2s"),
        *("--set", "grid={}", "--set", "scheduler=edf", "--seed", "2"),
    )
    total = Report.from_json(alone.stdout).total
    assert sweep["rows"][1]["reports"][1]["total"]["outcomes"] == total.outcomes
    assert "Means over 2 seeds" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("scheduler", "length"), [("slack", "60s"), ("oracle_slack", "4s")])
def test_a_file_of_requests_has_a_line_for_each_and_makes_percentiles_exact(
    tmp_path: Path, scheduler: str, length: str
):
    file = tmp_path / "requests.csv"
    flags = ("--set", "grid={}", "--set", f"scheduler={scheduler}", "--seed", "1", "--json")
    scenario = ("simulate", EXAMPLES / "two-modal.yaml", "--duration", length, *flags)
    plain, done = call(*scenario), call(*scenario, "--requests", file)
    assert (done.exit_code, done.stderr) == (0, "")
    total, rough = (Report.from_json(run.stdout).total for run in (done, plain))
    lines = list(csv.DictReader(file.read_text().splitlines()))
    assert len(lines) == total.submitted == rough.submitted
    served = sorted(
        float(line["latency_s"]) for line in lines if line["outcome"] in ("served", "late")
    )
    assert total.latency is not None
    assert rough.latency is not None
    assert total.latency.error == 0.0
    assert (rough.latency.error > 0.0) is (rough.latency.count > 10_000)
    assert total.latency.p99 == pytest.approx(served[-(-99 * len(served) // 100) - 1], abs=1e-9)
    assert sum(line["outcome"] == "served" for line in lines) == total.outcomes["served"]


def test_a_file_of_requests_is_about_one_run(tmp_path: Path):
    file = tmp_path / "requests.csv"
    done = call("simulate", EXAMPLES / "two-modal.yaml", "--requests", file)
    assert done.exit_code == 2
    assert "--requests: expected one run" in done.stderr
    assert not file.exists()


def test_falling_short_exits_1_after_the_table():
    done = call(
        *("simulate", EXAMPLES / "recorded.yaml", "--duration", "1s", "--min-goodput", "0.9"),
        *("--set", "applications.recorded.slo=1ms"),
    )
    assert done.exit_code == 1
    assert "goodput 0.0 %" in done.stdout
    assert "goodput 0.0 % of 'all' is below --min-goodput 90.0 %" in done.stderr


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--set", "scheduler=slak"], "scheduler.name: expected a scheduler, got 'slak'; did you"),
        (["--set", "seed=1"], "error: --set seed: seed: unknown key; did you mean 'seeds'?"),
        (["--set", "applications.recorded.arrivals=poisson:-1"], "rate: must be positive"),
        (["--duration", "10"], "--set duration: duration: expected a duration with its unit"),
        (["--html", "/nowhere/page.html"], "--html: no such folder: /nowhere"),
        (["--csv", "/nowhere/t.csv"], "--csv: no such folder: /nowhere"),
    ],
)
def test_bad_usage_exits_2_and_names_the_key(flags: list[str], complaint: str):
    done = call("simulate", EXAMPLES / "recorded.yaml", *flags)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["--replay", "--predict"])
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--set", "seed=1"),
        ("--duration", "1s"),
        ("--jobs", "2"),
        ("--csv", "t.csv"),
        ("--html", "page.html"),
        ("--min-goodput", "0.5"),
    ],
)
def test_flags_without_effect_on_recordings_are_refused(verb: str, flag: str, value: str):
    done = call("simulate", verb, "none.rec", flag, value)
    assert done.exit_code == 2
    assert done.stderr == f"error: {flag} has no effect with {verb}: leave it out\n"


@pytest.mark.parametrize(
    ("arguments", "flag", "kind"),
    [
        (["--replay", "none.rec", "world.yaml"], "SCENARIO.yaml", "--replay"),
        (["--predict", "none.rec", "world.yaml"], "SCENARIO.yaml", "--predict"),
        (["--replay", "none.rec", "--predict", "none.rec"], "--predict", "--replay"),
        (["--replay", "none.rec", "--seed", "1"], "--seed", "--replay"),
        (["--replay", "none.rec", "--after", "0s"], "--after", "--replay"),
        (["--replay", "none.rec", "--hindsight"], "--hindsight", "--replay"),
        (["--predict", "none.rec", "--decisions"], "--decisions", "--predict"),
        (["--predict", "none.rec", "--request", "1"], "--request", "--predict"),
        (["world.yaml", "--decisions"], "--decisions", "a scenario"),
        (["world.yaml", "--request", "1"], "--request", "a scenario"),
        (["world.yaml", "--after", "1s"], "--after", "a scenario"),
    ],
)
def test_flags_of_another_kind_of_simulation_are_refused(
    arguments: list[str], flag: str, kind: str
):
    done = call("simulate", *arguments)
    assert done.exit_code == 2
    assert done.stderr == f"error: {flag} has no effect with {kind}: leave it out\n"


def test_the_environment_may_say_what_recordings_pass_over(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLACKTIDE_SIMULATE_JOBS", "2")
    done = CliRunner().invoke(
        app, ["simulate", "--replay", "none.rec"], auto_envvar_prefix="SLACKTIDE"
    )
    assert (done.exit_code, "none.rec" in done.stderr) == (2, True)
    assert "no effect" not in done.stderr


def test_a_scenario_that_is_not_there_exits_2(tmp_path: Path):
    done = call("simulate", tmp_path / "none.yaml")
    assert (done.exit_code, "No such file" in done.stderr) == (2, True)


def test_ctrl_c_shows_what_was_done(monkeypatch: pytest.MonkeyPatch):
    done = []

    def twice(cell, seed, **rest):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(seed)
        return run_cell(cell, seed)

    monkeypatch.setattr(scenario, "run_cell", twice)
    shown = CliRunner().invoke(
        app,
        [
            *("simulate", str(EXAMPLES / "recorded.yaml"), "--duration", "1s", "--jobs", "1"),
            *("--set", "seeds=[5, 6, 7]"),
        ],
    )
    assert shown.exit_code == 1
    assert done == [5, 6]
    assert "over 2 seeds, interrupted" in shown.output
    assert "error: interrupted" in shown.output
