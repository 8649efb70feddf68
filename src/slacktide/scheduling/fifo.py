"""`fifo`: first in, first out, batched as Triton's dynamic batcher does.

Requests run in the order of arrival, whatever their deadlines: only the queue limit refuses them,
only the queue's own timeout expires them, and late requests still run.

A batch is the longest run of requests from the front that have one signature and fit in max batch
(a different shape ends it, as in Triton). It starts if it cannot grow, because it is full or
another shape follows, or if its oldest member has waited `max_delay`. Otherwise its longest prefix
of a preferred size starts; if there is none, the lane waits for more requests.

The queue's timeout follows Triton's default queue policy: a request that has waited that long is
dropped (`reject`), or runs after everything else (`delay`). It is the operator's rule for the
queue, not a deadline, so it also applies to best-effort requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Literal

from slacktide.domain import Batch, Reason, Replica, Request
from slacktide.domain.options import option
from slacktide.domain.units import SECONDS
from slacktide.engine.ports import Idle, Proposal, WaitUntil
from slacktide.scheduling.arrival_policy import ArrivalPolicy, Waiting
from slacktide.scheduling.options import QueueOptions


@dataclass(frozen=True, slots=True)
class FifoOptions(QueueOptions):
    """Options of `fifo`, which are those of Triton's dynamic batcher."""

    max_delay: float = option(
        0.0,
        "Longest time that the oldest request waits for a fuller batch.",
        unit=SECONDS,
        least=0,
    )
    preferred: tuple[int, ...] = option(
        (), "Batch sizes (rows) that start immediately; by default only full batches do.", least=1
    )
    max_queue: int | None = option(
        None,
        "Largest number of waiting requests; a smaller `limits.queue` takes precedence.",
        least=1,
    )
    timeout: float | None = option(
        None, "Longest time that a request may wait.", unit=SECONDS, above=0
    )
    timeout_action: Literal["reject", "delay"] = option(
        "reject",
        "What happens after `timeout`: `reject` drops the request, `delay` runs it last.",
    )


class Fifo(ArrivalPolicy):
    """First in, first out."""

    Options: ClassVar = FifoOptions

    def __init__(self, options: FifoOptions, *, max_batch: int, **context: object) -> None:
        super().__init__(options, max_batch=max_batch)
        self._options = options
        self._delayed: OrderedDict[int, Waiting] = OrderedDict()

    def remove(self, id: int) -> bool:
        return super().remove(id) or self._delayed.pop(id, None) is not None

    def expire(self, *, now: float) -> Sequence[tuple[int, Reason]]:
        """Apply the queue's timeout; () if it has none."""
        timeout = self._options.timeout
        if timeout is None:
            return ()
        dropped: list[tuple[int, Reason]] = []
        while self._queue:
            id, waiting = next(iter(self._queue.items()))
            if waiting[0] + timeout > now:
                break
            del self._queue[id]
            if self._options.timeout_action == "delay":
                self._delayed[id] = waiting
            else:
                dropped.append((id, Reason.EXPIRED))
        return dropped

    def propose(self, replica: Replica, *, now: float) -> Proposal | WaitUntil | Idle:
        """The batch at the front, or when to ask again. Changes nothing."""
        limit = min(self._max_batch, replica.max_batch)
        waiting = chain(self._queue.values(), self._delayed.values())
        first = next((entry for entry in waiting if entry[1].rows <= limit), None)
        if first is None:
            return Idle()
        queued_at, head = first
        members = [head]
        rows = head.rows
        preferred = int(rows in self._options.preferred)
        complete = rows >= limit
        for _, request in waiting:
            if complete:
                break
            if request.signature != head.signature or rows + request.rows > limit:
                complete = True
                break
            members.append(request)
            rows += request.rows
            if rows in self._options.preferred:
                preferred = len(members)
            complete = rows == limit
        delayed_until = queued_at + self._options.max_delay
        if complete or delayed_until <= now:
            return Proposal(tuple(members), rows)
        if preferred:
            chosen = tuple(members[:preferred])
            return Proposal(chosen, sum(member.rows for member in chosen))
        return WaitUntil(delayed_until)

    def take(self, batch: Batch) -> None:
        queue, delayed = self._queue, self._delayed
        for member in batch.members:
            if queue.pop(member.id, None) is None:
                delayed.pop(member.id, None)

    def next_expiry(self) -> float | None:
        """When the oldest request will have waited `timeout`."""
        if self._options.timeout is None or not self._queue:
            return None
        return next(iter(self._queue.values()))[0] + self._options.timeout

    def pending(self) -> tuple[Request, ...]:
        return tuple(request for _, request in chain(self._queue.values(), self._delayed.values()))

    def __len__(self) -> int:
        return len(self._queue) + len(self._delayed)
