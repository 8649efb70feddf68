"""`OpenRequests`: what a driver keeps of each request until nothing names its payload any more.

The engine sees descriptors only: payloads, results and those who wait for them stay here, by
request id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from slacktide.domain import Answer, Batch, BatchTiming, Outcome, Reason
from slacktide.executors.ports import BatchOutputs, Payload

log = logging.getLogger("slacktide.driver")

Outputs = tuple[tuple[tuple[int, ...], bytes], ...]
"""Shape and raw bytes of every output of one request, in the model's order."""


class Done(Protocol):
    """Told of a request's outcome; `outputs` is None unless a result was computed."""

    def __call__(
        self, outcome: Outcome, outputs: Outputs | None, timing: BatchTiming | None
    ) -> None: ...


class _Work:
    """What is kept of one request."""

    __slots__ = ("done", "outputs", "payload", "release", "timing")

    def __init__(self, done: Done, release: Callable[[], None] | None) -> None:
        self.done: Done | None = done
        self.release = release
        self.payload: Payload | None = None
        self.outputs: Outputs | None = None
        self.timing: BatchTiming | None = None


class OpenRequests:
    """By id, from the moment a request is known. Belongs to the driver's loop."""

    def __init__(self) -> None:
        self._work: dict[int, _Work] = {}

    def __len__(self) -> int:
        return len(self._work)

    def known(self, id: int, done: Done, release: Callable[[], None] | None = None) -> None:
        """A request without a payload, so far."""
        self._work[id] = _Work(done, release)

    def refused(self, id: int, done: Done) -> None:
        """A request that never gets a payload."""
        if id not in self._work:
            self._work[id] = _Work(done, None)

    def arrived(
        self, id: int, payload: Payload, done: Done, release: Callable[[], None] | None
    ) -> None:
        """Its payload is written. `release` is called once, when nothing names it any more."""
        work = self._work.get(id)
        if work is None:
            work = self._work[id] = _Work(done, release)
        else:
            work.done = done
        work.payload = payload

    def is_open(self, id: int) -> bool:
        """Whether the request still waits for its answer."""
        work = self._work.get(id)
        return work is not None and work.done is not None

    def waiting(self) -> Iterator[Done]:
        """Of requests whose payload is here and who have no answer yet."""
        works = self._work.values()
        return (work.done for work in works if work.done is not None and work.payload is not None)

    def forget_asker(self, id: int) -> bool:
        """Nobody waits for its answer any more; False if nobody did."""
        work = self._work.get(id)
        if work is None or work.done is None:
            return False
        work.done = None
        return True

    def payloads(self, batch: Batch) -> list[Payload]:
        """Of its members, in their order."""
        payloads = [self._work[member.id].payload for member in batch.members]
        return [payload for payload in payloads if payload is not None]

    def keep(self, batch: Batch, results: BatchOutputs, timing: BatchTiming) -> None:
        """Copy the results: the replica's next batch overwrites them."""
        for member, outputs in zip(batch.members, results, strict=True):
            work = self._work.get(member.id)
            if work is not None and work.done is not None:
                work.outputs = tuple([(o.shape, bytes(o.data)) for o in outputs])
                work.timing = timing

    def answer(self, command: Answer) -> None:
        """Tell whoever waits, once."""
        work = self._work.get(command.id)
        if work is None or work.done is None:
            return
        done, work.done = work.done, None
        try:
            done(command.outcome, work.outputs, work.timing)
        except Exception:
            log.exception("the answer to request %d could not be delivered", command.id)

    def free(self, ids: tuple[int, ...]) -> None:
        """Nothing names these payloads any more."""
        for id in ids:
            work = self._work.pop(id, None)
            if work is not None and work.release is not None:
                work.release()

    def refuse_all(self, *, now: float) -> None:
        """The server ends: nothing will be answered any more."""
        for work in self._work.values():
            if work.done is not None:
                done, work.done = work.done, None
                done(Outcome(Reason.DRAINING, now), None, None)
        self.free(tuple(self._work))
