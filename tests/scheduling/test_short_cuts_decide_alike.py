"""The short cuts of the schedulers against the long ways round: never another decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slacktide.domain import Batch, PoolId, Replica, Request
from slacktide.engine.ports import Proposal, Scheduler
from slacktide.profiles import CorrectedTimes, LatencyTable, TimeDistribution
from slacktide.scheduling import SlackOptions, make_scheduler
from slacktide.scheduling import slack as slack_module
from slacktide.scheduling.admission import Admission, AllWorkAhead
from slacktide.scheduling.best_effort import batch_of, size_of_single
from slacktide.scheduling.queue import DeadlineQueue
from slacktide.scheduling.slack import Slack
from slacktide.scheduling.slack_table import PAYS, PrefixSizes, SlackTable, clear_prefix, up_to
from slacktide.scheduling.tables import RowTimes, row_times, size_grid

MAX_BATCH = 12
increments = st.one_of(
    st.lists(st.floats(1e-5, 1e-3), min_size=MAX_BATCH, max_size=MAX_BATCH),
    # Batching pays well; hardly; not at all, so that sizes tie.
    st.sampled_from([[0.004] + [0.0005] * 11, [0.001] + [0.00095] * 11, [0.001] * 12]),
)
sigmas = st.sampled_from([0.02, 0.3])


def slack_table(lab: SimpleNamespace, increments: list[float], sigma: float) -> SlackTable:
    times = lab.LogNormalTimes(lab.steps(increments), sigma)
    return SlackTable(times, lambda time: (time.p99,), 1, MAX_BATCH)


def replica(max_batch: int) -> Replica:
    return Replica(id=0, pool=PoolId("m", "1"), lane="cpu", cores=(0,), max_batch=max_batch)


def the_long_way(scheduler: Scheduler, replica: Replica, now: float) -> object:
    """What `scheduler` proposes without its short cuts for requests that are all alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slack_module, "clear_prefix", lambda *args, **kwargs: None)
        patch.setattr(DeadlineQueue, "uniform", property(lambda queue: False))
        return scheduler.propose(replica, now=now)


@pytest.mark.parametrize("policy", ["slack", "edf"])
@given(
    increments,
    sigmas,
    st.sampled_from([5.0, 1e5, 1e9]),
    st.sampled_from([2, 7, MAX_BATCH]),
    st.floats(1.0, 30.0),
    st.lists(st.one_of(st.floats(0.0, 3.0), st.just(1.0)), min_size=1, max_size=40),
    st.sampled_from([1.0, 4.0]),
    st.integers(0, 3),
    st.sampled_from([{}, {"deferral_discount": 0.5, "levels": 1}, {"guarantee": "p99"}]),
)
def test_requests_that_are_all_alike(
    lab, policy, increments, sigma, now, limit, from_now, spread, penalty, before, options
) -> None:
    """`from_now` and `spread` are in times alone; `before`: batches taken earlier."""
    times = lab.LogNormalTimes(lab.steps(increments), sigma)
    options = {} if policy == "edf" else options
    scheduler = make_scheduler(
        policy,
        {"admission": False, **options},
        max_batch=MAX_BATCH,
        times=times,
        view=lab.LaneView(),
    )
    alone = increments[0]
    for id in range(before):
        scheduler.admit_moved(lab.request(1000 + id, now + 1.0), now=now)
        scheduler.take(lab.batch(scheduler.propose(lab.REPLICA, now=now), now=now))
    for id, more in enumerate(spread):
        deadline = now + (from_now + more) * alone
        scheduler.admit_moved(lab.request(id, deadline, penalty=penalty), now=now)
    scheduler.expire(now=now)
    proposal = scheduler.propose(replica(limit), now=now)
    assert proposal == the_long_way(scheduler, replica(limit), now)
    assert isinstance(proposal, Proposal) == (len(scheduler) > 0)


def test_patient_requests_are_decided_by_the_short_cut_and_ties_are_not(lab) -> None:
    pricer = {"now": 0.0, "kappa": 0.9, "tau": 0.01, "alone": 0.001}
    entries = [(1.0, id, lab.request(id, 1.0)) for id in range(4)]
    paying = PrefixSizes(sizes=(1, 2, 4), times=(0.001, 0.0015, 0.002), certain=0.003)
    assert clear_prefix(entries, paying, **pricer) == 4
    tied = PrefixSizes(sizes=(1, 2, 4), times=(0.001, 0.0015, 0.003), certain=0.003)
    assert clear_prefix(entries, tied, **pricer | {"kappa": 0.0}) is None
    in_doubt = PrefixSizes(sizes=(1, 2, 4), times=(0.001, 0.0015, 0.002), certain=1.001)
    assert clear_prefix(entries, in_doubt, **pricer) is None
    assert clear_prefix(entries, paying, **pricer | {"now": 0.998}) is None, "urgent"
    # On a clock at which a microsecond is lost in rounding, times say little about scores.
    late = [(1e10 + 1.0, id, lab.request(id, 1.0)) for id in range(4)]
    assert clear_prefix(late, paying, **pricer | {"now": 1e10, "tau": 1e-5}) is None


@given(increments, st.integers(1, 30), st.integers(1, MAX_BATCH))
def test_best_effort_requests_of_one_row(lab, increments, pending, limit) -> None:
    table = slack_table(lab, increments, 0.1)
    entries = [(1.0 + id, id, lab.request(id, 1.0 + id)) for id in range(pending)]
    chosen = batch_of(entries, table, up_to(limit, table.grid))
    for _ in range(2):  # worked out, then remembered
        size = size_of_single(min(limit, pending), table)
        assert [entry[2] for entry in entries[:size]] == chosen


def test_a_best_effort_batch_whose_rate_is_just_near_enough_grows_no_further(lab) -> None:
    """One in 1 s is exactly 0.9 of the rate of two in 1.8 s."""
    table = slack_table(lab, [1.0, 0.8] + [1.0] * 10, 0.1)
    entries = [(1.0 + id, id, lab.request(id, 1.0 + id)) for id in range(2)]
    assert size_of_single(2, table) == 1
    assert len(batch_of(entries, table, up_to(2, table.grid))) == 1


@given(increments, st.lists(st.integers(1, MAX_BATCH), min_size=1, max_size=6))
def test_the_paying_sizes_are_the_same_in_whatever_order_they_are_asked_for(
    lab, increments, asked
) -> None:
    latency = lab.steps(increments)
    paying = [1]
    for size in size_grid(MAX_BATCH)[1:]:
        if latency(size) / size <= (1.0 - PAYS) * (latency(paying[-1]) / paying[-1]):
            paying.append(size)
    table = slack_table(lab, increments, 0.1)
    for most in asked:
        prefixes = table.prefixes(most)
        assert prefixes.sizes == up_to(most, paying)
        assert prefixes.times == tuple(latency(size) for size in prefixes.sizes)


@given(
    increments,
    st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 5)), max_size=40),
    st.floats(0.0, 20.0),
    st.integers(1, 5),
    st.integers(1, 2),
)
def test_admission_without_the_best_rate(lab, increments, pending, budget, rows, lanes) -> None:
    """Budgets are in times alone. With an infinite time alone there is never room at that rate."""
    times = lab.LogNormalTimes(lab.steps(increments), 0.1)
    queue = DeadlineQueue()
    alone = increments[0]
    for id, (left, size) in enumerate(pending):
        queue.add(lab.request(id, left * alone, rows=size))
    table = row_times(times, MAX_BATCH, lambda times, rows, cores: times.of(rows, cores).expected)(
        1
    )
    per_row = table.per_row
    long = RowTimes(lambda rows: float("inf"), table.lead.__getitem__, MAX_BATCH, per_row=per_row)
    reasons = [
        Admission(queue=queue, view=lab.LaneView(lanes=lanes), max_queue=None).refuse(
            lab.request(-1, budget * alone, rows=rows),
            rows,
            waiting=0,
            times=times,
            now=0.0,
            ahead=AllWorkAhead(queue, times),
        )
        for times in (table, long)
    ]
    assert reasons[0] == reasons[1]


def test_the_best_rate_on_the_grid_is_the_best_of_all_rows_of_a_profile() -> None:
    """Profiles are measured on the grid and linear in between, whatever is learnt later."""
    times = CorrectedTimes(LatencyTable.linear(0.004, 0.0005, 24))
    for rows, seconds in ((1, 0.005), (3, 0.004), (11, 0.020), (24, 0.030)):
        for _ in range(20):
            times.observe(seconds, (), rows, 1)
    per_row = row_times(times, 24, lambda times, rows, cores: 0.0)(1).per_row
    least = min(times.of(rows, 1).expected / rows for rows in range(1, 25))
    assert per_row == pytest.approx(least, rel=1e-12)


@dataclass
class CountedTime:
    """A batch time that counts what is asked of it, by question and rows."""

    time: TimeDistribution
    rows: int
    asked: Counter[tuple[str, int]]

    @property
    def expected(self) -> float:
        self.asked["expected", self.rows] += 1
        return self.time.expected

    @property
    def p99(self) -> float:
        self.asked["p99", self.rows] += 1
        return self.time.p99

    def quantile(self, level: float) -> float:
        return self.time.quantile(level)

    def on_time(self, budget: float) -> float:
        self.asked["on_time", self.rows] += 1
        return self.time.on_time(budget)


def test_a_new_revision_costs_only_the_rows_that_are_asked_for(lab) -> None:
    counts: Counter[tuple[str, int]] = Counter()

    class Counting(lab.LogNormalTimes):
        def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> CountedTime:
            return CountedTime(super().of(rows, cores), rows, counts)

    times = Counting(lab.weight_bound, 0.1)
    scheduler = Slack(SlackOptions(), max_batch=32, times=times, view=lab.LaneView())
    for best_effort in (False, True):
        times.revision += 1
        counts.clear()
        for id in range(3):
            request = lab.request(id, 5.0 + id, best_effort=best_effort)
            assert scheduler.add(request, now=0.0) is None
        scheduler.expire(now=0.0)
        proposal = scheduler.propose(lab.REPLICA, now=0.0)
        assert isinstance(proposal, Proposal)
        assert len(proposal.members) == 3
        scheduler.take(Batch(0, lab.REPLICA, proposal.members, 3, 0.0, 1.0))
        assert {kind for kind, _ in counts} == {"expected"}
        assert {rows for _, rows in counts} == {1, 2, 3}
