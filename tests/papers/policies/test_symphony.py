"""`symphony`: a batch starts when it can no longer grow, and while it is on time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import PoolId, Replica, Request
from slacktide.engine import Idle, Proposal, WaitUntil
from slacktide.profiles import BatchTimes, PointTime
from slacktide.scheduling import make_scheduler
from slacktide_papers.policies.symphony import Symphony, SymphonyOptions

REPLICA = Replica(0, PoolId("m", "1"), "lane", (0,), 8)


class Times(BatchTimes):
    """10 ms and 10 ms for each row."""

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> PointTime:
        return PointTime(0.010 + 0.010 * rows)


class View:
    lanes, cores = 1, 1

    def free_in(self, *, now: float) -> float:
        return 0.0

    def leave(self, *, now: float) -> Callable[[float], float]:
        return float


def symphony(deadlines: Sequence[float], *, lanes: int = 1, **options: Any) -> Symphony:
    view = View()
    view.lanes = lanes
    policy = Symphony(SymphonyOptions(**options), max_batch=8, times=Times(), view=view)
    for id, deadline in enumerate(deadlines):
        assert policy.add(Request(id, "m", 0.0, deadline), now=0.0) is None
    return policy


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal), proposal
    return [member.id for member in proposal.members]


def test_a_batch_waits_until_no_further_request_could_join_it() -> None:
    policy = symphony([0.100, 0.200])
    # Two rows take 30 ms and three 40: the window is from 60 to 70 ms.
    waiting = policy.propose(REPLICA, now=0.0)
    assert isinstance(waiting, WaitUntil)
    assert waiting.at == pytest.approx(0.060)
    assert ids(policy.propose(REPLICA, now=waiting.at)) == [0, 1]
    assert ids(policy.propose(REPLICA, now=0.0699)) == [0, 1]


def test_a_request_that_joins_moves_the_window() -> None:
    policy = symphony([0.100])
    first = policy.propose(REPLICA, now=0.0)
    policy.add(Request(1, "m", 0.01, 0.110), now=0.01)
    second = policy.propose(REPLICA, now=0.01)
    assert isinstance(first, WaitUntil)
    assert isinstance(second, WaitUntil)
    assert (first.at, second.at) == (pytest.approx(0.070), pytest.approx(0.060))


def test_a_batch_of_the_largest_size_starts_at_once() -> None:
    assert len(ids(symphony([1.0] * 8).propose(REPLICA, now=0.0))) == 8


def test_a_request_that_would_keep_the_batch_small_is_skipped_but_not_dropped() -> None:
    # With one lane and an SLO of 100 ms the target is four rows, which take 50 ms.
    deadlines = [0.100, 0.130, 0.130, 0.130, 0.130]
    policy = symphony(deadlines)
    assert ids(policy.propose(REPLICA, now=0.075)) == [1, 2, 3, 4]
    assert policy.expire(now=0.075) == []
    assert ids(symphony(deadlines, skipping=False).propose(REPLICA, now=0.075)) == [0]


def test_more_lanes_allow_larger_targets() -> None:
    # On four lanes an SLO of 100 ms leaves 80 ms for a batch: seven rows, for which only the
    # requests due later have time.
    deadlines = [0.100] * 7 + [0.130] * 7
    assert ids(symphony(deadlines).propose(REPLICA, now=0.045))[0] == 0
    assert ids(symphony(deadlines, lanes=4).propose(REPLICA, now=0.045))[0] == 7


def test_an_empty_queue_is_idle_and_best_effort_requests_run_without_waiting() -> None:
    policy = symphony([])
    assert isinstance(policy.propose(REPLICA, now=0.0), Idle)
    policy.add(Request(0, "m", 0.0, 9.0, best_effort=True), now=0.0)
    assert ids(policy.propose(REPLICA, now=0.0)) == [0]


@given(
    deadlines=st.lists(st.floats(0.02, 0.5), min_size=1, max_size=20),
    rows=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    now=st.floats(0.0, 0.4),
    skipping=st.booleans(),
)
def test_no_batch_is_late_or_could_still_grow(
    deadlines: list[float], rows: list[int], now: float, skipping: bool
) -> None:
    policy = symphony([], skipping=skipping)
    for id, deadline in enumerate(deadlines):
        policy.add(Request(id, "m", 0.0, deadline, rows=rows[id % len(rows)]), now=0.0)
    policy.expire(now=now)
    proposal = policy.propose(REPLICA, now=now)
    if isinstance(proposal, Proposal):
        takes = 0.010 + 0.010 * proposal.rows
        first = min(member.deadline for member in proposal.members)
        assert proposal.rows <= 8
        assert now + takes <= first + 1e-9
        assert proposal.rows == 8 or now + takes + 0.010 >= first - 1e-9
    elif isinstance(proposal, WaitUntil):
        assert proposal.at > now
    else:
        assert not len(policy)


def test_it_is_made_by_name() -> None:
    policy = make_scheduler("symphony", {}, max_batch=8, times=Times(), view=View())
    assert policy.add(Request(0, "m", 0.0, 0.1), now=0.0) is None
