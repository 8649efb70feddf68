"""Peers/Connect: the link between two servers (`wire/proto/peers.proto`).

Once its head has been sent, the stream is symmetric: `PeerStream` is the call that a server accepts
as well as the one that it makes (`PeerConnection`). This file handles the stream's beginning, its
timeouts and its end; `peer_calls.py` handles the calls on it.

A link has the limits of a client: its memory is charged to the peer's address, its calls are
counted, and HTTP/2's windows hold it back. A message that breaks the protocol ends the link, with a
sentence for the peer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Final
from urllib.parse import unquote

from slacktide.domain import Reason
from slacktide.frontends.common.connection import waited
from slacktide.frontends.common.refusals import Refusal
from slacktide.frontends.common.security import PeerAccess
from slacktide.frontends.grpc.call import require_pass
from slacktide.frontends.grpc.metadata import CallHead, GrpcMethod
from slacktide.frontends.grpc.peer_calls import PeerCalls
from slacktide.frontends.grpc.protocol import GrpcConnection, GrpcState
from slacktide.frontends.http2 import Head
from slacktide.frontends.http2.dialling import STREAM, Http2Dialling
from slacktide.frontends.ports import EndpointGroup, PeerHost
from slacktide.peers.messages import PeerHello
from slacktide.wire import peer_messages as pm
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import PEER_SERVICE

CONNECT: Final = f"/{PEER_SERVICE}/Connect"
BEAT_S: Final = 0.05
"""Seconds between two checks of the clock."""
PING_S: Final = 0.5
SILENT_S: Final = 1.4
"""Seconds without a byte after which a link is dead: time for two pings and most of a third."""
UNREAD_S: Final = 5.0
"""Seconds without an answer to a ping after which a link is dead: the peer sends, but does not
read."""
PARTING_S: Final = 30.0
"""Seconds that calls under way may take after a goodbye."""


class PeerStream(PeerCalls):
    """One link (a `PeerLink`), dialled by either side."""

    __slots__ = (
        "_access", "_hello", "_is_left", "_parted_at", "_pinged_at", "_rtts", "_timer",
        "_unanswered_ping", "_why",
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
    ) -> None:
        """`access` judges a stream that is accepted; None: it is dialled."""
        super().__init__(protocol, id, head, call_head, host, address, dialled=access is None)
        self._access = access
        self._rtts: deque[float] = deque(maxlen=8)
        self._pinged_at = protocol.now
        self._unanswered_ping: int | None = None
        self._is_left = False
        self._parted_at: float | None = None
        """Time of the first goodbye of either side."""
        self._why = ""
        """Why the link ends."""
        self._timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- beginning

    def begin(self) -> None:
        assert self._access is not None
        client, certificate = self.protocol.client, self.protocol.peer_certificate()
        require_pass(self._access.judge(self.call_head.headers, client, certificate))
        self._begin()

    def dial(self, connection: Http2Dialling, fields: list[tuple[bytes, bytes]]) -> None:
        """Begin a link on a connection that was dialled."""
        self.state.calls += 1
        self._answering = True  # no answer's head follows: the request's head is the only one
        connection.open(self, fields)
        self._begin()

    def _begin(self) -> None:
        self.connection.widen(self)  # after the head, which tells the server the method
        self._hello = self.host.hello()
        self.greet(self._hello)
        self._beat()

    def headed(self, fields: dict[bytes, bytes], ends: bool) -> None:
        status, code = fields.get(b":status", b"200"), fields.get(b"grpc-status", b"0")
        if status != b"200":
            self._why = self._why or f"no gRPC server: HTTP status {status.decode('latin-1')[:9]}"
        elif code != b"0":
            words = unquote(fields.get(b"grpc-message", b"")[: pm.MAX_SENTENCE].decode("latin-1"))
            self._why = self._why or (words if words.isprintable() and words else "refused")

    def greet(self, hello: PeerHello) -> None:
        self._hello = replace(hello, instance=self._hello.instance)
        self.write([pm.hello_message(self._hello, self.state.limits.max_request_bytes)])
        if self.is_joined:
            self._ping(self.state.clock())
            # A server that shuts down has no models, and still answers what comes.
            self.is_outdated = bool(hello.models)

    def _welcome(self, greeting: m.HelloPeer) -> None:
        hello, self.max_bytes = pm.hello_of(greeting)
        if self.machine not in ("", hello.machine):
            raise BadField("machine", f"{self.machine!r}, as before", hello.machine)
        self.machine = hello.machine
        self.host.joined(self, hello)
        if not self.is_joined:
            self.is_joined, self.is_open = True, self._parted_at is None
            self._ping(self.state.clock())
            current = self.host.hello()
            if current != self._hello:  # models have changed since the link began
                self.greet(current)

    # ---------------------------------------------------------------- messages

    def control(self, content: m.PeerMessage) -> None:
        kind = content.WhichOneof("message")
        if kind == "hello":
            self._welcome(content.hello)
        elif kind == "ping":
            self.tell(m.PeerMessage(pong=content.ping))
        elif kind == "pong":
            self._take_pong(content.pong.id)
        elif kind == "goodbye":
            why = content.goodbye.why[: pm.MAX_SENTENCE]
            self._part(why if why.isprintable() and why else "the peer said goodbye")
        elif not self.is_joined:
            raise BadField("message", "a hello first", kind)
        elif kind == "loads":
            self.host.reported(self, pm.report_of(content.loads))
        elif kind == "cancel":
            self.cancel_request(content.cancel.id)
        else:
            raise BadField("message", "one of protocol 1, a call's request last", kind)

    def _take_pong(self, id: int) -> None:
        if id == self._unanswered_ping:
            self._unanswered_ping, self.is_outdated = None, False
            self._rtts.append(max(0.0, self.protocol.now - self._pinged_at))
            self.rtt = min(self._rtts)

    # ---------------------------------------------------------------- clock

    def _beat(self) -> None:
        """Ping, and end a dead link. Own timer, because the port's is not exact enough."""
        now, protocol = self.state.clock(), self.protocol
        heard_at = max(protocol.now, protocol.reading_since)
        if self._backlog or not protocol.is_reading:
            heard_at = now  # the peer has sent bytes that we have not read
        is_answered = self._unanswered_ping is None
        if waited(heard_at, now) >= SILENT_S:
            self._cut(f"silent for {SILENT_S:g} s")
        elif not is_answered and waited(self._pinged_at, now) >= UNREAD_S:
            self._cut(f"it has read nothing for {UNREAD_S:g} s")
        elif self._parted_at is not None and now - self._parted_at >= PARTING_S:
            self._cut(self._why)
        else:
            if self.is_joined and is_answered and now - self._pinged_at >= PING_S:
                self._ping(now)
            self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _ping(self, now: float) -> None:
        self._next_id += 1
        self._unanswered_ping, self._pinged_at = self._next_id, now
        self.tell(m.PeerMessage(ping=m.PeerPing(id=self._next_id)))

    # ---------------------------------------------------------------- end

    def settle(self) -> None:
        if self.ended or (self._parted_at is not None and not self.has_unanswered()):
            self._leave("the peer ended the link")
            self.finish()

    def drain(self) -> None:
        self.close("the server is shutting down")

    def close(self, why: str) -> None:
        self._say_goodbye(why)
        self._part(why)

    def _say_goodbye(self, why: str) -> None:
        if self._answering and self._parted_at is None and not self._is_left:
            self.tell(m.PeerMessage(goodbye=m.PeerGoodbye(why=why[:256])))

    def _part(self, why: str) -> None:
        """Begin to end the link: calls under way are still answered."""
        self._why = self._why or why
        self.is_open = False
        if self._parted_at is None:
            self._parted_at = self.state.clock()
        self.go_on()

    def failed(self, error: Exception) -> None:
        why = str(error) if isinstance(error, (WireError, Refusal)) else "internal error"
        self._say_goodbye(why)
        self._leave(why)

    def cancelled(self, reason: Reason) -> None:
        why = self.connection.why if isinstance(self.connection, Http2Dialling) else ""
        self._leave(why or "the connection broke")

    def _cut(self, why: str) -> None:
        """Cut a link whose peer would not read the end."""
        self._leave(why)
        self.protocol.abort()

    def _leave(self, why: str) -> None:
        """Tell the host that the link has ended, once, and let go of all calls."""
        if self._is_left:
            return
        self._is_left, self.is_open = True, False
        if self._timer is not None:
            self._timer.cancel()
        self.host.left(self, self._why or why)
        self.let_calls_go()

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

    __slots__ = ("_dialling", "_host", "_target", "_token")

    def __init__(self, state: GrpcState, host: PeerHost, target: str, token: str | None) -> None:
        """`target`: the address as dialled. `host` is told how the link, or the attempt, ended."""
        super().__init__(state)
        self._host, self._target, self._token = host, target, token
        self._dialling: Http2Dialling | None = None

    def begin(self, peer: str, crowded: bool) -> None:
        fields = [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", CONNECT.encode()),
            (b":authority", self._target.encode("ascii", "replace")),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        ]
        if self._token is not None:
            fields.append((b"authorization", b"Bearer " + self._token.encode()))
        self.peer = peer
        self._now = self._reading_since = self.state.clock()  # connecting took a while
        most, head = self.state.settings.max_metadata_bytes, Head(fields)
        call = CallHead(head, self.state.methods, most)
        http2 = self.http2 = self._dialling = Http2Dialling(max_list=most, now=self._now)
        PeerStream(self, STREAM, head, call, self._host, None, self._target).dial(http2, fields)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._note(str(exc))
        super().connection_lost(exc)

    def disconnected(self) -> None:
        self._note("the peer closed the connection")
        super().disconnected()

    def _note(self, why: str) -> None:
        """Note why the connection ends, unless that is known."""
        http2 = self._dialling
        if http2 is not None and not http2.why:
            if self._transport.get_extra_info("sslcontext") and not http2.settled:
                why += " after the TLS handshake: it may refuse this server's certificate"
            http2.why = why


def peer_method(host: PeerHost, access: PeerAccess) -> GrpcMethod:
    """Peers/Connect for a server that is `host` to its links."""

    def make(protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> PeerStream:
        return PeerStream(protocol, id, head, call_head, host, access, protocol.client)

    return GrpcMethod(EndpointGroup.PEERS, make)
