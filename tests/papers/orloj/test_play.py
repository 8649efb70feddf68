"""One simulated run: it repeats exactly, and everybody is accounted for."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from slacktide.domain.options import OptionError
from slacktide_papers.harness.experiments import identity
from slacktide_papers.orloj import play as room
from slacktide_papers.orloj.experiments import (
    FAIR,
    NOTICED,
    ORACLE,
    ORLOJ_TEXT,
    PUBLISHED,
    SLACK,
    SYMPHONY,
    OrlojCell,
    OrlojContender,
)
from slacktide_papers.orloj.play import Finish, play

CELL = OrlojCell(setting="P", contender=SLACK, seed=1, case="two-modal", slo=2.0, requests=300)


@pytest.mark.parametrize(
    "contender",
    [*PUBLISHED, ORLOJ_TEXT, SYMPHONY, SLACK, ORACLE, NOTICED, FAIR],
    ids=lambda policy: policy.label,
)
def test_every_contender_repeats_exactly_and_loses_nobody(contender):
    cell = replace(CELL, contender=contender)
    finish = play(cell)
    assert finish == play(cell)
    assert list(finish.submitted) == ["short", "long"]
    assert sum(finish.submitted.values()) == 300
    assert all(finish.on_time[name] <= finish.submitted[name] for name in finish.submitted)
    assert 0.0 <= finish.rate < 1.0


def test_of_the_runs_of_the_yardstick_the_best_counts(monkeypatch):
    cell = replace(CELL, setting="Q", case="exponential", slo=5.0, contender=ORACLE, requests=600)
    best = play(cell).rate
    rates = []
    for kappa in room.KAPPAS:
        monkeypatch.setattr(room, "KAPPAS", (kappa,))
        rates.append(play(cell).rate)
    assert len(set(rates)) > 1
    assert best == max(rates)


def test_requests_are_the_same_for_every_scheduler_and_slo():
    first = play(CELL)
    second = play(replace(CELL, slo=5.0, contender=PUBLISHED[0]))
    assert first.submitted == second.submitted
    assert first.submitted != play(replace(CELL, seed=2)).submitted


def test_with_all_the_time_in_the_world_everybody_finishes():
    assert play(replace(CELL, slo=500.0)).rate == 1.0
    assert play(replace(CELL, slo=500.0, contender=NOTICED)).rate == 1.0


def test_who_cannot_even_run_alone_does_not_finish():
    # The SLO is below c0, five sixths of the time alone.
    assert play(replace(CELL, slo=0.5)).rate == 0.0


def test_overhead_that_nobody_was_told_of_costs_answers():
    short = replace(CELL, p99_ms=10.0)
    assert play(replace(short, overhead_ms=2.0)).rate < play(short).rate
    # All times scale: without overhead nothing changes.
    assert play(short) == play(CELL)


def test_a_trace_moves_the_arrivals():
    assert play(replace(CELL, trace=(1.0, 30.0))) != play(CELL)


def test_an_unknown_policy_or_option_is_named():
    with pytest.raises(OptionError, match="expected a scheduler, got 'orlo'"):
        play(replace(CELL, contender=OrlojContender("orlo", "orlo")))
    with pytest.raises(OptionError, match="tetha: unknown key; did you mean 'theta'"):
        play(replace(CELL, contender=OrlojContender("slack", "slack", (("tetha", 2.0),))))


def test_a_cell_is_the_same_run_whatever_its_contender_is_called():
    renamed = replace(CELL, contender=OrlojContender("our own", "slack"))
    assert renamed == CELL
    assert identity(renamed) == identity(CELL)
    assert identity(replace(CELL, seed=2)) != identity(CELL)


def test_a_finish_survives_as_plain_data():
    finish = Finish({"short": 4, "long": 6}, {"short": 4, "long": 3})
    assert (finish.rate, finish.rate_of("short"), finish.rate_of("long")) == (0.7, 1.0, 0.5)
    assert Finish(**asdict(finish)) == finish
