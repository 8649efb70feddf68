"""`HttpContext`: state that an HTTP server's connections share, and the admission of requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from slacktide.domain import Reason
from slacktide.frontends.common.connection import SharedState
from slacktide.frontends.common.security import Authorize, Verdict
from slacktide.frontends.http.messages import (
    ClientRequest,
    HttpResponse,
    RequestHead,
    chosen_encoding,
    cors_lines,
    error_response,
    failure_response,
)
from slacktide.frontends.http.router import HttpRoute, Router, authority_of
from slacktide.frontends.ports import AccessLog, AccessRecord, EndpointGroup
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker

MOST_HEADS: Final = 1024
"""Maximum number of remembered heads."""
_CONTINUE = b"100-continue"
_PASS = Verdict.PASS


class HttpContext(SharedState):
    """Settings, routes and remembered heads of an HTTP server. It admits requests."""

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
        self.heads: dict[bytes, RequestHead] = {}
        """Remembered heads by their bytes."""
        self._tasks: set[asyncio.Future[HttpResponse]] = set()

    def charge(self, request: ClientRequest, size: int) -> None:
        """Charge `size` bytes of its body to the shared memory limits. Raises WireError."""
        self.hold(request.client, size)
        request.charged += size

    def release(self, request: ClientRequest) -> None:
        """Release what `charge` took."""
        if request.charged:
            self.buffers.release(request.charged, request.client)
            request.charged = 0

    def open(self, request: ClientRequest) -> None:
        """Admit a request whose headers have arrived, once: check its path and method, the gate,
        the length of its body, and whether its endpoint takes it. If refused, it has a response."""
        request.opened = True
        try:
            request.response = self._refusal(request)
        except Exception as error:
            request.response = failure_response(error, triton_strict=self.settings.triton_strict)

    def _refusal(self, request: ClientRequest) -> HttpResponse | None:
        head = request.head
        route = head.route
        cached = route is not None
        if route is None:
            lookup = self._find_route(head)
            if isinstance(lookup, HttpResponse):
                return lookup
            route = lookup
        if self.authorize is not None:
            verdict = self.authorize(route.group, head.headers)
            if head.authority and verdict is _PASS:
                names = {**head.headers, b"host": head.authority}
                verdict = self.authorize(route.group, names)
            if verdict is not _PASS:
                status = verdict.status
                line = b"WWW-Authenticate: Bearer\r\n" if status == 401 else b""
                return error_response(status, verdict.value, extra=line)
        if not cached and head.headers.get(b"expect", _CONTINUE).strip().lower() != _CONTINUE:
            return error_response(417, "the only supported expectation is 100-continue")
        receiver = route.receiver
        if max(head.length, request.filled) > head.limit:
            message = f"body: expected at most {head.limit} bytes, got {head.length}"
            if receiver is not None:
                receiver.refuse(request, Reason.TOO_LARGE, message)
            return error_response(413, message, reason=Reason.TOO_LARGE)
        if receiver is not None:
            refusal = receiver.open(request)
            if refusal is not None:
                return refusal
            # From here on the receiver has a call that must be ended.
            request.receiver = receiver
        if not cached and head.raw:
            self.remember(head)
        return None

    def _find_route(self, head: RequestHead) -> HttpRoute | HttpResponse:
        """The route that a head names, or the answer if there is none."""
        settings = self.settings
        if head.method == "OPTIONS" and cors_lines(head.headers, settings.allowed_origins):
            return HttpResponse()
        match = self.router.match(head.target)
        if match is None:
            return error_response(404, self.router.hint(head.target))
        route = match.routes.get(head.method)
        if route is None:
            allow = ", ".join(sorted(match.routes))
            line = b"Allow: %b\r\n" % allow.encode()
            hint = f"use {allow.replace('GET, HEAD', 'GET')} here"
            if any(route.receiver is not None for route in match.routes.values()):
                hint += ", with the inputs in the body; GET /v2/models/NAME describes them"
            return error_response(405, hint, extra=line)
        head.authority = authority_of(head.target)
        head.route, head.params = route, match.params
        head.limit = settings.max_control_bytes if route.handler else settings.max_request_bytes
        head.accepts = chosen_encoding(head.headers.get(b"accept-encoding", b""))
        return route

    def remember(self, head: RequestHead) -> None:
        """Remember a head that was parsed and admitted, for all connections. Later requests with
        the same head are judged only by the gate."""
        # Clearing bounds the memory. It costs other clients little: one of their heads is parsed
        # again only after this many new heads.
        if len(self.heads) >= MOST_HEADS:
            self.heads.clear()
        self.heads[head.raw] = head

    def place_for(self, request: ClientRequest) -> memoryview | None:
        """Memory for a body of known length; None if the request was refused and has a response."""
        length = request.head.length
        try:
            if request.receiver is not None:
                place = request.receiver.announce(request, length)
            else:
                self.charge(request, length)
                place = memoryview(bytearray(length))
        except Exception as error:
            request.abandoned(Reason.RUNTIME_ERROR)
            place = failure_response(error, triton_strict=self.settings.triton_strict)
        if isinstance(place, HttpResponse):
            request.response = place
            return None
        request.body = place
        return place

    def later(
        self, answer: Awaitable[HttpResponse], respond: Callable[[HttpResponse], None]
    ) -> None:
        """Respond with the result of a coroutine, which completes even if the client leaves."""
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
        """Write the request to the access log."""
        if self.access_log is None:
            return
        head = request.head
        self.log_access(
            AccessRecord(
                "http",
                request.client,
                head.method,
                head.target.partition(b"?")[0].decode("ascii", "backslashreplace"),
                status,
                self.clock() - request.first_byte,
                request.request_id,
                bytes_sent,
                head.params.get("model", ""),
                request.outcome,
                head.route is not None and head.route.group is EndpointGroup.HEALTH,
            )
        )
