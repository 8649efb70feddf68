"""What a proposal is worth to a free lane: one function for every policy.

    worth = alone · Σ penalty · P(on time) / batch time

`alone`, the model's own time for one row, makes worths comparable: a request run alone and on time
is worth its penalty whatever its model's speed, so that a 20 µs model cannot starve a 200 ms one. A
batch that serves k requests in less than k times that is worth more.

A best-effort request has no P(on time). Its worth rises with age instead, from 0 on arrival to
that of a certain request when its window (its artificial deadline) is used up, and on from there:
whatever competes with it, it runs in the end. (Inside a pool it stops at 1: there a part of the
lane's time keeps such requests from starving, scheduling/best_effort.py; between pools nothing else
does.)

Worth alone would let a model that gains tenfold from batching starve one that gains nothing, as
soon as there is more work than time. So where several models want a lane, a worth is divided by the
square of how much of its fair share the model has had lately (`fair_shares`): with worths w and
shares s that stay as they are, lane time settles at s · √w. Efficiency counts, and no model
starves.
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
    """Worth of running `members` (together `rows` rows) now on `cores` cores; ≥ 0."""
    took = times.of(rows, cores, members)
    value = 0.0
    for member in members:
        if member.best_effort:
            value += best_effort_value(member, now=now)
        else:
            value += member.penalty * took.on_time(member.deadline - now)
    return value * times.of(1, cores).expected / took.expected


class LaneTime:
    """Seconds of lane time that one model has had lately: what is `window` old counts 1/e."""

    __slots__ = ("_at", "_seconds", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._seconds = 0.0
        self._at = -math.inf

    def add(self, seconds: float, *, now: float) -> None:
        """A batch of `seconds` has ended."""
        self._seconds = self.had(now=now) + seconds
        self._at = now

    def had(self, *, now: float) -> float:
        """Seconds, faded; 0 if it never ran."""
        if self._seconds == 0.0:
            return 0.0
        return self._seconds * math.exp((self._at - now) / self._window)


def fair_shares(had: Sequence[float], shares: Sequence[float], *, floor: float) -> list[float]:
    """How much of its fair part of the lane each model has had; 1: just that. `had`: recent seconds
    of the models that want the lane now; `shares`: their weights, positive. `floor` seconds are
    added on both sides, so that a newcomer does not count infinitely much."""
    total, weights = sum(had), sum(shares)
    return [
        (seconds + floor) / (total * share / weights + floor)
        for seconds, share in zip(had, shares, strict=True)
    ]
