"""Which ended frames of a session planners learn from, and how much each counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Outcome, Reason
from slacktide.planning.variants.frame_ends import (
    FOR_BANDWIDTH,
    FOR_CAPACITY,
    LINK_DOWN,
    REACH,
    FrameEnds,
    lateness,
)

SLO = 0.1


def counted(*outcomes: Outcome | None) -> tuple[int, float, int]:
    ends = FrameEnds()
    for outcome in outcomes:
        ends.count(outcome, SLO)
    return ends.ended, ends.lost_on_lanes, ends.lost_on_link


def late(by: float) -> Outcome:
    return Outcome(Reason.AFTER_DEADLINE, 1.0, budget_s=-by)


def test_frames_on_time_end_and_are_not_lost() -> None:
    assert counted(*[Outcome(Reason.ON_TIME, 1.0, budget_s=0.01)] * 3) == (3, 0.0, 0)


def test_a_frame_that_is_a_little_late_counts_in_full_and_a_much_later_one_less() -> None:
    assert counted(late(REACH * SLO)) == (1, 1.0, 0)
    assert counted(late(4.0 * REACH * SLO)) == (1, 0.25, 0)


def test_a_frame_that_did_not_run_is_as_late_as_it_would_have_been() -> None:
    dropped = Outcome(Reason.HOPELESS, 1.0, budget_s=0.02, needed_s=0.05)
    refused = Outcome(Reason.BEHIND_WORK, 1.0, budget_s=0.02, needed_s=0.05, wait_s=0.04)
    assert lateness(dropped) == pytest.approx(0.03)
    assert lateness(refused) == pytest.approx(0.07)
    assert lateness(Outcome(Reason.CROWDED_OUT, 1.0)) == 0.0


def test_a_session_whose_own_link_is_down_says_nothing_about_others() -> None:
    ends = FrameEnds()
    for _ in range(100):
        ends.count(Outcome(Reason.EXPIRED, 1.0), SLO)
    assert ends.lost_on_link == ends.ended <= 1 + 10 * LINK_DOWN


@given(st.lists(st.sampled_from([None, *Reason]), max_size=200), st.floats(0.0, 10.0))
def test_no_more_frames_are_lost_than_have_ended(reasons: list[Reason | None], by: float) -> None:
    outcomes = [None if r is None else Outcome(r, 1.0, budget_s=-by) for r in reasons]
    ended, lanes, link = counted(*outcomes)
    assert 0.0 <= lanes + link <= ended <= len(reasons)
    assert (lanes > 0.0) <= any(reason in FOR_CAPACITY for reason in reasons)
    assert (link > 0) <= any(reason in FOR_BANDWIDTH for reason in reasons)
