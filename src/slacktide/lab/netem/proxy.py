"""A proxy that carries connections like a link: real bytes, at the rate of a trace.

What a client sends waits in a `LinkQueue` until the link has moved it, and then half a round trip
more; what the server sends waits half a round trip, whatever its size. Bytes are passed on
unchanged, so HTTP, gRPC and TLS all work. The client's connections open immediately: TCP handshakes
take no time on this link.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from slacktide.lab.netem.link_queue import LinkQueue
from slacktide.lab.netem.proxy_connection import ProxyConnection
from slacktide.lab.netem.timer_queue import TimerQueue
from slacktide.lab.workloads import TraceLink

_LATENESS_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Carried:
    """Counters of a proxy."""

    connections: int
    unreachable: int
    """Number of connections that the server did not accept."""
    bytes_there: int
    bytes_back: int
    lateness_p99: float
    """Delay of pieces beyond their computed instant (seconds), at p99 of the last 100,000."""


class LinkProxy:
    """Forwards every connection to `port` to the server at `host`, `to_port`. Each connection has a
    link to itself unless the link is `shared`. `begin` sets the link's time 0; no data is read
    until then. Use it as an async context manager."""

    def __init__(self, link: TraceLink, host: str, to_port: int, *, shared: bool = False) -> None:
        self._link = link
        self._host, self._to_port = host, to_port
        self._common: LinkQueue[ProxyConnection] | None = LinkQueue(link) if shared else None
        self._origin: float | None = None
        self._queues: dict[ProxyConnection, LinkQueue[ProxyConnection]] = {}
        """Queues of the open connections."""
        self._connections = self._unreachable = 0
        self._bytes_there = self.bytes_back = 0
        """Bytes carried so far."""
        self._lateness: deque[float] = deque(maxlen=_LATENESS_KEPT)
        self._whole = asyncio.Event()
        """Set while the link is not cut."""
        self._whole.set()

    async def __aenter__(self) -> LinkProxy:
        """Listen on a free port of the loopback."""
        self._timer = TimerQueue()
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Break every connection."""
        self._server.close()
        self.mend()
        for connection in tuple(self._queues):
            connection.abort()
        while self._queues:  # `connection_lost` follows every abort
            await asyncio.sleep(0)
        self._timer.close()

    def begin(self, origin: float) -> None:
        """Set the link's time 0 to this instant of `time.monotonic()`."""
        self._origin = origin
        for connection in self._queues:
            connection.read_client()

    def cut(self) -> None:
        """Stop all bytes in both directions, as a pulled cable does: neither end learns of it, nor
        of the other end's death. New connections do not reach the server. Bytes that the proxy has
        read still arrive."""
        self._whole.clear()
        self._update_reading()

    def mend(self) -> None:
        """Let bytes and connections pass again after `cut`; those that waited come first."""
        self._whole.set()
        self._update_reading()

    def _update_reading(self) -> None:
        for connection in tuple(self._queues):
            connection.read_client()
            connection.read_server()

    def carried(self) -> Carried:
        """Return the counters up to now."""
        late = sorted(self._lateness)
        p99 = late[int(0.99 * len(late))] if late else 0.0
        return Carried(
            self._connections, self._unreachable, self._bytes_there, self.bytes_back, p99
        )

    # Calls from connections.

    @property
    def begun(self) -> bool:
        return self._origin is not None

    @property
    def is_cut(self) -> bool:
        return not self._whole.is_set()

    def later(self, instant: float, call: Callable[[], None]) -> None:
        """Call `call` half a round trip after `instant`."""
        if half_trip := self._link.way_back:
            self._timer.at(instant + half_trip, call)
        else:
            call()

    async def connect(self, connection: ProxyConnection) -> None:
        loop = asyncio.get_running_loop()
        await self._whole.wait()
        try:
            await loop.create_connection(lambda: connection.server, self._host, self._to_port)
        except OSError:
            self._unreachable += 1
            connection.abort()

    def offer(self, connection: ProxyConnection, data: memoryview) -> None:
        assert self._origin is not None, "nothing is read before the link begins"
        queue = self._queues[connection]
        idle = queue.next_at is None
        queue.offer(connection, data, now=time.monotonic() - self._origin)
        if idle:
            self._wait_for(queue)

    def lost(self, connection: ProxyConnection) -> None:
        queue = self._queues.pop(connection, None)
        if queue is not None:
            queue.drop(connection)

    # The queues.

    def _accept(self) -> asyncio.Protocol:
        self._connections += 1
        connection = ProxyConnection(self)
        self._queues[connection] = self._common or LinkQueue(self._link)
        return connection.client

    def _wait_for(self, queue: LinkQueue[ProxyConnection]) -> None:
        """Schedule work on `queue` for when its next piece has left."""
        if queue.next_at is not None and self._origin is not None:
            self._timer.at(self._origin + queue.next_at, lambda: self._advance(queue))

    def _advance(self, queue: LinkQueue[ProxyConnection]) -> None:
        assert self._origin is not None
        now = time.monotonic()
        for piece in queue.take(now=now - self._origin):
            left_at = self._origin + piece.left_at
            self._lateness.append(now - left_at)
            self._bytes_there += len(piece.data)
            piece.flow.passed(piece, left_at)
        self._wait_for(queue)
