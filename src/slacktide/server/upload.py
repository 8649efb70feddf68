"""`ServerUpload`: a body on its way into its slot."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.executors.arena import MemoryLimitExceeded, Slot
from slacktide.models.versions import LoadedVersion
from slacktide.server.bandwidth import Bandwidth
from slacktide.server.infer_ticket import InferTicket, Reply, TicketOffice, memory_reason, nobody
from slacktide.server.payloads import refer_payload, write_payload
from slacktide.wire.calls import InferCall
from slacktide.wire.errors import WireError
from slacktide.wire.parameters import parse_parameters

if TYPE_CHECKING:
    from slacktide.frontends.ports import Ticket


class ServerUpload:
    """The `Upload` of one announced call.

    Its slot outlives the request if the request is given up while its body still comes: until the
    upload ends, the front end may write into it. For as long it keeps its version's memory, too.
    """

    def __init__(
        self,
        office: TicketOffice,
        bandwidth: Bandwidth,
        ticket: InferTicket,
        version: LoadedVersion,
        slot: Slot,
    ) -> None:
        """`ticket` has entered `version`; `slot.nbytes` have been counted as arriving
        (`TicketOffice.expect`)."""
        self._office = office
        self._bandwidth = bandwidth
        self._ticket = ticket
        self._version = version
        self._slot = slot
        self._client = ticket.context.client
        self._ended = False
        self._released = False
        ticket.receiving = True

    def released(self) -> None:
        """The engine names the payload no more."""
        self._released = True
        if self._ticket.extra is not None:
            self._ticket.extra()
            self._ticket.extra = None
        if self._ended:
            self._version.arena.free(self._slot)

    def end(self) -> None:
        """The front end writes into the slot no more."""
        if not self._ended:
            self._ended = True
            self._office.arrived(self._client, self._slot.nbytes)
            if self._released:
                self._version.arena.free(self._slot)
            self._ticket.received()

    def body(self) -> memoryview:
        """See `Upload.body`."""
        return self._version.arena.view(self._slot)

    def complete(self, call: InferCall, reply: Reply) -> Ticket:
        """See `Upload.complete`."""
        ticket = self._ticket
        seconds = self._office.driver.clock() - ticket.context.first_byte
        self._bandwidth.observe(self._client, self._slot.nbytes, seconds)
        ticket.call = call
        if ticket.refusal is not None:
            # Given up while its body was on the way.
            self.end()
            ticket.refusal.id = call.id
            self._office.loop.call_soon(reply, ticket.refusal)
            return ticket
        ticket.reply = reply
        try:
            self._submit(call)
        except WireError as error:
            ticket.refuse(error.reason, error.message)
        except MemoryLimitExceeded as error:
            ticket.refuse(memory_reason(error), str(error))
        except BaseException:
            self.cancel(Reason.RUNTIME_ERROR)
            raise
        self.end()
        return ticket

    def refuse(self, reason: Reason, message: str) -> None:
        """See `Upload.refuse`."""
        if self._ticket.refusal is None:
            self._ticket.reply = nobody
            self._ticket.refuse(reason, message)
        self.end()

    def cancel(self, reason: Reason) -> None:
        """See `Upload.cancel`. Safe after any other end."""
        self._ticket.cancel(reason)
        self.end()

    def _submit(self, call: InferCall) -> None:
        """Hand the call to the engine: its tensors lie in the slot."""
        ticket, version = self._ticket, self._version
        options = parse_parameters(call.parameters)
        checked = version.check.check(call.inputs)
        ticket.wanted = version.check.check_outputs(call.outputs)
        ticket.options = options
        ticket.rows = checked.rows
        blame = ticket.blame(version, checked)
        if blame is not None:
            ticket.refuse(blame, "")
            return
        payload = refer_payload(self._slot, self.body(), checked)
        if payload is None:
            # A tensor that was written as JSON: its bytes are elsewhere, and need a slot.
            extra = self._office.allocate(version, checked.nbytes, self._client)
            ticket.extra = partial(version.arena.free, extra)
            payload = write_payload(version.arena, extra, checked)
        ticket.payload = payload
        request = ticket.request(version, checked, options)
        self._office.driver.submit(request, payload, ticket)
