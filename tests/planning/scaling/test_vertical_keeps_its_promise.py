"""Queues are planned as the real `edf` scheduler serves them, and `vertical` keeps its promise."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.planning.harness import CertainTimes, model_view

from slacktide.domain import Batch, PoolId, Replica, Request
from slacktide.engine.ports import Proposal
from slacktide.planning.scaling import ReplicaView, ScalingLimits
from slacktide.planning.scaling.queue_projection import QueueProjection, SecondsByCores
from slacktide.planning.scaling.vertical import Vertical, VerticalOptions
from slacktide.planning.scaling.view import Waiting
from slacktide.scheduling import make_scheduler


class Lanes:
    """A `PoolView` of lanes that are all alike."""

    def __init__(self, cores, lanes):
        self.cores = cores
        self.lanes = lanes

    def free_in(self, *, now):
        return 0.0

    def leave(self, *, now):
        return float


def late_under_edf(waiting, free, times, *, cores, batch, now):
    """How many of `waiting` miss their deadlines on replicas that are free from `free` on."""
    most = max([batch, *(request.rows for request in waiting)])
    options = {"admission": False, "max_queue": None}
    scheduler = make_scheduler(
        "edf", options, max_batch=most, times=times, view=Lanes(cores, len(free))
    )
    replica = Replica(0, PoolId("m", "1"), "lane", tuple(range(cores)), batch)
    requests = [
        Request(id, "m", request.ready_at, min(request.deadline, 1e9), request.rows)
        for id, request in enumerate(waiting)
    ]
    coming = sorted(requests, key=lambda request: (max(now, request.arrival), request.id))
    free_at = sorted(free)
    late, clock = 0, free_at[0]
    while coming or len(scheduler):
        if not len(scheduler):
            clock = max(clock, coming[0].arrival)
        while coming and coming[0].arrival <= clock:
            scheduler.add(coming.pop(0), now=clock)
        late += len(scheduler.expire(now=clock))
        if not len(scheduler):
            continue
        proposal = scheduler.propose(replica, now=clock)
        assert isinstance(proposal, Proposal)
        taken = Batch(0, replica, proposal.members, proposal.rows, clock, math.inf)
        scheduler.take(taken)
        end = clock + times.of(proposal.rows, cores).expected
        late += sum(end > member.deadline for member in proposal.members)
        free_at = sorted([end, *free_at[1:]])
        clock = max(clock, free_at[0])
    return late


# Deadlines lie between whole seconds, so that nothing ends just at one.
single_rows = st.builds(
    lambda ready, budget: Waiting(float(ready), ready + budget + 0.5),
    st.integers(-20, 60),
    st.integers(0, 80),
)
several_rows = st.builds(
    lambda request, rows: replace(request, rows=rows), single_rows, st.integers(1, 4)
)
queues = st.one_of(st.lists(single_rows, max_size=14), st.lists(several_rows, max_size=14)).map(
    lambda queue: tuple(sorted(queue, key=lambda request: request.deadline))
)


def view_of(waiting, times, *, limits, free=(0.0,), **fields):
    replicas = tuple(ReplicaView(limits.cores_max, 0.0, at) for at in free)
    return model_view(times, limits, waiting=waiting, replicas=replicas, batch=4, **fields)


@given(
    queues,
    st.lists(st.integers(0, 30).map(float), min_size=1, max_size=3),
    st.integers(1, 6),
)
def test_as_many_are_late_in_the_walk_as_under_edf(waiting, free, batch):
    times = CertainTimes(lambda rows, cores: 2.0 + 3.0 * rows)
    view = view_of(waiting, times, limits=ScalingLimits(batch_max=6), free=free)
    seconds = SecondsByCores(times, most_rows=6, p99=False)[1]
    work = QueueProjection(view, now=0.0, horizon=0.0, earliest=min(free), alone=seconds)
    replicas = late_under_edf(waiting, free, times, cores=1, batch=batch, now=0.0)
    assert work.late(free, seconds, batch) == replicas


@given(
    queues,
    st.lists(st.sampled_from([0.0, 0.0, 7.0, 20.0]), min_size=1, max_size=2),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.integers(20, 90),
)
def test_vertical_plans_so_that_edf_makes_nobody_late_that_it_did_not_announce(
    waiting, free, rate, budget
):
    """Arrivals come as expected, batches take what is predicted; no fewer cores would do."""
    times = CertainTimes(lambda rows, cores: 4.0 + 2.01 * rows + (6.07 + 12.013 * rows) / cores)
    limits = ScalingLimits(cores_max=6, batch_max=5)
    view = view_of(waiting, times, limits=limits, free=free, rate=rate, budget=budget + 0.3)
    target = Vertical(VerticalOptions(period=60.0)).decide(view, now=0.0)
    arrivals = [at / rate for at in range(1, int(60.0 * rate) + 1)] if rate else []
    announced = sum(
        request.rows
        for request in waiting
        if 0.0 < request.ready_at <= request.deadline - times.of(request.rows, 6).p99
    )
    expected = [Waiting(at, at + budget + 0.3) for at in arrivals[announced:]]
    everybody = sorted([*waiting, *expected], key=lambda request: request.deadline)

    def late(cores, batch):
        ends = [scaled(at, cores) for at in free]
        return late_under_edf(everybody, ends, times, cores=cores, batch=batch, now=0.0)

    def scaled(end, cores):
        ratios = [times.of(rows, cores).p99 / times.of(rows, 6).p99 for rows in range(1, 5)]
        return end * max(ratios) if cores != 6 else end

    def keeps_up(cores, batch):
        return len(free) * batch / times.of(batch, cores).p99 >= rate

    assert late(target.cores, target.batch) == target.late
    hopeless = min(late(6, batch) for batch in range(1, 6))
    assert target.late <= hopeless
    if target.reason == "deadlines":
        assert keeps_up(target.cores, target.batch)
        for cores in range(1, target.cores):
            for batch in range(1, 6):
                assert late(cores, batch) > target.late or not keeps_up(cores, batch)
