"""What a proposal is worth to a free lane: one function for every policy.

    worth = share · alone · Σ penalty · P(on time) / batch time            (DESIGN §3, Lane)

`alone`, the model's own time for one row, makes worths comparable: a request run alone and on time
is worth `share · penalty` whatever its model's speed, so that a 20 µs model cannot starve a 200 ms
one. A batch that serves k requests in less than k times that is worth more.

A best-effort request has no P(on time). Its worth rises with age instead, from 0 on arrival to
that of a certain request when its window (its artificial deadline) is used up, and on from there:
whatever competes with it, it runs in the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from slacktide.domain import Request
from slacktide.engine.ports import BatchTimes


def best_effort_value(request: Request, *, now: float) -> float:
    """Age of a best-effort request as a share of its window, times its penalty; ≥ 0."""
    window = request.deadline - request.arrival
    age = now - request.arrival
    return request.penalty * max(0.0, age) / window if window > 0.0 else request.penalty


def worth(
    members: Iterable[Request],
    rows: int,
    times: BatchTimes,
    *,
    cores: int,
    share: float,
    now: float,
) -> float:
    """Worth of running `members` (together `rows` rows) now on `cores` cores; ≥ 0."""
    value = 0.0
    for member in members:
        if member.best_effort:
            value += best_effort_value(member, now=now)
        else:
            value += member.penalty * times.on_time(member.deadline - now, rows, cores)
    return share * value * times.expected(1, cores) / times.expected(rows, cores)
