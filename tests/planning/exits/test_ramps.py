"""Which ramps are active: the first ones, those that pay, and others in place of the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.exits.served_exits import POOL, ServedExits, chain_s, facts, learnt
from tests.planning.exits.streams import Array

from slacktide.planning.exits import ExitsArranged, StatedExits
from slacktide.planning.exits.promise import JudgedRow
from slacktide.planning.exits.ramps import (
    ExitsQuestion,
    PassTimes,
    Trials,
    first_ramps,
    rates_alone,
)

EIGHT = (0.3, 0.5, 0.7, 0.9, 0.95, 0.97, 0.98, 0.99)


def arranged(
    ramps: tuple[int, ...], positions: int, cut: float, whole: float = 1.0
) -> ExitsArranged:
    stages = tuple(each * whole / 0.02 for each in chain_s(ramps, positions, cut))
    return ExitsArranged(POOL, 1, 1, ramps, "", (1, 4), (whole, whole), (stages, stages))


def test_the_first_ramps_are_where_agreement_pays_and_keep_the_budget() -> None:
    known = facts(EIGHT)
    chosen = first_ramps(known, PassTimes(known), 0.05)
    assert 1 <= len(chosen) <= 4
    assert set(chosen) <= {3, 4, 5, 6}
    assert first_ramps(known, PassTimes(known), 0.01) == ()


@given(positions=st.integers(1, 20), budget=st.floats(0.0, 0.3))
def test_evenly_spaced_ramps_are_as_many_as_fit(positions: int, budget: float) -> None:
    known = facts((0.5,) * positions)
    times = PassTimes(known)
    chosen = first_ramps(known, times, budget, evenly=True)
    assert times.fits(chosen, budget)
    assert list(chosen) == sorted({*chosen})
    assert len(chosen) >= min(positions, int(budget / 0.0125)) // 2


def test_even_spacing_is_even() -> None:
    known = facts((0.5,) * 13)
    assert first_ramps(known, PassTimes(known), 0.0375, evenly=True) == (3, 6, 9)


def test_times_are_measured() -> None:
    known = facts((0.9,) * 4)
    times = PassTimes(known)
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


def rows_of(unsure: Array, agrees: Array, ramps: tuple[int, ...]) -> tuple[JudgedRow, ...]:
    return tuple(
        JudgedRow(ramps, tuple(u.tolist()), tuple(a.tolist()))
        for u, a in zip(unsure, agrees, strict=True)
    )


def question(
    unsure: Array,
    ramps: tuple[int, ...],
    *,
    agreement: tuple[float, ...] = EIGHT,
    budget: float = 0.05,
    trials: Trials | None = None,
) -> ExitsQuestion:
    """A round in which every ramp is right."""
    known = facts(agreement)
    rows = rows_of(unsure, np.ones(unsure.shape, bool), ramps)
    times = PassTimes(known)
    return ExitsQuestion(
        known, ramps, rows, 0.01, len(rows), budget, times, trials or Trials(), True
    )


def test_a_ramp_that_no_row_leaves_at_goes_and_one_is_tried_behind_it() -> None:
    answer = question(np.full((512, 1), math.inf), (2,)).answer()
    assert 2 not in answer.ramps
    assert answer.ramps > (2,)
    assert set(answer.thresholds) == {0.0}
    assert "ramp 2 (tensor2): costs more than it saves" in answer.reason
    assert "is tried" in answer.reason
    assert answer.trials.may(2) is False


def test_where_all_pay_an_earlier_one_is_tried_beside_them() -> None:
    answer = question(np.full((512, 1), 0.1), (5,)).answer()
    assert 5 in answer.ramps
    assert len(answer.ramps) == 2
    assert min(answer.ramps) < 5
    assert answer.thresholds[0] == 0.0
    assert answer.thresholds[1] > 0.1


def test_without_room_the_one_that_saves_least_moves() -> None:
    unsure = np.full((512, 2), 0.1)
    unsure[::2, 0] = math.inf  # half of them leave at the first
    answer = question(unsure, (4, 7), budget=0.025).answer()
    assert len(answer.ramps) == 2
    assert 4 in answer.ramps
    assert answer.reason.startswith("ramp 7 (tensor7): saves least")


def test_of_two_that_stand_in_for_each_other_one_stays() -> None:
    unsure = np.full((512, 2), 0.1)
    unsure[:50] = math.inf  # they leave at none
    trials = Trials(until=dict.fromkeys(range(8), 99))
    answer = question(unsure, (3, 4), trials=trials).answer()
    assert answer.ramps == (3,)
    assert answer.thresholds[0] > 0.1


def test_too_few_rows_move_no_ramp() -> None:
    answer = question(np.full((200, 1), math.inf), (2,)).answer()
    assert (answer.ramps, answer.reason) == ((2,), "")


def test_a_trial_that_failed_is_repeated_later_and_later() -> None:
    trials = Trials()
    waits = []
    for _ in range(3):
        trials.failed(3)
        begun = trials.round
        while not trials.may(3):
            trials.round += 1
        waits.append(trials.round - begun)
    assert waits == [8, 16, 32]


def always(unsure: list[float], agrees: list[bool], rows: int) -> tuple[Array, Array]:
    return np.tile(unsure, (rows, 1)), np.tile(np.array(agrees, bool), (rows, 1))


def test_ramps_that_never_pay_end_with_none_and_are_tried_again_seldom() -> None:
    served = ServedExits(StatedExits())
    served.learn(learnt((0.9, 0.95, 0.97)))
    served.rows(*always([0.1] * 3, [False] * 3, 3000))
    assert not any(served.wrong)
    tried = [each.ramps for each in served.policies]
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
    served.learn(learnt((0.3, 0.4, 0.5, 0.97)))  # of rows that were harder than those to come
    assert served.policy.ramps == (3,)
    rng = np.random.default_rng(1)
    unsure = np.tile([0.4, 0.1, 0.1, 0.1], (600, 1)) * rng.uniform(0.9, 1.1, (600, 4))
    served.rows(unsure, np.tile([False, True, True, True], (600, 1)))
    assert served.policy.ramps == (1,)
    assert served.policy.feature_share == 0.1
    assert served.saved(300) > 0.5
    assert not any(served.wrong)


def test_what_a_ramp_alone_lets_leave_is_up_to_the_wrong_rows() -> None:
    unsure = np.tile(np.arange(1, 513) / 1000.0, (2, 1)).T
    agrees = np.ones((512, 2), bool)
    agrees[[100, 200, 300, 400], 0] = False
    rates = rates_alone(rows_of(unsure, agrees, (2, 5)), (2, 5), 0.01)
    assert rates == pytest.approx({2: 300 / 512, 5: 1.0})  # two of 512 may be wrong


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
