"""What an exit policy and a plan that holds some refuse to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slacktide.domain import ExitPolicy, Plan, PoolId

POOL = PoolId("m", "1")
POLICY = ExitPolicy(POOL, (2, 5), (0.3, 0.0))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"thresholds": (0.3,)}, "expected 2 thresholds, got 1"),
        ({"ramps": (5, 2)}, "ramps must be positions in ascending order"),
        ({"ramps": (2, 2)}, "ramps must be positions in ascending order"),
        ({"ramps": (-1, 2)}, "ramps must be positions in ascending order"),
        ({"thresholds": (0.3, -0.1)}, "thresholds must not be negative"),
        ({"thresholds": (0.3, float("nan"))}, "thresholds must not be negative"),
        ({"feedback": 1.5}, "feedback must be within 0 and 1, got 1.5"),
        ({"feature_share": -0.5}, "feature_share must be within 0 and 1"),
        ({"costs": (0.5,)}, "expected 2 costs, got 1"),
        ({"costs": (0.0, 0.5)}, "costs must be above 0 and at most 1"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(changed, complaint):
    with pytest.raises(ValueError, match=complaint):
        replace(POLICY, **changed)


def test_a_pool_has_at_most_one_policy():
    assert Plan(exits=(POLICY, replace(POLICY, pool=PoolId("m", "2")))).exits[0] is POLICY
    with pytest.raises(ValueError, match="two exit policies share a pool"):
        Plan(exits=(POLICY, replace(POLICY, ramps=(), thresholds=())))


def test_rows_go_on_leaving_at_ramps_that_are_given_up_until_others_are_open() -> None:
    before = POLICY.thresholds_after({})
    assert before == {2: 0.3, 5: 0.0}
    moved = ExitPolicy(POOL, (3, 5), (0.1, 0.2))
    assert moved.thresholds_after(before) == {2: 0.3, 3: 0.1, 5: 0.2}


def test_where_no_row_may_leave_none_does_at_ramps_that_are_given_up() -> None:
    doubted = ExitPolicy(POOL, (3,), (0.0,)).thresholds_after({2: 0.3, 3: 0.1})
    assert doubted == {3: 0.0}
    assert ExitPolicy(POOL).thresholds_after({2: 0.3}) == {}
    again = ExitPolicy(POOL, (3,), (0.1,)).thresholds_after(doubted)
    assert again == {3: 0.1}, "what held before an alarm holds no more"
