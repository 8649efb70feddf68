"""Admission: who is refused, why, and that refusing costs no goodput."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slacktide.domain import Reason, Request
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import make_scheduler


def scheduler_on(lab: SimpleNamespace, *, free_at: float = 0.0, lanes: int = 1, **options: object):
    view = lab.LaneView(free_at=free_at, lanes=lanes)
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows, 0.01)
    return make_scheduler("edf", options, max_batch=8, times=times, view=view)


def admitted(lab: SimpleNamespace, scheduler, count: int, deadline: float, **fields) -> int:
    """How many of `count` equal requests get in."""
    return sum(
        scheduler.add(lab.request(1000 + id, deadline, **fields), now=0.0) is None
        for id in range(count)
    )


def test_a_budget_below_the_time_alone_is_too_short(lab) -> None:
    scheduler = scheduler_on(lab)
    assert scheduler.add(lab.request(0, 0.009), now=0.0) is Reason.SHORTER_THAN_ALONE
    assert scheduler.add(lab.request(1, 0.019, rows=2), now=0.0) is Reason.SHORTER_THAN_ALONE
    assert scheduler.add(lab.request(2, 0.011), now=0.0) is None


def test_a_busy_lane_counts_as_work(lab) -> None:
    scheduler = scheduler_on(lab, free_at=0.1)
    assert scheduler.add(lab.request(0, 0.105), now=0.0) is Reason.BEHIND_WORK
    assert scheduler.add(lab.request(1, 0.115), now=0.0) is None
    nowhere = scheduler_on(lab, free_at=float("inf"))
    assert nowhere.add(lab.request(0, 1e6), now=0.0) is Reason.BEHIND_WORK


def test_the_queue_holds_what_fits_and_a_few_spares(lab) -> None:
    assert admitted(lab, scheduler_on(lab), 500, 1.0) in range(108, 112)
    assert admitted(lab, scheduler_on(lab, lanes=2), 500, 1.0) in range(216, 224)
    assert admitted(lab, scheduler_on(lab), 500, 1.0, rows=4) in range(26, 29)


def test_who_is_due_earlier_or_costs_more_is_not_behind(lab) -> None:
    scheduler = scheduler_on(lab)
    assert admitted(lab, scheduler, 500, 1.0) < 500
    assert scheduler.add(lab.request(1, 0.5), now=0.0) is None
    assert scheduler.add(lab.request(2, 1.0), now=0.0) is Reason.BEHIND_WORK
    assert scheduler.add(lab.request(3, 1.0, penalty=2.0), now=0.0) is None


def test_requests_that_will_not_be_served_are_no_work(lab) -> None:
    scheduler = scheduler_on(lab)
    for id in range(100):
        scheduler.admit_moved(lab.request(id, 0.05), now=0.0)
    assert scheduler.add(lab.request(100, 0.06), now=0.0) is None
    assert admitted(lab, scheduler, 50, 0.2) in range(14, 16)


def test_without_admission_only_the_limit_holds(lab) -> None:
    scheduler = scheduler_on(lab, admission=False, max_queue=300)
    assert admitted(lab, scheduler, 500, 0.001) == 300
    assert scheduler.add(lab.request(0, 0.001), now=0.0) is Reason.QUEUE_FULL
    full = scheduler_on(lab, max_queue=2)
    assert admitted(lab, full, 5, 1.0, best_effort=True) == 2
    assert full.add(lab.request(0, 1.0), now=0.0) is Reason.QUEUE_FULL


@pytest.mark.parametrize("policy", ["edf", "slack"])
def test_a_refusal_can_be_told_in_numbers(lab, policy: str) -> None:
    view = lab.LaneView(free_at=0.1, lanes=2)
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows, 0.001)
    scheduler = make_scheduler(policy, {}, max_batch=8, times=times, view=view)
    needed, wait = scheduler.outlook(lab.request(0, 0.5, rows=3), now=0.0)
    assert (needed, wait) == (pytest.approx(0.03, rel=0.05), pytest.approx(0.1))
    for id in range(20):
        scheduler.admit_moved(lab.request(1 + id, 0.4), now=0.0)
    # Behind twenty rows on two lanes, and before them only if that would make none of them late.
    assert scheduler.outlook(lab.request(50, 0.5), now=0.0)[1] == pytest.approx(0.2, rel=0.05)
    first = 0.1 if policy == "edf" else pytest.approx(0.2, rel=0.05)
    assert scheduler.outlook(lab.request(51, 0.3), now=0.0)[1] == first
    costly = lab.request(52, 0.5, penalty=2.0)
    assert scheduler.outlook(costly, now=0.0)[1] == pytest.approx(0.1)
    assert len(scheduler) == 20


@pytest.mark.parametrize("policy", ["edf", "slack"])
def test_refused_requests_need_and_wait_longer_than_they_have(lab, policy: str) -> None:
    times = lab.LogNormalTimes(lambda rows: 0.01 * rows, 0.01)
    scheduler = make_scheduler(policy, {}, max_batch=8, times=times, view=lab.LaneView())
    refused = 0
    for id in range(300):
        request = lab.request(id, 1.0 if policy == "edf" else 1.0 - 0.001 * id)
        if scheduler.add(request, now=0.0) is not None:
            needed, wait = scheduler.outlook(request, now=0.0)
            assert needed + wait > request.deadline
            refused += 1
    assert refused


def test_at_tenfold_overload_the_queue_stays_short_and_goodput_is_kept(lab) -> None:
    for policy in ("edf", "slack"):
        runs = []
        for admission in (True, False):
            times = lab.LogNormalTimes(lab.residual, 0.05)
            view = lab.LaneView()
            scheduler = make_scheduler(
                policy, {"admission": admission}, max_batch=32, times=times, view=view
            )
            arrivals = lab.requests(10 / 0.012, 3000, [0.12], seed=3)
            runs.append(lab.simulate(scheduler, view, arrivals, times))
        guarded, open_door = runs
        assert guarded.longest_queue < 0.25 * open_door.longest_queue
        assert guarded.goodput > open_door.goodput - 0.01
        assert guarded.refused[Reason.BEHIND_WORK] > 0.85 * sum(guarded.refused.values())


@pytest.mark.parametrize("policy", ["edf", "slack"])
def test_refusals_on_an_idle_lane_are_doubted_so_that_they_end(policy):
    times = CorrectedTimes(LatencyTable.flat(0.010, 4))
    for _ in range(100):
        times.observe(0.030, (), 1, 1)

    class Free:
        lanes = 1
        cores = 1

        def free_in(self, *, now):
            return 0.0

    scheduler = make_scheduler(policy, {}, max_batch=4, times=times, view=Free())
    refused = 0
    for id in range(1000):
        request = Request(id, "m", 0.0, 0.015)
        if scheduler.add(request, now=0.0) is None:
            break
        refused += 1
    assert 100 < refused < 600
