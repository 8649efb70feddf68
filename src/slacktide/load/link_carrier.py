"""One connection through the proxy: its two ends, and what is on its way between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, cast

from slacktide.load.link_line import Flow, Piece

_MOST_WAITING, _FEW_WAITING = 1 << 18, 1 << 17
"""Bytes that wait at which we stop reading from the client, and at which we go on."""


class Carriage(Protocol):
    """What a carrier asks of its proxy, and tells it."""

    @property
    def begun(self) -> bool:
        """Whether the link has begun: until then nothing is read."""
        ...

    @property
    def half_trip(self) -> float:
        """Seconds that a message of no length needs, either way."""
        ...

    def at(self, instant: float, call: Callable[[], None]) -> None:
        """Have `call` called at this instant of `time.monotonic()`."""
        ...

    async def reach(self, carrier: Carrier) -> None:
        """Connect `carrier` to the server, or abort it."""
        ...

    def offer(self, carrier: Carrier, data: memoryview) -> None:
        """Its client has sent these bytes; none: it sends no more."""
        ...

    def came_back(self, count: int) -> None:
        """The server has sent so many bytes."""
        ...

    def lost(self, carrier: Carrier) -> None:
        """Both its ends are gone."""
        ...


class Carrier(Flow):
    """Bytes from a client to the server, and back. Its ends call it, on the loop."""

    def __init__(self, proxy: Carriage) -> None:
        super().__init__()
        self._proxy = proxy
        self._client: asyncio.Transport | None = None
        self._server: asyncio.Transport | None = None
        self._reaching: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """What came before it could be offered: uvloop reads once, paused or not."""
        self._server_full = False
        """The server does not read as fast as we write."""
        self._client_done = self._server_done = False
        """They send no more. If we read on, uvloop would tell of it again."""
        self._ended = 0
        """Directions in which the end has been passed on."""

    def abort(self) -> None:
        """Break off at both ends."""
        if self._reaching is not None:
            self._reaching.cancel()
        for end in (self._client, self._server):
            if end is not None:
                end.abort()

    @property
    def _ready(self) -> bool:
        return self._proxy.begun and self._server is not None

    def see_to_reading(self) -> None:
        """Read from the client, or stop reading, as things stand."""
        if self._client is None or self._client.is_closing():
            return
        if self._ready:
            early, self._early = self._early, []
            for data in early:
                self._proxy.offer(self, memoryview(data))
        if self._client_done:
            return
        if not self._ready or self._server_full or self.size >= _MOST_WAITING:
            self._client.pause_reading()
        elif self.size <= _FEW_WAITING:
            self._client.resume_reading()

    # From client to server.

    def client_connected(self, transport: asyncio.Transport) -> None:
        self._client = transport
        self.see_to_reading()
        self._reaching = asyncio.get_running_loop().create_task(self._proxy.reach(self))

    def client_sent(self, data: bytes) -> None:
        """None: it sends no more."""
        self._client_done = not data
        self._early.append(data)
        self.see_to_reading()

    def client_lost(self) -> None:
        self._client = None
        self.abort()
        if self._server is None:
            self._proxy.lost(self)

    def passed(self, piece: Piece[Carrier], left_at: float) -> None:
        """The link has moved `piece`, at `left_at` (instant of `time.monotonic()`)."""
        self._later(left_at, lambda: self._to_server(piece.data))
        self.see_to_reading()

    def _to_server(self, data: memoryview) -> None:
        if self._server is None or self._server.is_closing():
            return
        if len(data):
            self._server.write(data)
        else:
            self._server.write_eof()
            self._one_ended()

    # From server to client.

    def server_connected(self, transport: asyncio.Transport) -> None:
        self._server = transport
        if self._client is None:
            transport.abort()
        self.see_to_reading()

    def server_sent(self, data: bytes) -> None:
        """None: it sends no more."""
        self._server_done = not data
        self._proxy.came_back(len(data))
        self._later(time.monotonic(), lambda: self._to_client(data))

    def server_lost(self) -> None:
        self._server = None
        self._later(time.monotonic(), self._close_client)
        if self._client is None:
            self._proxy.lost(self)

    def server_reads(self, *, enough: bool) -> None:
        """Whether the server reads as fast as we write."""
        self._server_full = not enough
        self.see_to_reading()

    def client_reads(self, *, enough: bool) -> None:
        """Whether the client reads as fast as we write."""
        if self._server is None or self._server.is_closing():
            return
        if not enough:
            self._server.pause_reading()
        elif not self._server_done:
            self._server.resume_reading()

    def _to_client(self, data: bytes) -> None:
        if self._client is None or self._client.is_closing():
            return
        if data:
            self._client.write(data)
        else:
            self._client.write_eof()
            self._one_ended()

    def _close_client(self) -> None:
        if self._client is not None:
            self._client.close()

    # Both ways.

    def _later(self, instant: float, call: Callable[[], None]) -> None:
        """Have it called half a round trip after `instant`."""
        if self._proxy.half_trip:
            self._proxy.at(instant + self._proxy.half_trip, call)
        else:
            call()

    def _one_ended(self) -> None:
        self._ended += 1
        if self._ended == 2:
            for end in (self._client, self._server):
                if end is not None:
                    end.close()


class ClientEnd(asyncio.Protocol):
    """Where a client has connected to us."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._carrier.client_connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._carrier.client_sent(data)

    def eof_received(self) -> bool:
        self._carrier.client_sent(b"")
        return True  # the answer may still be on its way

    def pause_writing(self) -> None:
        self._carrier.client_reads(enough=False)

    def resume_writing(self) -> None:
        self._carrier.client_reads(enough=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._carrier.client_lost()


class ServerEnd(asyncio.Protocol):
    """Where we have connected to the server."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._carrier.server_connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._carrier.server_sent(data)

    def eof_received(self) -> bool:
        self._carrier.server_sent(b"")
        return True  # the client may still be sending

    def pause_writing(self) -> None:
        self._carrier.server_reads(enough=False)

    def resume_writing(self) -> None:
        self._carrier.server_reads(enough=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._carrier.server_lost()
