"""`fewest_cores`: what each number of replicas needs, and so the cheapest of all.

The problem that `joint` solves: replicas n, cores of each c, batch b, with n · c least, so that
every deadline is met that could be met at all. By enumeration: for every n the `Search` over cores
and batches, which walks the queue unless a bound already refuses the plan.
"""

from __future__ import annotations

from dataclasses import replace

from slacktide.scaling.search import Search
from slacktide.scaling.view import ModelView, ReplicaView


def fewest_cores(
    view: ModelView, *, now: float, horizon: float, p99: bool, delta: float
) -> dict[int, int | None]:
    """By number of replicas, within the limits: the fewest cores of each with nobody late.

    None where even the most cores are too few. Of the replicas there are those stay that serve
    first; further ones serve from `now + view.start_time` on. `horizon`, `p99`, `delta`: as in
    `Search`.
    """
    limits = view.limits
    there = sorted(view.replicas, key=lambda replica: replica.ready_at)[: limits.replicas_max]
    new = ReplicaView(limits.cores_min, now + view.start_time, now)
    replicas = (*there, *(new,) * (limits.replicas_max - len(there)))
    found: dict[int, int | None] = {}
    hopeless = 0
    for count in range(limits.replicas_max, limits.replicas_min - 1, -1):
        search = Search(
            replace(view, replicas=replicas[:count]),
            now=now,
            horizon=horizon,
            p99=p99,
            delta=delta,
        )
        if count == limits.replicas_max:
            hopeless = search.work.hopeless
        first = search.first(cores=limits.cores_min)
        saved = first is not None and search.work.hopeless == hopeless
        found[count] = first[0] if first is not None and saved else None
    return found
