"""The whole of it, tiny: the same rows each time, resumed where it was, shown in every form."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from slacktide.lab.load.report import Provenance
from slacktide_papers.harness.run import reproduce
from slacktide_papers.harness.show import page, render
from slacktide_papers.harness.state import ReproduceError, Results
from slacktide_papers.sponge import experiments as room
from slacktide_papers.sponge.experiments import (
    FA2,
    KNOWING,
    UNANNOUNCED,
    VERTICAL,
    SpongeCell,
    static,
)
from slacktide_papers.sponge.paper import PAPER
from slacktide_papers.sponge.play import play
from slacktide_papers.sponge.setting import (
    FIT,
    SETTINGS,
    bandwidths,
    draw,
    measured_points,
    unavoidable,
)
from slacktide_papers.sponge.show import Result

TINY = room.SpongeScope(seeds=1, duration=6, quick=True)
ORIGIN = Provenance("2026-01-01T00:00:00+00:00", {"python": "3"}, "a machine", "abc")
FEW = (VERTICAL, UNANNOUNCED, FA2, static(8), static(16), KNOWING)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "contenders", lambda setting, quick: FEW)


def made(path: Path, *names: str, scope: room.SpongeScope = TINY) -> Result:
    results = Results(path, "code")
    return reproduce(PAPER, PAPER.chosen(names), scope, results, provenance=ORIGIN)


def _shown(result: Result) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(result))
    return console.export_text()


@pytest.mark.slow
def test_rows_repeat_and_are_resumed(tmp_path):
    first = made(tmp_path / "a.jsonl", "figure-4")
    again = made(tmp_path / "a.jsonl", "figure-4")
    assert (first.stored_cells, first.cells) == (0, 2 * len(FEW))
    assert again.stored_cells == again.cells == first.cells
    assert again.rows == first.rows
    assert again.goals == first.goals
    by_policy = {row.policy: row for row in first.rows if row.setting == "figure-4"}
    assert list(by_policy) == [contender.label for contender in FEW]
    assert by_policy["static-8"].mean_cores == pytest.approx(8.0)
    assert by_policy["static-16"].mean_cores == pytest.approx(16.0)
    assert by_policy["clairvoyant"].mean_cores == by_policy["vertical"].clairvoyant_cores
    assert {row.unavoidable_rate for row in by_policy.values()} == {0.0}
    document = orjson.loads(first.to_json())
    assert {row["setting"] for row in document["rows"]} == {"figure-4", "figure-4-poisson"}
    for column in ("policy", "violation_rate", "unavoidable_rate", "mean_cores", "p99_ms"):
        assert column in document["rows"][0]
    assert not document["recorded"]
    lines = list(csv.DictReader(io.StringIO(first.to_csv())))
    assert [line["policy"] for line in lines] == [row.policy for row in first.rows]
    shown = _shown(first)
    for text in ("static-16", "clairvoyant", "Goals", "drawn from a seed", "< 12.8"):
        assert text in shown
    assert page(first).count("<svg") == 4


def test_figures_that_are_not_simulated(tmp_path):
    result = made(tmp_path / "a.jsonl", "figure-1", "table-1", "figure-3")
    assert result.cells == 0
    assert [figure.size_kb for figure in result.extras.budgets] == [100, 200, 500]
    assert result.extras.budgets[0].mean > result.extras.budgets[2].mean
    assert [figure.printed_cores for figure in result.extras.instances] == [6, 5, 6, 8, 8, 8]
    shown = _shown(result)
    assert "Figure 3 needs the measured latencies" in shown
    assert page(result).count("<svg") == 2


def test_recorded_files_are_read(tmp_path):
    folder = tmp_path / "data" / "below"
    folder.mkdir(parents=True)
    (folder / "ghent_4g_bus_0001.csv").write_text("time_s,bandwidth_mbps\n0,40\n1,8\n2,20\n")
    rows = "".join(f"4,{second},{second % 7}\n" for second in range(100))
    (folder / "irish_5g_download_1s.csv").write_text(f"trace_id,time_s,bandwidth_mbps\n{rows}")
    points = "".join(
        f"{batch},{cores},{1e3 * FIT.seconds(batch, cores)}\n"
        for batch in (1, 2, 8)
        for cores in (1, 4, 16)
    )
    (folder / "sponge_cpu_latency.csv").write_text(f"batch,cores,latency_ms\n{points}")
    names = ("figure-1", "figure-3")
    scope = PAPER.with_data(TINY, tmp_path / "data", names)
    result = made(tmp_path / "a.jsonl", *names, scope=scope)
    assert result.extras.megabytes[:3] == (5.0, 1.0, 2.5)
    assert result.extras.fit is not None
    assert result.extras.fit.worst_error < 1e-6
    assert [goal.met for goal in result.goals] == [True, True]
    assert page(result).count("<svg") == 3


def test_requests_that_a_slow_link_dooms_are_unavoidable():
    data = bandwidths(None)
    setting = replace(SETTINGS["figure-4"], payload_kb=2_500)
    requests = draw(setting, "model", 1, 0.0, 60.0, data)
    doomed = unavoidable(setting, requests)
    link = requests.ready - requests.sent
    assert 0 < doomed.sum() < len(doomed)
    assert doomed.tolist() == (link + setting.seconds(1, 16) > 1.0).tolist()
    assert (requests.believed >= requests.sent).all()


def test_an_outage_changes_no_order():
    requests = draw(SETTINGS["5g"], "model", 1, -30.0, 300.0, bandwidths(None))
    assert (requests.ready[1:] >= requests.ready[:-1]).all()


@pytest.mark.parametrize(
    ("setting", "cores"), [("figure-4", 7), ("x4", 4), ("x3", 3), ("100-per-second", 5)]
)
def test_the_fewest_cores_that_sustain_the_rate(setting: str, cores: int) -> None:
    assert SETTINGS[setting].steady_cores == cores


def test_slips_are_named(tmp_path):
    with pytest.raises(
        ReproduceError, match="expected an experiment, got 'figure-2'; valid: figure-1"
    ):
        PAPER.chosen(("figure-2",))
    with pytest.raises(ReproduceError, match="--data: expected a folder"):
        bandwidths(tmp_path / "nowhere")
    with pytest.raises(ReproduceError, match=r"--data: expected .*ghent_4g\*\.csv under"):
        bandwidths(tmp_path)
    (tmp_path / "sponge_cpu_latency.csv").write_text("batch,cores\n1,2\n")
    with pytest.raises(ReproduceError, match=r"--data: sponge_cpu_latency\.csv: 'latency_ms'"):
        measured_points(tmp_path)


@pytest.mark.parametrize(("name", "fails"), [("figure-4", False), ("800kb", True), ("x7", True)])
def test_eight_fixed_cores_fail_where_they_are_said_to_and_sixteen_hold(
    name: str, fails: bool
) -> None:
    eight, sixteen = (play(SpongeCell(name, static(cores), 1, duration=120)) for cores in (8, 16))
    assert sixteen.violations == sixteen.unavoidable
    assert (eight.violations > eight.unavoidable) == fails
