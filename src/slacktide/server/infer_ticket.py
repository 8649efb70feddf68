"""`InferTicket`: one call in the system, from its descriptor for the engine to its reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from slacktide.domain import (
    BatchTiming,
    Cancelled,
    Notice,
    Outcome,
    OutcomeKind,
    Reason,
    Refused,
    Request,
)
from slacktide.executors.arena import MemoryLimitExceeded, OwnerLimitExceeded, Slot
from slacktide.executors.ports import Payload
from slacktide.models.convictions import FRESH_S
from slacktide.models.inputs import CheckedInputs
from slacktide.models.versions import LoadedVersion
from slacktide.observability.observers import AnsweredRequest, Observers
from slacktide.server.deadlines import due, due_at_the_latest
from slacktide.server.driver import Driver
from slacktide.server.open_requests import Outputs
from slacktide.wire.calls import CallContext, InferCall, InferReply, OutputValue, Parameter
from slacktide.wire.parameters import CallOptions

log = logging.getLogger("slacktide.models")

Reply = Callable[[InferReply], None]

_HAS_A_WAIT = frozenset((Reason.BEHIND_WORK, Reason.QUEUE_FULL, Reason.MEMORY_LIMIT))
"""Refusals after which it is worth trying again once a request is done."""


MOST_BODIES = 4096
"""Bodies that one client may have on their way, however small: each holds a place in a queue."""


class TicketOffice:
    """What all tickets share: the driver, the observers, what each client has on its way."""

    __slots__ = ("_arriving", "_per_client", "driver", "loop", "observers")

    def __init__(self, driver: Driver, observers: Observers) -> None:
        self.driver = driver
        self.observers = observers
        self.loop = asyncio.get_running_loop()
        self._per_client: dict[str, int] = {}
        self._arriving: dict[str, tuple[int, int]] = {}
        """Bytes and number of the bodies on their way, by client."""

    def admit(self, client: str, limit: int | None) -> bool:
        """Count one more request in flight for `client`; False if it has `limit` of them."""
        count = self._per_client.get(client, 0)
        if limit is not None and count >= limit:
            return False
        self._per_client[client] = count + 1
        return True

    def release(self, client: str) -> None:
        """One request fewer is in flight for `client`."""
        left = self._per_client[client] - 1
        if left:
            self._per_client[client] = left
        else:
            del self._per_client[client]

    def expect(self, client: str, length: int, limit: int | None) -> bool:
        """Count a body of `length` bytes as arriving from `client`; False if it would have more
        than `limit` bytes or `MOST_BODIES` bodies arriving. One body alone may be larger."""
        nbytes, count = self._arriving.get(client, (0, 0))
        if count and limit is not None and nbytes + length > limit:
            return False
        if count >= MOST_BODIES:
            return False
        self._arriving[client] = nbytes + length, count + 1
        return True

    def arrived(self, client: str, length: int) -> None:
        """That body is here, or will not come."""
        nbytes, count = self._arriving[client]
        if count > 1:
            self._arriving[client] = nbytes - length, count - 1
        else:
            del self._arriving[client]

    @property
    def clients(self) -> frozenset[str]:
        """Those of whom anything is counted."""
        return frozenset((*self._per_client, *self._arriving))

    def allocate(self, version: LoadedVersion, nbytes: int, client: str) -> Slot:
        """Room for a payload. Raises MemoryLimitExceeded; samples make room for it before."""
        arena = version.arena
        try:
            return arena.allocate(nbytes, client)
        except MemoryLimitExceeded:
            if not self.driver.reclaim():
                raise
            return arena.allocate(nbytes, client)

    def immediate(self, call: InferCall, reason: Reason, message: str) -> InferReply:
        """The reply to a call that no version can be blamed for."""
        outcome = Outcome(reason, self.driver.clock(), detail=message)
        return InferReply(outcome, call.model, call.version or "", call.id, None, message)


class InferTicket:
    """One call in the system: its `Ticket`, and who the driver tells of its outcome."""

    __slots__ = (
        "_counted",
        "_office",
        "call",
        "context",
        "extra",
        "id",
        "options",
        "payload",
        "receiving",
        "refusal",
        "reply",
        "rows",
        "version",
        "wanted",
    )

    def __init__(
        self, office: TicketOffice, call: InferCall, context: CallContext, reply: Reply
    ) -> None:
        self._office = office
        self.call = call
        self.context = context
        self.reply = reply
        self.id = office.driver.new_id()
        self.version: LoadedVersion | None = None
        self.options: CallOptions | None = None
        self.wanted: tuple[int, ...] = ()
        self.rows = 1
        self._counted = False
        """Whether its client's and its version's counts include it."""
        self.receiving = False
        """Its body comes into its version's memory: that is needed even after the answer."""
        self.payload: Payload | None = None
        self.refusal: InferReply | None = None
        self.extra: Callable[[], None] | None = None
        """Frees a second slot, where the first could not hold the tensors."""

    # ── for the engine ───────────────────────────────────────────────────────────────────────

    def request(
        self, version: LoadedVersion, checked: CheckedInputs, options: CallOptions
    ) -> Request:
        """What the engine is told of this call once its tensors are here."""
        context = self.context
        at, best_effort = due(
            context.first_byte,
            options,
            context.transport_budget_s,
            version.definition.settings,
            p99_alone=version.p99_alone,
        )
        return Request(
            self.id,
            version.name,
            context.first_byte,
            at,
            rows=checked.rows,
            penalty=version.penalty if options.penalty is None else options.penalty,
            signature=checked.signature,
            best_effort=best_effort,
            version=version.pin,
            application=options.application,
            client=context.client,
            work_hint=options.work_hint if checked.work_hint is None else checked.work_hint,
            network_time=options.network_s,
        )

    def notice(
        self, version: LoadedVersion, length: int, transfer_s: float, options: CallOptions
    ) -> Notice:
        """What the engine is told while a body of `length` bytes comes, in `transfer_s`."""
        context = self.context
        known = (
            context.first_byte,
            options,
            context.transport_budget_s,
            version.definition.settings,
        )
        at, best_effort = due_at_the_latest(*known, p99_alone=version.p99_alone)
        likely = due(*known, p99_alone=version.p99_alone) if best_effort else None
        return Notice(
            self.id,
            version.name,
            context.first_byte,
            at,
            payload_bytes=length,
            complete_at=context.first_byte + transfer_s,
            penalty=version.penalty if options.penalty is None else options.penalty,
            best_effort=best_effort,
            version=version.pin,
            application=options.application,
            client=context.client,
            likely_due=None if likely is None or likely.best_effort else likely.at,
        )

    # ── its way ──────────────────────────────────────────────────────────────────────────────

    def enter(self, version: LoadedVersion) -> None:
        """Count this call, which its client's count includes, as in flight for `version`."""
        self._counted = True
        version.enter()

    def leave(self) -> None:
        """Count it no more. Safe to repeat."""
        if self._counted:
            self._counted = False
            self._office.release(self.context.client)
            if not self.receiving:
                assert self.version is not None
                self.version.leave()

    def received(self) -> None:
        """Nothing more is written into its version's memory."""
        self.receiving = False
        if not self._counted:
            assert self.version is not None
            self.version.leave()

    def cancel(self, reason: Reason) -> None:
        """See `Ticket.cancel`."""
        driver = self._office.driver
        if driver.is_open(self.id):
            driver.cancel(self.id, reason)
            if self.version is not None:
                cancelled = Outcome(reason, driver.clock())
                self.version.tally.answered(cancelled, self.rows, None)
                if self._office.observers:
                    self._observe(self.version, cancelled, has_result=False)
            self.leave()

    def refuse(self, reason: Reason, message: str) -> None:
        """Have the engine count a refusal; the reply comes the usual way."""
        if self.version is None:
            reply = self._office.immediate(self.call, reason, message)
            self._office.loop.call_soon(self.reply, reply)
            return
        event = Refused(self.id, self.version.name, reason, self.version.pin, message)
        self._office.driver.refuse(event, self.id, self)

    def blame(self, version: LoadedVersion, checked: CheckedInputs | None = None) -> Reason | None:
        """Why this call is to be refused: its input (where it is known), or several from its
        connection, have crashed `version` lately. None: they have not."""
        convictions = version.convictions
        if not convictions.inputs:
            return None
        now = self._office.driver.clock()
        if not convictions.fresh(now=now):
            return None
        if checked is not None and convictions.knows([(t.shape, t.data) for t in checked.tensors]):
            return Reason.CRASHED_BEFORE
        blocked = convictions.blocked_for(self.context.connection, now=now)
        return Reason.CONNECTION_BLOCKED if blocked else None

    def _convict(self, version: LoadedVersion) -> None:
        """It has crashed `version` twice: refuse its input for a while, also where that waits."""
        driver, context = self._office.driver, self.context
        convictions = version.convictions
        convictions.convict(self._tensors(version), context.connection, now=driver.clock())
        log.warning(
            "%s:%s crashed twice on a request from %s; its input is refused for %g s",
            version.name,
            version.version,
            context.client,
            FRESH_S,
        )
        waiting = [done for done in driver.waiting() if isinstance(done, InferTicket)]
        for other in waiting:
            if other.version is version and convictions.knows(other._tensors(version)):
                driver.post(Cancelled(other.id, Reason.CRASHED_BEFORE))

    def _tensors(self, version: LoadedVersion) -> list[tuple[tuple[int, ...], memoryview]]:
        """Shapes and bytes of its inputs, as they lie in shared memory."""
        assert self.payload is not None
        view = version.arena.view
        return [(ref.shape, view(Slot(ref.offset, ref.nbytes))) for ref in self.payload.tensors]

    def expect_refusal(self) -> None:
        """Keep a reply that comes before anybody waits for it."""
        self.reply = self._keep

    def _keep(self, reply: InferReply) -> None:
        self.refusal = reply

    # ── its end ──────────────────────────────────────────────────────────────────────────────

    def __call__(
        self, outcome: Outcome, outputs: Outputs | None, timing: BatchTiming | None
    ) -> None:
        """The driver's `Done`."""
        version = self.version
        assert version is not None
        version.tally.answered(outcome, self.rows, timing)
        self.leave()
        if outcome.reason is Reason.CRASHED and self.payload is not None:
            self._convict(version)
        elif version.convictions.inputs and outputs is not None:
            version.convictions.served(self.context.connection)
        reply = self._answer(version, outcome, outputs)
        if self._office.observers:
            self._observe(version, outcome, has_result=reply.outputs is not None)
        self.reply(reply)

    def _observe(self, version: LoadedVersion, outcome: Outcome, *, has_result: bool) -> None:
        call = self.call
        self._office.observers.tell(
            AnsweredRequest(
                self.context,
                version.name,
                version.version,
                call.version is not None,
                call.id,
                self.rows,
                outcome,
                has_result,
            )
        )

    def _answer(
        self, version: LoadedVersion, outcome: Outcome, outputs: Outputs | None
    ) -> InferReply:
        options = self.options
        reply = InferReply(outcome, version.name, version.version, self.call.id, None)
        if options is not None and options.report_timing:
            reply.parameters = _timing(outcome, version)
        if outputs is None or (
            outcome.kind is OutcomeKind.LATE and options is not None and options.discard_late
        ):
            reply.message = message_for(outcome, version.name)
            if outcome.reason in _HAS_A_WAIT:
                reply.retry_after_s = version.expected_alone
            elif outcome.reason is Reason.CONNECTION_BLOCKED:
                at, connection = outcome.at, self.context.connection
                reply.retry_after_s = version.convictions.blocked_for(connection, now=at)
            return reply
        specs = version.interface.outputs
        reply.outputs = [
            OutputValue(specs[i].name, specs[i].datatype, *outputs[i]) for i in self.wanted
        ]
        return reply


def nobody(_: InferReply) -> None:
    """Takes the reply of a call that its front end has answered itself."""


def memory_reason(error: MemoryLimitExceeded) -> Reason:
    """Whose limit it was: the client's or everybody's."""
    mine = isinstance(error, OwnerLimitExceeded)
    return Reason.CLIENT_LIMIT if mine else Reason.MEMORY_LIMIT


def _timing(outcome: Outcome, version: LoadedVersion) -> dict[str, Parameter]:
    """What a client gets that asks for timing; times in microseconds."""
    parameters: dict[str, Parameter] = {
        "queue_us": round(outcome.queue_s * 1e6),
        "compute_us": round(outcome.compute_s * 1e6),
        "batch_size": outcome.batch_rows,
        "variant": version.pool.variant,
        "late": outcome.kind is OutcomeKind.LATE,
    }
    if outcome.budget_s is not None:
        parameters["budget_us"] = round(outcome.budget_s * 1e6)
    return parameters


_SENTENCES: Mapping[Reason, str] = {
    Reason.AFTER_DEADLINE: "the result came after the deadline and was discarded as asked",
    Reason.SHORTER_THAN_ALONE: "the deadline is shorter than the model needs for this request",
    Reason.EXPIRED: "the deadline has passed",
    Reason.HOPELESS: "the deadline could no longer be met",
    Reason.CROWDED_OUT: "the work ahead took longer than expected and left no time for it",
    Reason.BEHIND_OVERRUN: "the batch ahead took longer than planned",
    Reason.BEHIND_WORK: "the deadline cannot be met behind the work that is waiting",
    Reason.QUEUE_FULL: "the queue is full",
    Reason.MEMORY_LIMIT: "the memory for requests in flight is used up",
    Reason.CLIENT_LIMIT: "this client has too much in flight",
    Reason.CRASHED_BEFORE: "the same input has just crashed the model, twice",
    Reason.CONNECTION_BLOCKED: "several inputs from this connection have crashed the model",
    Reason.DRAINING: "the model is being unloaded",
    Reason.UNAVAILABLE: "the model is unavailable",
    Reason.CRASHED: "the model crashed on this request, twice",
    Reason.RUNTIME_ERROR: "the model failed on this request",
}


def message_for(outcome: Outcome, model: str) -> str:
    """Why `model` gave no result."""
    sentence = _SENTENCES.get(outcome.reason)
    detail = outcome.detail
    if sentence is None:
        return detail or f"model {model!r}: {outcome.reason.label}"
    return f"model {model!r}: {sentence}" + (f" ({detail})" if detail else "")
