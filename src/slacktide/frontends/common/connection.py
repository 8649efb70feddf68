"""`FrontEndConnection`: what a connection of any protocol does with its socket; and `SharedState`:
what those of one port share.

It reads while its client reads its answers and has time left of this turn of the loop
(`fairness.py`); it ends at once, or lingers: goes on reading for a moment, because a close with
unread bytes makes the kernel send a reset that may overtake the answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import cast

from slacktide.domain import Reason
from slacktide.executors.hand_over.arena import MemoryBudget, MemoryLimitExceeded
from slacktide.executors.hand_over.loop_watch import loop_watch
from slacktide.frontends.common.fairness import FairLoop
from slacktide.frontends.common.security import Authorize
from slacktide.frontends.ports import AccessLog, AccessRecord
from slacktide.frontends.settings import FrontEndSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.errors import WireError

log = logging.getLogger(__name__)


def waited(since: float, now: float) -> float:
    """Seconds from `since` to `now` in which the loop turned: clients are not late for others."""
    return loop_watch().waited(since, now)


class SharedState:
    """What the connections of one port share. Bounds what no single connection can see."""

    def __init__(
        self,
        settings: FrontEndSettings,
        authorize: Authorize | None,
        access_log: AccessLog | None,
        clock: Callable[[], float] = time.monotonic,
        unpacker: Unpacker | None = None,
    ) -> None:
        self.unpacker = Unpacker() if unpacker is None else unpacker
        self.limits = settings
        self.authorize = authorize
        self.access_log = access_log
        self.clock = clock
        self.connections: set[FrontEndConnection] = set()
        self.emptied = asyncio.Event()
        """Set when the last connection has gone."""
        self.draining = False
        most, per_client = settings.max_buffered_bytes, settings.max_buffered_per_client
        self.buffers = MemoryBudget(most, per_client)
        """Of bodies and answers held outside shared memory, by client."""
        self.scratch = memoryview(bytearray(settings.receive_bytes))
        """Where every connection receives: filled and read out within one callback of the loop."""
        self.turns = FairLoop()

    def joined(self, connection: FrontEndConnection) -> None:
        self.connections.add(connection)
        self.emptied.clear()

    def left(self, connection: FrontEndConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()

    def hold(self, client: str, size: int) -> None:
        """Take `size` bytes of the common buffer. Raises WireError if there are none, or this
        client has its part."""
        try:
            self.buffers.charge(size, client)
        except MemoryLimitExceeded:
            message = "too many request bodies in flight"
            raise WireError(Reason.MEMORY_LIMIT, message) from None

    def log_access(self, record: AccessRecord) -> None:
        """Write to the access log. What it raises is logged and does no harm."""
        if self.access_log is None:
            return
        if not record.request_id.isprintable():
            record = record._replace(request_id=ascii(record.request_id))
        try:
            self.access_log(record)
        except Exception:
            log.exception("the access log failed")


class FrontEndConnection(ABC):
    """The protocol of one client connection. All methods run on the event loop."""

    __slots__ = (
        "_clogged_since", "_closing", "_now", "_queued", "_reading", "_reading_since", "_shared",
        "_transport", "client",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._now = shared.clock()
        """When the last bytes came."""
        self._queued = False
        """Waits for a turn of the loop, with bytes that are held."""
        self._reading = True
        self._reading_since = self._now
        self._clogged_since: float | None = None
        """Since when the client has not read its answers."""
        self._closing: tuple[float, float] | None = None
        """Since when the connection is closing, and after how many seconds it is cut."""
        self.client = "local"

    # ---------------------------------------------------------------- what each protocol has

    @abstractmethod
    def begin(self, peer: str, crowded: bool) -> None:
        """The connection is here. `peer`: address with port; `crowded`: there are more than may
        be, so refuse it."""

    @abstractmethod
    def feed(self, data: memoryview | bytes) -> None:
        """Take bytes, behind those that are held."""

    @abstractmethod
    def hold(self, data: memoryview) -> None:
        """Keep bytes for the next call of `feed`."""

    @abstractmethod
    def may_go_on(self) -> bool:
        """Whether bytes are held that could be taken now."""

    @abstractmethod
    def update_reading(self) -> None:
        """Read, or do not, as things are now: by `wait_for_turn` and `set_reading`."""

    @abstractmethod
    def lost(self) -> None:
        """The client has gone, or wants no more answers."""

    @abstractmethod
    def start_drain(self) -> None:
        """Answer what is here and close with the last answer."""

    @abstractmethod
    def check(self, now: float) -> None:
        """Look at the clock: enforce every time-out of this connection."""

    # ---------------------------------------------------------------- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.client = str(peer[0]).removeprefix("::ffff:")
        shared = self._shared
        # asyncio and uvloop both set TCP_NODELAY on every TCP connection.
        self._transport.set_write_buffer_limits(high=shared.limits.write_high_bytes)
        shared.joined(self)
        self.begin(str(peer or ""), len(shared.connections) > shared.limits.max_connections)

    @abstractmethod
    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""

    @abstractmethod
    def buffer_updated(self, nbytes: int) -> None:
        """So many have come."""

    def eof_received(self) -> None:
        self.lost()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.left(self)
        self.lost()

    def pause_writing(self) -> None:
        self._clogged_since = self._shared.clock()
        self.update_reading()

    @abstractmethod
    def resume_writing(self) -> None:
        """The client reads its answers again."""

    # ---------------------------------------------------------------- turns

    def take(self, data: memoryview, *, holding: bool) -> None:
        """Bytes from the socket: feed them, if the client has time left of this turn. `holding`:
        others are held before them."""
        turns = self._shared.turns
        if turns.open_to(self.client):
            since = turns.clock()
            self.feed(data)
            turns.spent(self.client, since)
        elif holding:
            self.hold(data)
            self.update_reading()
        else:  # most clients send no more before their answer: not worth two system calls
            self.hold(data)
            self.wait_for_turn()

    def wait_for_turn(self) -> None:
        if not self._queued and self.may_go_on():
            self._queued = True
            self._shared.turns.wait(self.client, self._go_on)

    def _go_on(self) -> None:
        """It is our turn: take in a piece of what is held."""
        self._queued = False
        if self.may_go_on():
            self.feed(b"")
        else:
            self.update_reading()

    def set_reading(self, reads: bool) -> None:
        if reads is not self._reading and not self._transport.is_closing():
            self._reading = reads
            if reads:
                self._reading_since = self._shared.clock()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    # ---------------------------------------------------------------- the end

    def abort(self) -> None:
        self._transport.abort()

    def is_overdue(self, now: float) -> bool:
        """Whether it is closing, or its client does not read: then it is cut in time."""
        limits = self._shared.limits
        if self._closing is not None:
            since, seconds = self._closing
            if waited(since, now) >= seconds:
                self._transport.abort()
        elif self._clogged_since is not None:
            if waited(self._clogged_since, now) >= limits.write_timeout_s:
                self._transport.abort()
        else:
            return False
        return True

    def close(self, *, linger: bool) -> None:
        """The last answer is written: end, as soon as the client can have read it."""
        limits = self._shared.limits
        if linger and not self._transport.is_closing():
            self._closing = self._shared.clock(), limits.linger_s
            if self._transport.can_write_eof():
                self._transport.write_eof()
        else:
            self._closing = self._shared.clock(), limits.write_timeout_s
            self._transport.close()
