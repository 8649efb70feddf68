"""Inference, whatever the protocol: from a checked call to the engine and back to a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from slacktide.domain import BatchTiming, Notice, Outcome, OutcomeKind, Reason, Refused, Request
from slacktide.executors.arena import Slot
from slacktide.executors.budget import MemoryLimitExceeded, OwnerLimitExceeded
from slacktide.executors.ports import Payload, TensorRef
from slacktide.server.bandwidth import Bandwidth
from slacktide.server.deadlines import due, due_at_the_latest
from slacktide.server.driver import Driver, Outputs
from slacktide.server.inputs import CheckedInputs
from slacktide.server.messages import message_for
from slacktide.server.observers import AnsweredRequest, Observers
from slacktide.server.versions import Catalog, LoadedVersion, VersionState
from slacktide.wire.calls import (
    Buffer,
    CallContext,
    InferCall,
    InferReply,
    OutputValue,
    Parameter,
)
from slacktide.wire.errors import WireError
from slacktide.wire.parameters import CallOptions, parse_parameters

if TYPE_CHECKING:
    from slacktide.server.ports import Ticket, Upload

Reply = Callable[[InferReply], None]


class ServerDataPlane:
    """The `DataPlane` of a server."""

    def __init__(
        self,
        driver: Driver,
        catalog: Catalog,
        *,
        observers: Observers,
        client_limit: int | None = None,
    ) -> None:
        """`client_limit`: most requests in flight for one client address; None: no limit."""
        self.draining = False
        self.observers = observers
        self._driver = driver
        self._catalog = catalog
        self._client_limit = client_limit
        self._per_client: dict[str, int] = {}
        self._bandwidth = Bandwidth()
        self._loop = asyncio.get_running_loop()

    # ── DataPlane ────────────────────────────────────────────────────────────────────────────

    def infer(self, call: InferCall, context: CallContext, reply: Reply) -> Ticket:
        """See `DataPlane.infer`."""
        ticket = InferTicket(self, call, context, reply)
        version = self._find(call.model, call.version, ticket)
        if version is None:
            return ticket
        try:
            options = parse_parameters(call.parameters)
            checked = version.check.check(call.inputs)
            ticket.wanted = version.check.check_outputs(call.outputs)
        except WireError as error:
            ticket.refuse(error.reason, error.message)
            return ticket
        ticket.options = options
        ticket.rows = checked.rows
        refusal = self._admit_client(context.client)
        if refusal is not None:
            ticket.refuse(refusal, "")
            return ticket
        ticket.enter()
        try:
            slot = version.arena.allocate(checked.nbytes, context.client)
        except MemoryLimitExceeded as error:
            ticket.refuse(_memory_reason(error), str(error))
            return ticket
        payload = _write(version, slot, checked)
        request = self._request(ticket.id, version, checked, options, context)
        self._driver.submit(request, payload, ticket, lambda: version.arena.free(slot))
        return ticket

    def announce(
        self,
        model: str,
        version: str | None,
        length: int,
        parameters: Mapping[str, Parameter],
        context: CallContext,
    ) -> Upload | InferReply:
        """See `DataPlane.announce`."""
        call = InferCall(model, version, "", [], [], dict(parameters))
        ticket = InferTicket(self, call, context, _nobody)
        found = self._find(model, version, None)
        if found is None:
            reason, message = self._absence(model, version)
            return self._immediate(call, reason, message)
        ticket.version = found
        try:
            options = parse_parameters(parameters)
        except WireError as error:
            return self._turned_away(ticket, error.reason, error.message)
        ticket.options = options
        limit = found.definition.settings.limits.payload
        if limit is not None and length > limit + _HEADER_ALLOWANCE:
            message = f"body: expected at most {limit} bytes, got {length}"
            return self._turned_away(ticket, Reason.TOO_LARGE, message)
        refusal = self._admit_client(context.client)
        if refusal is not None:
            return self._turned_away(ticket, refusal, "")
        ticket.enter()
        try:
            slot = found.arena.allocate(length, context.client)
        except MemoryLimitExceeded as error:
            return self._turned_away(ticket, _memory_reason(error), str(error))
        notice = self._notice(ticket.id, found, length, options, context)
        ticket.expect_refusal()
        upload = ServerUpload(self, ticket, found, slot, context)
        self._driver.announce(notice, ticket, upload.released)
        self._driver.flush()
        if ticket.refusal is not None:
            upload.end()
            return ticket.refusal
        return upload

    def body_refused(self, model: str, version: str | None, reason: Reason, message: str) -> None:
        """See `DataPlane.body_refused`."""
        found = self._catalog.find(model, version)
        if found is not None:
            call = InferCall(model, version, "", [])
            ticket = InferTicket(self, call, _NOWHERE, _nobody)
            ticket.version = found
            ticket.refuse(reason, message)

    # ── for tickets and uploads ──────────────────────────────────────────────────────────────

    @property
    def driver(self) -> Driver:
        return self._driver

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def bandwidth(self) -> Bandwidth:
        return self._bandwidth

    def release_client(self, client: str) -> None:
        """One request fewer is in flight for `client`."""
        left = self._per_client[client] - 1
        if left:
            self._per_client[client] = left
        else:
            del self._per_client[client]

    def submit_upload(
        self,
        ticket: InferTicket,
        version: LoadedVersion,
        slot: Slot,
        call: InferCall,
        context: CallContext,
    ) -> None:
        """The body of an announced request is here: its tensors lie in `slot`."""
        options = parse_parameters(call.parameters)
        checked = version.check.check(call.inputs)
        ticket.wanted = version.check.check_outputs(call.outputs)
        ticket.options = options
        ticket.rows = checked.rows
        body = version.arena.view(slot)
        payload = _refer(slot, body, checked)
        if payload is None:
            # A tensor that was written as JSON: its bytes are elsewhere, and need a slot.
            extra = version.arena.allocate(checked.nbytes, context.client)
            payload = _write(version, extra, checked)
            ticket.extra = lambda: version.arena.free(extra)
        request = self._request(ticket.id, version, checked, options, context)
        self._driver.submit(request, payload, ticket)

    # ── parts ────────────────────────────────────────────────────────────────────────────────

    def _find(
        self, model: str, version: str | None, ticket: InferTicket | None
    ) -> LoadedVersion | None:
        found = self._catalog.find(model, version)
        if found is not None and not self.draining:
            if ticket is not None:
                ticket.version = found
            return found
        if ticket is not None:
            reason, message = self._absence(model, version)
            ticket.version = found
            ticket.refuse(reason, message)
        return None

    def _absence(self, model: str, version: str | None) -> tuple[Reason, str]:
        """Why a call cannot be taken at all."""
        if self.draining:
            return Reason.DRAINING, "the server is shutting down"
        tried = self._catalog.absence(model, version)
        if tried is not None:
            return Reason.UNAVAILABLE, f"model {model!r} is unavailable: {tried}"
        if version is not None and self._catalog.serving(model):
            return Reason.NOT_FOUND, f"model {model!r} has no version {version!r}"
        return Reason.NOT_FOUND, f"unknown model {model!r}"

    def _admit_client(self, client: str) -> Reason | None:
        count = self._per_client.get(client, 0)
        if self._client_limit is not None and count >= self._client_limit:
            return Reason.CLIENT_LIMIT
        self._per_client[client] = count + 1
        return None

    def _request(
        self,
        id: int,
        version: LoadedVersion,
        checked: CheckedInputs,
        options: CallOptions,
        context: CallContext,
    ) -> Request:
        settings = version.definition.settings
        at, best_effort = due(
            context.first_byte,
            options,
            context.transport_budget_s,
            settings,
            p99_alone=version.p99_alone,
        )
        return Request(
            id,
            version.name,
            context.first_byte,
            at,
            rows=checked.rows,
            penalty=options.penalty if options.penalty != 1.0 else version.penalty,
            signature=checked.signature,
            best_effort=best_effort,
            version=version.pin,
            application=options.application,
            client=context.client,
            work_hint=options.work_hint,
            network_time=options.network_s,
        )

    def _notice(
        self,
        id: int,
        version: LoadedVersion,
        length: int,
        options: CallOptions,
        context: CallContext,
    ) -> Notice:
        at, best_effort = due_at_the_latest(
            context.first_byte,
            options,
            context.transport_budget_s,
            version.definition.settings,
            p99_alone=version.p99_alone,
        )
        return Notice(
            id,
            version.name,
            context.first_byte,
            at,
            payload_bytes=length,
            complete_at=context.first_byte + self._bandwidth.transfer_time(context.client, length),
            penalty=options.penalty if options.penalty != 1.0 else version.penalty,
            best_effort=best_effort,
            version=version.pin,
            application=options.application,
            client=context.client,
        )

    def _turned_away(self, ticket: InferTicket, reason: Reason, message: str) -> InferReply:
        """Refuse at once: the reply, counted by the engine."""
        ticket.expect_refusal()
        ticket.refuse(reason, message)
        self._driver.flush()
        assert ticket.refusal is not None
        return ticket.refusal

    def _immediate(self, call: InferCall, reason: Reason, message: str) -> InferReply:
        outcome = Outcome(reason, self._driver.clock(), detail=message)
        return InferReply(outcome, call.model, call.version or "", call.id, None, message)


_HEADER_ALLOWANCE = 64 * 1024
"""Bytes of JSON that may come on top of a request's tensors."""
_NOWHERE = CallContext(0.0, "", "")


def _nobody(_: InferReply) -> None:
    """Takes the reply of a call that its front end has answered itself."""


class InferTicket:
    """One call in the system: its `Ticket`, and who the driver tells of its outcome."""

    __slots__ = (
        "call",
        "context",
        "counted",
        "extra",
        "id",
        "options",
        "plane",
        "refusal",
        "reply",
        "rows",
        "version",
        "wanted",
    )

    def __init__(
        self, plane: ServerDataPlane, call: InferCall, context: CallContext, reply: Reply
    ) -> None:
        self.plane = plane
        self.call = call
        self.context = context
        self.reply = reply
        self.id = plane.driver.new_id()
        self.version: LoadedVersion | None = None
        self.options: CallOptions | None = None
        self.wanted: tuple[int, ...] = ()
        self.rows = 1
        self.counted = False
        """Whether its client's and its version's counts include it."""
        self.refusal: InferReply | None = None
        self.extra: Callable[[], None] | None = None
        """Frees a second slot, where the first could not hold the tensors."""

    def cancel(self, reason: Reason) -> None:
        """See `Ticket.cancel`."""
        if self.plane.driver.is_open(self.id):
            self.plane.driver.cancel(self.id, reason)
            if self.version is not None:
                cancelled = Outcome(reason, self.plane.driver.clock())
                self.version.tally.answered(cancelled, self.rows, None)
                if self.plane.observers:
                    self._observe(self.version, cancelled, has_result=False)
            self._settle()

    def refuse(self, reason: Reason, message: str) -> None:
        """Have the engine count a refusal; the reply comes the usual way."""
        if self.version is None:
            reply = self.plane._immediate(self.call, reason, message)
            self.plane.loop.call_soon(self.reply, reply)
            return
        event = Refused(self.id, self.version.name, reason, self.version.pin, message)
        self.plane.driver.refuse(event, self.id, self)

    def enter(self) -> None:
        """Count this call as in flight, for its client and its version."""
        assert self.version is not None
        self.counted = True
        self.version.enter()

    def expect_refusal(self) -> None:
        """Keep a reply that comes before anybody waits for it."""
        self.reply = self._keep

    def _keep(self, reply: InferReply) -> None:
        self.refusal = reply

    def __call__(
        self, outcome: Outcome, outputs: Outputs | None, timing: BatchTiming | None
    ) -> None:
        """The driver's `Done`."""
        version = self.version
        assert version is not None
        version.tally.answered(outcome, self.rows, timing)
        self._settle()
        reply = self._answer(version, outcome, outputs)
        if self.plane.observers:
            self._observe(version, outcome, has_result=reply.outputs is not None)
        self.reply(reply)

    def _observe(self, version: LoadedVersion, outcome: Outcome, *, has_result: bool) -> None:
        call = self.call
        self.plane.observers.tell(
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

    def _settle(self) -> None:
        if self.counted:
            self.counted = False
            self.plane.release_client(self.context.client)
            assert self.version is not None
            self.version.leave()

    def _answer(
        self, version: LoadedVersion, outcome: Outcome, outputs: Outputs | None
    ) -> InferReply:
        call, options = self.call, self.options
        reply = InferReply(outcome, version.name, version.version, call.id, None)
        if options is not None and options.report_timing:
            reply.parameters = _timing(outcome, version)
        if outputs is None or (
            outcome.kind is OutcomeKind.LATE and options is not None and options.discard_late
        ):
            reply.message = message_for(outcome, version.name)
            if outcome.reason in (Reason.BEHIND_WORK, Reason.QUEUE_FULL, Reason.MEMORY_LIMIT):
                reply.retry_after_s = version.expected_alone
            return reply
        specs = version.interface.outputs
        reply.outputs = [
            OutputValue(specs[i].name, specs[i].datatype, *outputs[i]) for i in self.wanted
        ]
        return reply


class ServerUpload:
    """A body on its way into its slot.

    The slot outlives the request if the request is given up while its body still comes: until the
    upload ends, the front end may write into it.
    """

    def __init__(
        self,
        plane: ServerDataPlane,
        ticket: InferTicket,
        version: LoadedVersion,
        slot: Slot,
        context: CallContext,
    ) -> None:
        self._plane = plane
        self._ticket = ticket
        self._version = version
        self._slot = slot
        self._context = context
        self._ended = False
        self._released = False

    def released(self) -> None:
        """The engine names the payload no more."""
        self._released = True
        if self._ticket.extra is not None:
            self._ticket.extra()
            self._ticket.extra = None
        self._free_if_done()

    def end(self) -> None:
        """The front end writes into the slot no more."""
        if not self._ended:
            self._ended = True
            self._free_if_done()

    def _free_if_done(self) -> None:
        if self._ended and self._released:
            self._version.arena.free(self._slot)

    def body(self) -> memoryview:
        """See `Upload.body`."""
        return self._version.arena.view(self._slot)

    def complete(self, call: InferCall, reply: Reply) -> Ticket:
        """See `Upload.complete`."""
        plane, ticket, context = self._plane, self._ticket, self._context
        seconds = plane.driver.clock() - context.first_byte
        plane.bandwidth.observe(context.client, self._slot.nbytes, seconds)
        ticket.call = call
        if ticket.refusal is not None:
            # Given up while its body was on the way.
            self.end()
            ticket.refusal.id = call.id
            plane.loop.call_soon(reply, ticket.refusal)
            return ticket
        ticket.reply = reply
        try:
            plane.submit_upload(ticket, self._version, self._slot, call, context)
        except WireError as error:
            ticket.refuse(error.reason, error.message)
        except MemoryLimitExceeded as error:
            ticket.refuse(_memory_reason(error), str(error))
        self.end()
        return ticket

    def refuse(self, reason: Reason, message: str) -> None:
        """See `Upload.refuse`."""
        if self._ticket.refusal is None:
            self._ticket.reply = _nobody
            self._ticket.refuse(reason, message)
        self.end()

    def cancel(self, reason: Reason) -> None:
        """See `Upload.cancel`."""
        self._ticket.cancel(reason)
        self.end()


def _memory_reason(error: MemoryLimitExceeded) -> Reason:
    mine = isinstance(error, OwnerLimitExceeded)
    return Reason.CLIENT_LIMIT if mine else Reason.MEMORY_LIMIT


def _write(version: LoadedVersion, slot: Slot, checked: CheckedInputs) -> Payload:
    """Copy the tensors into `slot`, one behind the other."""
    view = version.arena.view(slot)
    base = slot.offset
    at = 0
    refs = []
    for tensor in checked.tensors:
        data = tensor.data
        size = len(data)
        view[at : at + size] = data
        refs.append(TensorRef(base + at, size, tensor.shape))
        at += size
    return Payload(checked.rows, tuple(refs))


def _refer(slot: Slot, body: memoryview, checked: CheckedInputs) -> Payload | None:
    """The tensors as parts of the body that was received into `slot`; None if one is not."""
    start = _address(body)
    refs = []
    for tensor in checked.tensors:
        size = len(tensor.data)
        offset = _address(tensor.data) - start if size else 0
        if not 0 <= offset <= len(body) - size:
            return None
        refs.append(TensorRef(slot.offset + offset, size, tensor.shape))
    return Payload(checked.rows, tuple(refs))


def _address(data: Buffer) -> int:
    """Where `data` lies in memory."""
    if len(data) == 0:
        return 0
    interface = np.frombuffer(data, np.uint8).__array_interface__
    address: int = interface["data"][0]
    return address


def _timing(outcome: Outcome, version: LoadedVersion) -> dict[str, Parameter]:
    """What a client gets that asks for timing (PROTOCOL §10); times in microseconds."""
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


__all__ = ["InferTicket", "ServerDataPlane", "ServerUpload", "VersionState"]
