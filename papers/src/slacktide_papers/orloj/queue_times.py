"""Figure 12: time to insert a request and to ask for the next batch, by length of the queue.

Timed, not simulated: wall clock, this process, this machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np

from slacktide.domain import PoolId, Replica, Request
from slacktide.profiles import FixedTimes, classes_of_samples
from slacktide.scheduling import make_scheduler
from slacktide_papers.orloj.experiments import SWEEP_CASE
from slacktide_papers.orloj.published import QUEUE_LENGTHS
from slacktide_papers.orloj.setting import SETTINGS, draw_requests

POLICIES = ("orloj", "slack")
REPEATS = 100
"""Number of operations in each median; the paper takes the mean of as many."""


@dataclass(frozen=True, slots=True)
class QueueTime:
    """Median times of one scheduler with `pending` requests in its queue."""

    scheduler: str
    pending: int
    insertion_us: float
    query_us: float


class _FreeLane:
    """One idle lane."""

    lanes = 1
    cores = 1

    def free_in(self, *, now: float) -> float:
        return 0.0

    def leave(self, *, now: float) -> Callable[[float], float]:
        return float


def queue_times(lengths: tuple[int, ...] = QUEUE_LENGTHS) -> tuple[QueueTime, ...]:
    """The time of every policy at every length of the queue."""
    return tuple(_timed(policy, pending) for policy in POLICIES for pending in lengths)


def _timed(policy: str, pending: int) -> QueueTime:
    requests = draw_requests(SETTINGS["P"], SWEEP_CASE, seed=1, requests=pending + REPEATS)
    classes = classes_of_samples(requests.training, requests.latency, shares=requests.shares)
    most = requests.latency.sizes[-1]
    times, view = FixedTimes(classes), _FreeLane()
    scheduler = make_scheduler(policy, {}, max_batch=most, times=times, view=view)
    # Deadlines are no later than the paper's loosest SLO, and late enough to be met.
    rng = np.random.default_rng(1)
    slack = requests.p99_alone * (2.0 + 3.0 * rng.random(pending + REPEATS))
    queue_requests = [
        Request(id, "model", 0.0, float(slack[id]), application=application)
        for id, application in enumerate(requests.applications)
    ]
    for request in queue_requests[:pending]:
        scheduler.admit_moved(request, now=0.0)
    insertions, queries = [], []
    for request in queue_requests[pending:]:
        start = perf_counter()
        scheduler.admit_moved(request, now=0.0)
        insertions.append(perf_counter() - start)
        scheduler.remove(request.id)
    replica = Replica(0, PoolId("model", "1"), "lane", (0,), most)
    for request in queue_requests[pending:]:
        # A new request each time; otherwise a scheduler could repeat its last answer.
        newcomer = replace(request, deadline=float(slack[0]))
        scheduler.admit_moved(newcomer, now=0.0)
        start = perf_counter()
        scheduler.propose(replica, now=0.0)
        queries.append(perf_counter() - start)
        scheduler.remove(newcomer.id)
    return QueueTime(policy, pending, median(insertions) * 1e6, median(queries) * 1e6)
