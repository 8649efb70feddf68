"""`PendingRequests`: the requests of a driver whose payloads are still in use.

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
NO_DETAILS: Mapping[str, str] = MappingProxyType({})


class PendingRequest(ABC):
    """A call, or the request of one stage of a pipeline's call."""

    __slots__ = (
        "crashed", "details", "id", "missing_stages", "outputs", "payload", "stages", "timing",
        "variant", "waits",
    )  # fmt: skip

    def __init__(self, id: int) -> None:
        self.id = id
        self.waits = False
        """Whether the request still waits for its outcome."""
        self.payload: Payload | None = None
        self.outputs: Sequence[OutputTensor | None] | None = None
        """The result's outputs; None unless a result was computed. In a pipeline's answer, each
        output of a missing stage is None."""
        self.timing: BatchTiming | None = None
        """Timing of the batch that computed the result."""
        self.variant = ""
        """The model's variant that computed the result."""
        self.missing_stages: tuple[str, ...] = ()
        """Stages of a pipeline whose outputs are missing."""
        self.stages: Mapping[str, Outcome] = NO_STAGES
        """Outcomes of the stages that gave a result."""
        self.details: Mapping[str, str] = NO_DETAILS
        """Response parameters: variants and early exits that answered stages."""
        self.crashed = ""
        """The stage whose workers this request has crashed twice; empty if none."""

    @abstractmethod
    def answered(self, outcome: Outcome) -> None:
        """Called once with the outcome, unless the request was cancelled before."""

    @abstractmethod
    def released(self) -> None:
        """Called once when its payload is no longer in use, after `answered` if that is called."""


class PendingRequests:
    """Requests by id. Belongs to the driver's loop."""

    def __init__(self) -> None:
        self._pending: dict[int, PendingRequest] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, request: PendingRequest) -> None:
        """Add a request, or note that its payload has arrived."""
        request.waits = True
        self._pending[request.id] = request

    def waiting(self) -> list[PendingRequest]:
        """Requests that have a payload and no outcome yet."""
        return [call for call in self._pending.values() if call.waits and call.payload is not None]

    def payloads(self, batch: Batch) -> list[Payload]:
        """Payloads of a batch's members, in order."""
        payloads = [self._pending[member.id].payload for member in batch.members]
        return [payload for payload in payloads if payload is not None]

    def store_outputs(
        self, batch: Batch, members: Sequence[Request], results: BatchOutputs, timing: BatchTiming
    ) -> None:
        """Keep the results of these `members` of a batch, except for members already answered."""
        variant = batch.replica.pool.variant
        for member, outputs in zip(members, results, strict=True):
            request = self._pending.get(member.id)
            if request is not None and request.waits:
                request.outputs = outputs
                request.timing = timing
                request.variant = variant

    def answer(self, command: Answer | AnswerFrame) -> None:
        """Report an outcome to the request, if it still waits for one."""
        request = self._pending.get(command.id)
        if request is None or not request.waits:
            return
        request.waits = False
        try:
            request.answered(command)
        except Exception:
            log.exception("the answer to request %d could not be delivered", command.id)

    def free(self, ids: tuple[int, ...]) -> None:
        """Forget requests whose payloads are no longer in use."""
        for id in ids:
            request = self._pending.pop(id, None)
            if request is not None:
                request.released()

    def refuse_all(self, *, now: float) -> None:
        """Refuse all waiting requests because the server stops."""
        for request in self._pending.values():
            if request.waits:
                request.waits = False
                request.answered(Outcome(Reason.DRAINING, now))
        self.free(tuple(self._pending))
