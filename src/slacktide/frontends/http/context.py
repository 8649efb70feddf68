"""What all connections of one HTTP server share, and how a request is admitted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from slacktide.domain import Reason
from slacktide.frontends.connection import SharedState
from slacktide.frontends.http.messages import (
    ClientRequest,
    HttpResponse,
    cors_lines,
    error_response,
    failure_response,
)
from slacktide.frontends.http.router import Router
from slacktide.frontends.ports import AccessLog, AccessRecord
from slacktide.frontends.security import Authorize, Verdict
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker

_PASS = Verdict.PASS


class HttpContext(SharedState):
    """The shared side of HTTP connections: settings and routes, and how a request is admitted."""

    def __init__(
        self,
        router: Router,
        settings: HttpSettings,
        authorize: Authorize | None,
        access_log: AccessLog | None,
        clock: Callable[[], float] = time.monotonic,
        unpacker: Unpacker | None = None,
    ) -> None:
        super().__init__(settings, authorize, access_log, clock, unpacker)
        self.router = router
        self.settings = settings
        self._tasks: set[asyncio.Future[HttpResponse]] = set()

    def charge(self, request: ClientRequest, size: int) -> None:
        """Take `size` bytes of the common buffer for its body. Raises WireError."""
        self.hold(request.client, size)
        request.charged += size

    def release(self, request: ClientRequest) -> None:
        """Give back what `charge` took."""
        if request.charged:
            self.buffers.release(request.charged, request.client)
            request.charged = 0

    def open(self, request: ClientRequest) -> None:
        """Admit a request whose headers are here, once: is there such a path and method, may this
        client use it (the one gate for all routes), can its body be taken, does its handler want
        it. A refusal becomes its response."""
        request.opened = True
        try:
            self._open(request)
        except Exception as error:
            request.response = failure_response(error, triton_strict=self.settings.triton_strict)

    def _open(self, request: ClientRequest) -> None:
        settings = self.settings
        if request.method == "OPTIONS" and cors_lines(request.headers, settings.allowed_origins):
            request.response = HttpResponse()
            return
        found = self.router.match(request.target)
        if found is None:
            request.response = error_response(404, self.router.hint(request.target))
            return
        route = found.routes.get(request.method)
        if route is None:
            allow = ", ".join(sorted(found.routes))
            line = b"Allow: %b\r\n" % allow.encode()
            hint = f"use {allow} here"
            if any(route.receiver is not None for route in found.routes.values()):
                hint += ", with the inputs in the body; GET /v2/models/NAME tells what they are"
            request.response = error_response(405, hint, extra=line)
            return
        if self.authorize is not None:
            verdict = self.authorize(route.group, request.headers)
            if verdict is not _PASS:
                status = verdict.status
                line = b"WWW-Authenticate: Bearer\r\n" if status == 401 else b""
                request.response = error_response(status, verdict.value, extra=line)
                return
        request.route = route
        request.params = found.params
        receiver = route.receiver
        request.limit = settings.max_request_bytes if receiver else settings.max_control_bytes
        expect = request.headers.get(b"expect")
        if expect is not None and expect.strip().lower() != b"100-continue":
            request.response = error_response(417, "the only expectation met is 100-continue")
            return
        if max(request.length, request.filled) > request.limit:
            message = f"body: expected at most {request.limit} bytes, got {request.length}"
            if receiver is not None:
                receiver.refuse(request, Reason.TOO_LARGE, message)
            request.response = error_response(413, message, reason=Reason.TOO_LARGE)
            return
        if receiver is None:
            return
        request.response = receiver.open(request)
        if request.response is None:
            # Only from here on does the receiver hold something that must be ended.
            request.receiver = receiver

    def place_for(self, request: ClientRequest) -> memoryview | None:
        """Where to receive a body of known length; None if it was refused, with a response."""
        try:
            if request.receiver is not None:
                place = request.receiver.announce(request, request.length)
            else:
                self.charge(request, request.length)
                request.body = bytearray(request.length)
                place = memoryview(request.body)
        except Exception as error:
            request.abandoned(Reason.RUNTIME_ERROR)
            place = failure_response(error, triton_strict=self.settings.triton_strict)
        if isinstance(place, HttpResponse):
            request.response = place
            return None
        return place

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
        """Write to the access log."""
        if self.access_log is None:
            return
        request_id = request.request_id
        if not request_id:
            request_id = request.headers.get(b"x-request-id", b"").decode("latin-1")
        self.log_access(
            AccessRecord(
                "http",
                request.client,
                request.method,
                request.target.partition(b"?")[0].decode("ascii", "backslashreplace"),
                status,
                self.clock() - request.first_byte,
                request_id,
                bytes_sent,
                "" if request.route is None else request.params.get("model", ""),
                request.outcome,
            )
        )
