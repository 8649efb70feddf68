"""`symphony`: a batch starts when it can no longer grow, and while it is still on time.

Symphony (Chen et al. 2024, arXiv 2308.07470v2) defers batches. With B the requests that would run
now, d their earliest deadline and l(n) the time of a batch of n,

    frontrun = d − l(|B| + 1)       from then on, no further request could join B on time
    latest   = d − l(|B|)           from then on, B would be late

B may start within [frontrun, latest]; a request that joins B moves the window. B is formed in
deadline order by a sliding window: a request is skipped if the batch that it leads would be late at
its target size, so that one urgent request does not keep the batch small. With N accelerators the
target is the largest n with (1 + 1/N) · l(n) ≤ SLO (batches staggered evenly). Beyond the target,
requests join while B stays on time.

Readings, each the kindest to Symphony: a skipped request is dropped only once it would be late
alone; l is that of the members' classes if the profile has classes, and its p99 under `guarantee:
p99`; a batch of the largest size starts at once. No request is refused on arrival. The engine
decides which of several models gets a lane; Symphony takes the batch whose window ends first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from slacktide.domain import Replica, Request, option
from slacktide.engine import Idle, PoolView, Proposal, WaitUntil
from slacktide.profiles import BatchTimes
from slacktide.scheduling import DeadlineOptions, Edf, EdfOptions

Seconds = Callable[[Sequence[Request], int], float]
"""(members, further rows like the last of them) -> seconds of their batch."""


@dataclass(frozen=True, slots=True)
class SymphonyOptions(EdfOptions):
    """Options of `symphony`."""

    admission: bool = option(
        False, "Whether to refuse a new request that cannot be on time behind the work ahead of it."
    )
    skipping: bool = option(
        True, "Whether to skip a request that would keep its batch below the target size."
    )


class Symphony(Edf):
    """Batches in deadline order that start as late as they can grow."""

    Options: ClassVar[type[DeadlineOptions]] = SymphonyOptions

    def __init__(
        self, options: SymphonyOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        super().__init__(options, max_batch=max_batch, times=times, view=view)
        self._skipping = options.skipping

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """The present batch if its window is open, else the time at which it opens. Changes
        nothing."""
        if not self._timed.order:
            return super().propose(replica, now=now)
        limit = min(self._max_batch, replica.max_batch)
        cores = max(1, len(replica.cores))
        signature = self._timed.order[0][2].signature
        waiting = [request for _, _, request in self._timed.batchable(signature)]
        seconds = self._seconds(cores)
        members = self._window(waiting, limit, cores, seconds, now)
        if not members:
            return Idle()
        rows = sum(member.rows for member in members)
        opens = members[0].deadline - seconds(members, 1)
        if rows < limit and now < opens:
            return WaitUntil(opens)
        return Proposal(tuple(members), rows)

    def _window(
        self, waiting: Sequence[Request], limit: int, cores: int, seconds: Seconds, now: float
    ) -> list[Request]:
        """The batch of the first request that would be on time in one of its target size."""
        for first, head in enumerate(waiting):
            size = self._target(head, limit, cores) if self._skipping else 1
            members = _fill([], waiting[first:], max(size, head.rows))
            if head.rows <= limit and now + seconds(members, 0) <= head.deadline:
                break
        else:
            return []
        for request in waiting[first + len(members) : first + limit]:
            joined = [*members, request]
            if sum(member.rows for member in joined) > limit:
                break
            if now + seconds(joined, 0) > head.deadline:
                break
            members = joined
        return members

    def _target(self, head: Request, limit: int, cores: int) -> int:
        """The largest size whose batches, staggered over all lanes, meet the SLO of `head`."""
        expected = self._row_times(cores).expected
        slo = (head.deadline - head.arrival) / (1.0 + 1.0 / self._view.lanes)
        return max(1, bisect_right(range(1, limit + 1), slo, key=expected.__getitem__))

    def _seconds(self, cores: int) -> Seconds:
        times = self._row_times(cores)
        classes, needs = times.classes, times.lead

        def seconds(members: Sequence[Request], more: int) -> float:
            rows = sum(member.rows for member in members) + more
            if classes is None:
                return needs[rows]
            of = [classes.class_of(member) for member in members]
            return needs[rows, *sorted([*of, *of[-1:] * more])]

        return seconds


def _fill(members: list[Request], waiting: Sequence[Request], rows: int) -> list[Request]:
    """The first of `waiting` that fit into `rows` rows."""
    for request in waiting:
        rows -= request.rows
        if rows < 0:
            break
        members.append(request)
    return members
