"""Sends requests over HTTP/1.1 on as many connections as needed, up to a cap.

A request takes the free connection that was used last, so that few connections are in use. If none
is free, the request waits in line while a new connection opens, and takes the first free
connection. At the cap it waits until an answer frees a connection: this counts as lateness of the
generator, and the report warns. No request is sent twice: a broken connection is a transport error.

With `upload`, bodies follow their headers that many seconds later, as over a slow uplink. If the
answer (such as a refusal) comes before, no body is sent and the connection is closed. With `upload`
or `over_link`, extra headers state the timeout and the application before the body arrives. Over an
emulated link (`over_link`), the body is sent immediately and the link delays it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from slacktide.lab.load.encode import HttpRequest
from slacktide.lab.load.http_connection import ClientConnection, error_text, tls_context
from slacktide.lab.load.request_log import RequestLog, Result, of_http
from slacktide.lab.load.spec import Target
from slacktide.lab.netem import TimerQueue

DEFAULT_CONNECTIONS = 512
_CONNECT_TIMEOUT = 5.0


@dataclass(eq=False, repr=False)
class HttpSender:
    """A `Sender` over HTTP. `clock` returns seconds since the start of the run."""

    target: Target
    requests: Sequence[HttpRequest]
    log: RequestLog
    clock: Callable[[], float]
    connections: int | None = None
    upload: float = 0.0
    over_link: bool = False

    def __post_init__(self) -> None:
        self._tls = tls_context(self.target)
        self._cap = self.connections or DEFAULT_CONNECTIONS
        self._delayed_bodies = TimerQueue() if self.upload > 0.0 else None
        self._idle: list[ClientConnection] = []
        self._busy: dict[int, ClientConnection] = {}
        self._line: deque[int] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._all: set[ClientConnection] = set()
        self._waited = 0
        self._closed = False

    def submit(self, index: int) -> None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closing:
                self._send(connection, index)
                return
        self._line.append(index)
        self._open_more()

    def give_up(self, index: int) -> None:
        connection = self._busy.pop(index, None)
        if connection is not None:
            connection.abort()

    def warnings(self) -> tuple[str, ...]:
        if not self._waited:
            return ()
        return (
            f"{self._waited} requests came due while all {self._cap} connections were busy "
            "and may have waited for one; allow more with --connections",
        )

    async def close(self) -> None:
        self._closed = True
        if self._delayed_bodies is not None:
            self._delayed_bodies.close()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in tuple(self._all):
            connection.abort()
        while self._all:  # every abort is followed by a call of `broken`
            await asyncio.sleep(0)

    # Calls from connections.

    def answered(
        self, connection: ClientConnection, index: int, status: int, detail: bytes, reusable: bool
    ) -> None:
        """Handle a complete answer. The connection is free again if `reusable`."""
        now = self.clock()
        self._busy.pop(index, None)
        result = of_http(status)
        text = "" if result is Result.ANSWERED else f"{status} {error_text(detail, 100)}"
        self.log.ended(index, result, now=now, detail=text)
        if reusable:
            self._free(connection)
        else:
            connection.abort()

    def broken(self, connection: ClientConnection, index: int | None, reason: str) -> None:
        """Handle the end of a connection, and of the request `index` on it, if any. Called once."""
        self._all.discard(connection)
        if index is not None:
            self._busy.pop(index, None)
            self._fail(index, reason)
        self._open_more()

    def _free(self, connection: ClientConnection) -> None:
        index = self._next_in_line()
        if index is None:
            self._idle.append(connection)
        else:
            self._send(connection, index)

    def _send(self, connection: ClientConnection, index: int) -> None:
        self._busy[index] = connection
        timeout_us = self.log.departed(index, now=self.clock())
        request = self.requests[self.log.payload[index]]
        if self.over_link:
            connection.send(index, (*request.notice(timeout_us), *request.body(timeout_us)))
        elif self._delayed_bodies is None:
            connection.send(index, request.parts(timeout_us))
        else:
            connection.send_headers(index, request.notice(timeout_us))
            send = partial(self._send_body, index, request.body(timeout_us))
            self._delayed_bodies.at(time.monotonic() + self.upload, send)

    def _send_body(self, index: int, body: Sequence[bytes]) -> None:
        connection = self._busy.get(index)
        if connection is not None and not connection.closing:  # else the request has ended
            connection.send_body(body)

    def _next_in_line(self) -> int | None:
        """Return the first request in line that was not cancelled meanwhile; None if all were."""
        while self._line:
            index = self._line.popleft()
            if index in self.log.open:
                return index
        return None

    def _open_more(self) -> None:
        """Open a connection for each request in line, up to the cap."""
        if self._closed:
            return
        while len(self._opening) < len(self._line):
            if len(self._all) + len(self._opening) >= self._cap:
                self._waited += 1
                return
            task = asyncio.get_running_loop().create_task(self._open())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                _, connection = await loop.create_connection(
                    lambda: ClientConnection(self),
                    *self.target.address,
                    ssl=self._tls,
                    server_hostname=self.target.host if self._tls else None,
                )
        except (OSError, TimeoutError) as error:
            index = self._next_in_line()
            if index is not None:
                reason = getattr(error, "strerror", None) or str(error) or "timeout"
                self._fail(index, f"cannot connect: {reason}")
            return
        if connection.closing:  # it broke immediately, and `broken` has been called already
            self._open_more()
            return
        self._all.add(connection)
        self._free(connection)

    def _fail(self, index: int, reason: str) -> None:
        self.log.ended(index, Result.TRANSPORT_ERROR, now=self.clock(), detail=reason)
