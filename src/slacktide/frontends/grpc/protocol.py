"""`GrpcConnection`: one client's HTTP/2 connection on the loop, and what all of a port share.

Bytes from the socket go through `Http2Connection`, which hands each request to a `GrpcCall`. What
is to be sent is written once a piece of input has been taken, and with each answer (the loop joins
the writes of a turn).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, cast

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
"""Calls that are cancelled in a turn."""


class GrpcState(SharedState):
    """The shared side of gRPC connections."""

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
        """Calls that have no status yet, over all connections."""
        self.drained = asyncio.Event()
        """The server takes no more requests."""
        self.methods: Mapping[bytes, GrpcMethod] = {}
        """By path."""


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
        """Address with port."""
        self._feeding = self._flushing = False
        """It takes bytes, and writes behind them; or has a turn in which to write."""
        self._pinged_at: float | None = None
        self._busy_with = 0
        """The latest call when the clock was last looked at."""
        self._busy_at = self._now
        """When there was a call, at such a look."""

    @property
    def now(self) -> float:
        """When the last bytes came."""
        return self._now

    @property
    def reading_since(self) -> float:
        """When it was last told to read: before, the client was not late."""
        return self._reading_since

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
            # Before SETTINGS: else clients take it for a good connection that has gone away, and
            # come back at once, again and again.
            self.abort()
        else:
            self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._now = self.state.clock()
        self._pinged_at = None
        if not self.http2.closed:
            self.take(self.state.scratch[:nbytes], holding=bool(self.http2.frames.held))

    def lost(self) -> None:
        self.http2.lose()
        self._drop_calls()
        self._transport.close()

    def _drop_calls(self) -> None:
        """Cancel the calls of a connection that has ended: there may be many, so in turns."""
        self.http2.drop(_DROP_AT_ONCE)
        if self.http2.lost:
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
        return self.http2.more and self._clogged_since is None

    def update_reading(self) -> None:
        """Read only while the client reads its answers, and nothing is held that could be taken."""
        if self.http2.more:
            self.wait_for_turn()
        self.set_reading(self._clogged_since is None and not self.http2.more)

    def _open_call(self, id: int, head: Head) -> Http2Stream:
        said = head.meaning
        if said is None:
            state = self.state
            said = CallHead(head, state.methods, state.settings.max_metadata_bytes)
            head.meaning = said
        said = cast(CallHead, said)
        method = said.method
        return (GrpcCall if method is None else method.make)(self, id, head, said)

    # ---------------------------------------------------------------- out

    def flush(self) -> None:
        """Write what is to be sent, as far as the client takes it."""
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
            # Requests that crossed with GOAWAY may be unread.
            self.close(linger=True)

    def flush_soon(self) -> None:
        """Write with what else this turn brings; at once, if no call is left to bring it."""
        if not self.http2.streams:
            self.flush()
        elif not (self._flushing or self._feeding):
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    # ---------------------------------------------------------------- the clock, and the end

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
            self._end(ErrorCode.ENHANCE_YOUR_CALM, "answers are not taken")
            return
        for call in list(self._calls()):
            call.check(now)
        quiet = waited(self._now, now)
        if http2.streams or http2.last != self._busy_with:
            self._busy_with, self._busy_at = http2.last, now
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
