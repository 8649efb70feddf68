"""Peers/Connect: the link between two servers (`wire/proto/peers.proto`).

The stream is symmetric once its head has been sent: `PeerStream` is both the call that a server
accepts and the one that it makes (`PeerConnection`). Either side forwards calls. A call that
arrives is received straight into the slot reserved for it, as a frame is, and answered once.

A link is bounded like a client: its memory is charged to the peer's address, its calls are counted,
and HTTP/2's windows hold it back. A message that breaks the protocol ends the link, with a sentence
for the peer. A call that cannot be served fails alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from slacktide.domain import Outcome, Reason
from slacktide.frontends.common.connection import waited
from slacktide.frontends.common.refusals import Refusal, refusal_of
from slacktide.frontends.common.security import PeerAccess, Verdict
from slacktide.frontends.grpc.inference import InferRequest, StreamRpc
from slacktide.frontends.grpc.intake import NOWHERE
from slacktide.frontends.grpc.metadata import CODES, CallHead, GrpcMethod
from slacktide.frontends.grpc.protocol import GrpcConnection, GrpcState
from slacktide.frontends.http2 import Head
from slacktide.frontends.http2.dialling import STREAM, Http2Dialling
from slacktide.frontends.ports import EndpointGroup, InferenceCall, PeerHost
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.peers.messages import LoadReport, PeerHello
from slacktide.wire import peer_messages as pm
from slacktide.wire.calls import Buffer, CallContext, InferCall, InferReply
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import target_before_tensors
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import PEER_SERVICE
from slacktide.wire.status import WireStatus

log = logging.getLogger("slacktide.server")

CONNECT: Final = f"/{PEER_SERVICE}/Connect"
MAX_CALLS: Final = 1024
"""Unanswered calls of one side. A peer that sends more breaks the protocol."""
PING_S: Final = 0.5
SILENT_S: Final = 1.4
"""Seconds without a byte after which a link is dead: two pings and most of a third."""
UNREAD_S: Final = 5.0
"""Seconds without an answer to a ping: the peer sends, but does not read."""
PARTING_S: Final = 30.0
"""Seconds that calls under way may take after a goodbye."""
ROOM_BYTES: Final = 1 << 20
"""Unsent bytes beyond which a call should go elsewhere."""
AROUND_TENSORS: Final = 64 * 1024
"""Bytes that a message may have besides its tensors."""
_MOST_REFUSALS: Final = 64

Ended = Callable[[str], None]


class OutgoingCall:
    """A call that was sent to the peer (a `ForwardedCall`)."""

    __slots__ = ("_done", "_link", "id")

    def __init__(
        self, link: PeerStream, id: int, done: Callable[[InferReply | None], None]
    ) -> None:
        self._link = link
        self.id = id
        self._done: Callable[[InferReply | None], None] | None = done

    def cancel(self) -> None:
        if self._done is not None:
            self._done = None
            self._link.withdraw(self.id)

    def finish(self, reply: InferReply | None) -> None:
        """Pass on the reply, unless the call was cancelled."""
        done, self._done = self._done, None
        if done is not None:
            done(reply)


class PeerRequest(InferRequest):
    """A call that the peer has forwarded, from the first byte of its message to its answer."""

    __slots__ = ("_stream", "number", "start")

    def __init__(self, stream: PeerStream, head: pm.ForwardedHead) -> None:
        budget = head.budget_s
        if budget is not None:
            budget = max(0.0, budget - stream.rtt / 2)
        super().__init__(stream, "peer", stream.protocol.now, budget)
        context = self._context
        context.client = stream.machine
        context.request_id, context.traceparent = head.request_id, head.traceparent
        self._stream = stream
        self.number = head.id
        """The peer's id of the call."""
        self.start = head.start
        """Offset of the ModelInferRequest in its message."""

    def _begin_call(self, model: str, version: str | None) -> InferenceCall:
        self.model, self.version = model, version
        stream = self._stream
        call = self._call = stream.host.call(stream, model, version, self._context)
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
            self._stream.answer_request(self, place)
            return NOWHERE
        self._slot = place
        return place

    def _is_typed(self, message: Buffer) -> bool:
        if super()._is_typed(message):
            raise BadField("contents", "only raw_input_contents", "values")
        return False


class PeerStream(StreamRpc):
    """One link (a `PeerLink`), dialled by either side."""

    __slots__ = (
        "_access", "_calls", "_current", "_heard_at", "_instance", "_is_left", "_joined", "_loads",
        "_max_bytes", "_next_id", "_on_end", "_parted_at", "_pinged_at", "_pings", "_received",
        "_requests", "_rtts", "_timer", "_why", "address", "dialled", "host", "machine", "rtt",
    )  # fmt: skip

    def __init__(
        self,
        protocol: GrpcConnection,
        id: int,
        head: Head,
        call_head: CallHead,
        host: PeerHost,
        access: PeerAccess | None,
        address: str,
        on_end: Ended | None = None,
    ) -> None:
        """`access` judges a stream that is accepted; None: it is dialled. `on_end` gets the
        sentence with which the link ends, whether or not it was joined."""
        super().__init__(protocol, id, head, call_head)
        self.host = host
        self._access = access
        self.dialled = access is None
        self.machine, self.address, self._instance = "", address, ""
        self.rtt = 0.0
        self._rtts: deque[float] = deque(maxlen=8)
        self._pings: dict[int, float] = {}
        """Times at which pings without an answer were sent, by id."""
        self._pinged_at = self._heard_at = protocol.now
        self._next_id = 0
        self._requests: dict[int, PeerRequest] = {}
        """Unanswered calls of the peer."""
        self._current: PeerRequest | None = None
        """The peer's call whose message is arriving."""
        self._received = 0
        """Number of the peer's calls."""
        self._calls: dict[int, OutgoingCall] = {}
        """Our unanswered calls."""
        self._max_bytes = 0
        """Longest message that the peer takes."""
        self._loads: LoadReport | None = None
        """Loads to send with the next message."""
        self._joined = self._is_left = False
        self._parted_at: float | None = None
        """Time of the first goodbye of either side."""
        self._why = ""
        """Why the link ends."""
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- beginning

    def begin(self) -> None:
        assert self._access is not None
        certificate = self.protocol.peer_certificate()
        verdict = self._access.judge(self.call_head.headers, self.protocol.client, certificate)
        if verdict is not Verdict.PASS:
            _log_refusal(self._access, self.protocol.client, verdict.value)
            name = "UNAUTHENTICATED" if verdict.status == 401 else "PERMISSION_DENIED"
            raise Refusal(WireStatus(verdict.status, name), verdict.value)
        self.connection.widen(self)
        self._greet()

    def dial(self, connection: Http2Dialling, fields: list[tuple[bytes, bytes]]) -> None:
        """Begin a link on a connection that was dialled."""
        self.state.calls += 1
        self._answering = True  # the request's head takes the place of an answer's
        connection.open(self, fields)
        connection.widen(self)  # the settings follow the head, which tells whom they are for
        self._greet()

    def _greet(self) -> None:
        hello = self.host.hello()
        self._instance = hello.instance
        self.greet(hello)
        self._beat()

    def headed(self, fields: dict[bytes, bytes], ends: bool) -> None:
        """Process the head of the answer to a dialled stream, or its trailers."""
        status, code = fields.get(b":status", b"200"), fields.get(b"grpc-status", b"0")
        if status != b"200":
            self._why = self._why or f"no gRPC server: HTTP status {status.decode('latin-1')[:9]}"
        elif code != b"0":
            number = int(code) if code.isdigit() and len(code) < 4 else -1
            name = CODES[number] if 0 <= number < len(CODES) else "unknown status"
            words = unquote(fields.get(b"grpc-message", b"")[:1024].decode("latin-1"))
            sentence = words if words and words.isprintable() else "refused"
            self._why = self._why or f"{sentence} ({name})"

    def _welcome(self, greeting: m.HelloPeer) -> None:
        hello, self._max_bytes = pm.hello_of(greeting)
        if self.machine not in ("", hello.machine):
            raise BadField("machine", f"{self.machine!r}, as before", hello.machine)
        self.machine = hello.machine
        self.host.joined(self, hello)
        if not self._joined:
            self._joined = True
            self._ping(self.state.clock())

    # ---------------------------------------------------------------- messages

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        head = pm.forwarded_head(beginning, length)
        if head is None:
            return None
        request = self._current = self._request(head)
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
            return
        head = pm.forwarded_head(message, len(message))
        if head is not None:
            self._request(head).take(message, head.start)
            return
        content = pm.read_peer_message(message)
        kind = content.WhichOneof("message")
        if kind == "hello":
            self._welcome(content.hello)
        elif kind == "ping":
            self.write([m.PeerMessage(pong=content.ping).SerializeToString()])
        elif kind == "pong":
            self._take_pong(content.pong.id)
        elif kind == "goodbye":
            self._take_goodbye(content.goodbye.why)
        elif not self._joined:
            raise BadField("message", "a hello first", kind)
        elif kind == "loads":
            self.host.reported(self, pm.report_of(content.loads))
        elif kind == "cancel":
            request = self._requests.pop(content.cancel.id, None)
            if request is not None:
                self.connection.patience += 1.0  # each call can be cancelled once
                request.cancel(Reason.CLIENT_CANCELLED)
        elif kind == "call":  # with its fields in another order
            self._request(pm.head_of(content.call)).take(content.call.request.SerializeToString())
        else:
            raise BadField("message", "one of protocol 1", "another")

    def _request(self, head: pm.ForwardedHead) -> PeerRequest:
        """Begin a call of the peer. Raises BadField."""
        if not self._joined:
            raise BadField("message", "a hello first", "call")
        if head.id in self._requests:
            raise BadField("call.id", "an id that is not in use", head.id)
        if len(self._requests) >= MAX_CALLS:
            raise BadField("call", f"at most {MAX_CALLS} unanswered calls", MAX_CALLS + 1)
        self._received += 1
        self.connection.patience += 1.0  # its frame may be short
        request = self._requests[head.id] = PeerRequest(self, head)
        return request

    def _take_answer(self, message: Buffer) -> None:
        answer = pm.read_answer(message, now=self.protocol.now)
        if answer.report is not None and self._joined:
            self.host.reported(self, answer.report)
        call = self._calls.pop(answer.id, None)
        if call is not None:  # else it was cancelled, or there never was one
            call.finish(answer.reply)
        if self._parted_at is not None:
            self.go_on()

    def _take_pong(self, id: int) -> None:
        sent_at = self._pings.pop(id, None)
        if sent_at is not None:
            for earlier in [earlier for earlier in self._pings if earlier < id]:
                del self._pings[earlier]
            self._rtts.append(max(0.0, self.protocol.now - sent_at))
            self.rtt = min(self._rtts)

    def _take_goodbye(self, why: str) -> None:
        sentence = why[: pm.MAX_SENTENCE]
        self._part(sentence if sentence.isprintable() and sentence else "the peer said goodbye")

    # ---------------------------------------------------------------- the link, to its host

    def has_room(self, nbytes: int) -> bool:
        return (
            self._joined
            and self._parted_at is None
            and not self._is_left
            and len(self._calls) < MAX_CALLS
            and nbytes + AROUND_TENSORS <= self._max_bytes
            and not self.connection.clogged
            and (not self.unsent or self._count_unsent() + nbytes <= ROOM_BYTES)
        )

    def _count_unsent(self) -> int:
        """Bytes that wait for a window. Releases what is charged for those that have been sent."""
        size = sum(map(len, self.unsent))
        if size < self._answer_bytes:
            self._release(self._answer_bytes - size)
            self._answer_bytes = size
        return size

    def write(self, pieces: Sequence[Buffer]) -> None:
        if self._answer_bytes > ROOM_BYTES:  # a busy link may never have sent everything
            self._count_unsent()
        super().write(pieces)

    def forward(
        self,
        call: InferCall,
        context: CallContext,
        budget_s: float | None,
        done: Callable[[InferReply | None], None],
    ) -> OutgoingCall:
        self._next_id += 1
        outgoing = OutgoingCall(self, self._next_id, done)
        if self._is_left or self._parted_at is not None:
            asyncio.get_running_loop().call_soon(outgoing.finish, None)
        else:
            self._calls[outgoing.id] = outgoing
            request = self.state.codec.call_pieces(call)
            self.write(pm.forwarded_pieces(outgoing.id, request, context, budget_s))
        return outgoing

    def withdraw(self, id: int) -> None:
        """Cancel our call `id`, whose tensors may change from now on."""
        if self._calls.pop(id, None) is None or self.finished:
            return
        if self.unsent:  # its message has begun, and must come to its end
            self.unsent = deque(memoryview(bytes(piece)) for piece in self.unsent)
        self.write([m.PeerMessage(cancel=m.CancelOfPeer(id=id)).SerializeToString()])
        self.go_on()

    def report(self, report: LoadReport) -> None:
        if self._is_left:
            return
        loads = {load.model: load for load in report.loads}
        if self._loads is None:
            asyncio.get_running_loop().call_soon(self._send_loads)
        else:
            loads = {load.model: load for load in self._loads.loads} | loads
        self._loads = LoadReport(tuple(loads.values()), self._received)

    def greet(self, hello: PeerHello) -> None:
        hello = replace(hello, instance=self._instance)
        self.write([pm.hello_message(hello, self.state.limits.max_request_bytes)])

    def close(self, why: str) -> None:
        self._say_goodbye(why)
        self._part(why)

    # ---------------------------------------------------------------- answers

    def answer_request(self, request: InferRequest, reply: InferReply) -> None:
        assert isinstance(request, PeerRequest)
        if self._requests.pop(request.number, None) is not None:  # else it was cancelled
            response, loads = self.state.codec.reply_pieces(reply), self._take_loads()
            self.put_answer(pm.reply_pieces(request.number, reply, response, loads))

    def refuse_request(self, request: InferRequest, refusal: Refusal) -> None:
        outcome = Outcome(refusal.reason or Reason.RUNTIME_ERROR, self.state.clock())
        message, retry = refusal.message, refusal.retry_after_s
        version = request.version or ""
        self.answer_request(
            request,
            InferReply(outcome, request.model, version, request.id, None, message, {}, retry),
        )

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        self.refuse_request(request, refusal_of(error, operation=CONNECT))

    def _take_loads(self) -> LoadReport | None:
        loads, self._loads = self._loads, None
        return loads

    def _send_loads(self) -> None:
        loads = self._take_loads()
        if loads is not None:  # else an answer has taken them along
            self.write([m.PeerMessage(loads=pm.loads_message(loads)).SerializeToString()])

    # ---------------------------------------------------------------- clock

    def _beat(self) -> None:
        """Ping, and end a dead link. Own timer, because the port's is not exact enough."""
        if self._is_left:
            return
        now, protocol = self.state.clock(), self.protocol
        if self._backlog or not protocol.is_reading:
            self._heard_at = now  # the peer has sent what we have not read
        heard_at = max(self._heard_at, protocol.now, protocol.reading_since)
        pinged_at = next(iter(self._pings.values()), now)
        if waited(heard_at, now) >= SILENT_S:
            self._cut(f"silent for {SILENT_S:g} s")
        elif waited(pinged_at, now) >= UNREAD_S:
            self._cut(f"it has read nothing for {UNREAD_S:g} s")
        elif self._parted_at is not None and now - self._parted_at >= PARTING_S:
            self._cut(self._why)
        else:
            if self._joined and now - self._pinged_at >= PING_S:
                self._ping(now)
            silent_at = heard_at + SILENT_S
            next_at = min(self._pinged_at + PING_S, silent_at) if self._joined else silent_at
            delay = min(max(next_at - now, PING_S / 50), PING_S)
            self._timer = asyncio.get_running_loop().call_later(delay, self._beat)

    def _ping(self, now: float) -> None:
        self._next_id += 1
        self._pings[self._next_id] = self._pinged_at = now
        ping = m.PeerPing(id=self._next_id)
        self.write([m.PeerMessage(ping=ping).SerializeToString()])

    # ---------------------------------------------------------------- end

    def has_unanswered(self) -> bool:
        return bool(self._requests or self._calls)

    def settle(self) -> None:
        if self.ended or (self._parted_at is not None and not self.has_unanswered()):
            self._leave("the peer ended the link")
            self.finish()

    def drain(self) -> None:
        self.close("the server is shutting down")

    def _say_goodbye(self, why: str) -> None:
        if self._answering and self._parted_at is None and not self._is_left:
            goodbye = m.PeerGoodbye(why=why[:256])
            self.write([m.PeerMessage(goodbye=goodbye).SerializeToString()])

    def _part(self, why: str) -> None:
        """Begin to end: the calls under way are still answered."""
        self._why = self._why or why
        if self._parted_at is None:
            self._parted_at = self.state.clock()
        self.go_on()

    def failed(self, error: Exception) -> None:
        words = isinstance(error, (WireError, Refusal))
        why = str(error) if words else "internal error"
        self._say_goodbye(why)
        self._leave(why)

    def cancelled(self, reason: Reason) -> None:
        why = self.connection.why if isinstance(self.connection, Http2Dialling) else ""
        self._leave(why or "the connection broke")

    def _cut(self, why: str) -> None:
        """End a link whose peer would not read the end."""
        self._leave(why)
        self.protocol.abort()

    def _leave(self, why: str) -> None:
        """Tell the host that the link has ended, once, and let go of all calls."""
        if self._is_left:
            return
        self._is_left = True
        why = self._why or why
        if self._timer is not None:
            self._timer.cancel()
        if self._joined:
            self.host.left(self, why)
        if self._on_end is not None:
            self._on_end(why)
        loop = asyncio.get_running_loop()
        for call in self._calls.values():
            loop.call_soon(call.finish, None)
        requests = list(self._requests.values())
        self._calls, self._requests, self._current = {}, {}, None
        for request in requests:
            request.cancel(Reason.DISCONNECTED)

    def about(self) -> tuple[str, str]:
        return "", self.machine

    def _log(self, status: str) -> None:
        if not self.dialled:
            super()._log(status)

    def _ended(self, status: str) -> None:
        super()._ended(status)
        if self.dialled:
            self.connection.go_away()


class PeerConnection(GrpcConnection):
    """A connection that was dialled for a link. It belongs to a gRPC port, which drains and closes
    it with the others."""

    __slots__ = ("_fields", "_host", "_on_end", "_stream", "_target")

    def __init__(
        self, state: GrpcState, host: PeerHost, target: str, token: str | None, on_end: Ended
    ) -> None:
        """`target`: the address as dialled. `on_end` gets the sentence with which the link, or the
        attempt, ended."""
        super().__init__(state)
        self._host, self._target, self._on_end = host, target, on_end
        self._stream: PeerStream | None = None
        self._fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", CONNECT.encode()),
            (b":authority", target.encode("ascii", "replace")),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        if token is not None:
            self._fields.append((b"authorization", b"Bearer " + token.encode()))

    def begin(self, peer: str, crowded: bool) -> None:
        self.peer = peer
        self._now = self._reading_since = self.state.clock()  # connecting took a while
        state, most = self.state, self.state.settings.max_metadata_bytes
        head = Head(self._fields)
        call_head = CallHead(head, state.methods, most)
        http2 = self.http2 = Http2Dialling(self._headed, max_list=most, now=self._now)
        self._stream = stream = PeerStream(
            self, STREAM, head, call_head, self._host, None, self._target, self._on_end
        )
        stream.dial(http2, self._fields)
        self.flush()

    def _headed(self, fields: dict[bytes, bytes], ends: bool) -> None:
        if self._stream is not None:
            self._stream.headed(fields, ends)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self.http2, Http2Dialling) and exc is not None:
            self.http2.why = self.http2.why or str(exc)
        super().connection_lost(exc)
        self._stream = None

    def disconnected(self) -> None:
        http2 = self.http2
        if isinstance(http2, Http2Dialling) and not http2.why:
            http2.why = "the peer closed the connection"
            if self._transport.get_extra_info("sslcontext") and not http2.settled:
                http2.why += " after the TLS handshake: it may refuse this server's certificate"
        super().disconnected()


def peer_method(host: PeerHost, access: PeerAccess) -> GrpcMethod:
    """Peers/Connect for a server that is `host` to its links."""

    def make(protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> PeerStream:
        return PeerStream(protocol, id, head, call_head, host, access, protocol.client)

    return GrpcMethod(EndpointGroup.PEERS, make)


def _log_refusal(access: PeerAccess, address: str, why: str) -> None:
    """Log a refused link once, not at each attempt."""
    if access.refusals.get(address) != why:
        if len(access.refusals) >= _MOST_REFUSALS:
            access.refusals.clear()
        access.refusals[address] = why
        log.warning("a peer at %s is refused: %s", address, why)
