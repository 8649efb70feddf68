"""`Search`: Sponge's Algorithm 1, made sound: the fewest cores with which no request is late.

As printed (paper §3.3) the algorithm returns nothing of use: line 8 leaves the loop for every batch
size that would suffice, line 15 accepts only the bad case, and it stops at the first infeasible
batch although a larger one may be feasible. Here, every pair of cores and batch size is judged by a
walk of the real queue, with each request's own budget, and by whether it keeps up with the rate.

`fewest_cores` solves the problem of `joint` by enumeration: one search per number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf

from slacktide.planning.scaling.queue_projection import QueueProjection, SecondsByCores, free_times
from slacktide.planning.scaling.view import ModelView, ReplicaView
from slacktide.scheduling.tables import size_grid

Configuration = tuple[int, int]
"""(cores of each replica, most rows in a batch)."""


class Search:
    """Searches the configurations of one view's replicas for those that save its requests."""

    def __init__(
        self, view: ModelView, *, now: float, horizon: float, p99: bool, delta: float
    ) -> None:
        """Look `horizon` seconds ahead. `delta`: cost of one more row in a batch, in cores."""
        self._view = view
        self._now = now
        self._delta = delta
        self._limits = view.limits
        self._largest = max((w.rows for w in view.waiting), default=1)
        """Rows of the largest request."""
        most_rows = max(view.limits.batch_max, view.batch, self._largest)
        self._seconds = SecondsByCores(view.times, most_rows=most_rows, p99=p99)
        self._free: dict[int, tuple[float, ...]] = {}
        most_cores = view.limits.cores_max
        self.queue = QueueProjection(
            view,
            now=now,
            horizon=horizon,
            earliest=min(self._free_at(most_cores), default=inf),
            alone=self._seconds[most_cores],
        )
        """Requests to serve."""

    def first(self, *, cores: int) -> Configuration | None:
        """Return the cheapest configuration of at least `cores` cores under which no request that
        can be saved is late and batches keep up with the rate; None if there is none. The cost is
        cores + delta · batch; ties go to fewer cores."""
        hopeless = self.queue.hopeless
        allowed: dict[int, float] = {}
        """By cores: seconds per row above which a plan cannot save all requests."""
        for c, b in self._by_cost(cores):
            seconds = self._seconds[c]
            if self._shortfall(c, b) > 0.0:
                continue
            free = self._free_at(c)
            if c not in allowed:
                allowed[c] = self.queue.seconds_per_row(free) * (1.0 + 1e-9)
            if self._largest <= b and min(seconds[k] / k for k in range(1, b + 1)) > allowed[c]:
                continue
            if self.queue.late(free, seconds, b, most=hopeless) <= hopeless:
                return c, b
        return None

    def most_saved(self, *, cores: int) -> Configuration:
        """Return the best configuration of at least `cores` cores if not all requests can be saved:
        the fewest late, then the least short of the rate, then the fewest cores, then the largest
        batch. Assumes that more cores never save fewer requests, and tries the batch sizes of
        `size_grid` only."""
        high = self._limits.cores_max
        batches = size_grid(self._limits.batch_max)[::-1]
        goal, batch = (inf, inf), batches[0]
        for b in batches:
            reached = (self.late(high, b, most=goal[0]), self._shortfall(high, b))
            if reached < goal:
                goal, batch = reached, b
        configuration = (high, batch)
        low, step = cores, 1
        while low < high:
            # One core fewer is usually too few.
            middle = max((low + high) // 2, high - step)
            equal = self._as_good(middle, goal, batches)
            if equal is None:
                low = middle + 1
            else:
                high, step = middle, 2 * step
                configuration = (middle, equal)
        return configuration

    def late(self, cores: int, batch: int, *, most: float = inf) -> int:
        """Return how many requests are late under a configuration, including those that no plan
        saves. Stops counting above `most`."""
        return self.queue.late(self._free_at(cores), self._seconds[cores], batch, most=most)

    def _by_cost(self, least: int) -> Iterator[Configuration]:
        """Yield every configuration, the cheapest first."""
        cores = range(least, self._limits.cores_max + 1)
        batches = range(1, self._limits.batch_max + 1)
        if self._delta * self._limits.batch_max < 1.0:
            # A core costs more than any batch, so this order is by cost already.
            return ((c, b) for c in cores for b in batches)
        ordered = sorted((c + self._delta * b, c, b) for c in cores for b in batches)
        return ((c, b) for _, c, b in ordered)

    def _as_good(self, cores: int, goal: tuple[float, float], batches: Sequence[int]) -> int | None:
        """Return the first of `batches` that reaches `goal`: (requests that are late, rows per
        second that are missing)."""
        late, short = goal
        for b in batches:
            if self._shortfall(cores, b) <= short and self.late(cores, b, most=late) <= late:
                return b
        return None

    def _shortfall(self, cores: int, batch: int) -> float:
        """Rows per second by which full batches fall short of the expected rate; at least 0."""
        served = len(self._view.replicas) * batch / self._seconds[cores][batch]
        return max(0.0, self._view.rate - served)

    def _free_at(self, cores: int) -> Sequence[float]:
        times = self._free.get(cores)
        if times is None:
            times = self._free[cores] = free_times(self._view, cores, self._seconds, now=self._now)
        return times


def fewest_cores(
    view: ModelView, search_of: Callable[[ModelView], Search], *, now: float
) -> dict[int, int | None]:
    """Return, by number of replicas, the fewest cores of each with which no request is late; None
    if even the most cores are too few. The replicas that are ready first stay; further replicas
    serve from `now + view.start_time` on."""
    limits = view.limits
    staying = sorted(view.replicas, key=lambda replica: replica.ready_at)[: limits.replicas_max]
    further = ReplicaView(limits.cores_min, now + view.start_time, now)
    replicas = (*staying, *(further,) * (limits.replicas_max - len(staying)))
    cores_by_count: dict[int, int | None] = {}
    hopeless = 0
    for count in range(limits.replicas_max, limits.replicas_min - 1, -1):
        search = search_of(replace(view, replicas=replicas[:count]))
        if count == limits.replicas_max:
            hopeless = search.queue.hopeless
        first = search.first(cores=limits.cores_min)
        saved = first is not None and search.queue.hopeless == hopeless
        cores_by_count[count] = first[0] if first is not None and saved else None
    return cores_by_count
