"""A scheduler of one's own: earliest deadline first, in the largest batch that keeps the first.

    slacktide simulate examples/scenarios/bursty-classifier.yaml --allow-imports \
        --set scheduler=examples.policies.deadline_first:DeadlineFirst
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from slacktide.domain import SECONDS, Reason, Replica, Request, option
from slacktide.engine import Idle, PoolView, Proposal
from slacktide.profiles import BatchTimes
from slacktide.scheduling import ArrivalPolicy, QueueOptions


@dataclass(frozen=True, slots=True)
class DeadlineFirstOptions(QueueOptions):
    margin: float = option(0.001, "Time to spare at the deadline.", unit=SECONDS, least=0)


class DeadlineFirst(ArrivalPolicy):
    Options = DeadlineFirstOptions

    def __init__(
        self, options: DeadlineFirstOptions, *, max_batch: int, times: BatchTimes, view: PoolView
    ) -> None:
        super().__init__(options, max_batch=max_batch)
        self._times, self._margin = times, options.margin

    def expire(self, *, now: float) -> list[tuple[int, Reason]]:
        late = [request.id for request in self.pending() if self._latest(request) <= now]
        return [(id, Reason.HOPELESS) for id in late if self.remove(id)]

    def next_expiry(self) -> float | None:
        return min(map(self._latest, self.pending()), default=None)

    def _latest(self, request: Request) -> float:
        alone = self._times.of(request.rows, 1).expected + self._margin
        return inf if request.best_effort else request.deadline - alone

    def propose(self, replica: Replica, *, now: float) -> Proposal | Idle:
        members: list[Request] = []
        rows, cores = 0, max(1, len(replica.cores))
        for request in sorted(self.pending(), key=lambda request: (request.deadline, request.id)):
            first, more = (members or [request])[0], rows + request.rows
            ends = now + self._times.of(more, cores).expected + self._margin
            fits = more <= replica.max_batch and request.signature == first.signature
            if not members or (fits and ends <= first.deadline):
                members.append(request)
                rows = more
        return Proposal(tuple(members), rows) if members else Idle()
