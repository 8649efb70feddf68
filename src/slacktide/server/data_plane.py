"""Inference, whatever the protocol: from a checked call to the engine and back to a reply."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.executors.arena import MemoryLimitExceeded
from slacktide.models.versions import Catalog
from slacktide.observability.observers import Observers
from slacktide.server.bandwidth import Bandwidth
from slacktide.server.driver import Driver
from slacktide.server.infer_ticket import InferTicket, Reply, TicketOffice, memory_reason, nobody
from slacktide.server.payloads import write_payload
from slacktide.server.upload import ServerUpload
from slacktide.wire.calls import CallContext, InferCall, InferReply, Parameter
from slacktide.wire.errors import WireError
from slacktide.wire.parameters import parse_parameters

if TYPE_CHECKING:
    from slacktide.frontends.ports import Ticket, Upload

_HEADER_ALLOWANCE = 64 * 1024
"""Bytes of JSON that may come on top of a request's tensors."""


class ServerDataPlane:
    """The `DataPlane` of a server."""

    def __init__(
        self,
        driver: Driver,
        catalog: Catalog,
        *,
        observers: Observers,
        client_limit: int | None = None,
        arriving_limit: int | None = None,
    ) -> None:
        """`client_limit`: most requests in flight for one client address; `arriving_limit`: most
        bytes of announced bodies that it may be sending at a time. None: no limit."""
        self.draining = False
        self._driver = driver
        self._catalog = catalog
        self._client_limit = client_limit
        self._arriving_limit = arriving_limit
        self._bandwidth = Bandwidth()
        self._office = TicketOffice(driver, observers)

    def infer(self, call: InferCall, context: CallContext, reply: Reply) -> Ticket:
        """See `DataPlane.infer`."""
        ticket = InferTicket(self._office, call, context, reply)
        version = ticket.version = self._catalog.find(call.model, call.version)
        if version is None or self.draining:
            ticket.refuse(*self._absence(call.model, call.version))
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
        blame = ticket.blame(version, checked)
        if blame is not None:
            ticket.refuse(blame, "")
            return ticket
        if not self._office.admit(context.client, self._client_limit):
            ticket.refuse(Reason.CLIENT_LIMIT, "")
            return ticket
        ticket.enter(version)
        arena = version.arena
        try:
            slot = self._office.allocate(version, checked.nbytes, context.client)
        except MemoryLimitExceeded as error:
            ticket.refuse(memory_reason(error), str(error))
            return ticket
        try:
            payload = ticket.payload = write_payload(arena, slot, checked)
            request = ticket.request(version, checked, options)
        except BaseException:
            arena.free(slot)
            ticket.leave()
            raise
        self._driver.submit(request, payload, ticket, partial(arena.free, slot))
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
        found = self._catalog.find(model, version)
        if found is None or self.draining:
            return self._office.immediate(call, *self._absence(model, version))
        ticket = InferTicket(self._office, call, context, nobody)
        ticket.version = found
        try:
            options = parse_parameters(parameters)
        except WireError as error:
            return self._turned_away(ticket, error.reason, error.message)
        ticket.options = options
        blame = ticket.blame(found)
        if blame is not None:
            return self._turned_away(ticket, blame, "")
        limit = found.definition.settings.limits.payload
        if limit is not None and length > limit + _HEADER_ALLOWANCE:
            message = f"body: expected at most {limit} bytes, got {length}"
            return self._turned_away(ticket, Reason.TOO_LARGE, message)
        office, client = self._office, context.client
        if not office.admit(client, self._client_limit):
            return self._turned_away(ticket, Reason.CLIENT_LIMIT, "")
        ticket.enter(found)
        if not office.expect(client, length, self._arriving_limit):
            return self._turned_away(ticket, Reason.CLIENT_LIMIT, "too many bodies on their way")
        try:
            slot = office.allocate(found, length, client)
        except MemoryLimitExceeded as error:
            office.arrived(client, length)
            return self._turned_away(ticket, memory_reason(error), str(error))
        ticket.expect_refusal()
        upload = ServerUpload(office, self._bandwidth, ticket, found, slot)
        transfer_s = self._bandwidth.transfer_time(client, length)
        notice = ticket.notice(found, length, transfer_s, options)
        self._driver.announce(notice, ticket, upload.released)
        self._driver.flush()
        if ticket.refusal is not None:
            upload.end()
            return ticket.refusal
        return upload

    def body_refused(
        self,
        model: str,
        version: str | None,
        reason: Reason,
        message: str,
        context: CallContext,
    ) -> None:
        """See `DataPlane.body_refused`."""
        found = self._catalog.find(model, version)
        if found is not None:
            ticket = InferTicket(self._office, InferCall(model, version, "", []), context, nobody)
            ticket.version = found
            ticket.refuse(reason, message)

    @property
    def clients(self) -> frozenset[str]:
        """Addresses that have requests in flight or bodies on their way."""
        return self._office.clients

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

    def _turned_away(self, ticket: InferTicket, reason: Reason, message: str) -> InferReply:
        """Refuse at once: the reply, counted by the engine."""
        ticket.expect_refusal()
        ticket.refuse(reason, message)
        self._driver.flush()
        assert ticket.refusal is not None
        return ticket.refusal
