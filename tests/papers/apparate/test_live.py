"""Streams played to a real server, beside the same streams in virtual time."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab.simulation.drawn_exit_tables import DrawnExits
from tests.papers.apparate.test_run import ORIGIN

from slacktide.lab.load.played_rows import PlayedRow
from slacktide_papers.apparate import stage_times
from slacktide_papers.apparate.experiments import ExitScope
from slacktide_papers.apparate.goals import goals_of
from slacktide_papers.apparate.live import LiveStream, compared, play_live
from slacktide_papers.apparate.make_tables import (
    LIVE,
    LIVE_INPUTS,
    TableOrder,
    live_orders,
    make_table,
    prepared,
)
from slacktide_papers.apparate.paper import PAPER
from slacktide_papers.apparate.play import PlayedExits
from slacktide_papers.apparate.setting import STREAMS, TableFile
from slacktide_papers.apparate.show import ExitFigures
from slacktide_papers.apparate.stream_features import StreamFeatures
from slacktide_papers.harness.run import Reproduction
from slacktide_papers.harness.show import render
from slacktide_papers.harness.state import ReproduceError

LEVELS = tuple(float(level) for level in range(101))
PREDICTED = PlayedExits(4, 4, 4, LEVELS, 1.0, 1.0, (1.0,), 0.5, 1.5, 2, 1.0, 0.5)
ORDER = TableOrder(STREAMS["chained/day"], 8, 4)


def live() -> LiveStream:
    rows = [PlayedRow(0.010, 1, "r3"), PlayedRow(0.012, 0, ""), PlayedRow(0.014, 2, "r3")]
    stats = {"ramps": [{"threshold": 0.1}, {"threshold": None}], "alarms": 1}
    return compared(ORDER, 30.0, rows, [1, 0, 0], PREDICTED, stats)


def test_live_figures_stand_beside_predicted_ones() -> None:
    stream = live()
    assert stream.exits == (pytest.approx(2 / 3), 0.5)
    assert stream.agreement == (pytest.approx(2 / 3), 1.0)
    assert stream.p50_ms == (pytest.approx(12.0), 50.0)
    assert (stream.ramps, stream.alarms) == ((1, 1.5), 1)


def test_goals_hold_it_to_the_promise_and_to_two_points() -> None:
    stream = live()
    goals = goals_of([], [], [stream, replace(stream, exits=(0.51, 0.5), agreement=(0.995, 1.0))])
    assert [goal.met for goal in goals] == [False, False, True, True]
    assert goals[1].measured == "+16.7%"


def test_it_is_shown_and_written() -> None:
    figures = ExitFigures({}, [], [], [live()])
    reproduction = Reproduction(PAPER, ("live",), ExitScope(), [], [], figures, ORIGIN, 0, 0)
    out = io.StringIO()
    Console(file=out, width=120).print(render(reproduction))
    text = out.getvalue()
    assert "Live. The served model" in text
    assert [line.split()[-5:-2] for line in text.splitlines() if "predicted " in line][:1] == [
        ["50.0%", "100.00%", "50.0"]
    ]
    assert b'"exits":[0.66' in reproduction.to_json().replace(b" ", b"").replace(b"\n", b"")


def test_it_is_played_only_where_it_is_asked_for_by_name() -> None:
    assert "live" not in PAPER.chosen([])
    assert PAPER.chosen(["live"]) == ("live",)


def test_a_vision_and_a_text_stream_are_played_unless_it_is_to_be_quick() -> None:
    orders = live_orders(ExitScope())
    assert [order.name for order in orders] == list(LIVE)
    assert [order.inputs - order.trained for order in orders] == [LIVE_INPUTS] * 3
    assert [order.name for order in live_orders(ExitScope(quick=True))] == ["chained/day"]
    (frames, groups, texts) = live_orders(ExitScope(inputs=100))
    assert (frames.inputs, groups.inputs, texts.inputs) == (2_980, 10_900, 2_100)


def test_tables_of_others_cannot_be_played_live(tmp_path: Path) -> None:
    DrawnExits(inputs=40).table(2).save(tmp_path / "mine.npz")
    scope = ExitScope().with_tables([tmp_path / "mine.npz"])
    with pytest.raises(ReproduceError, match="--table: expected none with live"):
        prepared(scope, ["live"], jobs=1, moved=lambda share, text: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text/drifting", "chained/day, groups"])
def test_a_short_stream_is_played_to_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stage_times, "ROUNDS", {1: 1, 2: 1})
    monkeypatch.setattr(stage_times, "SECONDS", 0.0)
    order = TableOrder(STREAMS[name], 340, 300)
    make_table(order)
    path = order.path(StreamFeatures(order.stream))
    stream = play_live(order, TableFile.of(order.name, path))
    assert stream.inputs == 40
    assert stream.agreement[0] == 1.0  # of rows that ran to the end, but for what is rounded
    assert stream.exits == (0.0, 0.0)  # too few were judged for any to leave
    assert 0.0 < stream.p50_ms[0] <= stream.p99_ms[0]
