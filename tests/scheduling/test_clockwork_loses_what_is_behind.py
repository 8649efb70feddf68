"""`clockwork`: exact batches, estimates, and what an overrun costs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slacktide.domain import Batch, Reason
from slacktide.engine.ports import Proposal
from slacktide.profiles import LatencyTable, ShapedTimes
from slacktide_papers.policies.clockwork import Clockwork, ClockworkOptions, RecentTimes


def clockwork(lab: SimpleNamespace, **options: object) -> Clockwork:
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows)
    all_options = ClockworkOptions(**{"admission": False, **options})
    return Clockwork(all_options, max_batch=8, times=times, view=lab.LaneView())


def ids(proposal: object) -> list[int]:
    assert isinstance(proposal, Proposal)
    return [member.id for member in proposal.members]


def start(lab: SimpleNamespace, scheduler: Clockwork, *, now: float) -> Batch:
    batch = lab.batch(scheduler.propose(lab.REPLICA, now=now), now=now)
    scheduler.take(batch)
    return batch


def test_the_largest_size_that_keeps_the_head_on_time(lab) -> None:
    scheduler = clockwork(lab)
    for id, deadline in enumerate([0.3, 0.05, 0.2, 0.1, 0.5]):
        scheduler.add(lab.request(id, deadline), now=0.0)
    # 3 rows are paid as 4; 4 fit before 0.05 and 8 do not.
    assert ids(scheduler.propose(lab.REPLICA, now=0.0)) == [1, 3, 2, 0]
    assert ids(scheduler.propose(lab.REPLICA, now=0.02)) == [1, 3]


def test_a_batch_that_keeps_its_time_costs_nothing(lab) -> None:
    scheduler = clockwork(lab)
    for id in range(4):
        scheduler.add(lab.request(id, 0.015 + id), now=0.0)
    batch = start(lab, scheduler, now=0.0)
    assert [member.id for member in batch.members] == [0]
    scheduler.ended(batch, now=0.010009)  # within the tolerance of 0.1 %
    assert scheduler.next_expiry() == pytest.approx(1.015 - 0.01, abs=1e-4)
    assert scheduler.expire(now=0.01001) == []


def test_the_batch_behind_an_overrun_is_lost_and_the_one_after_it_runs(lab) -> None:
    scheduler = clockwork(lab)
    for id, deadline in enumerate([0.015, 0.06, 0.5, 0.55, 0.6, 0.65]):
        scheduler.add(lab.request(id, deadline), now=0.0)
    scheduler.add(lab.request(6, 0.045, best_effort=True), now=0.0)
    batch = start(lab, scheduler, now=0.0)
    assert [member.id for member in batch.members] == [0]
    scheduler.ended(batch, now=0.02)
    assert scheduler.next_expiry() == 0.02
    assert scheduler.expire(now=0.02) == [(1, Reason.BEHIND_OVERRUN)]
    assert scheduler.next_expiry() == pytest.approx(0.48)
    assert scheduler.expire(now=0.02) == []
    assert sorted(ids(scheduler.propose(lab.REPLICA, now=0.02))) == [2, 3, 4, 5, 6]


def test_hopeless_requests_are_not_counted_as_lost(lab) -> None:
    scheduler = clockwork(lab, tolerance=0.5)
    for id, deadline in enumerate([0.015, 0.021, 0.9]):
        scheduler.add(lab.request(id, deadline), now=0.0)
    batch = start(lab, scheduler, now=0.0)
    scheduler.ended(batch, now=0.0151)
    assert scheduler.expire(now=0.0151) == [
        (1, Reason.HOPELESS),
        (2, Reason.BEHIND_OVERRUN),
    ]
    assert len(scheduler) == 0


def test_an_overrun_with_nobody_behind_it_is_forgotten(lab) -> None:
    scheduler = clockwork(lab)
    scheduler.add(lab.request(0, 1.0), now=0.0)
    scheduler.ended(start(lab, scheduler, now=0.0), now=0.5)
    assert scheduler.next_expiry() == 0.5
    assert scheduler.expire(now=0.5) == []
    assert scheduler.next_expiry() is None
    scheduler.add(lab.request(1, 9.0), now=0.6)
    assert scheduler.expire(now=0.6) == []


def test_it_refuses_at_the_door_what_its_own_estimates_cannot_meet(lab) -> None:
    scheduler = clockwork(lab, admission=True)
    assert scheduler.add(lab.request(0, 0.03), now=0.0) is None
    scheduler.ended(start(lab, scheduler, now=0.0), now=0.04)
    scheduler.expire(now=0.04)
    assert scheduler.add(lab.request(1, 0.07), now=0.04) is Reason.SHORTER_THAN_ALONE
    # Refused with the lane idle: the estimate is doubted, and the profile's holds again.
    assert scheduler.add(lab.request(2, 0.07), now=0.04) is None


def test_an_estimate_is_the_median_of_the_last_ones_of_its_size(lab) -> None:
    times = RecentTimes(lab.LogNormalTimes(lambda rows: 0.01 * rows), (1, 2, 4, 8), window=3)
    assert [times.of(rows, 1).expected for rows in (1, 2, 3, 4, 5)] == [
        0.01,
        0.02,
        0.04,
        0.04,
        0.08,
    ]
    revision = times.revision
    for seconds in (0.05, 0.07, 0.06):
        times.observe(seconds, (), 3, 1)
    assert times.revision > revision
    assert times.of(4, 1).expected == 0.06
    for seconds in (0.01, 0.011):
        times.observe(seconds, (), 4, 1)
    assert times.of(4, 1).expected == 0.02  # 0.011, but no size is quicker than a smaller one
    assert times.of(4, 2).expected == 0.04  # other cores
    assert times.of(4, 1).p99 == times.of(4, 1).quantile(0.1) == 0.02
    assert (times.of(4, 1).on_time(0.02), times.of(4, 1).on_time(0.0199)) == (1.0, 0.0)
    assert times.classes(1) is None


def test_a_window_that_has_been_doubted_away_leaves_the_profile(lab) -> None:
    times = RecentTimes(lab.LogNormalTimes(lambda rows: 0.01 * rows), (1, 2), window=3)
    times.observe(0.5, (), 1, 1)
    assert times.of(1, 1).expected == 0.5
    times.discount()
    times.discount()
    assert times.of(1, 1).expected == 0.01


def test_so_does_the_window_of_a_shape(lab) -> None:
    table = LatencyTable.linear(0.0, 0.01, 2, spread=1.1)
    times = RecentTimes(ShapedTimes(table, ((1,),)), (1, 2), window=3)
    members = (lab.request(1, deadline=1.0, signature=((1,),)),)
    times.observe(0.5, members, 1, 1)
    assert times.of(1, 1, members).expected == 0.5
    revision = times.revision
    times.discount(members[0])
    assert times.of(1, 1, members).expected < 0.02
    assert times.revision > revision
