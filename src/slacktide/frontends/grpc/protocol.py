"""`GrpcConnection`: a client's HTTP/2 connection on the loop; `GrpcState`: what a port shares.

Bytes from the socket go through `Http2Connection`, which hands each request to a `GrpcCall`. Output
is written after each piece of input. Answers that come later are written together, once per turn of
the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from slacktide.frontends.common.connection import FrontEndConnection, SharedState, waited
from slacktide.frontends.common.security import Authorize
from slacktide.frontends.grpc.call import GrpcCall
from slacktide.frontends.grpc.metadata import CallHead, GrpcMethod
from slacktide.frontends.http2 import ErrorCode, Head, Http2Connection, Http2Stream
from slacktide.frontends.ports import AccessLog, ControlPlane, DataPlane
from slacktide.frontends.settings import GrpcSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.grpc_codec import GrpcCodec

_JOIN_BYTES: Final = 64 * 1024
"""Output up to this length is joined into one write; longer output goes as a vector."""
_DROP_AT_ONCE: Final = 32
"""Calls cancelled per turn of the loop."""


class GrpcState(SharedState):
    """State that all gRPC connections of a port share."""

    def __init__(
        self,
        data: DataPlane,
        control: ControlPlane,
        settings: GrpcSettings,
        authorize: Authorize | None,
        access_log: AccessLog | None,
        clock: Callable[[], float],
        unpacker: Unpacker | None,
    ) -> None:
        super().__init__(settings, authorize, access_log, clock, unpacker)
        self.data, self.control, self.settings = data, control, settings
        self.codec = GrpcCodec()
        self.calls = 0
        """Number of calls without a status, over all connections."""
        self.drained = asyncio.Event()
        """Set when the server accepts no more requests."""
        self.methods: Mapping[bytes, GrpcMethod] = {}
        """Methods by path."""


class GrpcConnection(FrontEndConnection):
    """The protocol of one client connection. All methods run on the event loop."""

    __slots__ = (
        "_busy_at", "_busy_with", "_feeding", "_flushing", "_pinged_at", "http2", "peer", "state",
    )  # fmt: skip

    http2: Http2Connection

    def __init__(self, state: GrpcState) -> None:
        super().__init__(state)
        self.state = state
        self.peer = ""
        """The client's address with port."""
        self._feeding = self._flushing = False
        """Whether the connection is processing bytes, after which it writes; whether a write is
        scheduled."""
        self._pinged_at: float | None = None
        self._busy_with = 0
        """Id of the latest call when `check` last found the connection busy."""
        self._busy_at = self._now
        """Time of that check. Busy: a call is open, or one has come since the previous check."""

    @property
    def now(self) -> float:
        """Time at which the last bytes came."""
        return self._now

    @property
    def reading_since(self) -> float:
        """Time at which reading last resumed. Earlier delays are not the client's fault."""
        return self._reading_since

    @property
    def is_reading(self) -> bool:
        return self._reading

    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The verified certificate of the other end, as `SSLSocket.getpeercert` returns it."""
        return cast("Mapping[str, Any] | None", self._transport.get_extra_info("peercert"))

    # ---------------------------------------------------------------- the transport's callbacks

    def begin(self, peer: str, crowded: bool) -> None:
        settings = self.state.settings
        self.peer = peer
        self.http2 = Http2Connection(
            self._open_call,
            max_streams=settings.max_concurrent_calls,
            max_list=settings.max_metadata_bytes,
            now=self._now,
        )
        if crowded:
            # Before SETTINGS: otherwise clients take this for a good connection that went away, and
            # reconnect immediately, again and again.
            self.abort()
        else:
            self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._now = self.state.clock()
        self._pinged_at = None
        if not self.http2.closed:
            self.take(self.state.scratch[:nbytes], holding=bool(self.http2.frames.pending))

    def disconnected(self) -> None:
        self.http2.lose()
        self._drop_calls()
        self._transport.close()

    def _drop_calls(self) -> None:
        """Cancel the calls of a connection that has ended, over several turns if there are many."""
        self.http2.drop(_DROP_AT_ONCE)
        if self.http2.orphans:
            self.state.turns.wait(self.client, self._drop_calls)

    def pause_writing(self) -> None:
        self.http2.clogged = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._clogged_since = None
        self.http2.clogged = False
        self.flush()
        self.update_reading()

    # ---------------------------------------------------------------- in

    def feed(self, data: memoryview | bytes) -> None:
        self._feeding = True
        try:
            self.http2.receive(data, self._now)
        finally:
            self._feeding = False
        http2 = self.http2
        if http2.out or http2.blocked or http2.closing:
            self.flush()
        self.update_reading()

    def hold(self, data: memoryview) -> None:
        self.http2.hold(data)

    def may_go_on(self) -> bool:
        return self.http2.can_resume and self._clogged_since is None

    def update_reading(self) -> None:
        """Stop reading while the client does not read its answers or bytes wait to be processed."""
        if self.http2.can_resume:
            self.wait_for_turn()
        self.set_reading(self._clogged_since is None and not self.http2.can_resume)

    def _open_call(self, id: int, head: Head) -> Http2Stream:
        call_head = head.meaning
        if call_head is None:
            state = self.state
            call_head = CallHead(head, state.methods, state.settings.max_metadata_bytes)
            head.meaning = call_head
        call_head = cast(CallHead, call_head)
        method = call_head.method
        return (GrpcCall if method is None else method.make)(self, id, head, call_head)

    # ---------------------------------------------------------------- out

    def flush(self) -> None:
        """Write output as far as the client's windows allow."""
        if self._feeding:
            return
        self._flushing = False
        http2, transport, more = self.http2, self._transport, True
        while more:
            more = bool(http2.blocked) and not http2.clogged and http2.pump()
            out = http2.out
            if out:
                http2.out = []
                if transport.is_closing():
                    return
                if sum(map(len, out)) <= _JOIN_BYTES:
                    transport.write(b"".join(out))
                else:
                    transport.writelines(out)
        if http2.closing and not http2.streams and self._closing is None:
            self._drop_calls()
            # Requests sent before the client saw GOAWAY may be unread.
            self.close(linger=True)

    def flush_soon(self) -> None:
        """Write at the end of this turn, with its other output; right now if no call is left."""
        if not self.http2.streams:
            self.flush()
        elif not (self._flushing or self._feeding):
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    # ---------------------------------------------------------------- clock and end

    def start_drain(self) -> None:
        for call in list(self._calls()):
            call.drain()
        self.http2.go_away()
        self.flush()

    def check(self, now: float) -> None:
        if self.is_overdue(now):
            return
        settings, http2 = self.state.settings, self.http2
        since = http2.unfinished_since
        if (
            since is not None
            and self._reading
            and waited(max(since, self._reading_since), now) >= settings.header_timeout_s
        ):
            self._end(ErrorCode.ENHANCE_YOUR_CALM, "the headers took too long")
            return
        if http2.is_stuck(now, settings.write_timeout_s, waited):
            self._end(ErrorCode.ENHANCE_YOUR_CALM, "the client does not read its answers")
            return
        for call in list(self._calls()):
            call.check(now)
        quiet = waited(self._now, now)
        if http2.streams or http2.last_id != self._busy_with:
            self._busy_with, self._busy_at = http2.last_id, now
        elif waited(self._busy_at, now) >= settings.connection_idle_s:
            http2.go_away()
            self.flush()
        if self._pinged_at is not None:
            if waited(self._pinged_at, now) >= settings.keepalive_timeout_s:
                self.abort()
        elif quiet >= settings.keepalive_s and self._reading:
            self._pinged_at = now
            self.http2.ping()
            self.flush()

    def _calls(self) -> list[GrpcCall]:
        return cast("list[GrpcCall]", list(self.http2.streams.values()))

    def _end(self, code: ErrorCode, message: str) -> None:
        self.http2.end(code, message)
        self.flush()
