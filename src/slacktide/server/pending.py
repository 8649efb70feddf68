"""`PendingRequests`: what a driver keeps of each request until nothing names its payload any more.

The engine sees descriptors only: payloads, results and the requests' owners stay here, by request
id.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from slacktide.domain import Answer, Batch, BatchTiming, Outcome, Reason
from slacktide.executors.ports import BatchOutputs, Outputs, Payload

log = logging.getLogger("slacktide.driver")


class RequestOwner(Protocol):
    """Has requests under way. Each is named by its id, so that one owner may have several."""

    def answered(
        self, id: int, outcome: Outcome, outputs: Outputs | None, timing: BatchTiming | None
    ) -> None:
        """Its outcome, once, unless it was cancelled before. `outputs` is None unless a result was
        computed."""
        ...

    def released(self, id: int) -> None:
        """Nothing names its payload any more. Once, after `answered` if that comes at all."""
        ...


@dataclass(slots=True)
class _Pending:
    """What is kept of one request."""

    owner: RequestOwner
    payload: Payload | None
    waits: bool = True
    """Its owner waits for its outcome."""
    outputs: Outputs | None = None
    timing: BatchTiming | None = None


class PendingRequests:
    """By id, from the moment a request is known. Belongs to the driver's loop."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, id: int, owner: RequestOwner, payload: Payload | None = None) -> None:
        """A request is known, or the payload of one that is."""
        known = self._pending.get(id)
        if known is None:
            self._pending[id] = _Pending(owner, payload)
        elif payload is not None:
            known.payload = payload

    def waiting(self) -> Iterator[RequestOwner]:
        """Owners of requests whose payload is here and that have no outcome yet."""
        return (
            each.owner for each in self._pending.values() if each.waits and each.payload is not None
        )

    def detach(self, id: int) -> bool:
        """Its owner waits for its outcome no more; False if it did not."""
        pending = self._pending.get(id)
        if pending is None or not pending.waits:
            return False
        pending.waits = False
        return True

    def payloads(self, batch: Batch) -> list[Payload]:
        """Of its members, in their order."""
        payloads = [self._pending[member.id].payload for member in batch.members]
        return [payload for payload in payloads if payload is not None]

    def store_outputs(self, batch: Batch, results: BatchOutputs, timing: BatchTiming) -> None:
        """Keep the results for the answers."""
        for member, outputs in zip(batch.members, results, strict=True):
            pending = self._pending.get(member.id)
            if pending is not None:
                pending.outputs = outputs
                pending.timing = timing

    def answer(self, command: Answer) -> None:
        """Report an outcome to the owner that waits for it."""
        id = command.id
        pending = self._pending.get(id)
        if pending is None or not pending.waits:
            return
        pending.waits = False
        try:
            pending.owner.answered(id, command, pending.outputs, pending.timing)
        except Exception:
            log.exception("the answer to request %d could not be delivered", id)

    def free(self, ids: tuple[int, ...]) -> None:
        """Nothing names these payloads any more."""
        for id in ids:
            pending = self._pending.pop(id, None)
            if pending is not None:
                pending.owner.released(id)

    def refuse_all(self, *, now: float) -> None:
        """The server ends: no outcome will come any more."""
        for id, pending in self._pending.items():
            if pending.waits:
                pending.waits = False
                pending.owner.answered(id, Outcome(Reason.DRAINING, now), None, None)
        self.free(tuple(self._pending))
