"""`FrontEndConnection`: a connection of any protocol and its socket; `SharedState`: what the
connections of a port share.

A connection reads while its client reads the answers and has time left in this turn of the loop
(`fairness.py`). It ends immediately, or lingers: it keeps reading for a moment, because closing a
socket with unread bytes makes the kernel send a reset that may overtake the answer.
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
    """Seconds from `since` to `now` without stalls of the loop: a client is not late while the
    server is busy."""
    return loop_watch().waited(since, now)


class SharedState:
    """State of all connections of a port, with the limits that span connections."""

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
        """Set when no connection is left."""
        self.draining = False
        most, per_client = settings.max_buffered_bytes, settings.max_buffered_per_client
        self.buffers = MemoryBudget(most, per_client)
        """Bytes of bodies and answers held outside shared memory, by client."""
        self.scratch = memoryview(bytearray(settings.receive_bytes))
        """Receive buffer of all connections: filled and read within one callback of the loop."""
        self.turns = FairLoop()

    def add(self, connection: FrontEndConnection) -> None:
        self.connections.add(connection)
        self.emptied.clear()

    def discard(self, connection: FrontEndConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()

    def hold(self, client: str, size: int) -> None:
        """Charge `size` bytes to the shared memory limits. Raises WireError if the total or the
        client's own limit is reached."""
        try:
            self.buffers.charge(size, client)
        except MemoryLimitExceeded:
            raise WireError(Reason.MEMORY_LIMIT, "too many request bodies in flight") from None

    def log_access(self, record: AccessRecord) -> None:
        """Write to the access log. Its exceptions are logged and go no further."""
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
        """Time at which the last bytes came."""
        self._queued = False
        """Whether the connection waits for its turn to process pending bytes."""
        self._reading = True
        self._reading_since = self._now
        self._clogged_since: float | None = None
        """When the client stopped reading its answers."""
        self._closing: tuple[float, float] | None = None
        """Time at which the connection began to close, and the seconds until it is cut."""
        self.client = "local"

    # ---------------------------------------------------------------- implemented by each protocol

    @abstractmethod
    def begin(self, peer: str, crowded: bool) -> None:
        """Begin. `peer`: address with port; `crowded`: there are too many connections, so refuse
        this one."""

    @abstractmethod
    def feed(self, data: memoryview | bytes) -> None:
        """Process bytes, after the pending ones."""

    @abstractmethod
    def hold(self, data: memoryview) -> None:
        """Keep bytes for the next `feed`."""

    @abstractmethod
    def may_go_on(self) -> bool:
        """Whether pending bytes could be processed now."""

    @abstractmethod
    def update_reading(self) -> None:
        """Start or stop reading as the state requires, by `wait_for_turn` and `set_reading`."""

    @abstractmethod
    def disconnected(self) -> None:
        """Handle a client that has gone, or no longer wants answers."""

    @abstractmethod
    def start_drain(self) -> None:
        """Answer the requests received and close with the last answer."""

    @abstractmethod
    def check(self, now: float) -> None:
        """Enforce every timeout of this connection."""

    # ---------------------------------------------------------------- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name, peer = transport.get_extra_info("peername"), ""
        if isinstance(name, tuple):
            self.client = str(name[0]).removeprefix("::ffff:")
            peer = (
                f"[{self.client}]:{name[1]}" if ":" in self.client else f"{self.client}:{name[1]}"
            )
        shared = self._shared
        # asyncio and uvloop both set TCP_NODELAY on every TCP connection.
        self._transport.set_write_buffer_limits(high=shared.limits.write_high_bytes)
        shared.add(self)
        self.begin(peer, len(shared.connections) > shared.limits.max_connections)

    @abstractmethod
    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer for the next bytes."""

    @abstractmethod
    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` have arrived in that buffer."""

    def eof_received(self) -> None:
        self.disconnected()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.discard(self)
        self.disconnected()

    def pause_writing(self) -> None:
        self._clogged_since = self._shared.clock()
        self.update_reading()

    @abstractmethod
    def resume_writing(self) -> None:
        """The client is reading its answers again."""

    # ---------------------------------------------------------------- turns

    def take(self, data: memoryview, *, holding: bool) -> None:
        """Feed bytes from the socket if the client has time left in this turn; else keep them.
        `holding`: earlier bytes are pending."""
        turns = self._shared.turns
        if turns.open_to(self.client):
            since = turns.clock()
            self.feed(data)
            turns.charge(self.client, since)
        elif holding:
            self.hold(data)
            self.update_reading()
        else:  # most clients wait for their answer: pausing is not worth two system calls
            self.hold(data)
            self.wait_for_turn()

    def wait_for_turn(self) -> None:
        if not self._queued and self.may_go_on():
            self._queued = True
            self._shared.turns.wait(self.client, self._go_on)

    def _go_on(self) -> None:
        """Use this turn to process some of the pending bytes."""
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
        """Whether the connection is closing or its client does not read; cuts it when its time is
        up."""
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
        """End once the client has had time to read the last answer, which has been written."""
        limits = self._shared.limits
        if linger and not self._transport.is_closing():
            self._closing = self._shared.clock(), limits.linger_s
            if self._transport.can_write_eof():
                self._transport.write_eof()
        else:
            self._closing = self._shared.clock(), limits.write_timeout_s
            self._transport.close()
