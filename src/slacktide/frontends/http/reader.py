"""`RequestReader`: bytes in, requests out. It owns the parser (httptools) and knows no socket.

A head is gathered until its blank line (`\\r\\n\\r\\n`) and only then parsed, so that every byte is
counted, searched and copied once, however the bytes were cut. Its body is then cut out by length,
decoded by `ChunkedBody`, or received without the reader, from a call of `bypass` until a call of
`complete`. Complete requests go to `ready`, in order; `current` is the incomplete request.

Most clients send the same heads again and again. `HttpContext` remembers their meaning, so the same
bytes are not parsed twice.

A call of `feed` does a bounded amount of work; the remaining bytes are `pending` for a later turn
of the loop.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import httptools

from slacktide.domain import Reason
from slacktide.frontends.common.call_headers import NAMING, name_call
from slacktide.frontends.http.chunked import ChunkedBody, HttpRefusal
from slacktide.frontends.http.context import HttpContext
from slacktide.frontends.http.messages import ClientRequest, RequestHead
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import WireError
from slacktide.wire.status import status_of

log = logging.getLogger(__name__)

_ONCE = frozenset(
    (
        b"authorization", b"content-encoding", b"content-length", b"host",
        b"inference-header-content-length", b"transfer-encoding",
    )
)  # fmt: skip
"""Headers that must not be repeated."""

HEADS_AT_ONCE: Final = 16
LINES_AT_ONCE: Final = 1024
"""Maximum requests, and maximum lines of chunked bodies, in one call of `feed`. Either maximum
takes about a millisecond."""
MAX_REMEMBERED: Final = 2048
"""Maximum bytes of a remembered head."""
_END_OF_HEAD = b"\r\n\r\n"
_MOST_BLANKS: Final = 64
"""Maximum bytes of line ends skipped before a request line (RFC 9112 §2.2: at least one)."""


class _StopParsingError(Exception):
    """Raised in a parser's callback to stop parsing; `RequestReader._refusal` has the reason."""


class _Probe:
    """A parser's target that ignores everything."""


class RequestReader:
    """The receiving half of a connection."""

    __slots__ = (
        "_blanks", "_chunked", "_client", "_connection", "_context", "_count", "_head",
        "_max_header_bytes", "_max_headers", "_now", "_parser", "_refusal", "current", "ended",
        "pending", "ready",
    )  # fmt: skip

    def __init__(self, context: HttpContext, client: str, connection: str = "") -> None:
        self._context = context
        self._client = client
        self._connection = connection
        self._max_header_bytes = context.settings.max_header_bytes
        self._max_headers = context.settings.max_headers
        self._parser: httptools.HttpRequestParser | None = None
        """None if a new parser is needed: the old one has not seen the end of its request."""
        self._now = 0.0
        self._count = 0
        """Number of headers in the head being parsed."""
        self._blanks = 0
        self._head = bytearray()
        """Beginning of an unfinished head."""
        self._chunked: ChunkedBody | None = None
        self.pending = b""
        """Bytes kept for the next `feed`."""
        self._refusal: HttpRefusal | None = None
        self.current: ClientRequest | None = None
        self.ready: deque[ClientRequest] = deque()
        self.ended = False
        """Whether reading has ended, with the last request or a failure."""

    @property
    def gathered(self) -> int:
        """Bytes kept of an unfinished head or line of a chunked body."""
        return len(self._head) + (0 if self._chunked is None else len(self._chunked.line))

    def hold(self, data: Buffer) -> None:
        """Keep `data` for the next `feed`."""
        self.pending += data

    def feed(self, data: Buffer, now: float) -> HttpRefusal | None:
        """Process the next bytes, after the pending ones. A refusal ends the connection."""
        self._now = now
        raw = bytes(data)
        if self.pending:
            raw, self.pending = self.pending + raw, b""
        at, end, heads, lines = 0, len(raw), HEADS_AT_ONCE, LINES_AT_ONCE
        while at < end and not self.ended:
            if self._chunked is not None:
                at, lines = self._take_chunks(self._chunked, raw, at, lines)
                if lines == 0:
                    self.pending = raw[at:]
            elif heads == 0:
                self.pending = raw[at:]
            else:
                heads -= 1
                at = self._take_head(raw, at)
            if self._refusal is not None:
                self.pending = b""
                return self._refusal
            if self.pending:
                break
        return None

    def bypass(self) -> None:
        """Leave the rest of the current body to the caller."""
        self._parser = None

    def complete(self, request: ClientRequest) -> None:
        """End a request: nothing more of it will be read."""
        self.current = None
        self.ready.append(request)
        if not request.keep_alive:
            self.ended = True

    def close(self) -> None:
        """Drop the parser, which refers back to this object."""
        self.ended = True
        self._parser = None
        self.pending = b""

    # ---------------------------------------------------------------- heads

    def _take_head(self, raw: bytes, at: int) -> int:
        """Process as much of a head, and of a body with a length, as `raw` has. Returns the index
        after it."""
        current = self.current
        if current is None:
            if raw[at] <= 13:
                at = self._pass_blanks(raw, at)
                if at == len(raw) or self._refusal is not None:
                    return at
            self.current = current = ClientRequest(self._now, self._client, self._connection)
            stop = raw.find(_END_OF_HEAD, at) + 4
            if stop < 4:
                self._head += raw[at : at + self._max_header_bytes + 1]
                self._probe(self._head)
                return self._unfinished(raw)
            head_bytes = raw[at:stop]
        else:
            gathered = self._head
            before = len(gathered)
            gathered += raw[at : at + self._max_header_bytes + 1]
            whole = gathered.find(_END_OF_HEAD, max(0, before - 3)) + 4
            if whole < 4:
                return self._unfinished(raw)
            head_bytes = bytes(gathered[:whole])
            stop = at + whole - before
            gathered.clear()
        head = self._context.heads.get(head_bytes)
        if head is not None:
            current.head = head
            current.keep_alive = True
            return self._begin_body(current, raw, stop, None)
        if len(head_bytes) > self._max_header_bytes:
            self._too_long(head_bytes)
        elif head_bytes.count(b" ", 0, head_bytes.find(b"\r")) > 2:
            self._refuse(
                400, "malformed HTTP: expected single spaces between the parts of a request"
            )
        elif self._parse(head_bytes):
            return self._begin_body(current, raw, stop, self._parser)
        return stop

    def _pass_blanks(self, raw: bytes, at: int) -> int:
        """Skip line ends before a request line."""
        begin = at
        while at < len(raw) and raw[at] in b"\r\n":
            at += 1
        self._blanks = self._blanks + at - begin if at == len(raw) else 0
        if max(self._blanks, at - begin) > _MOST_BLANKS:
            self._refuse(400, "malformed HTTP: expected a request line")
        return at

    def _unfinished(self, raw: bytes) -> int:
        """Check the length of a head that does not end in `raw`."""
        if len(self._head) > self._max_header_bytes:
            self._too_long(self._head)
        return len(raw)

    def _parse(self, head_bytes: bytes) -> bool:
        """Parse a complete head. False: it is refused."""
        self._count = 0
        current = self.current
        assert current is not None
        head = current.head = RequestHead()
        parser = self._parser
        if parser is None:
            parser = self._parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(head_bytes)
        except httptools.HttpParserUpgrade:
            self._parser = None  # stopped at an offer of HTTP/2, which curl and Java make
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._malformed(error)
        else:
            if not head.whole:
                self._refuse(400, "malformed HTTP: expected one request")
        if self._refusal is not None:
            return False
        current.keep_alive = head.keep_alive
        if not NAMING.isdisjoint(head.headers):
            name_call(current, head.headers)  # not remembered: no other request has this head
        elif (
            head.keep_alive
            and not (head.chunked or head.is_http_1_0 or b"expect" in head.headers)
            and self._parser is not None
            and len(head_bytes) <= MAX_REMEMBERED
        ):
            head.raw = head_bytes
        return True

    def _probe(self, beginning: bytearray) -> None:
        """Refuse an unfinished head early if it cannot become a request."""
        try:
            httptools.HttpRequestParser(_Probe()).feed_data(beginning)
        except httptools.HttpParserError as error:
            self._malformed(error)

    def _malformed(self, error: httptools.HttpParserError) -> None:
        if isinstance(error, httptools.HttpParserCallbackError):
            log.error("reading a request failed", exc_info=error)
            self._refuse(500, "internal error", Reason.RUNTIME_ERROR)
        else:
            self._refuse(400, f"malformed HTTP: {error}")

    def _too_long(self, head: bytes | bytearray) -> None:
        if b"\n" in head:
            self._refuse(431, "too many headers")
        else:
            self._refuse(414, "the request target is too long")

    # ---------------------------------------------------------------- bodies

    def _begin_body(
        self,
        current: ClientRequest,
        raw: bytes,
        at: int,
        parser: httptools.HttpRequestParser | None,
    ) -> int:
        """Process the part of the body of `current` in `raw`; `parser` has read the head. Returns
        the index after that part."""
        head = current.head
        if head.chunked:
            settings = self._context.settings
            self._chunked = ChunkedBody(
                max_framing=self._max_header_bytes, max_chunks=settings.max_chunks
            )
            self._parser = None
            return at
        if head.length:
            begin, at = at, at + head.length
            body = current.body = raw[begin:at]
            if len(body) < head.length:
                current.filled = len(body)
                return len(raw)
            if parser is not None:
                parser.feed_data(body)  # cheaper than a new parser
        self.complete(current)
        return at

    def _take_chunks(self, body: ChunkedBody, raw: bytes, at: int, lines: int) -> tuple[int, int]:
        current = self.current
        assert current is not None
        limit = current.head.limit or self._context.settings.max_request_bytes
        at, lines = body.take(raw, at, limit=limit, lines=lines)
        if body.data:
            self._keep(current, b"".join(body.data))
            body.data.clear()
        if body.refusal is not None and self._refusal is None:
            self._refusal = body.refusal
        if body.done and self._refusal is None:
            self._chunked = None
            self.complete(current)
        return at, lines

    def _keep(self, current: ClientRequest, data: bytes) -> None:
        """Add decoded bytes to a chunked body, in private memory that is charged."""
        current.filled += len(data)
        try:
            self._context.charge(current, len(data))
        except WireError as error:
            strict = self._context.settings.triton_strict
            self._refuse(
                status_of(error.reason, triton_strict=strict).http, error.message, error.reason
            )
            return
        # One growing buffer, because a list of tiny pieces would take forty times their size.
        if isinstance(current.body, bytearray):
            current.body += data
        else:
            current.body = bytearray(data)

    # ---------------------------------------------------------------- the parser's callbacks

    def on_url(self, url: bytes) -> None:
        head = self._parsed()
        head.target += url
        if len(head.target) > self._context.settings.max_target_bytes:
            self._stop(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count += 1
        if self._count > self._max_headers:
            self._stop(431, "too many headers")
        name = name.lower()
        headers = self._parsed().headers
        if name in headers:
            if name in _ONCE:
                self._stop(400, f"header {name.decode('ascii', 'replace')} is repeated")
            value = b"%b, %b" % (headers[name], value)
        headers[name] = value

    def on_headers_complete(self) -> None:
        head = self._parsed()
        parser = self._parser
        assert parser is not None
        head.whole = True
        head.method = parser.get_method().decode()
        head.keep_alive = parser.should_keep_alive()
        headers = head.headers
        head.chunked = b"transfer-encoding" in headers
        head.length = int(headers.get(b"content-length", 0))
        version = parser.get_http_version()
        if version != "1.1":
            head.is_http_1_0 = version == "1.0"
            if not head.is_http_1_0:
                self._stop(505, "this server speaks HTTP/1.1")
        elif b"host" not in headers:
            self._stop(400, "header host: required in every HTTP/1.1 request")
        if head.chunked:
            if headers[b"transfer-encoding"].strip().lower() != b"chunked":
                self._stop(501, "the only supported transfer coding is chunked")
            if head.is_http_1_0 or parser.should_upgrade():
                self._stop(400, "a chunked body is not expected here")

    def _parsed(self) -> RequestHead:
        assert self.current is not None
        return self.current.head

    def _stop(self, status: int, message: str) -> None:
        self._refuse(status, message)
        raise _StopParsingError

    def _refuse(self, status: int, message: str, reason: Reason = Reason.BAD_INPUT) -> None:
        self._refusal = HttpRefusal(status, reason, message)
