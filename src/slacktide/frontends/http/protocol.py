"""One HTTP/1.1 connection: bytes in, requests out; answers in, bytes out, in order.

Flow of a request. The reader gathers headers and, if it has already arrived, the body. `_pump`
hands complete requests from `reader.ready` to their handlers, in order, at most `max_pipelined` at
a time, and writes answers in the order of requests. An incomplete body of known length bypasses the
reader: the handler provides memory for it (a shared-memory slot for an inference request), and the
kernel copies straight into that (`get_buffer`). Chunked bodies go through the reader.

Refusals. A request refused before its body has arrived is answered immediately. If little of the
body is missing, the rest is skipped; otherwise the connection closes, and lingers.

Half-closed clients count as gone: in HTTP the end of the stream is the only sign of a client that
no longer waits, and dropping its request makes room for others (Go's server and nginx do the same).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from slacktide.domain import Reason
from slacktide.frontends.common.connection import FrontEndConnection, waited
from slacktide.frontends.common.security import Authorize
from slacktide.frontends.http.context import HttpContext
from slacktide.frontends.http.messages import (
    ClientRequest,
    HttpResponse,
    compressed,
    cors_lines,
    error_response,
    failure_response,
    opening_lines,
    retry_after,
)
from slacktide.frontends.http.reader import RequestReader
from slacktide.frontends.http.router import HttpRoute, Router
from slacktide.frontends.listener import Listener
from slacktide.frontends.ports import AccessLog
from slacktide.frontends.settings import HttpSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.wire.calls import Buffer

log = logging.getLogger(__name__)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_JOIN_BYTES: Final = 64 * 1024
"""Answers up to this length are joined into one write; longer ones go as a vector."""
_PIECE_BYTES: Final = 512 * 1024
"""Longer answers are written in pieces of this size, one per turn of the loop."""


class HttpConnection(FrontEndConnection):
    """The protocol of one client connection. All methods run on the event loop."""

    __slots__ = (
        "_close_lingering", "_context", "_most_pipelined", "_piece_due", "_pumping", "_reader",
        "_sending", "_sink", "_skip", "_waiting",
    )  # fmt: skip

    _reader: RequestReader

    def __init__(self, context: HttpContext) -> None:
        super().__init__(context)
        self._context = context
        self._waiting: deque[ClientRequest] = deque()
        """Requests being handled, or answered but not yet written."""
        self._sink: memoryview | None = None
        """Unfilled rest of the current body's buffer, if the body bypasses the parser."""
        self._skip = 0
        """Bytes of a refused body still to skip."""
        self._pumping = False
        self._sending: Iterator[memoryview] | None = None
        """Unwritten pieces of a long answer."""
        self._piece_due = False
        """Whether the next piece is scheduled."""
        self._close_lingering: bool | None = None
        """Whether to linger when closing after the long answer; None: do not close."""
        self._most_pipelined = context.settings.max_pipelined

    # ---------------------------------------------------------------- the transport's callbacks

    def begin(self, peer: str, crowded: bool) -> None:
        self._reader = RequestReader(self._context, self.client, peer)
        if crowded:
            self._fail(503, Reason.CLIENT_LIMIT, "too many connections")

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._sink is not None:
            return self._sink
        if self._skip:
            return self._context.scratch[: self._skip]
        return self._context.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._now = self._context.clock()
        if self._sink is not None:
            self._filled(nbytes)
        elif self._skip:
            self._skip -= nbytes
            if self._context.draining:
                self.start_drain()
        elif not self._reader.ended:
            self.take(self._context.scratch[:nbytes], holding=bool(self._reader.pending))

    def hold(self, data: memoryview) -> None:
        self._reader.hold(data)

    def disconnected(self) -> None:
        self._abandon_all()

    def resume_writing(self) -> None:
        self._clogged_since = None
        if self._sending is not None:
            self._send_piece_soon()
        self._pump()

    # ---------------------------------------------------------------- the server's calls

    def start_drain(self) -> None:
        """Close if idle; else answer the requests received and close with the last answer."""
        if self._is_idle():
            self._transport.close()

    def check(self, now: float) -> None:
        """Enforce every timeout of this connection."""
        settings = self._context.settings
        current = self._reader.current
        if self.is_overdue(now):
            return
        if not self._reading:
            pass  # the server paused reading, so the client is not late
        elif current is not None and not current.head.whole:
            since = max(current.first_byte, self._reading_since)
            if waited(since, now) >= settings.header_timeout_s:
                self._fail(408, Reason.BAD_INPUT, "the headers took too long")
        elif current is not None and current.body_since is not None:
            allowed = settings.body_timeout_s + current.filled / settings.min_body_rate
            if waited(max(current.body_since, self._reading_since), now) >= allowed:
                current.abandoned(Reason.NO_BODY)
                current.receiver = None
                self._fail(408, Reason.NO_BODY, "the body took too long")
        elif self._skip:
            if waited(self._now, now) >= settings.body_timeout_s:
                self._transport.abort()
        elif self._is_idle() and waited(self._now, now) >= settings.idle_timeout_s:
            self._transport.close()

    # ---------------------------------------------------------------- receiving

    def may_go_on(self) -> bool:
        """Whether the reader has pending bytes that may be processed now."""
        reader = self._reader
        return bool(reader.pending) and not reader.ready and self._clogged_since is None

    def feed(self, data: Buffer) -> None:
        """Process bytes that are not received straight into the memory of a body."""
        refusal = self._reader.feed(data, self._now)
        if refusal is not None:
            self._fail(*refusal)
            return
        self._pump()
        current = self._reader.current
        if current is not None and current.head.whole and current.body_since is None:
            self._await_body(current)

    def _await_body(self, current: ClientRequest) -> None:
        """Choose a place for the body of `current`, whose headers have arrived."""
        current.body_since = self._now
        self._context.open(current)
        if current.response is None and not current.head.chunked:
            piece = current.body
            sink = self._context.place_for(current)
            if sink is not None:
                sink[: len(piece)] = piece
                self._sink = sink[len(piece) :]
                self._reader.bypass()
        if current.response is not None:
            self._refuse_body(current)
        elif current.head.headers.get(b"expect"):
            current.awaits_continue = True
        self._pump()

    def _refuse_body(self, current: ClientRequest) -> None:
        """Queue an answer made before the body has arrived; skip the body if little is missing."""
        missing = current.head.length - current.filled
        if (
            current.head.chunked
            or current.awaits_continue
            or b"expect" in current.head.headers
            or missing > self._context.settings.skip_bytes
        ):
            current.keep_alive = False
            current.linger = True
        else:
            self._skip = missing
            self._reader.bypass()
        self._reader.complete(current)

    def _filled(self, nbytes: int) -> None:
        current, sink = self._reader.current, self._sink
        assert current is not None
        assert sink is not None
        current.filled += nbytes
        if nbytes < len(sink):
            self._sink = sink[nbytes:]
            return
        self._sink = None
        self._reader.complete(current)
        self._pump()

    def _fail(self, status: int, reason: Reason, message: str) -> None:
        """Refuse the request being received, and close after the answer."""
        current = self._reader.current or ClientRequest(self._now, self.client)
        if current.response is None:
            current.refused(reason, message)
            extra = retry_after(status, None)
            current.response = error_response(status, message, reason=reason, extra=extra)
        current.keep_alive = False
        current.linger = True
        self._sink = None
        self._reader.complete(current)
        self._pump()

    # ---------------------------------------------------------------- handling and answering

    def _pump(self) -> None:
        """Start requests and write answers, as far as possible. Not reentrant."""
        if self._pumping:
            return
        self._pumping = True
        waiting, backlog = self._waiting, self._reader.ready
        try:
            while True:
                if waiting and waiting[0].response is not None and self._sending is None:
                    self._write(waiting.popleft())
                elif (
                    backlog and len(waiting) < self._most_pipelined and self._clogged_since is None
                ):
                    request = backlog.popleft()
                    waiting.append(request)
                    self._handle(request)
                else:
                    break
        finally:
            self._pumping = False
        current = self._reader.current
        if current is not None and current.awaits_continue and not waiting and not backlog:
            # An interim answer must not overtake the answers to earlier requests.
            current.awaits_continue = False
            self._transport.write(_CONTINUE)
        self.update_reading()

    def _handle(self, request: ClientRequest) -> None:
        """Pass a complete request to its handler."""
        if not request.opened and request.response is None:
            self._context.open(request)
        if request.response is not None:
            return
        request.owner = self
        try:
            if request.receiver is not None:
                request.receiver.submit(request)
                return
            route = request.head.route
            assert route is not None
            assert route.handler is not None
            answer = route.handler(request)
            if isinstance(answer, HttpResponse):
                request.respond(answer)
            else:
                self._context.later(answer, request.respond)
        except Exception as error:
            request.abandoned(Reason.RUNTIME_ERROR)
            strict = self._context.settings.triton_strict
            request.respond(failure_response(error, triton_strict=strict))

    def settle(self, request: ClientRequest, response: HttpResponse) -> None:
        """Set the answer to `request`, which is written in its turn."""
        if request.response is None:
            request.response = response
            self._pump()

    def compress(self, request: ClientRequest, response: HttpResponse) -> None:
        """Set an answer that the client accepts compressed. Compress it if that pays."""
        context, settings = self._context, self._context.settings
        if settings.compress_min_bytes <= response.length <= settings.compress_max_bytes:
            work = partial(compressed, response, request.head.accepts)
            smaller = context.unpacker.beside(self.client, work)
            context.later(smaller, partial(self.settle, request))
        else:
            self.settle(request, response)

    def _write(self, request: ClientRequest) -> None:
        context, head, response = self._context, request.head, request.response
        assert response is not None
        length, extra = response.length, response.extra
        last = context.draining and not (
            self._waiting or self._reader.ready or self._reader.current or self._reader.pending
        )
        close = last or not request.keep_alive
        if close:
            extra += b"Connection: close\r\n"
        elif head.is_http_1_0:
            extra += b"Connection: keep-alive\r\n"
        origins = context.settings.allowed_origins
        if origins:
            extra += cors_lines(head.headers, origins)
        lines = opening_lines(response.status, response.content_type, length)
        if not self._transport.is_closing():
            if head.method == "HEAD":
                self._transport.write(b"%b%b\r\n" % (lines, extra))
                length = 0
            elif length <= _JOIN_BYTES:
                self._transport.write(b"".join((lines, extra, b"\r\n", *response.body)))
            elif length <= _PIECE_BYTES:
                self._transport.writelines((lines, extra, b"\r\n", *response.body))
            else:
                self._transport.writelines((lines, extra, b"\r\n"))
                self._sending = _pieces(response.body)
        if request.charged or context.access_log is not None:
            self._finished(request, response.status, length)
        linger = request.linger or self._skip > 0
        if self._sending is not None:
            self._close_lingering = linger if close else None
            self._send_piece_soon()
        elif close:
            self.close(linger=linger)

    def _send_piece(self) -> None:
        """Write one piece of a long answer if the client reads, and schedule the next."""
        self._piece_due = False
        if self._sending is None or self._clogged_since is not None:
            return
        piece = None if self._transport.is_closing() else next(self._sending, None)
        if piece is not None:
            self._transport.write(piece)
            self._send_piece_soon()
            return
        self._sending = None
        if self._close_lingering is not None:
            self.close(linger=self._close_lingering)
            return
        self._pump()
        if self._context.draining:
            self.start_drain()

    def _send_piece_soon(self) -> None:
        if not self._piece_due:
            self._piece_due = True
            asyncio.get_running_loop().call_soon(self._send_piece)

    def _finished(self, request: ClientRequest, status: int, length: int) -> None:
        self._context.release(request)
        self._context.record(request, status, length)

    def close(self, *, linger: bool) -> None:
        self._skip = 0
        super().close(linger=linger)
        # Requests after the last answer are not answered, as its Connection header says.
        self._abandon_all()

    def _abandon_all(self) -> None:
        # The memory of an upload that has ended may already belong to another request.
        self._sink = self._sending = None
        self._reader.close()
        abandoned = [*self._waiting, *self._reader.ready]
        if self._reader.current is not None:
            abandoned.append(self._reader.current)
        self._reader.current = None
        self._waiting.clear()
        self._reader.ready.clear()
        for request in abandoned:
            try:
                request.abandoned(Reason.DISCONNECTED)
            except Exception:
                log.exception("cancelling a request failed")
            # A late answer finds this response set and is discarded.
            request.response = request.response or error_response(499, "")
            if request.head.whole:
                self._finished(request, 499, 0)

    # ---------------------------------------------------------------- small things

    def _is_idle(self) -> bool:
        return (
            self._reader.current is None
            and not self._waiting
            and self._sending is None
            and not self._reader.ready
            and not self._reader.pending
            and not self._skip
        )

    def update_reading(self) -> None:
        """Read only while the client reads its answers and no request is queued."""
        should_read = self._clogged_since is None and not self._reader.ready
        if self._reader.pending:
            should_read = False
            self.wait_for_turn()
        if should_read is not self._reading:
            self.set_reading(should_read)


def _pieces(body: Sequence[Buffer]) -> Iterator[memoryview]:
    for part in body:
        buffer = memoryview(part)
        for start in range(0, len(buffer), _PIECE_BYTES):
            yield buffer[start : start + _PIECE_BYTES]


class HttpServer(Listener):
    """A listening port with a table of routes. `authorize` guards every route (security.py);
    `access_log` gets every answer; `clock` is the clock of deadlines, in monotonic seconds."""

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
        """`unpacker` is closed with the server; None: the server makes its own."""
        settings = settings or HttpSettings()
        context = HttpContext(Router(routes), settings, authorize, access_log, clock, unpacker)
        super().__init__(context, lambda: HttpConnection(context))
