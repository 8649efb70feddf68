"""`edf`: earliest deadline first, the plain baseline.

The request due first leads; the batch is the largest that keeps it on time. This collapses under
overload: heads that are nearly late force small batches, and small batches make more of them late.
With `guarantee: p99` the batch must fit at its p99 instead of its median.

If the profile has run classes, the time of a batch is predicted from the classes of its members.
Requests join in deadline order; a request that would make the head late, because it runs long or
has many rows, is skipped.

A best-effort request is ordered by its artificial deadline, but this never limits a batch: a batch
must be on time for the first member with a real deadline.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from math import inf
from typing import ClassVar, Literal

import numpy as np

from slacktide.domain import Replica, Request
from slacktide.domain.options import option
from slacktide.engine.ports import Idle, PoolView, Proposal, WaitUntil
from slacktide.profiles import BatchTimes, Classes, ShapeClasses
from slacktide.profiles.fixed_times import LongestMemberTime
from slacktide.scheduling.deadline_policy import DeadlinePolicy
from slacktide.scheduling.options import DeadlineOptions
from slacktide.scheduling.queue import Entry
from slacktide.scheduling.tables import TimeByRows


@dataclass(frozen=True, slots=True)
class EdfOptions(DeadlineOptions):
    """Options of `edf`."""

    guarantee: Literal["expected", "p99"] = option(
        "expected", "Which predicted batch time must fit before the batch's first deadline."
    )

    @property
    def guarantees_p99(self) -> bool:
        return self.guarantee == "p99"


class Edf(DeadlinePolicy):
    """Earliest deadline first; the largest batch that meets its first deadline."""

    Options: ClassVar[type[DeadlineOptions]] = EdfOptions

    def __init__(
        self, options: EdfOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        p99 = options.guarantee == "p99"

        def lead(times: BatchTimes, rows: int, cores: int) -> float:
            time = times.of(rows, cores)
            return time.p99 if p99 else time.expected

        def class_lead(classes: Classes, rows: int, members: tuple[int, ...], cores: int) -> float:
            if isinstance(classes, ShapeClasses):  # all members are of one class
                return lead(classes.times[members[0]], rows, cores)
            longest = np.exp(classes.logs[list(members)].sum(axis=0))
            forecast = LongestMemberTime(classes, longest, rows)
            return forecast.p99 if p99 else forecast.expected

        super().__init__(
            options, max_batch=max_batch, times=times, view=view, lead=lead, class_lead=class_lead
        )

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """The batch led by the request due first. Changes nothing."""
        limit = min(self._max_batch, replica.max_batch)
        # `needs` maps rows, or rows and the members' classes, to the batch time that must fit.
        times = self._row_times(max(1, len(replica.cores)))
        classes, needs = times.classes, times.lead
        timed = self._timed
        if classes is None and not self._best_effort.order and timed.uniform:
            # Requests are alike and have one row each: take as many from the front as fit.
            fitting = max(1, _fitting(min(limit, timed.rows), needs, timed.order[0][0] - now))
            first = tuple([entry[2] for entry in timed.order[:fitting]])
            return Proposal(first, len(first))
        members: list[Request] = []
        mixture: list[int] = []
        rows = 0
        remaining = inf
        for deadline, _, request in islice(self._in_order(), 4 * limit):
            if remaining == inf and not request.best_effort:
                remaining = deadline - now
                if classes is None:
                    limit = _fitting(limit, needs, remaining)
                    if not members:
                        limit = max(limit, request.rows)
            if rows + request.rows > limit:
                continue
            if classes is not None:
                joined = sorted((*mixture, classes.class_of(request)))
                if members and needs[rows + request.rows, *joined] > remaining:
                    continue
                mixture = joined
            members.append(request)
            rows += request.rows
            if rows >= limit:
                break
        return Proposal(tuple(members), rows) if members else Idle()

    def _in_order(self) -> Iterable[Entry]:
        """Entries that may share a batch with the entry due first, in order."""
        timed, best_effort = self._timed, self._best_effort
        if not best_effort.order:
            return timed.batchable(timed.order[0][2].signature) if timed.order else ()
        heads = [queue.order[0] for queue in (timed, best_effort) if queue.order]
        signature = min(heads)[2].signature
        return merge(timed.batchable(signature), best_effort.batchable(signature))


def _fitting(most: int, needs: TimeByRows, budget: float) -> int:
    """The largest batch of at most `most` rows that needs at most `budget` seconds; 0 if none.
    Usually that is `most`, which takes a single look-up."""
    if needs[most] <= budget:
        return most
    return bisect_right(range(1, most), budget, key=needs.__getitem__)
