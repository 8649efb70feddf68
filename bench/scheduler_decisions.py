"""How long the schedulers themselves take: decisions, insertions, add and take. Pure, no server.

Microseconds, medians of many calls. Goals: a `slack` decision ≤ 100 µs with 1,000 pending;
where there are four classes ≤ 150 µs, and ≤ 300 µs with 10,000 pending; an insertion ≤ 20 µs with
10,000 pending, in the queue itself and with four classes; add and take together ≤ 3 µs per request
at batch 8 with `fifo` and `edf`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist, median
from time import perf_counter

import numpy as np
from sortedcontainers import SortedKeyList

from bench.machine import cores, pin
from bench.measurement import Figure, Goal, Options, Result, at_most
from slacktide.domain import Batch, PoolId, Replica, Request
from slacktide.engine.ports import Proposal, Scheduler
from slacktide.profiles import BatchLatency, BatchTimes, FixedTimes, classes_of_samples
from slacktide.scheduling import make_scheduler
from slacktide.scheduling.queue import DeadlineQueue

NORMAL = NormalDist()
MAX_BATCH = 32


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


class Times(BatchTimes):
    """Log-normal batch times around a median; stands in for a profile."""

    def __init__(self, latency: Callable[[int], float], sigma: float = 0.05) -> None:
        self.latency = latency
        self.sigma = sigma

    def of(self, rows: int, cores: int, members: Sequence[Request] = ()) -> LogNormalTime:
        return LogNormalTime(self.latency(rows), self.sigma)


class View:
    """One lane, free."""

    lanes = 1
    cores = 1

    def free_in(self, *, now: float) -> float:
        return 0.0

    def leave(self, *, now: float) -> Callable[[float], float]:
        return float


MODELS: dict[str, Callable[[int], float]] = {
    "residual": lambda rows: 0.012 if rows == 1 else 0.0114 * rows,
    "weight-bound": lambda rows: 0.010 + 0.040 * (rows - 1) / 31,
}
REPLICA = Replica(id=0, pool=PoolId("m", "1"), lane="cpu", cores=(0,), max_batch=MAX_BATCH)


def request(id: int, deadline: float, arrival: float = 0.0) -> Request:
    return Request(id=id, model="m", arrival=arrival, deadline=deadline)


def filled(policy: str, model: str, pending: int, span: float) -> Scheduler:
    """A scheduler with `pending` requests whose deadlines lie within `span` seconds."""
    scheduler = make_scheduler(
        policy, {}, max_batch=MAX_BATCH, times=Times(MODELS[model]), view=View()
    )
    deadlines = 0.02 + np.random.default_rng(1).random(pending) * span
    for id, deadline in enumerate(deadlines.tolist()):
        scheduler.admit_moved(request(id, deadline), now=0.0)
    return scheduler


def decision_us(policy: str, model: str, pending: int, span: float, repeats: int) -> float:
    """Median time of one `propose`, in µs."""
    scheduler = filled(policy, model, pending, span)
    scheduler.propose(REPLICA, now=0.0)
    samples = []
    for _ in range(repeats):
        start = perf_counter()
        scheduler.propose(REPLICA, now=0.0)
        samples.append(perf_counter() - start)
    return median(samples) * 1e6


APPLICATIONS = 4
SPAN = 0.6
"""Seconds within which the deadlines of unlike requests lie."""


def of_classes() -> FixedTimes:
    """Batch times of requests of four lengths (σ a twelfth of their range), padded to a power of 2.

    A request of the mean length takes 10 ms by itself, and half of that is fixed cost.
    """
    rng = np.random.default_rng(3)
    means = np.linspace(0.3, 1.7, APPLICATIONS)
    lengths = {f"app-{g}": rng.normal(mean, 0.12, 4_000).clip(0.01) for g, mean in enumerate(means)}
    latency = BatchLatency(c0=0.005, c1=0.005, sizes=(1, 2, 4, 8, 16, 32))
    return FixedTimes(classes_of_samples(lengths, latency, most=APPLICATIONS))


def unlike(policy: str, pending: int) -> Scheduler:
    """A scheduler with `pending` requests of four classes."""
    scheduler = make_scheduler(policy, {}, max_batch=MAX_BATCH, times=of_classes(), view=View())
    for application in of_applications(0, pending):
        scheduler.admit_moved(application, now=0.0)
    return scheduler


def of_applications(first: int, count: int) -> list[Request]:
    """Requests of all applications in turn, ids from `first` on."""
    deadlines = 0.02 + np.random.default_rng(first + 4).random(count) * SPAN
    return [
        Request(
            id=first + i,
            model="m",
            arrival=0.0,
            deadline=deadline,
            application=f"app-{i % APPLICATIONS}",
        )
        for i, deadline in enumerate(deadlines.tolist())
    ]


def unlike_us(policy: str, pending: int, repeats: int) -> tuple[float, float]:
    """(decision, insertion) in µs, medians, with `pending` requests of four classes."""
    scheduler = unlike(policy, pending)
    scheduler.propose(REPLICA, now=0.0)
    decisions, insertions = [], []
    for newcomer in of_applications(pending, repeats):
        start = perf_counter()
        scheduler.admit_moved(newcomer, now=0.0)
        inserted = perf_counter()
        scheduler.propose(REPLICA, now=0.0)
        decisions.append(perf_counter() - inserted)
        insertions.append(inserted - start)
        scheduler.remove(newcomer.id)
    return median(decisions) * 1e6, median(insertions) * 1e6


def insertion_us(container: str, pending: int, repeats: int) -> float:
    """Median time of one insertion among `pending`, in µs, removals not counted."""
    rng = np.random.default_rng(2)
    resident = [request(id, d) for id, d in enumerate(rng.random(pending).tolist())]
    newcomers = [request(pending + id, d) for id, d in enumerate(rng.random(repeats).tolist())]
    samples = []
    if container == "DeadlineQueue":
        queue = DeadlineQueue()
        for member in resident:
            queue.add(member)
        for member in newcomers:
            start = perf_counter()
            queue.add(member)
            samples.append(perf_counter() - start)
            queue.remove((member.id,))
    else:
        ordered = SortedKeyList(resident, key=lambda request: (request.deadline, request.id))
        for member in newcomers:
            start = perf_counter()
            ordered.add(member)
            samples.append(perf_counter() - start)
            ordered.remove(member)
    return median(samples) * 1e6


def cycle_us(policy: str, repeats: int, batch: int = 8) -> tuple[float, float]:
    """(add + take, add + expire + propose + take) in µs per request at this batch size."""
    scheduler = filled(policy, "weight-bound", 0, 0.0)
    bare: list[float] = []
    whole: list[float] = []
    id = 0
    for round in range(repeats):
        now = round * 0.1
        arrivals = [request(id + i, now + 0.09 + i * 1e-4, now) for i in range(batch)]
        id += batch
        start = perf_counter()
        for arrival in arrivals:
            scheduler.add(arrival, now=now)
        added = perf_counter()
        scheduler.expire(now=now)
        proposal = scheduler.propose(REPLICA, now=now)
        proposed = perf_counter()
        if not isinstance(proposal, Proposal):
            raise RuntimeError(f"{policy} proposes nothing")
        taken = Batch(round, REPLICA, proposal.members, proposal.rows, now, now + 1.0)
        before = perf_counter()
        scheduler.take(taken)
        took = perf_counter() - before
        bare.append((added - start + took) / batch)
        whole.append((proposed - start + took) / batch)
    return median(bare) * 1e6, median(whole) * 1e6


def measure(quick: bool) -> dict[str, float]:
    """Every figure of this file, by name, in µs."""
    repeats = 100 if quick else 1000
    costs: dict[str, float] = {}
    for pending in (1, 32, 1_000, 10_000):
        for model in MODELS:
            for span in (0.12, 0.6):
                key = f"slack decision, {model}, {pending} pending within {span} s"
                costs[key] = decision_us("slack", model, pending, span, repeats)
    for container in ("DeadlineQueue", "SortedKeyList"):
        for pending in (1_000, 10_000, 100_000):
            costs[f"insertion, {container}, {pending} pending"] = insertion_us(
                container, pending, repeats
            )
    for policy in ("slack", "orloj", "orloj_text"):
        for pending in (1_000, 10_000):
            decision, insertion = unlike_us(policy, pending, repeats)
            costs[f"{policy} decision, four classes, {pending} pending"] = decision
            costs[f"{policy} insertion, four classes, {pending} pending"] = insertion
    for policy in ("fifo", "edf", "slack"):
        bare, whole = cycle_us(policy, repeats)
        costs[f"{policy}, add + take per request at batch 8"] = bare
        costs[f"{policy}, add + expire + propose + take per request at batch 8"] = whole
    return costs


def run(options: Options) -> Result:
    """Every figure once, itself a median; ten times fewer repeats when quick."""
    pin(cores().server)
    result = Result("scheduler_decisions")
    for name, value in measure(options.quick).items():
        if options.wants(name):
            result.figures.append(Figure(name, value, "µs", goal_of(name)))
    return result


def goal_of(name: str) -> Goal | None:
    """What a figure of `measure` should be."""
    if name.startswith("insertion, DeadlineQueue") and name.endswith(", 10000 pending"):
        return at_most(20.0)
    if name.startswith("slack decision, four classes"):
        return at_most(150.0 if ", 1000 pending" in name else 300.0)
    if name.startswith("slack decision") and ", 1000 pending" in name:
        return at_most(100.0)
    if " insertion, four classes" in name and name.endswith(", 10000 pending"):
        return at_most(20.0)
    if name.endswith("add + take per request at batch 8") and not name.startswith("slack"):
        return at_most(3.0)
    return None
