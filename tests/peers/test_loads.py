"""What peers have reported, carried forward."""

from __future__ import annotations

import math

import pytest

from slacktide.peers import LoadReport, ModelLoad, PeerLoads


def report(wait_s: float, received: int = 0, model: str = "m") -> LoadReport:
    return LoadReport((ModelLoad(model, wait_s, 0.008, 0.004),), received)


@pytest.fixture
def loads() -> PeerLoads:
    loads = PeerLoads()
    loads.joined("a", now=0.0)
    loads.reported("a", report(0.030), now=0.0)
    return loads


def wait(loads: PeerLoads, now: float) -> float:
    return loads.answer_in("a", "m", 1, 0, now=now) - 0.008


def test_a_report_ages(loads):
    assert wait(loads, 0.0) == pytest.approx(0.030)
    assert wait(loads, 0.020) == pytest.approx(0.010)
    assert wait(loads, 1.0) == 0.0


def test_calls_count_until_a_report_knows_them(loads):
    loads.sent("a", "m", 2, now=0.010)
    loads.sent("a", "m", 1, now=0.010)
    assert wait(loads, 0.010) == pytest.approx(0.020 + 0.012)
    loads.reported("a", report(0.025, received=1), now=0.010)
    assert wait(loads, 0.010) == pytest.approx(0.025 + 0.004)
    loads.reported("a", report(0.025, received=2), now=0.010)
    assert wait(loads, 0.010) == pytest.approx(0.025)


def test_calls_are_counted_off_even_if_a_report_states_no_load(loads):
    loads.sent("a", "m", 1, now=0.010)
    loads.reported("a", LoadReport((), 1), now=0.010)
    assert wait(loads, 0.010) == pytest.approx(0.020)


def test_a_report_that_claims_calls_that_were_not_sent_does_not_hide_later_ones(loads):
    loads.reported("a", report(0.0, received=1_000), now=0.010)
    loads.sent("a", "m", 1, now=0.010)
    assert wait(loads, 0.010) == pytest.approx(0.008)  # it runs alone at once


def test_half_a_round_trip_has_passed_since_a_report_was_made(loads):
    loads.measured("a", rtt_s=0.020, bytes_per_s=1e6)
    loads.reported("a", report(0.030), now=0.0)
    assert loads.answer_in("a", "m", 1, 3_000, now=0.0) == pytest.approx(0.020 + 0.008 + 0.010)
    assert loads.answer_in("a", "m", 1, 20_000, now=0.0) == pytest.approx(0.030 + 0.008 + 0.010)


def test_peers_that_left_or_do_not_serve_the_model_are_not_listed(loads):
    loads.joined("b", now=0.0)
    assert loads.serving("m") == ["a"]
    loads.reported("b", report(0.0), now=0.0)
    assert loads.serving("m") == ["a", "b"]
    loads.reported("a", report(math.inf), now=0.0)
    assert loads.serving("m") == ["b"]
    loads.left("b")
    assert loads.serving("m") == []
    assert loads.serving("n") == []
    assert loads.answer_in("b", "m", 1, 0, now=0.0) == math.inf


def test_a_peer_that_has_come_back_begins_anew(loads):
    loads.sent("a", "m", 5, now=0.0)
    loads.joined("a", now=1.0)
    assert loads.serving("m") == []
    loads.reported("a", report(0.030), now=1.0)
    assert wait(loads, 1.0) == pytest.approx(0.030)


def test_a_peer_that_lies_is_found_out_and_tried_again(loads):
    for i in range(10):
        now = 0.1 * i
        loads.reported("a", report(0.0, received=i), now=now)
        call = loads.sent("a", "m", 1, now=now, budget_s=0.05)
        loads.answered(call, in_time=False, now=now + 0.001)
    assert wait(loads, 1.0) > 0.015
    assert wait(loads, 6.0) < 0.001


def test_answers_that_keep_their_promise_teach_nothing(loads):
    for i in range(10):
        now = 0.1 * i
        loads.reported("a", report(0.0, received=i), now=now)
        call = loads.sent("a", "m", 1, now=now, budget_s=0.05)
        loads.answered(call, in_time=True, now=now + 0.008)
    loads.reported("a", report(0.0, received=10), now=1.0)
    assert wait(loads, 1.0) == pytest.approx(0.0)


def test_late_answers_of_a_peer_that_left_are_ignored(loads):
    call = loads.sent("a", "m", 1, now=0.0)
    loads.left("a")
    loads.answered(call, in_time=False, now=1.0)
    assert loads.sent("a", "m", 1, now=1.0).promised_s == math.inf


def test_old_reports_are_dated_by_the_calls_they_know(loads):
    loads.sent("a", "m", 1, now=0.100)
    loads.sent("a", "m", 1, now=0.101)
    loads.reported("a", report(0.030, received=1), now=0.120)  # made before 0.101
    assert wait(loads, 0.120) == pytest.approx(0.011 + 0.004, abs=0.005)


def test_a_report_that_was_overtaken_is_dropped(loads):
    for _ in range(3):
        loads.sent("a", "m", 1, now=0.1)
    loads.reported("a", report(0.050, received=3), now=0.11)
    loads.reported("a", report(0.0, received=2), now=0.11)
    assert wait(loads, 0.11) == pytest.approx(0.050, abs=0.01)


def test_own_calls_count_if_nothing_is_reported(loads):
    calls = [loads.sent("a", "m", 1, now=0.1) for _ in range(10)]
    assert wait(loads, 1.0) == pytest.approx(0.040)
    for call in calls:
        loads.answered(call, in_time=None, now=1.0)
    assert wait(loads, 1.0) == 0.0


def test_waits_that_others_cause_are_expected_as_reports_age(loads):
    for i in range(1, 40):
        loads.reported("a", report(0.030), now=0.1 * i)
    assert wait(loads, 3.9) == pytest.approx(0.030)
    assert wait(loads, 4.0) > 0.025


@pytest.mark.parametrize(
    "load", [ModelLoad("m", 0.0, math.inf, 0.0), ModelLoad("m", 0, 0, math.inf)]
)
def test_reports_without_finite_times_make_no_choice_of_the_peer(loads, load):
    loads.reported("a", LoadReport((load,), 0), now=0.1)
    assert loads.serving("m") == []
    assert loads.answer_in("a", "m", 1, 0, now=0.1) == math.inf


def test_calls_whose_deadline_is_past_count_no_more(loads):
    for _ in range(10):
        loads.sent("a", "m", 1, now=0.1, budget_s=0.5)
    assert wait(loads, 0.5) == pytest.approx(0.040)
    assert wait(loads, 0.7) == 0.0


def test_calls_that_have_ended_are_forgotten_behind_one_that_has_not(loads):
    loads.sent("a", "m", 1, now=0.0, budget_s=3600.0)
    for number in range(10_000):
        call = loads.sent("a", "m", 1, now=0.001 * number, budget_s=1.0)
        loads.answered(call, in_time=True, now=0.001 * number)
    assert len(loads._peers["a"].models["m"].calls) <= 2 * 1024


def test_batches_of_own_calls_are_not_taken_for_work_of_others(loads):
    for i in range(1, 20):
        now = 0.1 * i
        loads.reported("a", report(0.0, received=2 * i - 2), now=now)
        calls = [loads.sent("a", "m", 1, now=now) for _ in range(2)]
        loads.reported("a", report(0.016, received=2 * i), now=now)  # 0.012, and a batch's 0.004
        for call in calls:
            loads.answered(call, in_time=True, now=now + 0.016)
    assert loads.doubt("a", "m", now=now + 0.01) == 0.0
