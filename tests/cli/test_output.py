"""What verbs print where stdout and stderr are files or pipes, and at a terminal."""

from __future__ import annotations

import io

import pytest

from slacktide.cli import output
from slacktide.lab.reports import TextTable, rich_table

WIDE = TextTable("", [f"column-{n}" for n in range(60)], [[f"cell-{n}" for n in range(60)]])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its last entry is the time."""
    times = [0.0]
    monkeypatch.setattr(output, "monotonic", lambda: times[-1])
    return times


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    output.console().print(rich_table(WIDE))
    return capsys.readouterr().out.splitlines()


def test_a_table_in_a_file_has_all_of_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = shown(capsys)
    assert any("column-0 " in line and "column-59" in line for line in lines)
    assert any("cell-0 " in line and "cell-59" in line for line in lines)
    assert max(map(len, lines)) < 1000


def test_who_states_columns_has_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, shown(capsys))) <= 70


def test_a_table_at_a_terminal_is_as_wide_as_that(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    output.console().print(rich_table(WIDE))
    assert max(map(len, terminal.getvalue().splitlines())) <= 80


def test_progress_without_a_terminal_is_a_line_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    with output.progress() as move:
        move(0.2, "12 of 60 runs")  # known from before: they teach nothing of the pace
        for done in range(13, 61):
            clock.append(clock[-1] + 10.0)
            move(done / 60, f"{done} of 60 runs")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[:2] == ["15 of 60 runs, about 8 min left", "18 of 60 runs, about 7 min left"]
    assert lines[-2:] == ["57 of 60 runs, about 30 s left", "60 of 60 runs"]
    assert len(lines) == 16


def test_each_part_of_the_work_has_its_own_pace(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    with output.progress() as move:
        move(0.0, "streams")
        clock.append(1000.0)
        move(1.0, "streams")
        move(0.0, "0 of 10 runs")
        clock.append(5000.0)
        move(0.1, "1 of 10 runs")
    assert capsys.readouterr().err == "streams\n1 of 10 runs, about 10.0 h left\n"


def test_short_or_hidden_progress_writes_nothing(
    clock: list[float], capsys: pytest.CaptureFixture[str]
):
    with output.progress() as move:
        clock.append(29.0)
        move(1.0, "all")
    with output.progress(shown=False) as move:
        clock.append(900.0)
        move(0.5, "half")
    assert capsys.readouterr() == ("", "")


def test_at_a_terminal_it_is_a_bar(monkeypatch: pytest.MonkeyPatch, clock: list[float]):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    with output.progress() as move:
        clock.append(900.0)
        move(0.5, "3 of 6 runs")
    assert "50%" in terminal.getvalue()
    assert "left" not in terminal.getvalue()
