"""The workers of the published system: each has a first-in, first-out queue, pads its batches, and
changes its variant once the new one is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slacktide.domain import Batch, Reason, Replica, Request
from slacktide.engine import Idle, Proposal, WaitUntil
from slacktide.planning.variants import Variant
from slacktide.scheduling import ArrivalPolicy, QueueOptions

TOLERANCE_S = 5e-3
"""A frame is dropped if its batch would end this long after the frame's deadline, or later."""
MARGIN_S = 10e-3
"""A batch stops waiting for frames when its tightest frame has only this much time to spare."""
MOST = 11
"""Largest batch that is ever chosen; the largest in the profile, 12, is not."""


@dataclass(slots=True)
class PublishedWorker:
    """One lane."""

    variant: int = 0
    """Variant that it runs."""
    batch: int = 1
    target: tuple[int, int] = (0, 1)
    """Variant and batch of the plan in force."""
    ready: float = 0.0
    """Instant at which the wanted variant is loaded."""
    loaded: tuple[int, ...] = ()

    def settle(self, now: float) -> None:
        """Run the wanted variant if it is loaded."""
        if now >= self.ready:
            self.variant, self.batch = self.target


class PublishedWorkers:
    """State of all lanes, by name; the planner sets it and the queues follow it."""

    def __init__(self, variants: Sequence[Variant], lanes: Sequence[str]) -> None:
        self.variants = tuple(variants)
        self.lanes = {lane: PublishedWorker() for lane in lanes}
        self.mapped: frozenset[str] = frozenset()
        """Mapped clients; frames of other clients are dropped on arrival."""
        self.switches = self.late = self.mismatches = 0
        """Counts: changes of a worker's variant, changes to a variant that was not loaded, and
        frames that ran on the old variant."""

    def of(self, lane: str, now: float) -> tuple[PublishedWorker, float]:
        """(worker, seconds of its full batch)."""
        worker = self.lanes[lane]
        worker.settle(now)
        return worker, self.variants[worker.variant].seconds[worker.batch - 1]

    def seconds(self, batch: Batch, cores: int) -> float:
        """True time of a batch, which is padded to the worker's batch size."""
        worker, took = self.of(batch.replica.lane, batch.started)
        self.mismatches += (worker.variant != worker.target[0]) * len(batch.members)
        return took

    def variant_of(self, batch: Batch) -> str:
        return self.variants[self.lanes[batch.replica.lane].variant].name


class WorkerQueue(ArrivalPolicy):
    """First in, first out, for one worker."""

    def __init__(self, workers: PublishedWorkers, lane: str) -> None:
        super().__init__(QueueOptions(), max_batch=MOST)
        self._workers, self._lane = workers, lane
        self._now = 0.0

    def add(self, request: Request, *, now: float) -> Reason | None:
        if request.client not in self._workers.mapped:
            return Reason.BEHIND_WORK
        return super().add(request, now=now)

    def next_expiry(self) -> float | None:
        if not self._queue:
            return None
        _, took = self._workers.of(self._lane, self._now)
        return min(request.deadline for _, request in self._queue.values()) + TOLERANCE_S - took

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        self._now = now
        _, took = self._workers.of(self._lane, now)
        dropped = [
            (id, Reason.EXPIRED)
            for id, (_, request) in self._queue.items()
            if request.deadline + TOLERANCE_S - took <= now
        ]
        for id, _ in dropped:
            del self._queue[id]
        return dropped

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        self._now = now
        worker, took = self._workers.of(self._lane, now)
        members = tuple(request for _, request in self._queue.values())[: worker.batch]
        if not members:
            return Idle()
        latest = min(member.deadline for member in members) - took - MARGIN_S
        if len(members) == worker.batch or latest <= now:
            return Proposal(members, len(members))
        return WaitUntil(latest)
