"""`ArrivalPolicy`: base class of policies that serve in order of arrival.

It has one queue, first come first served, and the notices. Deadlines do not matter: only the queue
limit refuses requests, and late requests still run. A policy adds `propose`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence

from slacktide.domain import Batch, Notice, Reason, Replica, Request
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.scheduling.options import QueueOptions

Waiting = tuple[float, Request]
"""(when it was queued, request)."""


class ArrivalPolicy(ABC):
    """A `Scheduler` (engine/ports.py) without `propose`."""

    def __init__(self, options: QueueOptions, *, max_batch: int, **context: object) -> None:
        self._max_batch = max_batch
        self._max_queue = options.max_queue
        # An ordered dict is a queue with removal by id in constant time.
        self._queue: OrderedDict[int, Waiting] = OrderedDict()
        self._notices: set[int] = set()

    def announce(self, notice: Notice, *, now: float) -> Reason | None:
        """Note a request whose body is on its way; refused only if the queue is full."""
        if self._full():
            return Reason.QUEUE_FULL
        self._notices.add(notice.id)
        return None

    def add(self, request: Request, *, now: float) -> Reason | None:
        """Queue a request; refused only if the queue is full."""
        if self._notices:
            self._notices.discard(request.id)
        if self._max_queue is not None and self._full():
            return Reason.QUEUE_FULL
        self._queue[request.id] = (now, request)
        return None

    def admit_moved(self, request: Request, *, now: float) -> None:
        """Queue a request, however full the queue is."""
        self._notices.discard(request.id)
        self._queue[request.id] = (now, request)

    def remove(self, id: int) -> bool:
        if id in self._notices:
            self._notices.discard(id)
            return True
        return self._queue.pop(id, None) is not None

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Nothing is dropped."""
        return ()

    @abstractmethod
    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """See `Scheduler`."""

    def take(self, batch: Batch) -> None:
        queue = self._queue
        for member in batch.members:
            queue.pop(member.id, None)

    def ended(self, batch: Batch, *, now: float) -> None:  # noqa: B027  # optional
        """Do nothing: there is nothing to learn."""

    def next_expiry(self) -> float | None:
        return None

    def outlook(self, arrival: Request | Notice, *, now: float) -> tuple[float, float] | None:
        """Give no explanation: nothing is predicted."""
        return None

    def pending(self) -> tuple[Request, ...]:
        """Every queued request, in the order of service."""
        return tuple([request for _, request in self._queue.values()])

    def __len__(self) -> int:
        return len(self._queue)

    def _front(self, room: Callable[[Request], int], replica: Replica) -> Proposal | Idle:
        """Propose the front of the queue: requests of one shape whose total of rows is within the
        `room` of every member. The first member may exceed its own `room` if it fits the
        replica."""
        limit = min(self._max_batch, replica.max_batch)
        members: list[Request] = []
        rows = 0
        for _, request in self._queue.values():
            if members:
                limit = min(limit, room(request))
                if rows + request.rows > limit or request.signature != members[0].signature:
                    break
            elif request.rows > limit:
                continue
            else:
                limit = max(request.rows, min(limit, room(request)))
            members.append(request)
            rows += request.rows
            if rows >= limit:
                break
        return Proposal(tuple(members), rows) if members else Idle()

    def _full(self) -> bool:
        limit = self._max_queue
        return limit is not None and len(self) + len(self._notices) >= limit
