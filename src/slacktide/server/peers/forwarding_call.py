"""`ForwardingCall`: a call of a client, which a peer may answer.

A call begins at this server: its limits apply, and the payload gets a slot. When the call is
submitted, a rule compares the wait here with the reports of peers, and a peer that answers sooner
gets the call. A call that this server refuses for lack of time is forwarded once, if a peer has the
time. The payload keeps its slot until the answer, so that a call whose peer is lost can be sent
again, here or elsewhere.

While a peer has a call, or between two attempts, the call is *outside*: the engine does not know
it, and it keeps its slot. Like any other call, it ends here, with one outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slacktide.domain import Notice, Outcome, OutcomeKind, Reason, Request
from slacktide.frontends.ports import PeerLink
from slacktide.models.versions import LoadedVersion
from slacktide.peers import PeerCall
from slacktide.server.calls.call import ServerCall
from slacktide.server.calls.call_states import CallState, CallStep
from slacktide.server.calls.descriptors import due
from slacktide.server.peers.peer_conversions import (
    inputs_for_peer,
    outcome_at_home,
    outputs_of,
    parameters_for_peer,
)
from slacktide.wire.calls import CallContext, InferCall, InferReply, Parameter
from slacktide.wire.errors import WireError
from slacktide.wire.parameters import parse_parameters

if TYPE_CHECKING:
    from slacktide.server.peers.forwarding import ForwardingPlane

PATIENCE_S: Final = 0.005
"""Seconds after which the engine is told of an arriving request that may be forwarded."""
_ELSEWHERE: Final = frozenset(
    (
        Reason.SHORTER_THAN_ALONE, Reason.HOPELESS, Reason.CROWDED_OUT, Reason.BEHIND_OVERRUN,
        Reason.BEHIND_WORK, Reason.QUEUE_FULL, Reason.DRAINING, Reason.UNAVAILABLE,
    )
)  # fmt: skip
"""Reasons for which this server refuses calls that a peer may still answer."""
_FOR_LACK_OF_TIME: Final = (_ELSEWHERE - {Reason.DRAINING, Reason.UNAVAILABLE}) | {Reason.EXPIRED}


class ForwardingCall(ServerCall):
    """A call that a peer may answer."""

    __slots__ = (
        "_forwarding",
        "_held",
        "_output_names",
        "_outside",
        "_parameters",
        "_peer_call",
        "_refusal",
        "_request",
        "_sent",
        "_tried",
    )  # fmt: skip

    def __init__(
        self,
        forwarding: ForwardingPlane,
        id: int,
        model: str,
        version: str | None,
        context: CallContext,
    ) -> None:
        super().__init__(forwarding.home, id, model, version, context)
        self._forwarding = forwarding
        self._outside = False
        """Whether the call goes on although the engine does not know it."""
        self._held = False
        """Whether the driver has yet to release the payload of a call that is outside."""
        self._refusal: Outcome | None = None
        """The outcome with which this server refused the call, if it was forwarded after that."""
        self._tried: tuple[str, ...] = ()
        """Peers that the call was sent to."""
        self._sent: tuple[PeerLink, int] | None = None
        """The link to the peer that has the call, and the link's id for it."""
        self._peer_call: PeerCall | None = None
        self._request: Request | None = None
        """Set once the call is submitted."""
        self._output_names: list[str] = []
        self._parameters: Mapping[str, Parameter] = {}

    # ── where it goes ────────────────────────────────────────────────────────────────────────

    def _stays(self, version: LoadedVersion) -> bool:
        """Whether the call is answered here, whatever peers report."""
        context = self.context
        return bool(version.stages or context.session or context.redirected)

    def _sooner(
        self, version: LoadedVersion, deadline: float | None, rows: int, nbytes: int
    ) -> PeerLink | None:
        """The link to a peer that answers the call sooner than this server; None if no peer does,
        or if the call must stay. Calls without a `deadline` (best effort) stay."""
        forwarding = self._forwarding
        if not forwarding.peers.in_flight() or deadline is None or self._stays(version):
            return None
        if not forwarding.peers.serve(version):
            return None
        return forwarding.sooner(version, deadline, rows, nbytes, now=self._plane.driver.clock())

    def elsewhere(self, length: int, parameters: Mapping[str, Parameter]) -> str:
        try:
            version = self._find()
            options = parse_parameters(parameters, self._plane.look_alikes)
        except WireError:  # `announce` refuses the call
            return ""
        settings = version.definition.settings
        deadline = due(self.context, options, settings, settings.slo)
        link = self._sooner(version, deadline, 0, length)
        if link is None:
            return ""
        peers, named = self._forwarding.peers, self._version_name is not None
        address, _ = peers.client_addresses(link.machine, version, named=named)
        if not address:
            return ""
        now = self._plane.driver.clock()
        self._forwarding.loads.redirected(link.machine, version.name, now=now)
        peers.forwarded[version.name, "redirected"] += 1
        return f"{peers.scheme}://{address}"

    def _expect(self, version: LoadedVersion, notice: Notice) -> None:
        deadline = None if notice.best_effort else notice.deadline
        if self._sooner(version, deadline, 0, self._length) is None:
            super()._expect(version, notice)
        else:  # a peer will probably get the call, so the engine need not know it
            self._outside = True
            self._plane.loop.call_later(PATIENCE_S, self._expect_late, notice)

    def _expect_late(self, notice: Notice) -> None:
        """Tell the engine of a request whose body is slow to arrive."""
        if self._outside and self.state is CallState.RECEIVING and self._refusal is None:
            self._outside = False
            self.id = self._plane.driver.new_id()
            self._route.announce(replace(notice, id=self.id), self)

    def _start(self, version: LoadedVersion, call: InferCall, request: Request) -> None:
        # To classify an output, other outputs may be needed than the requested ones: ask for all.
        self._request = request
        self._output_names = call.outputs if self._classification is None else []
        self._parameters = call.parameters
        deadline = None if request.best_effort else request.deadline
        link = None
        if self._refusal is None:
            link = self._sooner(version, deadline, self._rows, self._nbytes())
        elif deadline is not None:  # refused as its body was arriving
            link = self._rescuer(version, deadline - self._plane.driver.clock())
        if link is None:
            self._go_home()
            return
        if self.waits:  # the engine has the call's notice
            self.waits = False
            self._held = True
            # Not by the call's route: the route of a split call cancels only parts.
            self._plane.driver.cancel(self.id, Reason.CLIENT_CANCELLED)
        self._send(version, link)

    def _go_home(self) -> None:
        """Have this server's engine answer the call."""
        request = self._request
        assert request is not None
        if self._outside:  # the engine has seen the call's id before
            self._outside = False
            self.id = self._plane.driver.new_id()
            request = self._request = replace(request, id=self.id)
        self._route.submit(request, self)

    def _send(self, version: LoadedVersion, link: PeerLink) -> None:
        """Send the call to a peer. The payload stays here."""
        request, now, nbytes = self._request, self._plane.driver.clock(), self._nbytes()
        assert request is not None
        self._outside = True
        budget_s, peer = request.deadline - now, link.machine
        self._tried += (peer,)
        self._peer_call = self._forwarding.loads.sent(
            peer, version.name, request.rows, now=now, nbytes=nbytes, budget_s=budget_s
        )
        call = InferCall(
            version.name,
            version.version,
            self._call_id,
            inputs_for_peer(version, self._tensors(version)),
            self._output_names,
            parameters_for_peer(self._parameters),
        )
        self._forwarding.peers.forwarded[version.name, "out"] += 1
        self._sent = link, link.forward(call, self.context, budget_s, self._returned)

    def _nbytes(self) -> int:
        assert self.payload is not None
        return sum([tensor.nbytes for tensor in self.payload.tensors])

    def _rescuer(self, version: LoadedVersion, budget_s: float) -> PeerLink | None:
        """The link to a peer that has time for the call, after this server has refused it."""
        now, tried = self._plane.driver.clock(), self._tried
        rows, nbytes = (1, self._length) if self.payload is None else (self._rows, self._nbytes())
        return self._forwarding.rescuer(version, rows, nbytes, budget_s, tried, now=now)

    # ── what becomes of it ───────────────────────────────────────────────────────────────────

    def answered(self, outcome: Outcome) -> None:
        if outcome.reason in _ELSEWHERE and self._refusal is None and self._rescued(outcome):
            return
        if self._options.report_timing and not self._outside:
            self.details = {**self.details, "machine": self._forwarding.peers.machine}
        super().answered(outcome)

    def _rescued(self, outcome: Outcome) -> bool:
        """If a peer has time for a call that this server refuses, keep the call and send it to that
        peer. Returns whether a peer has time."""
        version, request, budget_s = self._version, self._request, outcome.budget_s
        if request is not None:
            budget_s = None if request.best_effort else request.deadline - outcome.at
        if version is None or budget_s is None or self._stays(version):
            return False
        arrives = self.state is CallState.ANNOUNCED or self.state is CallState.RECEIVING
        stored = self.state is CallState.SUBMITTED and self.payload is not None
        if not arrives and not stored:
            return False
        link = self._rescuer(version, budget_s)
        if link is None:
            return False
        self._refusal = outcome
        self._outside = self._held = True
        if not arrives:  # else it is sent when its body is here
            self._send(version, link)
        return True

    def _returned(self, reply: InferReply | None) -> None:
        """Handle the peer's reply, or None if the peer is lost. The link calls this."""
        self._sent = None
        version, request, peer_call = self._version, self._request, self._peer_call
        assert version is not None
        assert request is not None
        assert peer_call is not None
        now, loads = self._plane.driver.clock(), self._forwarding.loads
        if reply is None:
            loads.answered(peer_call, in_time=None, now=now)
        else:
            outputs = outputs_of(reply, version, request.rows, self._output_indices)
            reason, in_time = reply.outcome.reason, None
            if outputs is not None or reason in _FOR_LACK_OF_TIME:
                in_time = outputs is not None and now <= request.deadline
            loads.answered(peer_call, in_time=in_time, now=now)
            if outputs is not None or reason.kind is OutcomeKind.FAILED:
                variants = [pool.variant for pool in version.pools]
                self.outputs = outputs
                self.variant = reply.variant if reply.variant in variants else ""
                self._end(outcome_at_home(reply.outcome, version, request, now=now))
                return
            if reason is Reason.CRASHED_BEFORE:
                self._end(replace(reply.outcome, at=now))
                return
        # Events of this turn, such as the withdrawal of its notice, come before another attempt.
        self._plane.loop.call_soon(self._again, reply is None)

    def _again(self, lost: bool) -> None:
        """Ask again, after a peer was `lost` or has refused the call."""
        if not self._outside or self._sent is not None:
            return  # cancelled
        version, request = self._version, self._request
        assert version is not None
        assert request is not None
        now = self._plane.driver.clock()
        budget_s = request.deadline - now
        refusal = self._refusal
        if self._plane.draining:
            refusal = Outcome(Reason.DRAINING, now, now - request.arrival, budget_s=budget_s)
        elif budget_s <= 0.0:
            refusal = Outcome(Reason.EXPIRED, now, now - request.arrival, budget_s=budget_s)
        elif refusal is None and not self._held:
            self._go_home()
            return
        elif lost and (link := self._rescuer(version, budget_s)) is not None:
            self._send(version, link)
            return
        assert refusal is not None
        self._end(replace(refusal, at=now, budget_s=budget_s))

    def _end(self, outcome: Outcome) -> None:
        """End a call that is outside."""
        if self._options.report_timing and self.outputs is not None:
            self.details = {"machine": self._tried[-1]}
        super().answered(outcome)
        self._outside = False
        if not self._held:
            self._free()

    def released(self) -> None:
        if self._outside:
            self._held = False
        else:
            super().released()

    def _refuse(self, reason: Reason, message: str) -> None:
        self._outside = False
        super()._refuse(reason, message)

    def cancel(self, reason: Reason) -> None:
        if not self._outside:
            super().cancel(reason)
            return
        sent, self._sent = self._sent, None
        if sent is not None:
            link, id = sent
            link.withdraw(id)
            assert self._peer_call is not None
            now = self._plane.driver.clock()
            self._forwarding.loads.answered(self._peer_call, in_time=None, now=now)
        version = self._version
        assert version is not None
        self._cancelled(version, reason)
        self._outside, self._reply = False, None
        self._step(CallStep.CANCEL)
        if not self._held:
            self._free()
