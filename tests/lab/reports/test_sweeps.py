"""Sweeps at a terminal and as a page."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from slacktide.lab.load.report import Provenance, Report
from slacktide.lab.reports import render_sweep, sweep_page
from slacktide.lab.simulation.scenario import Sweep
from slacktide.lab.simulation.scenario.sweep import SweepRow
from slacktide.lab.simulation.world.results import Scorer


def report(goodput: float, applications: tuple[str, ...] = ("a", "b")) -> Report:
    """A hundred requests, of which this share were served; nobody's requests are all alike."""
    empty = Scorer(duration_s=10.0).report(
        title="t",
        seed=1,
        configuration={},
        provenance=Provenance("2026-01-01T00:00:00+00:00", {"slacktide": "0"}, "a machine"),
    )
    total = replace(empty.total, submitted=100, outcomes={"served": round(goodput * 100)})
    streams = tuple(replace(total, name=f"m/{name}") for name in applications)
    return replace(empty, total=total, streams=streams)


def text(sweep: Sweep) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(render_sweep(sweep))
    return capture.get()


def sweep(key: str, *values: str) -> Sweep:
    rows = tuple(
        SweepRow({key: value, "s": "edf"}, (report(0.5 + 0.1 * number), report(0.6 + 0.1 * number)))
        for number, value in enumerate(values)
    )
    return Sweep("A sweep", rows)


def test_a_line_for_each_cell_with_error_and_streams() -> None:
    shown = text(sweep("scheduler", "slack", "edf <b>"))
    assert "A sweep: mean ± standard error over 2 seeds" in shown
    (line,) = [line for line in shown.splitlines() if "slack" in line]
    assert " ".join(line.split()) == "slack edf 55.0 % ± 5.0 55.0 % 55.0 % 0.0 % 0.0 % –"
    heading = next(line for line in shown.splitlines() if "goodput" in line)
    assert heading.split()[:5] == ["scheduler", "s", "goodput", "a", "b"]


def test_a_yardstick_that_is_beaten_is_said_to_be_no_bound() -> None:
    rows = tuple(
        SweepRow({"load": load, "scheduler": scheduler}, (report(goodput),))
        for load, scheduler, goodput in (
            ("1", "oracle_slack", 0.8),
            ("1", "slack", 0.9),
            ("1", "edf", 0.7),
            ("2", "oracle_slack", 0.6),
            ("2", "slack", 0.6),
            ("2", "edf", 0.5),
        )
    )
    remark = "oracle_slack is not a bound here: 1, slack did better"
    assert remark in text(Sweep("t", rows))
    assert remark in sweep_page(Sweep("t", rows))
    assert "bound" not in text(Sweep("t", (*rows[:1], *rows[2:])))
    assert "bound" not in sweep_page(Sweep("t", rows[3:]))


def test_names_are_short_only_where_that_tells_them_apart() -> None:
    rows = (SweepRow({"models.m.share": "1", "models.n.share": "2"}, (report(0.5, ("a",)),)),)
    shown = text(Sweep("t", rows))
    assert "models.m.share" in shown
    assert " a " not in shown  # a single stream is the total


def test_a_page_draws_curves_along_numbers_and_bars_otherwise() -> None:
    curves = sweep_page(sweep("load", "1", "2.5"))
    bars = sweep_page(sweep("scheduler", "slack", "edf <b>"))
    for page in (curves, bars):
        assert "<svg" in page
        assert "<b>" not in page
        assert "Means over 2 seeds" in page
        assert "2026-01-01T00:00:00+00:00 on a machine" in page
    assert ">load<" in curves
    assert ">load<" not in bars
    assert "edf &lt;b&gt;" in bars


def test_an_interrupted_sweep_says_so() -> None:
    cut = replace(sweep("load", "1"), interrupted=True)
    assert "interrupted" in text(cut)
    assert "Interrupted" in sweep_page(cut)
