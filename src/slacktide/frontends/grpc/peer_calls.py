"""`PeerCalls`: the calls on a link between two servers, in both directions.

An incoming call is received straight into the slot reserved for it, like a frame, and answered
once. A call that cannot be served fails alone. A load report is sent with the next answer or, if
there is none, alone at the end of the turn.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from typing import Final

from slacktide.domain import Outcome, Reason
from slacktide.frontends.common.refusals import Refusal, refusal_of
from slacktide.frontends.grpc.inference import InferRequest, StreamRpc
from slacktide.frontends.grpc.intake import NOWHERE
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.grpc.protocol import GrpcConnection
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import InferenceCall, PeerHost
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.peers.messages import LoadReport, ModelLoad, PeerHello
from slacktide.wire import peer_messages as pm
from slacktide.wire.calls import Buffer, CallContext, InferCall, InferReply
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import target_before_tensors
from slacktide.wire.proto import messages as m

MAX_CALLS: Final = 1024
"""Maximum number of unanswered calls of one side. A peer that sends more breaks the protocol."""
ROOM_BYTES: Final = 1 << 20
"""Unsent bytes beyond which a call should go elsewhere."""
AROUND_TENSORS: Final = 64 * 1024
"""Bytes that a message may have besides its tensors."""

Done = Callable[[InferReply | None], None]


class PeerRequest(InferRequest):
    """A call that the peer has forwarded, from the first byte of its message to its answer."""

    __slots__ = ("_calls", "number", "start")

    def __init__(self, calls: PeerCalls, head: m.CallOfPeer, start: int) -> None:
        """`start`: offset of the ModelInferRequest in its message."""
        budget = None
        if head.HasField("budget_us"):
            budget = max(0.0, head.budget_us * 1e-6 - calls.rtt / 2)
        super().__init__(calls, "peer", calls.protocol.now, budget)
        self._context.client = calls.machine
        self._context.request_id = head.request_id[: pm.MAX_SENTENCE]
        self._context.traceparent = head.traceparent[: pm.MAX_SENTENCE] or None
        self._calls = calls
        self.number = head.id
        """The peer's id of the call."""
        self.start = start

    def _begin_call(self, model: str, version: str | None) -> InferenceCall:
        self.model, self.version = model, version
        calls = self._calls
        if calls.is_outdated:
            raise WireError(Reason.UNAVAILABLE, "the models have changed meanwhile")
        call = self._call = calls.host.call(calls, model, version, self._context)
        return call

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        try:
            target = target_before_tensors(beginning[self.start :])
            if target is None or length <= DIRECT_BYTES:
                return None
            place = self._begin_call(*target).announce(length, {})
        except (WireError, Refusal) as error:
            self.fail(error)
            return NOWHERE
        if isinstance(place, InferReply):
            self._call = None
            self._calls.answer_request(self, place)
            return NOWHERE
        self._slot = place
        return place

    def _is_typed(self, message: Buffer) -> bool:
        if super()._is_typed(message):
            raise BadField("contents", "only raw_input_contents", "values")
        return False


class PeerCalls(StreamRpc):
    """The calls on one link."""

    __slots__ = (
        "_current", "_loads", "_next_id", "_outgoing", "_received", "_requests", "address",
        "dialled", "host", "is_joined", "is_open", "is_outdated", "machine", "max_bytes", "rtt",
    )  # fmt: skip

    def __init__(
        self,
        protocol: GrpcConnection,
        id: int,
        head: Head,
        call_head: CallHead,
        host: PeerHost,
        address: str,
        *,
        dialled: bool,
    ) -> None:
        super().__init__(protocol, id, head, call_head)
        self.host = host
        self.machine, self.address, self.dialled = "", address, dialled
        self.rtt = 0.0
        self.is_joined = False
        """Whether the peer has said hello."""
        self.is_open = False
        """Whether further calls may be sent: neither side has said goodbye."""
        self.is_outdated = False
        """Whether calls may still come that the peer sent before it got our last hello."""
        self.max_bytes = 0
        """Longest message that the peer takes."""
        self._requests: dict[int, PeerRequest] = {}
        """Unanswered calls of the peer."""
        self._current: PeerRequest | None = None
        """The peer's call whose message is arriving."""
        self._received = 0
        """Number of the peer's calls."""
        self._outgoing: dict[int, Done] = {}
        """Our unanswered calls."""
        self._next_id = 0
        self._loads: dict[str, ModelLoad] | None = None
        """Loads to report."""

    @abstractmethod
    def greet(self, hello: PeerHello) -> None:
        """Say hello again."""

    @abstractmethod
    def close(self, why: str) -> None:
        """Say goodbye."""

    @abstractmethod
    def control(self, content: m.PeerMessage) -> None:
        """Process a message other than a call or an answer."""

    def tell(self, content: m.PeerMessage) -> None:
        """Send a message other than a call or an answer."""
        self.write([content.SerializeToString()])

    # ---------------------------------------------------------------- messages

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        head = pm.forwarded_head(beginning, length)
        if head is None:
            return None
        request = self._current = self._request(*head)
        return request.place_for(length, beginning)

    def message(self, message: Buffer) -> None:
        request, self._current = self._current, None
        if request is None:
            self._read(message)
        else:
            request.take(message, request.start)

    def passed_over(self) -> None:
        self._current = None

    def taker(self) -> Callable[[Buffer], None]:
        return self._read

    def _read(self, message: Buffer) -> None:
        """Process a complete message."""
        if pm.is_answer(message):
            self._take_answer(bytes(message) if len(message) <= DIRECT_BYTES else message)
        elif (head := pm.forwarded_head(message, len(message))) is not None:
            self._request(*head).take(message, head[1])
        else:
            self.control(pm.read_peer_message(message))

    def _request(self, head: m.CallOfPeer, start: int) -> PeerRequest:
        """Begin a call of the peer. Raises BadField."""
        if not self.is_joined:
            raise BadField("message", "a hello first", "call")
        if head.id in self._requests:
            raise BadField("call.id", "an id that is not in use", head.id)
        if len(self._requests) >= MAX_CALLS:
            raise BadField("call", f"at most {MAX_CALLS} unanswered calls", MAX_CALLS + 1)
        self._received += 1
        self.connection.patience += 1.0  # the call's frame may be short, which costs patience
        request = self._requests[head.id] = PeerRequest(self, head, start)
        return request

    def cancel_request(self, id: int) -> None:
        """Cancel the peer's call `id`, if it is unanswered."""
        request = self._requests.pop(id, None)
        if request is not None:
            self.connection.patience += 1.0  # each call can be cancelled once
            request.cancel(Reason.CLIENT_CANCELLED)

    def _take_answer(self, message: Buffer) -> None:
        id, reply, report = pm.read_answer(message, now=self.protocol.now)
        if report is not None and self.is_joined:
            self.host.reported(self, report)
        self._finish(id, reply)
        if not self.is_open:
            self.go_on()

    def has_unanswered(self) -> bool:
        return bool(self._requests or self._outgoing)

    def let_calls_go(self) -> None:
        """Give up the calls of both sides."""
        loop = asyncio.get_running_loop()
        for id in self._outgoing:
            loop.call_soon(self._finish, id, None)
        requests, self._requests, self._current = self._requests, {}, None
        for request in requests.values():
            request.cancel(Reason.DISCONNECTED)

    # ---------------------------------------------------------------- calls to the peer

    def has_room(self, nbytes: int) -> bool:
        return (
            self.is_open
            and len(self._outgoing) < MAX_CALLS
            and nbytes + AROUND_TENSORS <= self.max_bytes
            and not self.connection.clogged
            and (not self.unsent or self._answer_bytes + nbytes <= ROOM_BYTES)
        )

    def sent(self) -> None:
        sent = self._answer_bytes - sum(map(len, self.unsent))
        if sent > 0:  # a busy link may never have sent everything
            self._release(sent)
            self._answer_bytes -= sent
        super().sent()

    def forward(
        self, call: InferCall, context: CallContext, budget_s: float | None, done: Done
    ) -> int:
        id = self._next_id = self._next_id + 1
        self._outgoing[id] = done
        if self.is_open:
            request = self.state.codec.call_pieces(call)
            # A copy: the slot may hold other tensors before all of a cancelled call is sent.
            self.write([b"".join(pm.forwarded_pieces(id, request, context, budget_s))])
        else:
            asyncio.get_running_loop().call_soon(self._finish, id, None)
        return id

    def withdraw(self, id: int) -> None:
        if self._outgoing.pop(id, None) is not None:
            self.tell(m.PeerMessage(cancel=m.CancelOfPeer(id=id)))
            self.go_on()

    def _finish(self, id: int, reply: InferReply | None) -> None:
        """Pass on the reply to our call `id`, unless it was cancelled."""
        callback = self._outgoing.pop(id, None)
        if callback is not None:
            callback(reply)

    # ---------------------------------------------------------------- answers and loads

    def answer_request(self, request: InferRequest, reply: InferReply) -> None:
        assert isinstance(request, PeerRequest)
        if self._requests.pop(request.number, None) is not None:  # else it was cancelled
            response, report = self.state.codec.reply_pieces(reply), self._take_report()
            self.put_answer(pm.reply_pieces(request.number, reply, response, report))

    def refuse_request(self, request: InferRequest, refusal: Refusal) -> None:
        outcome = Outcome(refusal.reason or Reason.RUNTIME_ERROR, self.state.clock())
        reply = InferReply(outcome, request.model, request.version or "", request.id, None)
        reply.message, reply.retry_after_s = refusal.message, refusal.retry_after_s
        self.answer_request(request, reply)

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        self.refuse_request(request, refusal_of(error, operation=self.call_head.name))

    def report(self, report: LoadReport) -> None:
        if self._loads is None:
            self._loads = {}
            asyncio.get_running_loop().call_soon(self._send_report)
        self._loads |= {load.model: load for load in report.loads}

    def _take_report(self) -> LoadReport | None:
        loads, self._loads = self._loads, None
        return None if loads is None else LoadReport(tuple(loads.values()), self._received)

    def _send_report(self) -> None:
        report = self._take_report()
        if report is not None:  # otherwise an answer has carried it
            self.tell(m.PeerMessage(loads=pm.loads_message(report)))
