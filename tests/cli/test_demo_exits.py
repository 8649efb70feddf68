"""The demo of early exits: its report, and one short run of all of it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from slacktide.cli.main import app
from slacktide.lab.cli.demo import exits
from slacktide.lab.cli.demo.exits import ExitsRun, exits_report, show_exits
from slacktide.lab.cli.demo.shared import print_report
from slacktide.lab.load.played_rows import PlayedRow

RUN = ExitsRun("residual", seconds=2.0, rate=2.0)
RAMP = {
    "position": 3,
    "tensor": "r3",
    "threshold": 0.25,
    "request_count": 4,
    "judged_rows": 8,
    "agreeing_rows": 6,
}


@pytest.fixture
def report() -> dict[str, Any]:
    vanilla = [PlayedRow(0.010, kind, "") for kind in (0, 1, 2, 3, 0, 1, 2, 3)]
    early = [
        *(PlayedRow(0.004, kind, "r3") for kind in (0, 1, 2, 0)),  # the fourth differs
        *(PlayedRow(0.012, kind, "") for kind in (0, 1, 2, 3)),
    ]
    stats = {"ramps": [RAMP], "reason": "an alarm"}
    answers = {"as it is": vanilla, "early exits": early}
    return exits_report(RUN, answers, stats, 7.0)


def text_of(report: Any) -> str:
    out = Console(width=160, record=True, file=StringIO())
    print_report(json.loads(json.dumps(report)), show_exits, out)
    return out.export_text()


def test_each_stream_is_told_apart(report: Any) -> None:
    day, night = report["parts"]
    assert (day["stream"], night["stream"]) == ("day", "night")
    assert day["seconds"]["as it is"]["median"] == pytest.approx(0.010)
    assert day["seconds"]["early exits"]["median"] == pytest.approx(0.004)
    assert (day["left_early"], day["differ"]) == (1.0, 0.25)
    assert (day["saved"], night["saved"]) == (pytest.approx(0.6), pytest.approx(-0.2))
    assert (night["left_early"], night["differ"]) == (0.0, 0.0)


def test_the_whole_is_summed_up(report: Any) -> None:
    assert report["differ"] == 0.125
    assert report["exits"] == {"r3": 4}


def test_the_tables_say_so(report: Any) -> None:
    text = text_of(report)
    for part in (
        "the median answer took 60% less (day), 20% more (night); 12.5% of the answers differed",
        "early exits",
        "3: r3",
        "75",
        "0.250",
        "trained in 7 s on 1500 earlier rows of day",
        "Last change: an alarm.",
    ):
        assert part in text, text


def test_answers_of_which_none_came_early_are_not_compared() -> None:
    vanilla = [PlayedRow(0.010, 0, "")] * 8
    report = exits_report(RUN, {"as it is": vanilla, "early exits": vanilla}, {}, 7.0)
    assert "No answer came early, so the difference is noise" in report["headline"]


def test_rows_that_one_of_both_missed_are_counted_and_not_compared() -> None:
    vanilla = [PlayedRow(0.010, 0, ""), PlayedRow(1.0, None, ""), *[PlayedRow(0.010, 1, "")] * 6]
    early = [PlayedRow(0.5, None, ""), *[PlayedRow(0.005, 1, "r3")] * 7]
    answers = {"as it is": vanilla, "early exits": early}
    report = exits_report(RUN, answers, {}, 7.0)
    day, night = report["parts"]
    assert day["missed"] == {"as it is": 0.25, "early exits": 0.25}
    assert day["seconds"]["as it is"]["p99"] == pytest.approx(0.010)
    assert (day["saved"], day["differ"], night["differ"]) == (pytest.approx(0.5), 0.0, 0.0)
    assert report["answered"] == 0.75
    text = text_of(report)
    assert "No headline: both copies answered only 75% of the rows within 1 s." in text
    assert "With early exits the median" not in text


def test_a_run_in_which_nothing_was_answered_is_shown_as_well() -> None:
    nothing = [PlayedRow(1.0, None, "")] * 8
    report = exits_report(RUN, {"as it is": nothing, "early exits": nothing}, {}, 7.0)
    assert "both copies answered only 0%" in text_of(report)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--loss", "1"], "--loss: expected a percentage"),
        (["--model", "dense"], "dense has no stream called 'day'"),
    ],
)
def test_an_impossible_demo_is_refused(
    flags: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["demo", "exits", *flags])
    assert done.exit_code == 2
    assert sentence in done.output


@pytest.mark.slow
@pytest.mark.timeout(300)  # a busy machine takes minutes
def test_a_short_run_of_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exits, "LEARN", 300)
    flags = ["--seconds", "2", "--rate", "8"]
    done = CliRunner().invoke(app, ["demo", "exits", *flags])
    assert done.exit_code == 0, done.output
    assert "With early exits" in done.stdout
    assert "written: exits-report.json" in done.stdout
    report = json.loads((tmp_path / "exits-report.json").read_text())
    assert [part["rows"] for part in report["parts"]] == [16, 16]
    assert report["server"]["revision"] == 1
    assert report["cores"]
