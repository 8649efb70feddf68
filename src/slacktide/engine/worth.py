"""The worth of a proposal to a free lane, by the same function for every policy.

    worth = alone · Σ penalty · P(on time) / batch time

`alone`, the model's own time for one row, makes worths comparable: a request that runs alone and on
time is worth its penalty whatever its model's speed, so that a 20 µs model cannot starve a 200 ms
one. A batch that serves k requests in less than k times `alone` is worth more.

A best-effort request has no P(on time). Its worth rises with age instead. It is 0 on arrival; at
the end of the window (the artificial deadline) it equals that of a request certain to be on time.
Later it rises further, so the request runs in the end. (Inside a pool, a request's value stops
rising at the end of the window, because a share of the lane's time keeps best-effort requests from
starving there: scheduling/best_effort.py. Between pools, only the rising worth keeps them from
starving.)

Under overload, worth alone would let a model that gains tenfold from batching starve one that gains
nothing. So if several models want a lane, a model's worth is divided by the square of its recent
lane time ÷ its fair part (`fair_shares`): with constant worths w and shares s, lane time settles at
s · √w. Efficiency counts, and no model starves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from slacktide.domain import Request
from slacktide.profiles import BatchTimes


def best_effort_value(request: Request, *, now: float) -> float:
    """Age of a best-effort request as a share of its window, times its penalty; ≥ 0."""
    window = request.deadline - request.arrival
    age = now - request.arrival
    return request.penalty * max(0.0, age) / window if window > 0.0 else request.penalty


def worth(
    members: Sequence[Request], rows: int, times: BatchTimes, *, cores: int, now: float
) -> float:
    """Worth of running `members` (`rows` rows together) now on `cores` cores; ≥ 0."""
    took = times.of(rows, cores, members)
    value = 0.0
    for member in members:
        if member.best_effort:
            value += best_effort_value(member, now=now)
        else:
            value += member.penalty * took.on_time(member.deadline - now)
    return value * times.of(1, cores).expected / took.expected


class LaneTime:
    """Recent lane time of one model in seconds, with exponential decay over `window`."""

    __slots__ = ("_at", "_seconds", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._seconds = 0.0
        self._at = -math.inf

    def add(self, seconds: float, *, now: float) -> None:
        """Add a batch of `seconds` that has just ended."""
        self._seconds = self.had(now=now) + seconds
        self._at = now

    def had(self, *, now: float) -> float:
        """Decayed seconds; 0 if it never ran."""
        if self._seconds == 0.0:
            return 0.0
        return self._seconds * math.exp((self._at - now) / self._window)


def fair_shares(had: Sequence[float], shares: Sequence[float], *, floor: float) -> list[float]:
    """Ratio of each model's recent lane time to its fair part of the lane. `had`: recent seconds of
    the models that want the lane now; `shares`: their weights, positive. `floor` seconds are added
    to both, so that a newcomer's ratio is not zero."""
    total, weights = sum(had), sum(shares)
    return [
        (seconds + floor) / (total * share / weights + floor)
        for seconds, share in zip(had, shares, strict=True)
    ]
