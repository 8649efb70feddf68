"""The walk of a queue: what it starts when, and what it expects."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.planning.scaling import ReplicaView, ScalingLimits
from slacktide.planning.scaling.queue_projection import QueueProjection, SecondsByCores, free_times
from slacktide.planning.scaling.view import Waiting

LIMITS = ScalingLimits(cores_max=8, batch_max=8)


def affine(rows, cores):
    """Whole seconds."""
    return 2.0 + 3.0 * rows


IDLE = ReplicaView(1, 0.0, 0.0)


def view_of(waiting=(), replicas=(IDLE,), times=affine, batch=4, **fields):
    in_order = tuple(sorted(waiting, key=lambda request: request.deadline))
    return model_view(
        CertainTimes(times), LIMITS, waiting=in_order, replicas=replicas, batch=batch, **fields
    )


def work_of(view, now=0.0, horizon=0.0, earliest=None):
    seconds = SecondsByCores(view.times, most_rows=8, p99=False)
    return QueueProjection(
        view,
        now=now,
        horizon=horizon,
        earliest=now if earliest is None else earliest,
        alone=seconds[1],
    )


SECONDS = [0.0, *(affine(rows, 1) for rows in range(1, 9))]

# Deadlines lie between whole seconds, so that nothing ends just at one.
waiting_requests = st.builds(
    lambda ready, budget, rows: Waiting(float(ready), ready + budget + 0.5, rows),
    st.integers(-20, 60),
    st.integers(0, 80),
    st.just(1),
)
of_several_rows = st.builds(
    lambda request, rows: Waiting(request.ready_at, request.deadline, rows),
    waiting_requests,
    st.integers(1, 4),
)


@given(
    st.one_of(st.lists(waiting_requests, max_size=14), st.lists(of_several_rows, max_size=14)),
    st.lists(st.integers(0, 30).map(float), min_size=1, max_size=3),
    st.integers(1, 8),
)
def test_the_short_cut_refuses_no_plan_that_saves_all(waiting, free, batch):
    work = work_of(view_of(waiting), earliest=min(free))
    largest = max([batch, *(request.rows for request in waiting)])
    if work.late(free, SECONDS, batch) == work.hopeless:
        best = min(SECONDS[rows] / rows for rows in range(1, largest + 1))
        assert best <= work.seconds_per_row(free) * (1.0 + 1e-9)


@given(st.lists(waiting_requests, max_size=14), st.integers(0, 5), st.integers(1, 4))
def test_counting_stops_beyond_what_is_asked(waiting, most, batch):
    work = work_of(view_of(waiting))
    whole = work.late([0.0], SECONDS, batch)
    counted = work.late([0.0], SECONDS, batch, most=most)
    assert counted == whole if whole <= most else counted > most


def test_nothing_starts_before_it_is_ready():
    work = work_of(view_of([Waiting(10.0, 14.5), Waiting(0.0, 100.0)]))
    # The first is not there at 0, so the other runs alone, until 5, and the first from 10.
    assert work.late([0.0], SECONDS, 4) == work.hopeless == 1
    assert work_of(view_of([Waiting(10.0, 15.5), Waiting(0.0, 100.0)])).late([0.0], SECONDS, 4) == 0


def test_a_batch_that_runs_delays_all():
    work = work_of(view_of([Waiting(0.0, 8.5)]))
    assert work.late([3.0], SECONDS, 4) == 0
    assert work.late([4.0], SECONDS, 4) == 1


def test_without_a_replica_all_are_late():
    work = work_of(view_of([Waiting(0.0, 8.5), Waiting(0.0, math.inf)]))
    assert work.late([], SECONDS, 4) == 2


def test_expected_arrivals_are_evenly_spaced_with_the_budget_that_is_expected():
    view = view_of(rate=0.1, budget=5.5)  # at 10, 20, 30; each alone takes 5
    assert len(work_of(view, horizon=35.0)) == 3
    assert work_of(view, horizon=35.0).late([0.0], SECONDS, 1) == 0
    assert work_of(view, horizon=35.0).late([16.0], SECONDS, 1) == 1


def test_announced_requests_are_the_first_that_are_expected():
    announced = [Waiting(7.0, 99.5), Waiting(8.0, 99.5)]
    view = view_of(announced, rate=0.1, budget=5.5)
    assert len(work_of(view, horizon=45.0)) == 4


def test_announced_requests_that_no_plan_saves_stand_for_none_that_are_expected():
    announced = [Waiting(7.0, 8.0), Waiting(8.0, 9.0)]
    view = view_of(announced, rate=0.1, budget=5.5)
    work = work_of(view, horizon=45.0)
    assert (work.hopeless, len(work)) == (2, 4)


@pytest.mark.parametrize("burst", [0.5, 3.0])
def test_arrivals_run_ahead_of_the_rate_by_the_root_of_time(burst):
    rate, horizon = 2.0, 9.0
    work = work_of(view_of(rate=rate, burst=burst, budget=50.0), horizon=horizon)
    assert len(work) == int(rate * horizon + burst * math.sqrt(horizon))


def test_a_burst_comes_close_together():
    """At one a second two rows come after one second and two; in a burst after 0.09 and 0.31."""
    view = view_of(rate=1.0, budget=9.5)  # each alone takes 5
    assert work_of(view, horizon=2.5).late([0.0], SECONDS, 1) == 0
    ahead = work_of(replace(view, burst=3.0), horizon=0.36)
    assert len(ahead) == 2
    assert ahead.late([0.0], SECONDS, 1) == 1, "the second waits for 4.8 s"


def test_hopeless_requests_are_left_out():
    work = work_of(view_of([Waiting(0.0, 4.5), Waiting(0.0, 5.5)]))
    assert work.hopeless == 1
    assert work.late([0.0], SECONDS, 4) == 1
    assert work.late([1.0], SECONDS, 4) == 2


class TestFreeTimes:
    def table(self, times):
        return SecondsByCores(CertainTimes(times), most_rows=8, p99=False)

    def test_a_running_batch_goes_on_with_the_cores_of_the_plan(self):
        halved = self.table(lambda rows, cores: rows / cores)
        view = view_of(replicas=(ReplicaView(2, 0.0, 14.0),))
        assert free_times(view, 2, halved, now=10.0) == (14.0,)
        assert free_times(view, 4, halved, now=10.0) == (12.0,)
        assert free_times(view, 1, halved, now=10.0) == (18.0,)

    def test_the_batch_that_gains_least_is_taken_to_run(self):
        uneven = self.table(lambda rows, cores: 1.0 + (rows - 1.0) / cores)
        view = view_of(replicas=(ReplicaView(1, 0.0, 14.0),))
        assert free_times(view, 2, uneven, now=10.0) == (14.0,), "a row alone gains nothing"

    def test_a_replica_that_starts_is_free_once_it_is_up(self):
        table = self.table(affine)
        view = view_of(replicas=(ReplicaView(1, 30.0, 0.0), ReplicaView(1, 0.0, 0.0)))
        assert free_times(view, 1, table, now=10.0) == (30.0, 10.0)


@pytest.mark.parametrize("rows", [1, 2])
def test_no_batch_starts_before_its_requests_are_there_on_whichever_replica(rows):
    """Three come at 10 for two replicas that have long been free: the third waits for the first."""
    takes = affine(rows, 1)
    view = view_of([Waiting(10.0, 10.0 + takes + 0.5, rows)] * 3, batch=rows)
    assert work_of(view).late([0.0, 0.0], SECONDS, rows) == 1
    assert work_of(view).late([0.0, 0.0, 0.0], SECONDS, rows) == 0


@example(
    [Waiting(38.0, 49.5, 3), Waiting(38.0, 62.5, 2), Waiting(39.0, 61.5), Waiting(38.0, 61.5, 2)],
    [0.0],
    1,
)
@given(
    st.lists(of_several_rows, max_size=7),
    st.lists(st.integers(0, 20).map(float), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_requests_of_several_rows_are_walked_as_by_hand(waiting, free, batch):
    work = work_of(view_of(waiting))
    assert work.late(free, SECONDS, batch) == late_by_hand(waiting, free, batch)


def late_by_hand(waiting, free, batch):
    """EDF, one step at a time: the most rows that end before the earliest deadline, as they fit."""
    alone = [w for w in waiting if max(w.ready_at, 0.0) + SECONDS[w.rows] <= w.deadline]
    late, clocks = len(waiting) - len(alone), sorted(free)
    left = sorted(alone, key=lambda w: w.deadline)  # equal ones as they were seen, as in a view
    clock = clocks[0]
    while left:
        ready = [w for w in left if w.ready_at <= clock]
        if not ready:
            clock = min(w.ready_at for w in left)
            continue
        first = ready[0]
        if clock + SECONDS[first.rows] > first.deadline:
            left.remove(first)
            late += 1
            continue
        most = max(
            [n for n in range(1, batch + 1) if clock + SECONDS[n] <= first.deadline], default=0
        )
        members, rows, limit = [first], first.rows, max(first.rows, most)
        for other in ready[1 : 4 * limit]:
            if rows + other.rows <= limit:
                members.append(other)
                rows += other.rows
        for member in members:
            left.remove(member)
        clocks[0] = clock + SECONDS[rows]
        clocks.sort()
        clock = max(clock, clocks[0])
    return late
