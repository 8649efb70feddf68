"""A single lane under virtual time, and batch times with a known law, for the scheduler tests.

Tests get all of it as the fixture `lab`. The product's simulator (another room) drives the engine;
this one drives a bare scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from slacktide.domain import Batch, PoolId, Reason, Replica, Request
from slacktide.engine.ports import Proposal, Scheduler, WaitUntil
from slacktide.profiles import BatchTimes

NORMAL = NormalDist()
REPLICA = Replica(id=0, pool=PoolId("m", "1"), lane="cpu", cores=(0,), max_batch=32)


def request(id: int, deadline: float, **fields: object) -> Request:
    """A request of model m that arrived at 0, with other fields as given."""
    return Request(**{"id": id, "model": "m", "arrival": 0.0, "deadline": deadline, **fields})


def batch(proposal: Proposal, *, now: float = 0.0, id: int = 0) -> Batch:
    """What the engine makes of a proposal."""
    return Batch(id, REPLICA, proposal.members, proposal.rows, now, now + 1.0)


@dataclass(frozen=True)
class LogNormalTime:
    """A batch time of this median and log-normal spread `sigma`."""

    expected: float
    sigma: float

    @property
    def p99(self) -> float:
        return self.quantile(0.99)

    def quantile(self, level: float) -> float:
        return self.expected * exp(self.sigma * NORMAL.inv_cdf(level))

    def on_time(self, budget: float) -> float:
        return NORMAL.cdf(log(budget / self.expected) / self.sigma) if budget > 0 else 0.0


class LogNormalTimes(BatchTimes):
    """Median `latency(rows)` seconds and log-normal spread `sigma`."""

    revision = 0

    def __init__(self, latency: Callable[[int], float], sigma: float = 0.05) -> None:
        self.latency = latency
        self.sigma = sigma

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> LogNormalTime:
        return LogNormalTime(self.latency(rows), self.sigma)


def residual(rows: int) -> float:
    """Hardly gains from batching: 12 ms alone."""
    return 0.012 if rows == 1 else 0.012 * 0.95 * rows


def weight_bound(rows: int) -> float:
    """Gains sixfold from batching: 10 ms alone, 50 ms for 32."""
    return 0.010 + 0.040 * (rows - 1) / 31


def steps(increments: Sequence[float]) -> Callable[[int], float]:
    """Batch times that grow by `increments`, the first of which is the time alone."""
    sums = list(accumulate(increments))
    return lambda rows: sums[rows - 1]


@dataclass
class LaneView:
    """`PoolView` of one lane."""

    free_at: float = 0.0
    lanes: int = 1
    cores: int = 1

    def free_in(self, *, now: float) -> float:
        return max(0.0, self.free_at - now)

    def leave(self, *, now: float) -> Callable[[float], float]:
        return float


@dataclass
class Run:
    """What became of a simulated run."""

    submitted: int = 0
    on_time: int = 0
    late: int = 0
    refused: dict[Reason, int] = field(default_factory=dict)
    longest_queue: int = 0
    batches: int = 0
    rows: int = 0
    by_slo: dict[float, list[int]] = field(default_factory=dict)

    @property
    def goodput(self) -> float:
        return self.on_time / self.submitted


def requests(
    rate: float, count: int, slos: Sequence[float], *, cv: float = 1.0, seed: int = 1
) -> list[Request]:
    """`count` arrivals with Gamma gaps (cv 1: Poisson), each with one of `slos` seconds."""
    rng = np.random.default_rng(seed)
    shape = 1.0 / cv**2
    arrivals = np.cumsum(rng.gamma(shape, 1.0 / (rate * shape), count))
    chosen = rng.choice(np.asarray(slos), count)
    return [
        Request(id=i, model="m", arrival=float(t), deadline=float(t + slo))
        for i, (t, slo) in enumerate(zip(arrivals, chosen, strict=True))
    ]


def simulate(
    scheduler: Scheduler,
    view: LaneView,
    arrivals: Sequence[Request],
    times: LogNormalTimes,
    *,
    seed: int = 1,
) -> Run:
    """Drive `scheduler` with `arrivals` on one lane; batch times are drawn from `times`."""
    rng = np.random.default_rng([seed, 7])
    run = Run(submitted=len(arrivals))
    for r in arrivals:
        run.by_slo.setdefault(round(r.deadline - r.arrival, 6), [0, 0])[1] += 1
    running: Batch | None = None
    finish = float("inf")
    wake = float("inf")
    i = 0
    now = 0.0

    def refuse(reason: Reason) -> None:
        run.refused[reason] = run.refused.get(reason, 0) + 1

    while True:
        arrival = arrivals[i].arrival if i < len(arrivals) else float("inf")
        now = min(arrival, finish, wake)
        if now == float("inf"):
            break
        wake = float("inf")
        if now == finish:
            if running is not None:
                scheduler.ended(running, now=now)
            for member in running.members if running is not None else ():
                if now <= member.deadline or member.best_effort:
                    run.on_time += 1
                    run.by_slo[round(member.deadline - member.arrival, 6)][0] += 1
                else:
                    run.late += 1
            running = None
            finish = float("inf")
            view.free_at = now
        elif now == arrival:
            reason = scheduler.add(arrivals[i], now=now)
            if reason is not None:
                refuse(reason)
            i += 1
        for _, reason in scheduler.expire(now=now):
            refuse(reason)
        run.longest_queue = max(run.longest_queue, len(scheduler))
        if running is None:
            proposal = scheduler.propose(REPLICA, now=now)
            if isinstance(proposal, Proposal):
                running = batch(proposal, now=now, id=run.batches)
                scheduler.take(running)
                run.batches += 1
                run.rows += proposal.rows
                took = times.latency(proposal.rows) * exp(times.sigma * rng.standard_normal())
                finish = now + took
                view.free_at = now + times.latency(proposal.rows)
            elif isinstance(proposal, WaitUntil):
                wake = proposal.at
        expiry = scheduler.next_expiry()
        if expiry is not None:
            wake = min(wake, max(expiry, now))
    return run


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """Everything above."""
    return SimpleNamespace(
        LaneView=LaneView,
        LogNormalTimes=LogNormalTimes,
        REPLICA=REPLICA,
        batch=batch,
        request=request,
        requests=requests,
        residual=residual,
        steps=steps,
        simulate=simulate,
        weight_bound=weight_bound,
    )
