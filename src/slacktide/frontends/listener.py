"""A listening port of any protocol: it starts, drains and closes."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Any

from slacktide.frontends.common.connection import FrontEndConnection, SharedState

log = logging.getLogger(__name__)

_BACKLOG = 1024
EVERY_ADDRESS = ("*", "::", "")
_CALLBACKS = [name for name in dir(asyncio.BufferedProtocol) if name[0] != "_"]


class Callbacks(asyncio.BufferedProtocol):
    """Passes a loop's callbacks to a connection. asyncio's loop requires this base class, which
    compiled classes cannot have."""

    def __init__(self, connection: FrontEndConnection) -> None:
        for name in _CALLBACKS:
            setattr(self, name, getattr(connection, name))


def _bind_every_address(host: str, port: int) -> Any:
    """A socket for both IPv6 and IPv4 if `host` means all addresses; None if it does not, or if the
    machine has only IPv4. Raises OSError."""
    if host not in EVERY_ADDRESS or not socket.has_dualstack_ipv6():
        return None
    try:
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        if host == "::" or error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            raise
        return None


class Listener:
    """One listening port."""

    def __init__(self, context: SharedState, connect: Callable[[], FrontEndConnection]) -> None:
        """`connect` makes the protocol of a connection."""
        self._context = context
        self._connect = connect
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._port = 0

    async def start(
        self,
        host: str,
        port: int,
        ssl: SSLContext | None = None,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        """Listen on `sockets`, or else bind first; port 0 picks a free one. Raises OSError."""
        loop, limits = asyncio.get_running_loop(), self._context.limits
        try:
            places: list[dict[str, Any]] = [{"sock": listening} for listening in sockets]
            if not places:
                dual_stack = _bind_every_address(host, port)
                place = {"host": host, "port": port} if dual_stack is None else {"sock": dual_stack}
                places.append(place)
            for place in places:
                server = await loop.create_server(
                    lambda: Callbacks(self._connect()),
                    **place,
                    ssl=ssl,
                    backlog=_BACKLOG,
                    ssl_handshake_timeout=None if ssl is None else limits.header_timeout_s,
                )
                self._servers.append(server)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno is None:
                raise
            # asyncio's text is longer
            raise OSError(error.errno, os.strerror(error.errno)) from None
        self._port = int(self._servers[0].sockets[0].getsockname()[1])
        self._timer = loop.call_later(limits.tick_s, self._tick)

    @property
    def port(self) -> int:
        """The bound port, even after the server has closed; 0 before `start`."""
        return self._port

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._context.connections)

    def descriptors(self) -> list[int]:
        """The listening sockets."""
        return [listening.fileno() for server in self._servers for listening in server.sockets]

    async def drain(self, timeout_s: float | None = None, idle_s: float = 0.0) -> bool:
        """Stop listening, answer the requests received, and close each connection with its last
        answer; idle connections are closed after `idle_s`. Returns True once all are closed, False
        after `timeout_s`."""
        for server in self._servers:
            server.close()
        self._context.draining = True
        if idle_s > 0.0 and await self._emptied(idle_s):
            return True
        for connection in list(self._context.connections):
            connection.start_drain()
        return await self._emptied(timeout_s)

    async def _emptied(self, timeout_s: float | None) -> bool:
        """Wait until no connection is left. Returns False after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._context.connections:
                    await self._context.emptied.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop listening and cut every connection, cancelling its requests. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self._context.connections):
            connection.abort()
        while self._context.connections:
            await self._context.emptied.wait()
        self._context.unpacker.close()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    def _tick(self) -> None:
        now = self._context.clock()
        for connection in list(self._context.connections):
            try:
                connection.check(now)
            except Exception:
                log.exception("checking a connection's timeouts failed")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._context.limits.tick_s, self._tick)
