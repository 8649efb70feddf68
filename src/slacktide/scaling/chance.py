"""Cores for requests that only luck can save.

Planning with the 99th percentile gives up a request whose budget is shorter than that, even alone
and on the most cores. If its budget is longer than the typical time it will, more often than not,
be on time on those cores all the same, and never on fewer. A scheduler runs it, so a planner should
not take its cores away.
"""

from __future__ import annotations

from collections.abc import Iterator

from slacktide.scaling.view import ModelView, Waiting


def cores_for_chance(view: ModelView, *, now: float) -> int:
    """The fewest cores of a replica on which each request that is given up by the 99th percentile,
    but not by the typical time, typically ends in time if it runs next; the least allowed if there
    is none."""
    times, limits = view.times, view.limits
    most = limits.cores_max
    free = min((max(replica.free_at, replica.ready_at) for replica in view.replicas), default=now)
    alone: dict[int, tuple[float, float]] = {}
    """By rows: (typical, 99th percentile) on the most cores."""
    cores = limits.cores_min
    for waiting in _all_that_come(view, now):
        budget = waiting.deadline - max(now, free, waiting.ready_at)
        found = alone.get(waiting.rows)
        if found is None:
            rows = waiting.rows
            found = alone[rows] = times.expected(rows, most), times.p99(rows, most)
        if found[0] <= budget < found[1]:
            while cores < most and times.expected(waiting.rows, cores) > budget:
                cores += 1
    return cores


def _all_that_come(view: ModelView, now: float) -> Iterator[Waiting]:
    yield from view.waiting
    if view.rate > 0.0:
        # Once what runs has ended: what it delays is the walk's business.
        ready_at = max([now, *(replica.free_at for replica in view.replicas)])
        yield Waiting(ready_at, ready_at + view.budget)
