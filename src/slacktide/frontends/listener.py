"""A listening port of any protocol: what its connections share, and how it starts, drains, ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from ssl import SSLContext
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.executors.arena import MemoryBudget, MemoryLimitExceeded
from slacktide.frontends.fairness import FairLoop
from slacktide.frontends.ports import AccessLog, AccessRecord
from slacktide.frontends.security import Authorize
from slacktide.frontends.settings import FrontEndSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.errors import WireError

if TYPE_CHECKING:
    from slacktide.frontends.connection import FrontEndConnection

log = logging.getLogger(__name__)

_BACKLOG = 1024


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


class Listener:
    """One listening port."""

    def __init__(self, context: SharedState, connect: Callable[[], FrontEndConnection]) -> None:
        """`connect` makes the protocol of a connection."""
        self._context = context
        self._connect = connect
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._port = 0

    async def start(self, host: str, port: int, ssl: SSLContext | None = None) -> None:
        """Bind and listen; port 0 takes a free one. Raises OSError if it cannot."""
        loop, limits = asyncio.get_running_loop(), self._context.limits
        try:
            self._server = await loop.create_server(
                self._connect,
                host,
                port,
                ssl=ssl,
                backlog=_BACKLOG,
                ssl_handshake_timeout=None if ssl is None else limits.header_timeout_s,
            )
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno is None:
                raise
            raise OSError(error.errno, os.strerror(error.errno)) from None  # the loop's are longer
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._timer = loop.call_later(limits.tick_s, self._tick)

    @property
    def port(self) -> int:
        """The port bound, also after the server has closed; 0 before `start`."""
        return self._port

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._context.connections)

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Stop listening, answer what is here, close connections with their last answer.

        Returns True once all are closed, False if `timeout_s` passed before.
        """
        if self._server is not None:
            self._server.close()
        self._context.draining = True
        for connection in list(self._context.connections):
            connection.start_drain()
        try:
            async with asyncio.timeout(timeout_s):
                while self._context.connections:
                    await self._context.emptied.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop listening and cut every connection; what waits is cancelled. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._context.connections):
            connection.abort()
        while self._context.connections:
            await self._context.emptied.wait()
        self._context.unpacker.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _tick(self) -> None:
        now = self._context.clock()
        for connection in list(self._context.connections):
            try:
                connection.check(now)
            except Exception:
                log.exception("checking the time-outs of a connection failed")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._context.limits.tick_s, self._tick)
