"""`QueueProjection`: a walk in virtual time that finds which requests are late under a plan.

The walk serves requests as the `edf` policy does (scheduling/edf.py): whenever a replica is free,
the request due first runs, in the largest batch of ready requests, up to the plan's limit, that
still keeps it on time. No request starts before it is ready, no replica idles while a request is
ready, and requests that cannot be on time even alone are dropped. So the walk is exact if batches
take the predicted time and arrivals come as expected; otherwise it is a forecast, renewed at every
plan.

Our scaling policies judge every plan by the walk: a plan is good if the walk finds no request late.
Sponge's Algorithm 1 (paper §3.3) instead gives all requests the shortest of their budgets.

The walk expects arrivals at the view's rate, plus a margin for bursts: the k-th request arrives
when rate · t + burst · √t reaches k. Announced requests that can still be on time replace the first
expected arrivals.

The walk ignores lanes held for a later batch, other models on a shared lane, and the rule that
requests of different shapes cannot share a batch. Best-effort requests are served last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from math import inf, sqrt

import numpy as np

from slacktide.planning.scaling.view import BatchSeconds, ModelView


class SecondsByCores(dict[int, list[float]]):
    """Seconds of batches of 0 to `most_rows` rows, by cores. It asks for the times of each number
    of cores once. A policy makes one per decision, during which predictions do not change."""

    def __init__(self, times: BatchSeconds, *, most_rows: int, p99: bool) -> None:
        self._times = times
        self._p99 = p99
        self._most = most_rows

    def __missing__(self, cores: int) -> list[float]:
        of, rows = self._times.of, range(1, self._most + 1)
        seconds = self[cores] = [0.0]
        seconds += [of(n, cores).p99 if self._p99 else of(n, cores).expected for n in rows]
        return seconds


MOST_EXPECTED = 512
"""Limit on expected arrivals in a projection: at high rates, the arrivals of part of the horizon
say as much as the arrivals of the whole horizon."""

Item = tuple[float, int, int]
"""(deadline, tie-breaker, rows)."""


def free_times(
    view: ModelView, cores: int, seconds: SecondsByCores, *, now: float
) -> tuple[float, ...]:
    """Return when each replica can start a batch if it has `cores` cores from now on (absolute
    seconds). A running batch continues on the new cores. Its rows are unknown, so its remaining
    time is scaled by the worst ratio over all batch sizes of the plan in force."""
    free_at = []
    for replica in view.replicas:
        free = now
        if replica.free_at > now:
            remaining_s = replica.free_at - now
            if replica.cores != cores:
                most = max(1, min(view.batch, len(seconds[cores]) - 1))
                after, before = seconds[cores][1 : most + 1], seconds[replica.cores][1 : most + 1]
                remaining_s *= max(to / of for to, of in zip(after, before, strict=True))
            free += remaining_s
        free_at.append(max(free, replica.ready_at))
    return tuple(free_at)


class QueueProjection:
    """The waiting, announced and expected requests, prepared for many walks."""

    __slots__ = ("_coming", "_deadlines", "_ready", "_rows", "_single", "hopeless")

    def __init__(
        self,
        view: ModelView,
        *,
        now: float,
        horizon: float,
        earliest: float,
        alone: Sequence[float],
    ) -> None:
        """Expect arrivals for `horizon` seconds. A request that would be late even if it started
        first, at `earliest` (absolute), and took `alone[rows]` seconds, is left out and counted as
        hopeless."""
        self.hopeless = 0
        """Requests that no plan can save."""
        ready: list[Item] = []
        coming: list[tuple[float, Item]] = []
        self._single = True
        announced = 0
        for order, waiting in enumerate(view.waiting):
            rows = waiting.rows
            if now < waiting.ready_at <= waiting.deadline - alone[rows]:
                announced += rows
            if waiting.deadline < max(earliest, waiting.ready_at) + alone[rows]:
                self.hopeless += 1
                continue
            self._single = self._single and rows == 1
            item = (waiting.deadline, order, rows)
            if waiting.ready_at > now:
                coming.append((waiting.ready_at, item))
            else:
                ready.append(item)
        order = len(view.waiting)
        for k, after in _expected(view, beyond=announced, within=horizon):
            at = now + after
            deadline = at + view.budget
            if deadline < max(earliest, at) + alone[1]:
                self.hopeless += 1
            else:
                coming.append((at, (deadline, order + k, 1)))
        ready.sort()
        coming.sort()
        self._ready = ready
        self._coming = coming
        ordered = sorted(ready + [item for _, item in coming])
        self._deadlines = np.array([item[0] for item in ordered], dtype=float)
        self._rows = np.cumsum([item[2] for item in ordered], dtype=float)

    def __len__(self) -> int:
        """Return how many requests a plan may save."""
        return len(self._ready) + len(self._coming)

    def seconds_per_row(self, free: Sequence[float]) -> float:
        """Return the most seconds per row that a plan may take to save all requests: a quick test.
        Whatever the order of execution, by the i-th deadline the replicas together must have run
        the rows of the i requests due first, starting no earlier than the first replica is free."""
        if not len(self) or not free:
            return inf
        budgets = self._deadlines - min(free)
        return len(free) * float((budgets / self._rows).min())

    def late(
        self, free: Sequence[float], seconds: Sequence[float], batch: int, *, most: float = inf
    ) -> int:
        """Return how many requests are late, including hopeless requests. `free`: when each replica
        can start; `seconds[rows]`: batch times, non-decreasing, up to the larger of `batch` and the
        largest request. Stops counting above `most`."""
        if not free:
            return self.hopeless + len(self)
        if self._single:
            return self._late_of_single_rows(free, seconds, batch, most)
        return self._late_of_rows(free, seconds, batch, most)

    def _late_of_single_rows(
        self, free: Sequence[float], seconds: Sequence[float], batch: int, most: float
    ) -> int:
        """`late` for requests of one row. `available[first:]`: deadlines of ready requests."""
        available = [item[0] for item in self._ready]
        coming = [(at, item[0]) for at, item in self._coming]
        coming.append((inf, inf))
        replicas = list(free)
        heapify(replicas)
        clock = replicas[0]
        first, late, i = 0, self.hopeless, 0
        following, deadline = coming[0]
        while late <= most:
            if first == len(available):
                if following == inf:
                    break
                if clock < following:
                    clock = following
            while following <= clock:
                insort(available, deadline, first)
                i += 1
                following, deadline = coming[i]
            budget = available[first] - clock
            rows = min(batch, len(available) - first)
            if seconds[rows] > budget:
                rows = bisect_right(seconds, budget, 1, rows) - 1
                if rows == 0:
                    # Drop the first request and all others that cannot be on time alone.
                    served = bisect_left(available, clock + seconds[1], first + 1)
                    late += served - first
                    first = served
                    continue
            first += rows
            heapreplace(replicas, clock + seconds[rows])
            if clock < replicas[0]:
                clock = replicas[0]
        return late

    def _late_of_rows(
        self, free: Sequence[float], seconds: Sequence[float], batch: int, most: float
    ) -> int:
        """`late` for requests of several rows."""
        available = self._ready.copy()
        coming = [*self._coming, (inf, (inf, 0, 0))]
        replicas = list(free)
        heapify(replicas)
        clock = replicas[0]
        first, late, i = 0, self.hopeless, 0
        following, item = coming[0]
        while late <= most:
            if first == len(available):
                if following == inf:
                    break
                if clock < following:
                    clock = following
            while following <= clock:
                insort(available, item, first)
                i += 1
                following, item = coming[i]
            deadline, _, rows = available[first]
            budget = deadline - clock
            if seconds[rows] > budget:
                late += 1
                first += 1
                continue
            # A request larger than the limit runs alone.
            limit = max(rows, bisect_right(seconds, budget, 1, batch + 1) - 1)
            place, last = first + 1, min(len(available), first + 4 * limit)
            shared_places: list[int] = []
            """Places of requests that share the batch, except requests that directly follow the
            first request without a gap: advancing `first` skips them."""
            while rows < limit and place < last:
                more = rows + available[place][2]
                if more <= limit:
                    rows = more
                    if place == first + 1:
                        first = place
                    else:
                        shared_places.append(place)
                place += 1
            for shared_place in reversed(shared_places):
                del available[shared_place]
            first += 1
            heapreplace(replicas, clock + seconds[rows])
            if clock < replicas[0]:
                clock = replicas[0]
        return late


def _expected(view: ModelView, *, beyond: int, within: float) -> Iterator[tuple[int, float]]:
    """Yield (k, seconds from now) of each expected row in the next `within` seconds; the first k is
    `beyond` + 1."""
    rate, burst = view.rate, view.burst
    if rate <= 0.0:
        return
    last = min(int(rate * within + burst * sqrt(within)), beyond + MOST_EXPECTED)
    for k in range(beyond + 1, last + 1):
        if burst == 0.0:
            yield k, k / rate
            continue
        # rate · t + burst · √t = k, solved for √t.
        root = (sqrt(burst * burst + 4.0 * rate * k) - burst) / (2.0 * rate)
        yield k, root * root
