"""The live planner of early exits: what it asks for, when rows leave, and when they do not."""

from __future__ import annotations

import numpy as np
import pytest
from tests.planning.exits.served_exits import BASE, POOL, ServedExits, learnt
from tests.planning.exits.streams import Array

from slacktide.domain import ExitMode, ExitPolicy, PlanChanged, TimerFired
from slacktide.planning import Composer, PlannerError
from slacktide.planning.exits import ExitsArranged, ExitsPlanner, RampsRefused, StatedExits
from slacktide.planning.exits.pool_exits import STALE_S
from slacktide.planning.exits.ramps import ExitsQuestion

GOOD = (0.9, 0.95, 0.99)


def sure(rows: int, *, wrong: tuple[int, ...] = ()) -> tuple[Array, Array]:
    """Rows of which every ramp is as sure as of any other; it is right but for some."""
    unsure = np.full((rows, 3), 0.1)
    agrees = np.ones((rows, 3), bool)
    agrees[list(wrong)] = False
    return unsure, agrees


@pytest.fixture
def served() -> ServedExits:
    """A model whose ramps are learnt."""
    exits = ServedExits()
    exits.learn(learnt(GOOD))
    return exits


def test_features_are_asked_for_until_there_are_ramps() -> None:
    served = ServedExits(StatedExits(mode=ExitMode.SHRINK))
    assert served.policy == ExitPolicy(
        POOL,
        mode=ExitMode.SHRINK,
        feedback=1.0,
        features=True,
        feature_share=1.0,
        reason="ramps are not trained yet",
    )
    served.learn(learnt(GOOD))
    assert served.policy.ramps
    assert served.policy.revision == 1
    assert (served.policy.features, served.policy.feature_share) == (True, 1.0)
    assert set(served.policy.thresholds) == {0.0}
    assert served.policy.feedback == 1.0


def test_rows_leave_once_enough_were_judged_and_none_before(served: ServedExits) -> None:
    served.rows(*sure(150))
    assert set(served.policy.thresholds) == {0.0}
    served.rows(*sure(150))
    assert any(served.policy.thresholds)
    assert 0.1 <= served.policy.feedback < 1.0
    assert served.saved(since=299) > 0.5
    assert not any(served.wrong)
    status = served.status
    assert status.exits == {served.chain[0]: 300 - served.spent.index(min(served.spent))}
    assert status.saved_s > 0.0
    assert status.accuracy == 1.0


def test_an_alarm_stops_rows_at_once_and_has_all_judged_until_thresholds_are_safe() -> None:
    served = ServedExits(StatedExits(moving=False))
    served.learn(learnt(GOOD))
    served.rows(*sure(400))
    served.rows(*sure(3, wrong=(0, 1, 2)))
    assert served.wrong[-3:] == [True, True, False]
    assert set(served.policy.thresholds) == {0.0}
    assert served.policy.feedback == 1.0
    assert served.status.alarms == 1
    assert "alarm" in served.status.reason
    # The wrong rows are as sure as the others: nothing leaves while they are among the last.
    served.rows(*sure(400))
    assert set(served.policy.thresholds) == {0.0}
    served.rows(*sure(200))
    assert any(served.policy.thresholds)


def test_an_idle_model_is_judged_anew(served: ServedExits) -> None:
    served.rows(*sure(300))
    assert any(served.policy.thresholds)
    at = served.runtime.next_wakeup()
    assert at == pytest.approx(served.now + STALE_S)
    served.now = at
    served.turn(TimerFired())
    assert set(served.policy.thresholds) == {0.0}
    assert served.policy.feedback == 1.0
    served.rows(*sure(30))
    assert set(served.policy.thresholds) == {0.0}
    served.rows(*sure(60))
    assert any(served.policy.thresholds)


def test_ramps_with_other_weights_begin_again(served: ServedExits) -> None:
    served.rows(*sure(300))
    served.chain = ()
    served.learn(learnt(GOOD, revision=2))
    assert served.policy.revision == 2
    assert set(served.policy.thresholds) == {0.0}
    before = served.policy
    served.turn(learnt(GOOD, revision=1), TimerFired())  # late
    assert served.policy == before


def test_verdicts_of_ramps_with_other_weights_are_not_mixed(
    served: ServedExits,
) -> None:
    served.rows(*sure(300))
    served.turn(learnt(GOOD, revision=2), TimerFired())
    chain, served.chain = served.chain, (*served.policy.ramps,)
    assert chain == served.chain  # still with the weights before
    served.rows(*sure(300))
    assert set(served.policy.thresholds) == {0.0}
    served.chain = ()
    served.arrange()
    served.rows(*sure(150))
    assert set(served.policy.thresholds) == {0.0}
    served.rows(*sure(100))
    assert any(served.policy.thresholds)


def test_a_model_that_can_have_no_ramps_is_served_as_it_is(served: ServedExits) -> None:
    served.turn(RampsRefused(POOL, "it has no position"), TimerFired())
    assert served.runtime.engine.plan.exits == ()
    assert served.status.reason == "it has no position"


def test_ramps_learnt_before_a_pool_is_served_are_kept() -> None:
    planner = ExitsPlanner()
    planner.observe_exits([learnt(GOOD)], now=0.0)
    planner.rebase(BASE, {"m": StatedExits()}, now=0.0)
    assert planner.status()[POOL].revision == 1
    planner.rebase(BASE, {"m": StatedExits(feedback=0.2)}, now=0.0)
    assert planner.status()[POOL].revision == 1


def test_a_chain_that_cannot_be_opened_is_left_alone() -> None:
    served = ServedExits()
    served.positions = 3
    served.turn(learnt(GOOD), TimerFired())
    served.arrange("no memory")
    assert served.policy.ramps == ()
    assert served.status.reason == "no memory"
    at = served.runtime.next_wakeup()
    assert at is not None
    served.now = at
    served.turn(TimerFired())
    assert served.policy.ramps  # tried again


def test_ramps_that_cost_more_than_their_budget_go() -> None:
    served = ServedExits()
    served.cut = 0.02
    served.learn(learnt(GOOD))
    assert 0 < len(served.policy.ramps) <= 2
    assert len(served.policies[1].ramps) > 2
    assert "more than 5.0%" in served.status.reason
    served = ServedExits()
    served.cut = 0.06
    served.learn(learnt(GOOD))
    # One after the other: each chain is measured before the next ramp goes.
    assert [len(policy.ramps) for policy in served.policies[1:]] == [3, 2, 1, 0]


def test_an_answer_for_ramps_that_have_gone_brings_none_back() -> None:
    served = ServedExits(job_rows=1_000)
    served.learn(learnt(GOOD))
    while not (served.job and len(served.wrong) > 400):
        served.row(*(numbers[0] for numbers in sure(1)))
    assert served.policy.ramps
    served.cut, served.chain = 0.06, ()
    served.arrange()
    assert served.policy.ramps == ()
    assert served.job is not None
    served.turn(served.job[1].run())
    assert served.policy.ramps == ()


def test_soon_after_an_alarm_ramps_may_move_again() -> None:
    served = ServedExits()
    served.learn(learnt(GOOD))
    served.rows(*sure(1000))
    served.rows(*sure(16, wrong=tuple(range(16))))
    assert served.status.alarms >= 1
    pool = served.planner.states[POOL]
    before = pool.round_at
    served.rows(*sure(20))
    assert pool.round_at == before
    served.rows(*sure(160))  # of which a tenth is judged everywhere
    assert pool.round_at > before


def test_where_no_ramp_fits_its_budget_that_is_looked_into_again_and_again() -> None:
    served = ServedExits(StatedExits(ramp_budget=0.001))
    served.learn(learnt(GOOD))
    assert served.policy.ramps == ()
    waits = []
    for _ in range(3):
        at = served.runtime.next_wakeup()
        assert at is not None
        waits.append(at - served.now)
        served.now = at
        served.turn(TimerFired())
    assert waits == pytest.approx([60.0, 120.0, 240.0])


def test_nothing_is_tried_again_before_anything_was_learnt() -> None:
    served = ServedExits()
    served.turn(ExitsArranged(POOL, 1, 0, ()), TimerFired())
    assert served.runtime.next_wakeup() is None
    assert served.status.reason == "ramps are not trained yet"


def test_fixed_ramps_and_thresholds_stay() -> None:
    served = ServedExits(StatedExits(ramps=(0, 2), thresholds=(0.2, 0.0)))
    served.learn(learnt(GOOD))
    served.rows(*sure(40, wrong=tuple(range(40))))
    assert (served.policy.ramps, served.policy.thresholds) == ((0, 2), (0.2, 0.0))
    assert all(served.wrong)


def test_a_field_of_a_model_has_one_owner() -> None:
    class Other(ExitsPlanner):
        name = "other"

    planners = ExitsPlanner(), Other()
    composer = Composer(planners)
    served = ServedExits()
    with pytest.raises(PlannerError, match="early exits"):
        composer.rebase(BASE, {"m": StatedExits()}, served.runtime.engine.snapshot(), now=0.0)


def test_pools_without_early_exits_have_no_policy() -> None:
    served = ServedExits()
    served.turn(PlanChanged(served.runtime.rebase(BASE, {}, now=0.0)))
    assert served.runtime.engine.plan.exits == ()
    assert served.planner.status() == {}


def test_a_computation_that_fails_lets_no_row_leave_and_is_reported(
    served: ServedExits, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.rows(*sure(300))
    assert any(served.policy.thresholds)
    faults: list[str] = []
    served.runtime._on_fault = lambda subject, error, fatal=False: faults.append(
        f"{subject}: {error!r}"
    )
    with monkeypatch.context() as broken:
        broken.setattr(ExitsQuestion, "answer", lambda _: 1 / 0)
        served.rows(*sure(70))
    assert faults[0].startswith("planning failed: m keeps its last target")
    assert "ZeroDivisionError" in faults[0]
    assert set(served.policies[-1].thresholds) == {0.0}
    served.rows(*sure(70))
    assert any(served.policy.thresholds)


def test_exits_of_the_model_itself_are_neither_learnt_nor_judged() -> None:
    stated = StatedExits(mode=ExitMode.SHRINK, ramps=(0, 2), thresholds=(0.2, 0.3), learnt=False)
    served = ServedExits(stated)
    assert served.policies == []
    served.learn(learnt(GOOD))
    policy = served.policy
    assert (policy.ramps, policy.thresholds) == ((0, 2), (0.2, 0.3))
    assert (policy.feedback, policy.features) == (0.0, False)
    served.rows(*sure(300))
    assert served.policy == policy
    assert served.status.judged == 0
