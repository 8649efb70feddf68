"""The whole of it, tiny: the same rows each time, resumed where it was, shown in every form."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.console import Console

from slacktide.lab.load.report import Provenance
from slacktide_papers.harness.recorded import azure_counts
from slacktide_papers.harness.run import reproduce
from slacktide_papers.harness.show import page, render
from slacktide_papers.harness.state import ReproduceError, Results
from slacktide_papers.orloj.experiments import EXPERIMENTS, OrlojCell, OrlojScope
from slacktide_papers.orloj.paper import PAPER
from slacktide_papers.orloj.play import Finish, play
from slacktide_papers.orloj.show import Result

TINY = OrlojScope(("P",), seeds=2, requests=120, cases=("two-modal", "static"), slos=(2.0,))
ORIGIN = Provenance("2026-01-01T00:00:00+00:00", {"python": "3"}, "a machine", "abc")


def made(
    path: Path, scope: OrlojScope = TINY, *names: str, paper: Any = PAPER, **fields: Any
) -> Result:
    results = Results(path, "code")
    return reproduce(paper, names or ("table-3",), scope, results, provenance=ORIGIN, **fields)


def test_rows_repeat_exactly(tmp_path):
    first, second = made(tmp_path / "a.jsonl"), made(tmp_path / "b.jsonl")
    assert first.rows == second.rows
    assert first.goals == second.goals
    assert [row.scheduler for row in first.rows] == [
        "clipper",
        "nexus",
        "clockwork",
        "orloj",
        "orloj_text",
        "orloj, by class",
        "symphony",
        "slack",
        "oracle_slack",
        "slack, notice 0.2",
        "slack, theta 2",
    ]


def test_a_run_goes_on_where_it_was(tmp_path):
    path = tmp_path / "state.jsonl"
    whole = made(tmp_path / "whole.jsonl")
    with pytest.raises(KeyboardInterrupt):
        made(path, paper=replace(PAPER, play=_Flaky(fail_after=5)))
    assert len(path.read_bytes().splitlines()) == 5
    resumed = made(path)
    assert (resumed.stored_cells, resumed.cells) == (5, whole.cells)
    assert resumed.rows == whole.rows
    again = made(path)
    assert (again.stored_cells, again.rows) == (again.cells, whole.rows)


class _Flaky:
    """The work, until somebody presses Ctrl-C."""

    def __init__(self, fail_after: int) -> None:
        self.left = fail_after

    def __call__(self, cell: OrlojCell) -> Finish:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return play(cell)


def test_cases_printed_twice_are_measured_once(tmp_path):
    scope = replace(TINY, cases=("two-modal", "std-1"), seeds=1)
    both = made(tmp_path / "a.jsonl", scope, "table-2", "table-3")
    single = made(tmp_path / "b.jsonl", scope, "table-3")
    assert both.cells == single.cells
    assert len(both.rows) > len(single.rows)
    rates = {(row.case, row.scheduler): row.measured_mean for row in both.rows}
    assert rates["std-1", "orloj"] == rates["two-modal", "orloj"]


def test_progress_reaches_the_end(tmp_path):
    steps: list[tuple[float, str]] = []
    made(tmp_path / "a.jsonl", moved=lambda share, text: steps.append((share, text)))
    shares = [share for share, _ in steps]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert steps[0] == (0.0, "0 of 22 runs")
    assert steps[1][1].startswith("1 of 22 runs (P two-modal ")


def test_every_experiment_has_rows_and_assumptions(tmp_path):
    scope = replace(TINY, seeds=1, requests=60, cases=("two-modal", "static", "bart-cnn"))
    result = made(tmp_path / "a.jsonl", scope, *PAPER.chosen(()))
    assert {row.experiment for row in result.rows} == set(EXPERIMENTS) - {"figure-12"}
    assert {time.pending for time in result.extras} == {10, 100, 1_000, 10_000}
    assert any("not public" in text for text in result.assumptions)
    assert any("calibrated on Tables 2 and 3" in text for text in result.assumptions)
    figure = [row for row in result.rows if row.experiment == "figure-13"]
    assert [row.at for row in figure] == [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
    assert all(row.published is None for row in figure)
    document = orjson.loads(result.to_json())
    assert len(document["rows"]) == len(result.rows)
    assert document["assumptions"] == list(result.assumptions)
    assert document["provenance"]["commit"] == "abc"
    lines = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert len(lines) == len(result.rows)
    assert set(orjson.loads(lines[0]["finish_per_class"])) == {"short", "long"}
    shown = _shown(result)
    for text in ("Table 2.", "Table 5.", "Figure 12.", "Figure 14.", "Goals", "b (1/ms)"):
        assert text in shown
    drawn = page(result)
    assert drawn.count("<svg") == 8
    assert "orloj, printed" in drawn


def test_goals_of_less_than_the_whole_are_said_to_be_that(tmp_path):
    result = made(tmp_path / "a.jsonl")
    assert "only indicative" in " ".join(_shown(result).split())
    whole = replace(result, scope=OrlojScope(("P",)), experiments=("table-2", "table-3", "table-4"))
    assert "only indicative" not in " ".join(_shown(whole).split())


def test_a_quick_run_marks_rows_that_it_cannot_rank(tmp_path):
    result = made(tmp_path / "a.jsonl", quick=True)
    for slack, marked in ((0.5, True), (0.519, True), (0.53, False), (0.47, False)):
        rows = [
            replace(row, measured_mean=slack if row.scheduler == "slack" else 0.5)
            for row in result.rows
        ]
        assert ("≈." in _shown(replace(result, rows=rows))) is marked
        assert "≈" not in _shown(replace(result, rows=rows, quick=False))


def test_a_table_fits_a_terminal_of_80(tmp_path):
    result = made(tmp_path / "a.jsonl", replace(TINY, slos=(1.5, 2.0)))
    shown = _shown(result)
    assert "…" not in shown
    assert "two-modal" in shown
    row = next(row for row in result.rows if (row.scheduler, row.slo_x_p99) == ("orloj", 2.0))
    assert f"{row.measured_mean:.2f}".lstrip("0") + "/.75" in shown


def _shown(result: Result) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(result))
    return console.export_text()


def test_an_unknown_experiment_is_refused():
    with pytest.raises(ReproduceError, match="'table-6'; valid: table-2, table-3"):
        PAPER.chosen(("table-2", "table-6"))
    assert PAPER.chosen(("figure-12", "table-2")) == ("table-2", "figure-12")
    assert PAPER.chosen(()) == tuple(EXPERIMENTS)


def test_counts_come_from_the_folder_of_traces(tmp_path):
    with pytest.raises(ReproduceError, match="expected a folder"):
        azure_counts(tmp_path / "nowhere")
    with pytest.raises(ReproduceError, match=r"expected .*azure_functions_2019"):
        azure_counts(tmp_path)
    path = tmp_path / "workload" / "azure_functions_2019_sample.csv"
    path.parent.mkdir()
    path.write_text("function_id,time_s,invocations\n0,0,5\n1,0,2\n0,60,1\n")
    assert azure_counts(tmp_path) == (7.0, 1.0)
    path.write_text("time_s\n1\n")
    with pytest.raises(ReproduceError, match="has no counts by window"):
        azure_counts(tmp_path)
    path.write_text("function_id,time_s,invocations\n0,0,many\n")
    with pytest.raises(ReproduceError, match="line 2"):
        azure_counts(tmp_path)
    path.write_text("function_id,time_s,invocations\n0,0,0\n")
    with pytest.raises(ReproduceError, match="has no invocations"):
        azure_counts(tmp_path)
