"""The yardsticks against exhaustive search, and against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import exp, inf
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.lab.simulation.beam import Case, best_finish

from slacktide.domain import (
    Deployment,
    LaneSpec,
    OutcomeKind,
    Plan,
    PoolId,
    Reason,
    Replica,
    Request,
    Route,
)
from slacktide.engine import Engine, PoolParts
from slacktide.engine.ports import Idle, Proposal
from slacktide.lab.simulation import ByLength, DrawnRequest, Simulation
from slacktide.lab.simulation.oracle_slack import OracleSlack
from slacktide.profiles import BatchLatency, FixedTimes, classes_of_samples
from slacktide.scheduling import make_scheduler

POOL = PoolId("m", "1")
LATENCY = BatchLatency(4.0, 1.0, (1, 2, 4, 8))
MOST = 8


def drawn(count: int, *, load: float, slo: float, seed: int) -> Case:
    """Poisson arrivals of two applications, short and long."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.5, rng.normal(0.4, 0.1, count), 1.6)
    arrivals = np.cumsum(rng.exponential(5.0 / load, count))
    return Case(
        LATENCY,
        MOST,
        tuple(arrivals.tolist()),
        tuple((arrivals + slo).tolist()),
        tuple(np.maximum(lengths, 0.05).tolist()),
    )


def finished(case: Case, policy: str) -> int:
    """How many the engine answers in time with `policy`."""
    samples = {
        name: [length for length in case.lengths if (length > 1.0) == (name == "long")]
        for name in ("short", "long")
    }
    classes = classes_of_samples(samples, case.latency)

    def parts(pool, max_batch, view) -> PoolParts:
        times = FixedTimes(classes)
        if policy != "oracle_slack":
            scheduler = make_scheduler(policy, {}, max_batch=max_batch, times=times, view=view)
            return PoolParts(scheduler, times)
        mean = float(np.mean(case.lengths))
        oracle = OracleSlack(
            case.latency, mean_length=mean, max_batch=max_batch, times=times, view=view
        )
        return PoolParts(oracle, times)

    plan = Plan((LaneSpec("lane", (0,)),), (Deployment(POOL, "lane", MOST),), (Route("m", POOL),))
    ends = []
    simulation = Simulation(
        Engine(parts), plan, ByLength(case.latency), answered=lambda _, end: ends.append(end)
    )
    columns = zip(case.arrivals, case.deadlines, case.lengths, strict=True)
    simulation.run(
        DrawnRequest(
            id=i,
            model="m",
            arrival=at,
            deadline=deadline,
            application="long" if length > 1.0 else "short",
            length=length,
        )
        for i, (at, deadline, length) in enumerate(columns)
    )
    assert len(ends) == len(case.arrivals)
    return sum(end.kind is OutcomeKind.SERVED for end in ends)


Batches = Callable[[Case, float, Sequence[int]], Iterable[tuple[int, ...]]]


def every(case: Case, at: float, pending: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """Every set of those that are here."""
    return (some for size in range(1, len(pending) + 1) for some in combinations(pending, size))


def of_the_family(case: Case, at: float, pending: Sequence[int]) -> Iterable[tuple[int, ...]]:
    """For each length x and size k, the first k no longer than x that would be on time."""
    in_order = sorted(pending, key=lambda i: (case.deadlines[i], i))
    for longest in {case.lengths[i] for i in pending}:
        fitting = [i for i in in_order if case.lengths[i] <= longest]
        for size in range(1, min(case.max_batch, len(fitting)) + 1):
            end = at + case.latency.seconds(size, longest)
            able = [i for i in fitting if case.deadlines[i] >= end]
            if able:
                yield tuple(able[:size])


def exhaustive(
    case: Case, batches: Batches, at: float = 0.0, done: frozenset[int] = frozenset()
) -> int:
    """The best of all schedules of such batches, now or after the next arrival."""
    pending = [
        i
        for i, arrival in enumerate(case.arrivals)
        if arrival <= at
        and i not in done
        and case.deadlines[i] >= at + case.latency.seconds(1, case.lengths[i])
    ]
    best = 0
    for members in batches(case, at, pending):
        end = at + case.latency.seconds(len(members), max(case.lengths[i] for i in members))
        if all(case.deadlines[i] >= end for i in members):
            best = max(best, len(members) + exhaustive(case, batches, end, done | set(members)))
    later = [arrival for arrival in case.arrivals if arrival > at]
    if later:
        best = max(best, exhaustive(case, batches, later[0], done))
    return best


@given(
    st.lists(
        st.tuples(st.floats(0.0, 12.0), st.floats(4.0, 16.0), st.sampled_from([0.2, 0.5, 2.0])),
        min_size=1,
        max_size=4,
    )
)
@example([(0.0, 9.0, 0.2), (0.0, 9.0, 0.5), (4.0, 5.0, 0.2)])  # the family misses the best
@example([(0.0, 14.0, 0.2), (3.0, 12.0, 2.0), (7.0, 7.0, 0.2)])  # sizes above the pending ones
def test_the_beam_finds_the_best_of_its_family(requests) -> None:
    requests.sort()
    arrivals, slos, lengths = zip(*requests, strict=True)
    deadlines = tuple(a + slo for a, slo in zip(arrivals, slos, strict=True))
    case = Case(BatchLatency(4.0, 1.0), 4, arrivals, deadlines, lengths)
    most = exhaustive(case, of_the_family)
    assert best_finish(case, width=10_000, may_wait=True) == most
    assert best_finish(case, width=10_000) <= most <= exhaustive(case, every)


REPLICA = Replica(0, POOL, "lane", (0,), MOST)
VIEW = SimpleNamespace(lanes=1, cores=1, free_in=lambda now: 0.0)


def told(latency: BatchLatency, requests: Iterable[tuple[float, float]]) -> OracleSlack:
    """A yardstick with these (deadline, length) waiting; a mean length is 1."""
    times = FixedTimes(classes_of_samples({"": [1.0]}, latency))
    oracle = OracleSlack(latency, mean_length=1.0, max_batch=MOST, times=times, view=VIEW)
    for id, (deadline, length) in enumerate(requests):
        oracle.add(DrawnRequest(id, "m", 0.0, deadline, length=length), now=0.0)
    return oracle


@given(
    st.lists(
        st.tuples(st.integers(1, 400).map(lambda i: i / 10), st.sampled_from([0.2, 0.5, 1.0, 2.0])),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([0.3, 4.0]),
    st.sampled_from([(), (1, 2, 4, 8)]),
)
def test_the_told_rule_takes_the_best_of_all_its_candidates(requests, c0, sizes) -> None:
    latency = BatchLatency(c0, 1.0, sizes)
    oracle = told(latency, requests)
    oracle.expire(now=0.0)
    waiting = oracle.pending()
    proposal = oracle.propose(REPLICA, now=0.0)
    assert isinstance(proposal, Proposal) == bool(waiting)
    if not waiting:
        return
    mean_alone = c0 + 1.0
    tau = len(waiting) * mean_alone + mean_alone

    def score(members: Sequence[Request]) -> float:
        took = latency.seconds(len(members), max(request.length for request in members))
        total = 0.0
        for request in members:
            alone = latency.seconds(1, request.length)
            spare = max(0.0, request.deadline - alone - took)
            total += (alone / mean_alone) ** 0.5 * (1.0 - 0.9 * (1.0 - exp(-spare / tau)))
        return total / took

    best = 0.0
    for longest in {request.length for request in waiting}:
        least = inf
        for size in sizes or (1, 2, 3, 4, 6, 8):
            per_row = latency.seconds(size, longest) / size
            if per_row <= 0.95 * least:
                least = per_row
                need = latency.seconds(size, longest)
                able = [o for o in waiting if o.length <= longest and o.deadline >= need][:size]
                best = max(best, score(able) if able else 0.0)
    assert score(proposal.members) == pytest.approx(best)
    end = latency.seconds(proposal.rows, max(request.length for request in proposal.members))
    assert all(request.deadline >= end for request in proposal.members)


def test_a_larger_batch_that_hardly_pays_is_not_run() -> None:
    """Two of length 10 would save 1.5 % a row, and the first would be answered 10 s later."""
    oracle = told(BatchLatency(0.3, 1.0), [(100.0, 10.0), (100.0, 10.0)])
    assert oracle.propose(REPLICA, now=0.0).rows == 1
    assert told(BatchLatency(4.0, 1.0), [(99.0, 10.0)] * 2).propose(REPLICA, now=0.0).rows == 2


def test_the_yardstick_is_for_single_rows_and_forgets_what_leaves() -> None:
    oracle = told(LATENCY, [(9.0, 1.0), (8.0, 1.0)])
    with pytest.raises(ValueError, match="2 rows"):
        oracle.add(DrawnRequest(7, "m", 0.0, 9.0, rows=2), now=0.0)
    assert oracle.remove(0)
    assert not oracle.remove(0)
    assert oracle.next_expiry() == 3.0
    assert oracle.expire(now=3.0) == [(1, Reason.HOPELESS)]
    assert (len(oracle), oracle.next_expiry(), oracle.propose(REPLICA, now=3.0)) == (
        0,
        None,
        Idle(),
    )


@pytest.mark.parametrize("slo", [10.0, 16.0])
def test_who_knows_more_finishes_more(slo: float) -> None:
    """Under overload: orderings that hold with room to spare, over two seeds."""
    cases = [drawn(150, load=1.5, slo=slo, seed=seed) for seed in (1, 2)]
    edf = sum(finished(case, "edf") for case in cases)
    slack = sum(finished(case, "slack") for case in cases)
    oracle = sum(finished(case, "oracle_slack") for case in cases)
    clairvoyant = sum(best_finish(case, width=20) for case in cases)
    patient = sum(best_finish(case, width=20, may_wait=True) for case in cases)
    assert edf < slack <= oracle + 3
    assert oracle <= clairvoyant <= patient


def test_bad_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        Case(LATENCY, MOST, (1.0, 0.0), (9.0, 9.0), (1.0, 1.0))
    with pytest.raises(ValueError, match="equally"):
        Case(LATENCY, MOST, (1.0,), (9.0, 9.0), (1.0, 1.0))
    with pytest.raises(ValueError, match="width"):
        best_finish(drawn(1, load=1.0, slo=9.0, seed=1), width=0)
    assert best_finish(Case(LATENCY, MOST, (), (), ())) == 0
