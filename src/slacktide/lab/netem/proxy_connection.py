"""One connection through the proxy: its two ends, and the bytes on their way between them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from slacktide.lab.netem.link_queue import Flow, Piece

if TYPE_CHECKING:
    from slacktide.lab.netem.proxy import LinkProxy

_MOST_WAITING, _FEW_WAITING = 1 << 18, 1 << 17
"""Numbers of waiting bytes at which the proxy stops reading from the client, and resumes."""


@dataclass(kw_only=True, eq=False)
class _End(asyncio.Protocol):
    """One end of a connection, client's or server's."""

    connected: Callable[[], None]
    received: Callable[[bytes], None]
    flow_changed: Callable[[], None]
    lost: Callable[[], None]
    transport: asyncio.Transport | None = None
    done: bool = False
    """Whether its peer sends no more. If reading went on, uvloop would report that again."""
    full: bool = False
    """Whether its peer reads more slowly than the proxy writes."""

    @property
    def open(self) -> asyncio.Transport | None:
        """Its transport; None if that is closed or closing."""
        transport = self.transport
        return None if transport is None or transport.is_closing() else transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.connected()

    def data_received(self, data: bytes) -> None:
        self.received(data)

    def eof_received(self) -> bool:
        self.done = True
        self.received(b"")
        return True  # the other direction may still be in use

    def pause_writing(self) -> None:
        self.full = True
        self.flow_changed()

    def resume_writing(self) -> None:
        self.full = False
        self.flow_changed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost()


class ProxyConnection(Flow):
    """Carries bytes from a client to the server and back. Empty bytes mark a sender's end."""

    def __init__(self, proxy: LinkProxy) -> None:
        super().__init__()
        self._proxy = proxy
        self.client = _End(
            connected=self._client_connected,
            received=self._client_sent,
            flow_changed=self.read_server,
            lost=self._client_lost,
        )
        self.server = _End(
            connected=self._server_connected,
            received=self._server_sent,
            flow_changed=self.read_client,
            lost=self._server_lost,
        )
        self._connecting: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """Data that came before it could be queued: uvloop reads once even if paused."""
        self._early_back: list[bytes] = []
        """Data that came from the server while the link was cut."""
        self._postponed: list[Callable[[], None]] = []
        """Calls that tell one end of the loss of the other, postponed while the link is cut."""
        self._ended = 0
        """Number of directions whose end of stream has been passed on."""

    def abort(self) -> None:
        """Abort both ends."""
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.server):
            if end.transport is not None:
                end.transport.abort()

    # From client to server.

    def read_client(self) -> None:
        """Resume or pause reading from the client, depending on the waiting bytes."""
        client = self.client.open
        if client is None:
            return
        ready = self._proxy.begun and self.server.transport is not None and not self._proxy.is_cut
        if ready:
            early, self._early = self._early, []
            for data in early:
                self._proxy.offer(self, memoryview(data))
        if self.client.done:
            return
        if not ready or self.server.full or self.size >= _MOST_WAITING:
            client.pause_reading()
        elif self.size <= _FEW_WAITING:
            client.resume_reading()

    def passed(self, piece: Piece[ProxyConnection], left_at: float) -> None:
        """Pass on `piece`, which left the link at `left_at` (instant of `time.monotonic()`)."""
        self._proxy.later(left_at, lambda: self._write(self.server, piece.data))
        self.read_client()

    def _client_connected(self) -> None:
        self.read_client()
        self._connecting = asyncio.get_running_loop().create_task(self._proxy.connect(self))

    def _client_sent(self, data: bytes) -> None:
        self._early.append(data)
        self.read_client()

    def _client_lost(self) -> None:
        if self._proxy.is_cut:
            self._postponed.append(self._client_lost)
            return
        self.abort()
        if self.server.transport is None:
            self._proxy.lost(self)

    # From server to client.

    def _server_connected(self) -> None:
        assert self.server.transport is not None
        if self.client.transport is None:
            self.server.transport.abort()
        self.read_client()

    def _server_sent(self, data: bytes) -> None:
        if self._proxy.is_cut:
            self._early_back.append(data)
            self.read_server()
            return
        self._proxy.bytes_back += len(data)
        self._proxy.later(time.monotonic(), lambda: self._write(self.client, data))

    def _server_lost(self) -> None:
        if self._proxy.is_cut:
            self._postponed.append(self._server_lost)
            return
        self._proxy.later(time.monotonic(), self._close_client)
        if self.client.transport is None:
            self._proxy.lost(self)

    def _close_client(self) -> None:
        if self.client.transport is not None:
            self.client.transport.close()

    def read_server(self) -> None:
        """Resume or pause reading from the server."""
        if not self._proxy.is_cut:
            early, self._early_back = self._early_back, []
            for data in early:
                self._server_sent(data)
            postponed, self._postponed = self._postponed, []
            for lose in postponed:
                lose()
        server = self.server.open
        if server is None:
            return
        if self.client.full or self._proxy.is_cut:
            server.pause_reading()
        elif not self.server.done:
            server.resume_reading()

    # Both ways.

    def _write(self, end: _End, data: bytes | memoryview) -> None:
        transport = end.open
        if transport is None:
            return
        if len(data):
            transport.write(data)
            return
        transport.write_eof()
        self._ended += 1
        if self._ended == 2:
            for peer in (self.client, self.server):
                if peer.transport is not None:
                    peer.transport.close()
