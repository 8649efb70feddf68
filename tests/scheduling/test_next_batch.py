"""A request without a place is admitted if it makes the next batch more efficient
(scheduling/next_batch.py)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Reason, Request
from slacktide.engine.ports import Proposal
from slacktide.scheduling import make_scheduler
from slacktide.scheduling.next_batch import GAIN, NextBatch
from slacktide.scheduling.queue import DeadlineQueue

FIXED, ROW = 0.010, 0.010


def fixed_and_rows(rows: int) -> float:
    return FIXED + ROW * rows


def came(id: int, due: float, arrival: float = 0.0, **fields: Any) -> Request:
    return Request(id, "m", arrival, due, **fields)


class View:
    """One free lane, of whose time other models leave the share `left`."""

    lanes = cores = 1

    def __init__(self, left: float = 1.0) -> None:
        self.left = left

    def free_in(self, *, now: float) -> float:
        return 0.0

    def leave(self, *, now: float) -> Callable[[float], float]:
        return lambda within: self.left * within


def next_batch(requests: list[Request], law: Any = fixed_and_rows, left: float = 1.0) -> NextBatch:
    queue = DeadlineQueue()
    for request in requests:
        queue.add(request)
    seconds = [0.0, *map(law, range(1, 9))]
    return NextBatch(queue, lambda request: 0, lambda of: seconds, 8, View(left))


def slack_on(lab: SimpleNamespace, law: Any = fixed_and_rows, **options: object) -> Any:
    times = lab.LogNormalTimes(law, 0.001)
    view = lab.LaneView()
    scheduler = make_scheduler("slack", options, max_batch=8, times=times, view=view)
    return SimpleNamespace(it=scheduler, lane=view)


def full_lane(lab: SimpleNamespace, law: Any = fixed_and_rows, **options: object) -> Any:
    """A batch runs for 20 ms more, and two requests wait that then have 30 ms."""
    bench = slack_on(lab, law, **options)
    bench.lane.free_at = 0.020
    for id in (0, 1):
        bench.it.add(came(id, 0.050), now=0.0)
    return bench


def test_a_request_that_a_larger_batch_has_time_for_needs_no_place(lab) -> None:
    # A batch of three, 40 ms, has time only for requests due after 60 ms; it is more efficient than
    # one of the two that wait.
    batch = next_batch([came(0, 0.055), came(1, 0.055)])
    assert batch.admits(came(2, 0.0605), 0, start=0.020)
    assert not batch.admits(came(2, 0.0545), 0, start=0.020)


def test_none_is_admitted_beyond_the_rows_of_that_batch(lab) -> None:
    fresh = [came(id, 0.0605) for id in range(3)]
    assert next_batch(fresh[:2]).admits(came(9, 0.0605), 0, start=0.020)
    assert not next_batch(fresh).admits(came(9, 0.0605), 0, start=0.020)
    assert not next_batch(fresh[:2]).admits(came(9, 0.0605, rows=2), 0, start=0.020)


def test_where_batches_save_nothing_only_the_plan_admits(lab) -> None:
    batch = next_batch([came(0, 0.055)], law=lambda rows: ROW * rows)
    assert not batch.admits(came(2, 0.0605), 0, start=0.020)


def test_cheaper_requests_and_those_of_another_shape_are_not_in_its_way(lab) -> None:
    cheap = [came(id, 0.0605, penalty=0.5) for id in range(3)]
    other = [came(id, 0.0605, signature=((2,),)) for id in range(3)]
    for waiting in (cheap, other):
        assert next_batch(waiting).admits(came(9, 0.0605), 0, start=0.020)


def test_where_other_models_take_part_of_the_lane_only_the_plan_admits(lab) -> None:
    waiting = [came(0, 0.055), came(1, 0.055)]
    assert not next_batch(waiting, left=0.9).admits(came(2, 0.0605), 0, start=0.020)
    assert next_batch(waiting, left=0.9).members(waiting, start=0.020) == set()


def test_members_are_those_of_the_most_efficient_batch(lab) -> None:
    waiting = [came(0, 0.041), came(1, 0.051), came(2, 0.061), came(3, 0.061), came(4, 0.061)]
    # Three rows in 40 ms are more than two in 30 or one in 20.
    assert next_batch(waiting).members(waiting[:1], start=0.020) == {2, 3, 4}
    assert next_batch(waiting).members([], start=0.020) == set()


@given(
    dues=st.lists(st.floats(0.021, 0.2), max_size=30),
    due=st.floats(0.021, 0.2),
    later=st.floats(0.0, 0.1),
)
def test_an_admitted_request_would_be_on_time_in_a_batch_that_gains(
    dues: list[float], due: float, later: float
) -> None:
    start = 0.020
    batch = next_batch([came(id, at) for id, at in enumerate(dues)])
    if batch.admits(came(100, due), 0, start=start):
        sizes = [n for n in range(1, 9) if fixed_and_rows(n) <= due - start]
        largest = sizes[-1]
        full = start + fixed_and_rows(largest)
        assert sum(at >= full for at in dues) < largest
        best = max(
            (
                min(n, sum(at >= start + fixed_and_rows(n) for at in dues)) / fixed_and_rows(n)
                for n in (1, 2, 3, 4, 6, 8)
            ),
            default=0.0,
        )
        assert largest / fixed_and_rows(largest) >= best * (1.0 + 0.99 * GAIN)


def test_slack_admits_it_and_keeps_it_until_the_next_batch_begins(lab) -> None:
    bench = full_lane(lab)
    assert bench.it.add(came(7, 0.0495), now=0.0) is Reason.BEHIND_WORK
    for id in (2, 3, 4):
        assert bench.it.add(came(id, 0.0605, 0.001), now=0.001) is None
    running = lab.batch(Proposal((came(9, 1.0),), 1))
    bench.it.ended(running, now=0.020)
    assert not {2, 3, 4} & dict(bench.it.expire(now=0.020)).keys()
    proposal = bench.it.propose(lab.REPLICA, now=0.020)
    assert {member.id for member in proposal.members} == {2, 3, 4}


@pytest.mark.parametrize("late", [1.0, 0.0])
def test_where_late_refusals_are_limited_only_the_plan_admits(lab, late: float) -> None:
    bench = full_lane(lab, late_refusals=late)
    bench.it._promises.lost(40)  # slows the plan down, if losses are limited
    answers = [bench.it.add(came(id, 0.0605, 0.001), now=0.001) for id in (2, 3, 4)]
    assert (answers == [None] * 3) is (late == 1.0)


def test_bursts_on_a_large_fixed_cost_lose_nothing_to_early_refusal(lab) -> None:
    """c0 of one row, deadlines three times the time alone, Gamma arrivals (decision 0030)."""
    alone = fixed_and_rows(1)
    goodput = {}
    for admission in (True, False):
        on_time = []
        for seed in (11, 12):
            times = lab.LogNormalTimes(fixed_and_rows, 0.001)
            view = lab.LaneView()
            scheduler = make_scheduler(
                "slack", {"admission": admission}, max_batch=16, times=times, view=view
            )
            arrivals = lab.requests(1.2 / alone, 4000, [3 * alone], cv=2.0, seed=seed)
            on_time.append(lab.simulate(scheduler, view, arrivals, times, seed=seed).goodput)
        goodput[admission] = sum(on_time) / len(on_time)
    assert goodput[True] > goodput[False] - 0.005
