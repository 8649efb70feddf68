"""`QueueProjection`: what becomes of a model's requests under a plan, in a walk in virtual time.

The walk serves them as the `edf` policy does (scheduling/edf.py): whenever a replica is free, the
request due first leads, and the batch is the largest of those ready, up to the plan's limit, that
keeps it on time. Nothing starts before it is ready, no replica idles while something is, and what
cannot be on time even alone is dropped. So if batches take what is predicted and arrivals come as
expected, what the walk finds is what happens; where they differ, it is a forecast, made anew at
every plan.

It is the one judge of all planners: a plan is good if the walk finds no request late. This goes
beyond Sponge's Algorithm 1 (paper §3.3), which takes all requests to have the shortest of their
budgets.

Expected arrivals come at the view's rate, ahead of it by as much as chance may carry them: the k-th
as soon as rate · t + burst · √t reaches k. Announced requests are the first of them: as many as are
announced with time enough for themselves are left out.

Left out of the model: what a policy holds a lane for, the other models of a shared lane, and
that requests of different shapes cannot share a batch. Best-effort requests are served last.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from math import inf, sqrt

import numpy as np

from slacktide.planning.scaling.view import BatchSeconds, ModelView


class SecondsByCores(dict[int, list[float]]):
    """By cores, the seconds of a batch by rows, from 0 (which takes none) to `most_rows`: asked for
    once per number of cores. A planner makes one per decision: predictions do not move while it
    decides."""

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
"""Expected arrivals walked through: at high rates a part of a second says as much as all of it."""

Item = tuple[float, int, int]
"""(deadline, order among equals, rows)."""


def free_times(
    view: ModelView, cores: int, seconds: SecondsByCores, *, now: float
) -> tuple[float, ...]:
    """When each replica can start a batch if it had `cores` cores from now on; absolute seconds. A
    running batch goes on with the cores that its replica has then. How many rows it has is not
    known: what is left of it is scaled by the worst ratio of any batch of the plan in force."""
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
    """What waits, is announced and is expected, prepared for many walks."""

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
        """Look `horizon` seconds ahead for arrivals that are not announced. A request that could
        not be on time even if it ran first, from `earliest` (absolute) on, in `alone[rows]`
        seconds, is left out and counted as hopeless: no plan can save it."""
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
        """Requests that a plan may save."""
        return len(self._ready) + len(self._coming)

    def seconds_per_row(self, free: Sequence[float]) -> float:
        """The longest time per row of a plan that could save all: a quick way to refuse plans.
        Whatever the order, when the i-th deadline comes the rows of the i requests due first must
        have been run, by all replicas together, since the first of them was free."""
        if not len(self) or not free:
            return inf
        budgets = self._deadlines - min(free)
        return len(free) * float((budgets / self._rows).min())

    def late(
        self, free: Sequence[float], seconds: Sequence[float], batch: int, *, most: float = inf
    ) -> int:
        """How many requests miss their deadlines, the hopeless included. `free`: from when on each
        replica can start; `seconds[rows]`: how long a batch takes, non-decreasing, for all rows up
        to the larger of `batch` and the largest request. Stops counting beyond `most`."""
        if not free:
            return self.hopeless + len(self)
        if self._single:
            return self._late_of_single_rows(free, seconds, batch, most)
        return self._late_of_rows(free, seconds, batch, most)

    def _late_of_single_rows(
        self, free: Sequence[float], seconds: Sequence[float], batch: int, most: float
    ) -> int:
        """`late` where a request is a row. `available[first:]` are the deadlines of those ready."""
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
                    # With the first, all others that cannot be on time alone are dropped.
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
        """`late` where requests have several rows."""
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
            # A request larger than the limit runs by itself.
            limit = max(rows, bisect_right(seconds, budget, 1, batch + 1) - 1)
            place, last = first + 1, min(len(available), first + 4 * limit)
            shared_places: list[int] = []
            """Requests that share the batch, but for those next to the first."""
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
    """(k, seconds from now) of each expected row within so many seconds, but for the first few."""
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
