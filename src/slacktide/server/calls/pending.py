"""`PendingRequests`: what a driver keeps of each request until nothing names its payload any more.

The engine sees descriptors only: payloads, results and the calls themselves stay here.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from slacktide.domain import Answer, Batch, BatchTiming, Outcome, Reason, Request
from slacktide.domain.frames import AnswerFrame
from slacktide.executors.ports import BatchOutputs, OutputTensor, Payload

log = logging.getLogger("slacktide.driver")

NO_STAGES: Mapping[str, Outcome] = MappingProxyType({})
NOTHING: Mapping[str, str] = MappingProxyType({})


class PendingRequest(ABC):
    """A request that a driver knows, until nothing names its payload any more: a call, or what a
    stage of a pipeline's call is to run."""

    __slots__ = (
        "crashed",
        "id",
        "lacks",
        "outputs",
        "payload",
        "stages",
        "timing",
        "told",
        "variant",
        "waits",
    )  # fmt: skip

    def __init__(self, id: int) -> None:
        self.id = id
        self.waits = False
        """For its outcome."""
        self.payload: Payload | None = None
        self.outputs: Sequence[OutputTensor | None] | None = None
        """None unless a result was computed; of a pipeline's call, those of stages that are missing
        are."""
        self.timing: BatchTiming | None = None
        """Of the batch that computed it."""
        self.variant = ""
        """Of the model, that computed it."""
        self.lacks: tuple[str, ...] = ()
        """Of a pipeline's call: the stages that are missing in its outputs."""
        self.stages: Mapping[str, Outcome] = NO_STAGES
        """And how the others ended."""
        self.told: Mapping[str, str] = NOTHING
        """Which variants of families answered stages, and which early exits, by parameter."""
        self.crashed = ""
        """A stage whose workers have died of it twice."""

    @abstractmethod
    def answered(self, outcome: Outcome) -> None:
        """Its outcome, once, unless it was cancelled before."""

    @abstractmethod
    def released(self) -> None:
        """Nothing names its payload any more. Once, after `answered` if that comes at all."""


class PendingRequests:
    """By id, from the moment a request is known. Belongs to the driver's loop."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingRequest] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request: PendingRequest) -> None:
        """It is known, or its payload is here."""
        request.waits = True
        self._pending[request.id] = request

    def waiting(self) -> list[PendingRequest]:
        """Those whose payload is here and that have no outcome yet."""
        return [call for call in self._pending.values() if call.waits and call.payload is not None]

    def payloads(self, batch: Batch) -> list[Payload]:
        """Of its members, in their order."""
        payloads = [self._pending[member.id].payload for member in batch.members]
        return [payload for payload in payloads if payload is not None]

    def store_outputs(
        self, batch: Batch, members: Sequence[Request], results: BatchOutputs, timing: BatchTiming
    ) -> None:
        """Keep the results of these `members` of a batch for their answers; of those that have had
        theirs, nothing."""
        variant = batch.replica.pool.variant
        for member, outputs in zip(members, results, strict=True):
            request = self._pending.get(member.id)
            if request is not None and request.waits:
                request.outputs = outputs
                request.timing = timing
                request.variant = variant

    def answer(self, command: Answer | AnswerFrame) -> None:
        """Report an outcome to the request, if it waits for it."""
        request = self._pending.get(command.id)
        if request is None or not request.waits:
            return
        request.waits = False
        try:
            request.answered(command)
        except Exception:
            log.exception("the answer to request %d could not be delivered", command.id)

    def free(self, ids: tuple[int, ...]) -> None:
        """Nothing names these payloads any more."""
        for id in ids:
            request = self._pending.pop(id, None)
            if request is not None:
                request.released()

    def refuse_all(self, *, now: float) -> None:
        """The server ends: no outcome will come any more."""
        for request in self._pending.values():
            if request.waits:
                request.waits = False
                request.answered(Outcome(Reason.DRAINING, now))
        self.free(tuple(self._pending))
