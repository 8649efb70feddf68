"""Best-effort requests: how `slack` and `orloj` treat requests without a deadline.

They have an artificial deadline (arrival + window) that only orders them. There are three rules:

- *Spare room.* They join a batch of requests with deadlines if that raises the batch's value per
  second. A request's value grows with its age, from 0 to its penalty at the end of its window.
- *Idle lane.* If no request with a deadline is pending, they run in batches of their own, in order.
- *Share.* A request older than its window leads a best-effort batch, but such batches take at most
  `share` of the lane's time. A rule based on value alone would either let a steady overload with
  deadlines starve best-effort requests, or let a flood of best-effort requests starve the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from slacktide.domain import Request
from slacktide.scheduling.queue import Entry, within_rows
from slacktide.scheduling.slack_table import SlackTable, up_to

GOOD_ENOUGH = 0.9
"""A batch of best-effort requests stops growing at this share of the best rate: they are in no
hurry, and a long batch blocks the lane."""


def worth(request: Request, *, now: float) -> float:
    """Value of answering a best-effort request now: penalty × min(1, age / window)."""
    window = request.deadline - request.arrival
    if window <= 0.0:
        return request.penalty
    return request.penalty * min(1.0, max(0.0, (now - request.arrival) / window))


def batch_of(entries: Sequence[Entry], table: SlackTable, sizes: Sequence[int]) -> list[Request]:
    """The first requests, in order, that fill the smallest of `sizes` with nearly the best rate; if
    the very first request exceeds all sizes, only that request. `entries` is not empty, `sizes` is
    ascending."""
    first = entries[0][2]
    options = [within_rows(entries, size) for size in sizes if size >= first.rows]
    if not options:
        return [first]
    rows = [sum(member.rows for member in members) for members in options]
    rates = [len(members) / table.expected[n] for members, n in zip(options, rows, strict=True)]
    enough = GOOD_ENOUGH * max(rates)
    return next(members for members, rate in zip(options, rates, strict=True) if rate >= enough)


def size_of_single(most: int, table: SlackTable) -> int:
    """The size that `batch_of` chooses if every request has one row and at most `most` fit. It
    depends on nothing else and is cached in the table."""
    size = table.best_effort.get(most)
    if size is None:
        sizes = up_to(most, table.grid)
        rates = [size / table.expected[size] for size in sizes]
        enough = GOOD_ENOUGH * max(rates)
        size = next(size for size, rate in zip(sizes, rates, strict=True) if rate >= enough)
        table.best_effort[most] = size
    return size


class BestEffortShare:
    """Limits the lane time of overdue best-effort requests to `share`."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._next = -inf

    def claims(self, oldest: Request, *, now: float) -> bool:
        """Whether `oldest` leads the next batch: it is overdue, and the share is not used up."""
        return self._share > 0.0 and oldest.deadline <= now and now >= self._next

    def spend(self, seconds: float, *, now: float) -> None:
        """Record that a batch of best-effort requests, which takes `seconds`, starts at `now`."""
        if self._share > 0.0:
            self._next = now + seconds / self._share
