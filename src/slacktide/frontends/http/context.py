"""What all connections of one HTTP server share: settings, routes, the gate, counters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.executors.arena import MemoryBudget, MemoryLimitExceeded
from slacktide.frontends.fairness import FairLoop
from slacktide.frontends.http.messages import ClientRequest, HttpResponse, failure_response
from slacktide.frontends.http.router import Router
from slacktide.frontends.ports import AccessLog, AccessRecord
from slacktide.frontends.security import Authorize
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.errors import WireError

if TYPE_CHECKING:
    from slacktide.frontends.http.protocol import HttpConnection

log = logging.getLogger(__name__)


class HttpContext:
    """The shared side of connections. Bounds what no single connection can see."""

    def __init__(
        self,
        router: Router,
        settings: HttpSettings,
        authorize: Authorize | None,
        access_log: AccessLog | None,
        clock: Callable[[], float] = time.monotonic,
        unpacker: Unpacker | None = None,
    ) -> None:
        self.unpacker = Unpacker() if unpacker is None else unpacker
        self.router = router
        self.settings = settings
        self.authorize = authorize
        self.access_log = access_log
        self.clock = clock
        self.connections: set[HttpConnection] = set()
        self.emptied = asyncio.Event()
        """Set when the last connection has gone."""
        self.draining = False
        most, per_client = settings.max_buffered_bytes, settings.max_buffered_per_client
        self.buffers = MemoryBudget(most, per_client)
        """Of bodies held outside shared memory, by client."""
        self.scratch = memoryview(bytearray(settings.receive_bytes))
        """Where every connection receives: filled and read out within one callback of the loop."""
        self.turns = FairLoop()
        self._tasks: set[asyncio.Future[HttpResponse]] = set()

    def joined(self, connection: HttpConnection) -> None:
        self.connections.add(connection)
        self.emptied.clear()

    def left(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self.emptied.set()

    def charge(self, request: ClientRequest, size: int) -> None:
        """Take `size` bytes of the common buffer for its body. Raises WireError if there are none,
        or this client has its part."""
        try:
            self.buffers.charge(size, request.client)
        except MemoryLimitExceeded:
            message = "too many request bodies in flight"
            raise WireError(Reason.MEMORY_LIMIT, message) from None
        request.charged += size

    def release(self, request: ClientRequest) -> None:
        """Give back what `charge` took."""
        if request.charged:
            self.buffers.release(request.charged, request.client)
            request.charged = 0

    def later(
        self, answer: Awaitable[HttpResponse], respond: Callable[[HttpResponse], None]
    ) -> None:
        """Respond with what a coroutine returns. It runs to its end even if the client leaves."""
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)

        def done(task: asyncio.Future[HttpResponse]) -> None:
            self._tasks.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                respond(task.result())
            elif isinstance(error, Exception):
                respond(failure_response(error, triton_strict=self.settings.triton_strict))

        task.add_done_callback(done)

    def record(self, request: ClientRequest, status: int, bytes_sent: int) -> None:
        """Write to the access log. What it raises is logged and does no harm."""
        if self.access_log is None:
            return
        request_id = request.request_id
        if not request_id:
            request_id = request.headers.get(b"x-request-id", b"").decode("latin-1")
        access = AccessRecord(
            "http",
            request.client,
            request.method,
            request.target.partition(b"?")[0].decode("ascii", "backslashreplace"),
            status,
            self.clock() - request.first_byte,
            request_id if request_id.isprintable() else ascii(request_id),
            bytes_sent,
        )
        try:
            self.access_log(access)
        except Exception:
            log.exception("the access log failed")
