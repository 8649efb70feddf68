"""Which ramps are active: the first ones, those that pay, and others in place of the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.exits.served_exits import POOL, ServedExits, chain_s, facts, learnt
from tests.planning.exits.streams import Array

from slacktide.domain import TimerFired
from slacktide.planning.exits import ExitsArranged, StatedExits
from slacktide.planning.exits.ramps import (
    SIZES,
    ExitsAnswer,
    ExitsQuestion,
    PassTimes,
    best_ramps,
    evenly_spaced,
    rates_alone,
)

EIGHT = (0.3, 0.5, 0.7, 0.9, 0.95, 0.97, 0.98, 0.99)


def arranged(
    ramps: tuple[int, ...], positions: int, cut: float, whole: float = 1.0
) -> ExitsArranged:
    stages = tuple(end * whole / 0.02 for end in chain_s(ramps, positions, cut))
    return ExitsArranged(POOL, 1, 1, ramps, "", (1, 4), (whole, whole), (stages, stages))


def test_ramps_are_placed_where_rows_leave_and_keep_the_budget() -> None:
    times = PassTimes(facts(EIGHT))
    rates = dict(enumerate((0.0, 0.1, 0.2, 0.7, 0.75, 0.8, 0.85, 0.9)))
    assert best_ramps(range(8), times, 0.0125, rates) == (3,)
    chosen = best_ramps(range(8), times, 0.05, rates)
    assert 3 in chosen
    assert 2 <= len(chosen) <= 4
    assert best_ramps(range(8), times, 0.01, rates) == ()
    assert best_ramps(range(8), times, 0.05, dict.fromkeys(range(8), 0.0)) == ()


@given(positions=st.integers(1, 20), budget=st.floats(0.0, 0.3))
def test_evenly_spaced_ramps_are_as_many_as_fit(positions: int, budget: float) -> None:
    times = PassTimes(facts((0.5,) * positions))
    chosen = evenly_spaced(range(positions), times, budget)
    assert times.fits(chosen, budget)
    assert list(chosen) == sorted({*chosen})
    assert len(chosen) == min(positions, int(budget / 0.0125 + 1e-6))


def test_even_spacing_is_even() -> None:
    assert evenly_spaced(range(13), PassTimes(facts((0.5,) * 13)), 0.0375) == (2, 6, 10)


def test_times_are_measured() -> None:
    ramp_facts = facts((0.9,) * 4)
    times = PassTimes(ramp_facts)
    assert times.seconds(1) == 0.0
    assert times.answers((1,)) == pytest.approx([0.4125, 1.0125])
    times.measure(arranged((1, 3), 4, 0.02, whole=0.5))
    assert times.overhead == pytest.approx(0.04)
    assert times.costs == pytest.approx({1: 0.02, 3: 0.02})
    assert times.answers((1, 3)) == pytest.approx([0.42, 0.84, 1.04])
    assert times.cost(0) == pytest.approx(0.02)  # as those that were measured
    assert (times.seconds(3), times.seconds(9)) == (0.5, 0.5)
    assert times.saved((1, 3)) == pytest.approx([0.62, 0.2])


def test_a_chain_that_seems_to_cost_nothing_still_costs_something() -> None:
    times = PassTimes(facts((0.9,) * 4))
    times.measure(arranged((1,), 4, -0.01))
    assert times.cost(1) > 0.0


def round_of(
    unsure: Array, ramps: tuple[int, ...], *, budget: float = 0.05, loss: float = 0.01
) -> ExitsAnswer:
    """A round in which every ramp is right: what all eight say, of which these are active."""
    ramp_facts, agrees = facts(EIGHT), np.ones(unsure.shape, bool)
    verdicts = unsure[:, ramps], agrees[:, ramps]
    times, everywhere = PassTimes(ramp_facts), (unsure, agrees)
    return ExitsQuestion(ramp_facts, ramps, verdicts, loss, 512, budget, times, everywhere).answer()


def leaving(*rates: float) -> Array:
    """What eight ramps say of 512 rows of which such shares leave at each."""
    unsure = np.full((512, 8), math.inf)
    for ramp, rate in enumerate(rates):
        unsure[: round(512 * rate), ramp] = 0.1
    return unsure


def test_a_ramp_that_no_row_leaves_at_goes_though_no_other_pays() -> None:
    answer = round_of(leaving(), (2,))
    assert (answer.ramps, answer.thresholds) == ((), ())
    assert answer.reason == "ramp 2 (tensor2): costs more than it saves"


def test_ramps_move_to_where_rows_leave_with_thresholds_at_once() -> None:
    answer = round_of(leaving(0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.9, 0.9), (2,))
    assert answer.ramps == (3, 6)
    assert min(answer.thresholds) > 0.1
    assert "ramp 3 (tensor3): saves more" in answer.reason


def test_where_all_pay_an_earlier_one_comes_beside_them() -> None:
    answer = round_of(leaving(0.0, 0.0, 0.6, 0.6, 0.6, 0.9, 0.9, 0.9), (5,))
    assert answer.ramps == (2, 5)
    assert min(answer.thresholds) > 0.1


def test_without_room_the_one_that_saves_least_moves() -> None:
    answer = round_of(leaving(0.4, 0.4, 0.4, 0.4, 0.8, 0.8, 0.8, 0.8), (4, 7), budget=0.025)
    assert answer.ramps == (0, 4)
    assert "ramp 7 (tensor7)" in answer.reason


def test_of_two_that_stand_in_for_each_other_one_stays() -> None:
    answer = round_of(leaving(0.0, 0.0, 0.0, *[0.9] * 5), (3, 4))
    assert answer.ramps == (3,)
    assert answer.thresholds[0] > 0.1


def test_ramps_that_save_little_more_are_not_moved_to() -> None:
    answer = round_of(leaving(0.0, 0.0, 0.0, 0.8, *[0.85] * 4), (3,))
    assert (answer.ramps, answer.reason) == ((3,), "")


def always(unsure: list[float], agrees: list[bool], rows: int) -> tuple[Array, Array]:
    return np.tile(unsure, (rows, 1)), np.tile(np.array(agrees, bool), (rows, 1))


def test_ramps_that_never_pay_end_with_none_and_are_tried_again_seldom() -> None:
    served = ServedExits(StatedExits())
    served.learn(learnt((0.9, 0.95, 0.97)))
    served.rows(*always([0.1] * 3, [False] * 3, 3000))
    assert not any(served.wrong)
    tried = [policy.ramps for policy in served.policies]
    assert () in tried[1:]
    assert served.spent.count(1.0) > 1500
    served.rows(*always([0.1] * 3, [False] * 3, 6000))
    assert served.spent[3000:].count(1.0) > 4500


def test_a_ramp_that_becomes_bad_gives_way_to_one_that_is_right() -> None:
    served = ServedExits(StatedExits())
    served.learn(learnt((0.97, 0.9, 0.9, 0.9)))
    served.rows(*always([0.1, 0.1, 0.1, 0.1], [True] * 4, 700))
    assert served.saved(600) > 0.7
    served.rows(*always([0.1, 0.1, 0.1, 0.1], [False, False, True, True], 4000))
    assert served.worst_window() <= 5
    assert 2 in served.policy.ramps
    assert served.saved(4200) > 0.3


def test_ramps_go_where_rows_that_were_judged_everywhere_say_it_pays() -> None:
    served = ServedExits(StatedExits())
    served.learn(learnt((0.3, 0.4, 0.5, 0.97)))
    assert served.policy.ramps == (0, 1, 2, 3)
    rng = np.random.default_rng(1)
    unsure = np.tile([0.4, 0.1, 0.1, 0.1], (600, 1)) * rng.uniform(0.9, 1.1, (600, 4))
    served.rows(unsure, np.tile([False, True, True, True], (600, 1)))
    assert served.policy.ramps == (1,)
    assert served.policy.feature_share == 0.1
    assert served.saved(300) > 0.5
    assert not any(served.wrong)


def test_the_rate_of_a_ramp_alone_depends_on_its_wrong_rows() -> None:
    unsure = np.tile(np.arange(1, 513) / 1000.0, (2, 1)).T
    agrees = np.ones((512, 2), bool)
    agrees[[100, 200, 300, 400], 0] = False
    assert rates_alone((unsure, agrees), 0.01) == pytest.approx(
        [300 / 512, 1.0]
    )  # two may be wrong


def test_a_chain_that_was_measured_fits_by_what_it_costs_altogether() -> None:
    times = PassTimes(facts((0.9,) * 4))
    times.measure(arranged((1, 3), 4, 0.02))
    assert times.fits((1, 3), 0.04)
    times.measure(arranged((0, 1, 3), 4, 0.01))
    assert not times.fits((1, 3), 0.035)
    assert times.fits((0, 1, 3), 0.035)


def test_ramps_that_are_not_to_move_stay() -> None:
    served = ServedExits(StatedExits(moving=False))
    served.learn(learnt((0.9, 0.95, 0.97)))
    first = served.policy.ramps
    served.rows(*always([0.1] * 3, [False] * 3, 1500))
    assert served.policy.ramps == first


def test_answers_in_time_are_worth_a_pass_to_requests_that_leave_less() -> None:
    times = PassTimes(facts((0.9,) * 4))  # answers after 0.2125, 0.425, …
    times.measure(arranged((0, 1, 2), 4, 0.01))
    times.hurry([0.35, 0.7, 2.0, 3.0], 1.03)
    assert times.budgets == pytest.approx([0.35, 0.7, 1.0, 1.0])
    assert times.worth((0, 1, 2)) == pytest.approx(
        [(2 + 2 * 0.79) / 4, (1 + 2 * 0.58) / 4, (1 + 2 * 0.37) / 4, -2 * 0.03 / 4]
    )
    saved = times.saved((0, 1, 2))
    assert saved == sorted(saved, reverse=True)


@given(
    st.lists(st.floats(1.0, 100.0), max_size=20),
    st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4),
)
def test_deadlines_longer_than_a_pass_change_nothing(
    left: list[float], arrivals: list[float]
) -> None:
    times, hurried = PassTimes(facts((0.9,) * 4)), PassTimes(facts((0.9,) * 4))
    hurried.hurry(left, 1.0)
    rates = dict(enumerate(arrivals))
    assert hurried.worth((0, 2)) == times.worth((0, 2))
    assert best_ramps(range(4), hurried, 0.05, rates) == best_ramps(range(4), times, 0.05, rates)


@given(
    st.lists(st.floats(0.0, 2.0), min_size=1, max_size=20),
    st.lists(st.integers(0, 9), min_size=1, unique=True),
)
def test_sooner_answers_are_never_worth_less(left: list[float], ramps: list[int]) -> None:
    times = PassTimes(facts((0.9,) * 10))
    times.hurry(left, 1.0)
    worth = times.worth(sorted(ramps))
    assert worth == sorted(worth, reverse=True)


def test_where_deadlines_are_short_ramps_go_to_where_answers_are_in_time() -> None:
    def placed(left_s: float) -> tuple[int, ...]:
        served = ServedExits(StatedExits(ramp_budget=0.015))
        served.left_s = left_s
        served.learn(learnt((0.9,) * 4))
        unsure = np.tile([0.5, 0.5, 0.1, 0.1], (800, 1))
        unsure[np.arange(800) % 5 < 3, :2] = 0.1  # three in five are easy from the first on
        served.rows(unsure, unsure < 0.3)
        assert not any(served.wrong)
        return served.policy.ramps

    assert placed(10.0) == (0,)
    assert placed(0.7 * 0.02) == (2,)  # after 0.61 of a pass, and all leave there


def unequal(ramps: tuple[int, ...], single: float, full: float) -> ExitsArranged:
    """Ramps that add a share `single` to a batch of one and `full` to one of four."""
    stages = tuple(
        tuple(rows * end / 0.02 for end in chain_s(ramps, 4, share / len(ramps)))
        for rows, share in ((1, single), (4, full))
    )
    return ExitsArranged(POOL, 1, 1, ramps, "", (1, 4), (1.0, 4.0), stages)


def test_the_budget_holds_at_the_smallest_usual_batch() -> None:
    times = PassTimes(facts((0.9,) * 4))
    times.measure(unequal((1, 3), 0.072, 0.02))
    assert times.overhead == pytest.approx(0.072)
    assert not times.fits((1, 3), 0.05)
    for _ in range(SIZES):
        assert not times.serve(4)
    assert times.overhead == pytest.approx(0.046)  # the mean, which larger batches keep
    assert times.fits((1, 3), 0.05)
    changes = [times.serve(1 if at % 5 == 0 else 4) for at in range(SIZES)]
    assert changes == [False] * (SIZES - 1) + [True]
    assert not times.fits((1, 3), 0.05)


def test_ramps_beyond_the_budget_at_small_batches_are_dropped() -> None:
    served = ServedExits(StatedExits(moving=False))
    served.learn(learnt((0.9, 0.95, 0.99, 0.99)))
    ramps = served.policy.ramps
    assert len(ramps) > 1
    served.turn(unequal(ramps, 0.072, 0.02), TimerFired())
    assert len(served.policy.ramps) == len(ramps) - 1
    assert served.status.reason == "ramps cost 7.2% of a pass, more than 5.0%"


def test_memory_is_active_beside_ramps_at_which_other_rows_leave() -> None:
    unsure = leaving(0.0, 0.0, 0.0, 0.5)
    unsure[256:, 0] = 0.1  # rows that no ramp behind is sure of
    ramp_facts, times = facts(EIGHT), PassTimes(facts(EIGHT))
    everywhere = unsure, np.ones(unsure.shape, bool)
    questions = [
        ExitsQuestion(
            *(ramp_facts, (3,), (unsure[:, [3]], everywhere[1][:, [3]]), 0.01, 512, 0.05, times),
            everywhere,
            remembers=remembers,
        )
        for remembers in (False, True)
    ]
    by_rates, searched = (question.answer() for question in questions)
    assert by_rates.ramps == (0,)  # as if the same rows left at both
    assert searched.ramps == (0, 3)
    assert all(threshold > 0.1 for threshold in searched.thresholds)
    assert searched.reason


def test_memory_goes_where_it_saves_nothing() -> None:
    unsure = leaving(0.0, 0.0, 0.0, 0.5)
    everywhere = unsure, np.ones(unsure.shape, bool)
    active = unsure[:, [0, 3]], everywhere[1][:, [0, 3]]
    times = PassTimes(facts(EIGHT))
    question = ExitsQuestion(
        *(facts(EIGHT), (0, 3), active, 0.01, 512, 0.05, times), everywhere, remembers=True
    )
    assert question.answer().ramps == (3,)
