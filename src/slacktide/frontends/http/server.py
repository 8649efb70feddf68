"""`HttpServer`: listens, keeps the connections, looks at the clock for them, drains."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from ssl import SSLContext

from slacktide.frontends.http.context import HttpContext
from slacktide.frontends.http.protocol import HttpConnection
from slacktide.frontends.http.router import HttpRoute, Router
from slacktide.frontends.ports import AccessLog
from slacktide.frontends.security import Authorize
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker

log = logging.getLogger(__name__)

_BACKLOG = 1024


class HttpServer:
    """One listening port with a table of routes.

    `authorize` guards every route (security.py); `access_log` gets every answer; `clock` is
    monotonic seconds, the same that deadlines are counted on.
    """

    def __init__(
        self,
        routes: Iterable[HttpRoute],
        settings: HttpSettings | None = None,
        *,
        authorize: Authorize | None = None,
        access_log: AccessLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        unpacker: Unpacker | None = None,
    ) -> None:
        """`unpacker`: closed with the server; None: one of its own."""
        settings = settings or HttpSettings()
        self._context = HttpContext(
            Router(routes), settings, authorize, access_log, clock, unpacker
        )
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._port: int | None = None

    async def start(self, host: str, port: int, ssl: SSLContext | None = None) -> None:
        """Bind and listen; port 0 takes a free one. Raises OSError if it cannot."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self._context),
            host,
            port,
            ssl=ssl,
            backlog=_BACKLOG,
            ssl_handshake_timeout=None if ssl is None else self._context.settings.header_timeout_s,
        )
        self._port = int(self._server.sockets[0].getsockname()[1])
        self._timer = loop.call_later(self._context.settings.tick_s, self._tick)

    @property
    def port(self) -> int:
        """The port bound, also after the server has closed. Raises RuntimeError before `start`."""
        if self._port is None:
            raise RuntimeError("the server has not been started")
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
        self._timer = loop.call_later(self._context.settings.tick_s, self._tick)
