"""`ForwardingPlane`: the data plane of a server with peers, and the calls that it forwards.

A call begins at home, where its limits apply and its payload gets its slot. When it is submitted, a
rule compares the wait here with what peers have reported, and a peer that answers sooner gets it. A
call that this server refuses for lack of time is forwarded once, if a peer has the time. The slot
stays until the answer, so that a call whose peer is lost can be asked again, here or elsewhere.

While a peer has a call, or between two attempts, the call is *outside*: the engine does not know
it, and it keeps its slot. It then ends here as any other call does, with one outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Final

from slacktide.domain import Notice, Outcome, OutcomeKind, Reason, Request
from slacktide.domain.tensors import Datatype
from slacktide.executors.jpeg_elements import is_bare
from slacktide.executors.ports import OutputTensor
from slacktide.frontends.ports import ForwardedCall, FrameSession, PeerLink
from slacktide.models.versions import LoadedVersion
from slacktide.peers import ForwardingRule, ModelLoad, PeerCall, PeerLoads
from slacktide.server.calls.call import ServerCall
from slacktide.server.calls.call_states import CallState, CallStep
from slacktide.server.calls.data_plane import ServerDataPlane
from slacktide.server.calls.descriptors import due
from slacktide.server.peers.host import ServerPeers
from slacktide.wire.calls import (
    CallContext,
    InferCall,
    InferReply,
    InputTensor,
    Parameter,
    SessionTerms,
    SizeAdvice,
)
from slacktide.wire.errors import WireError
from slacktide.wire.parameters import parse_parameters

MOST_ATTEMPTS: Final = 3
"""Maximum number of peers that are asked for one call."""
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
_AT_HOME: Final = frozenset(
    ("timeout", "network_us", "late", "report_timing", "binary_data_output")
)
"""Parameters that do not travel: the remaining time does, and the answer is made here."""


class ForwardingPlane:
    """The `DataPlane` of a server that has peers."""

    def __init__(
        self,
        home: ServerDataPlane,
        peers: ServerPeers,
        loads: PeerLoads,
        rule: ForwardingRule,
    ) -> None:
        """`home`: the server's own data plane, which answers the calls of peers."""
        self.home = home
        self.peers = peers
        self.loads = loads
        self._rule = rule
        self._turn: dict[str, tuple[ModelLoad, int]] = {}
        """Loads at the begin of this turn of the loop, by version, and the rows accepted since."""
        self.largest_body = home.largest_body
        self.has_slo = home.has_slo
        self.offered_share = home.offered_share

    def call(self, model: str, version: str | None, context: CallContext) -> ForwardingCall:
        return ForwardingCall(self, self.home.driver.new_id(), model, version, context)

    def open_session(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> FrameSession:
        return self.home.open_session(terms, address, advise)

    def sooner(
        self, version: LoadedVersion, deadline: float, rows: int, nbytes: int, *, now: float
    ) -> PeerLink | None:
        """The link to the peer that answers a new request of `rows` rows sooner than this server;
        None: none does, and the rows count as accepted here."""
        load, accepted = self._turn.get(version.pin, (None, 0))
        if load is None:
            if not self._turn:
                self.home.loop.call_soon(self._turn.clear)
            load = self.peers.home_load(version)
        ahead = load
        if accepted:
            wait_s = load.wait_s + accepted * load.row_s
            ahead = ModelLoad(load.model, wait_s, load.alone_s, load.row_s)
        peer = self._rule.on_arrival(ahead, rows, nbytes, deadline - now, now=now)
        link = None if peer is None else self.peers.link_to(peer, version, nbytes)
        self._turn[version.pin] = load, accepted + (rows if link is None else 0)
        return link

    def rescuer(
        self,
        version: LoadedVersion,
        rows: int,
        nbytes: int,
        budget_s: float,
        tried: Sequence[str],
        *,
        now: float,
    ) -> PeerLink | None:
        """The link to a peer that has the time for a request which this server has refused. Peers
        in `tried` are left out."""
        if budget_s <= 0.0 or len(tried) >= MOST_ATTEMPTS or not self.peers.serve(version):
            return None
        name = version.name
        peer = self._rule.on_refusal(name, rows, nbytes, budget_s, now=now, tried=tried)
        return None if peer is None else self.peers.link_to(peer, version, nbytes)


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
        """Outside: whether the driver has yet to release the payload."""
        self._refusal: Outcome | None = None
        """The outcome with which this server has refused it, once it was forwarded for that."""
        self._tried: tuple[str, ...] = ()
        """Peers that it was sent to."""
        self._sent: ForwardedCall | None = None
        """The call at the peer that has it."""
        self._peer_call: PeerCall | None = None
        self._request: Request | None = None
        """Set once it is submitted."""
        self._output_names: list[str] = []
        self._parameters: Mapping[str, Parameter] = {}

    # ── where it goes ────────────────────────────────────────────────────────────────────────

    def _stays(self, version: LoadedVersion, *, best_effort: bool) -> bool:
        """Whether it is answered here, whatever peers report."""
        context = self.context
        return best_effort or bool(version.stages or context.session) or context.redirected

    def elsewhere(self, length: int, parameters: Mapping[str, Parameter]) -> str:
        plane, now = self._forwarding, self._plane.driver.clock()
        try:
            version = self._find()
            options = parse_parameters(parameters, self._plane.look_alikes)
        except WireError:  # `announce` refuses it
            return ""
        settings, link, peers = version.definition.settings, None, plane.peers
        deadline = due(self.context, options, settings, settings.slo)
        stays = self._stays(version, best_effort=deadline is None)
        if deadline is not None and not stays and peers.serve(version):
            link = plane.sooner(version, deadline, 0, length, now=now)
        if link is None:
            return ""
        named = self._version_name is not None
        address, _ = peers.client_addresses(link.machine, version, named=named)
        if not address:
            return ""
        plane.loads.redirected(link.machine, version.name, now=now)
        peers.forwarded[version.name, "redirected"] += 1
        return f"{peers.scheme}://{address}"

    def _expect(self, version: LoadedVersion, notice: Notice) -> None:
        plane, now, link = self._forwarding, self._plane.driver.clock(), None
        stays = self._stays(version, best_effort=notice.best_effort)
        if not stays and plane.peers.serve(version):
            link = plane.sooner(version, notice.deadline, 0, self._length, now=now)
        if link is None:
            super()._expect(version, notice)
        else:  # the engine would only learn of it to forget it
            self._outside = True
            self._plane.loop.call_later(PATIENCE_S, self._expect_late, notice)

    def _expect_late(self, notice: Notice) -> None:
        """Tell the engine of a body that takes its time."""
        if self._outside and self.state is CallState.RECEIVING and self._refusal is None:
            self._outside = False
            self.id = self._plane.driver.new_id()
            self._route.announce(replace(notice, id=self.id), self)

    def _start(self, version: LoadedVersion, call: InferCall, request: Request) -> None:
        # Classes of scores may be in an output that was not requested.
        self._request = request
        self._output_names = call.outputs if self._classification is None else []
        self._parameters = call.parameters
        if self._stays(version, best_effort=request.best_effort):
            self._go_home()
            return
        forwarding, now = self._forwarding, self._plane.driver.clock()
        if self._refusal is not None:  # as its body was arriving
            link = self._rescuer(version, request.deadline - now)
        elif forwarding.peers.serve(version):
            link = forwarding.sooner(version, request.deadline, self._rows, self._nbytes(), now=now)
        else:
            link = None
        if link is None:
            self._go_home()
            return
        if self.waits:  # the engine has its notice
            self.waits = False
            self._held = True
            # Not by its route: that of a call that is split cancels only parts.
            self._plane.driver.cancel(self.id, Reason.CLIENT_CANCELLED)
        self._send(version, link)

    def _go_home(self) -> None:
        """Have the engine answer it."""
        request = self._request
        assert request is not None
        if self._outside:  # the engine has seen its id before
            self._outside = False
            self.id = self._plane.driver.new_id()
            request = self._request = replace(request, id=self.id)
        self._route.submit(request, self)

    def _send(self, version: LoadedVersion, link: PeerLink) -> None:
        """Send it to a peer. Its payload stays here."""
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
            self._inputs(version),
            self._output_names,
            {
                name: parameter
                for name, parameter in self._parameters.items()
                if name not in _AT_HOME
            },
        )
        self._forwarding.peers.forwarded[version.name, "out"] += 1
        self._sent = link.forward(call, self.context, budget_s, self._returned)

    def _inputs(self, version: LoadedVersion) -> list[InputTensor]:
        """The tensors in the payload, as a client would send them."""
        tensors = []
        for spec, (shape, data) in zip(
            version.interface.inputs, self._tensors(version), strict=True
        ):
            datatype, values = spec.datatype, data
            if len(shape) != len(spec.shape):  # pictures in place of pixels
                datatype = Datatype.BYTES
                if is_bare(data):
                    values = memoryview(b"".join((len(data).to_bytes(4, "little"), data)))
            elif not data and prod(shape) > 0:  # a mask that the client left out
                continue
            tensors.append(InputTensor(spec.name, datatype, shape, values))
        return tensors

    def _nbytes(self) -> int:
        assert self.payload is not None
        return sum([tensor.nbytes for tensor in self.payload.tensors])

    def _rescuer(self, version: LoadedVersion, budget_s: float) -> PeerLink | None:
        """A peer that has the time for it after this server has refused it."""
        stored = self.payload is not None
        return self._forwarding.rescuer(
            version,
            self._rows if stored else 1,
            self._nbytes() if stored else self._length,
            budget_s,
            self._tried,
            now=self._plane.driver.clock(),
        )

    # ── what becomes of it ───────────────────────────────────────────────────────────────────

    def answered(self, outcome: Outcome) -> None:
        if outcome.reason in _ELSEWHERE and self._refusal is None and self._rescued(outcome):
            return
        if self._options.report_timing and not self._outside:
            self.details = {**self.details, "machine": self._forwarding.peers.machine}
        super().answered(outcome)

    def _rescued(self, outcome: Outcome) -> bool:
        """Keep a call that this server refuses, for a peer that has the time for it. Returns False
        if there is none."""
        version, request, budget_s = self._version, self._request, outcome.budget_s
        if request is not None:
            budget_s = None if request.best_effort else request.deadline - outcome.at
        if version is None or budget_s is None or self._stays(version, best_effort=False):
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
        """Called by the link: the peer has answered, or is lost."""
        self._sent = None
        version, request, peer_call = self._version, self._request, self._peer_call
        assert version is not None
        assert request is not None
        assert peer_call is not None
        now, loads = self._plane.driver.clock(), self._forwarding.loads
        if reply is None:
            loads.answered(peer_call, in_time=None, now=now)
        else:
            outputs = _outputs_of(reply, version, request.rows, self._output_indices)
            reason, in_time = reply.outcome.reason, None
            if outputs is not None or reason in _FOR_LACK_OF_TIME:
                in_time = outputs is not None and now <= request.deadline
            loads.answered(peer_call, in_time=in_time, now=now)
            if outputs is not None or reason.kind is OutcomeKind.FAILED:
                variants = [pool.variant for pool in version.pools]
                self.outputs = outputs
                self.variant = reply.variant if reply.variant in variants else ""
                self._end(_outcome_at_home(reply.outcome, version, request, now=now))
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
            sent.cancel()
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


def _outputs_of(
    reply: InferReply, version: LoadedVersion, rows: int, requested: Sequence[int]
) -> list[OutputTensor | None] | None:
    """The outputs of a peer's reply in the model's order; None unless they are those of the model
    for `rows` rows, and all that are `requested` (indices) are among them."""
    if reply.outputs is None:
        return None
    interface, places = version.interface, version.check.output_places
    outputs: list[OutputTensor | None] = [None] * len(interface.outputs)
    for output in reply.outputs:
        index = places.get(output.name)
        if index is None:
            return None
        spec, shape = interface.outputs[index], output.shape
        axes = spec.shape
        if interface.batches and not version.definition.settings.expands:
            axes = (rows, *axes[1:])
        fits = len(shape) == len(axes) and output.datatype is spec.datatype
        if not fits or any(length != axis >= 0 for length, axis in zip(shape, axes, strict=True)):
            return None
        outputs[index] = shape, memoryview(output.data)
    return outputs if all(outputs[index] is not None for index in requested) else None


def _outcome_at_home(
    remote: Outcome, version: LoadedVersion, request: Request, *, now: float
) -> Outcome:
    """The outcome of a call whose peer's answer is here now. The way there and back counts as
    waiting."""
    reason = remote.reason
    if reason.kind is not OutcomeKind.FAILED:
        if now > request.deadline:
            reason = Reason.AFTER_DEADLINE
        elif reason.kind is not OutcomeKind.SERVED:
            reason = Reason.ON_TIME
    took = max(0.0, now - request.arrival)
    compute_s = min(took, max(0.0, remote.compute_s))
    exits = () if version.exits is None else version.exits.names
    return replace(
        remote,
        reason=reason,
        at=now,
        queue_s=took - compute_s,
        compute_s=compute_s,
        budget_s=request.deadline - now,
        ramp=remote.ramp if (remote.ramp or 0) < len(exits) else None,
    )
