"""`RequestReader`: bytes in, requests out. Owns the parser (httptools), knows no socket.

Parser callbacks only note what comes; nothing is dispatched from inside them. Whole requests are
put in `ready`, in order; `current` is the one whose end has not come. A body that is received past
the parser is announced with `bypass`, and ended with `complete`.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import NamedTuple

import httptools

from slacktide.domain import Reason
from slacktide.server.http.exchange import Exchange
from slacktide.server.http.hub import Hub
from slacktide.wire.status import status_of

log = logging.getLogger(__name__)

_ONCE = frozenset(
    (
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"host",
        b"inference-header-content-length",
        b"transfer-encoding",
    )
)
"""Headers that mean trouble if they come twice."""


class Refusal(NamedTuple):
    """Why a connection cannot go on; it ends with this answer."""

    status: int
    reason: Reason
    message: str


class _StopParsingError(Exception):
    """Raised in a parser's callback to end the parse; `RequestReader._refusal` says why."""


class RequestReader:
    """The receiving half of a connection."""

    __slots__ = (
        "_began",
        "_client",
        "_hub",
        "_max_header_bytes",
        "_max_headers",
        "_now",
        "_parser",
        "_refusal",
        "current",
        "ended",
        "ready",
    )

    def __init__(self, hub: Hub, client: str) -> None:
        self._hub = hub
        self._client = client
        self._max_header_bytes = hub.settings.max_header_bytes
        self._max_headers = hub.settings.max_headers
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._now = 0.0
        self._began = False
        """A request began in the bytes being fed."""
        self._refusal: Refusal | None = None
        self.current: Exchange | None = None
        self.ready: deque[Exchange] = deque()
        self.ended = False
        """Nothing more is taken: the last request has been read, or reading has failed."""

    def feed(self, data: memoryview, now: float) -> Refusal | None:
        """Take the next bytes. A refusal ends the connection."""
        self._now = now
        self._began = False
        rest: memoryview | None = data
        while rest:
            rest = self._parse(rest)
        if self._refusal is not None:
            return self._refusal
        current = self.current
        if current is not None and not current.headers_done and not self._began:
            # The parser calls back for whole headers only: the bytes of an endless one count here.
            current.header_bytes += len(data)
            if current.header_bytes > 2 * self._max_header_bytes:
                return Refusal(431, Reason.BAD_INPUT, "too many headers")
        return None

    def bypass(self) -> None:
        """The rest of the current body does not come through here; what follows it will."""
        self._parser = httptools.HttpRequestParser(self)

    def complete(self, exchange: Exchange) -> None:
        """All of this request that will be read has been read."""
        self.current = None
        self.ready.append(exchange)
        if not exchange.keep_alive:
            self.ended = True

    def close(self) -> None:
        """Part from the parser, which refers back to this object."""
        self.ended = True
        self._parser = None

    def _parse(self, data: memoryview) -> memoryview | None:
        """Feed the parser. Returns what it left over, if it stopped at an offered upgrade."""
        parser = self._parser
        assert parser is not None
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._pass_over(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._refusal is not None or self.ended:
                return None
            if isinstance(error, httptools.HttpParserCallbackError):
                log.error("reading a request failed", exc_info=error)
                self._refusal = Refusal(500, Reason.RUNTIME_ERROR, "internal error")
            else:
                self._refusal = Refusal(400, Reason.BAD_INPUT, f"malformed HTTP: {error}")
        return None

    def _pass_over(self, rest: memoryview) -> memoryview | None:
        """Go on behind the headers of a request that offered an upgrade (as curl and Java do
        for HTTP/2): the parser has stopped there and taken no body."""
        self.bypass()
        current = self.current
        if current is None:
            return None if self.ended else rest
        current.upgrade = False
        piece = bytes(rest[: current.length])
        current.pieces.append(piece)
        current.filled = len(piece)
        if current.filled < current.length:
            return None
        self.complete(current)
        return rest[current.length :]

    # ---------------------------------------------------------------- the parser's callbacks

    def on_message_begin(self) -> None:
        self.current = Exchange(self._now, self._client)
        self._began = True

    def on_url(self, url: bytes) -> None:
        current = self.current
        assert current is not None
        current.target += url
        if len(current.target) > self._hub.settings.max_target_bytes:
            self._stop(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        current = self.current
        assert current is not None
        current.header_bytes += len(name) + len(value) + 4
        current.header_count += 1
        if (
            current.header_bytes > self._max_header_bytes
            or current.header_count > self._max_headers
        ):
            self._stop(431, "too many headers")
        if current.headers_done:
            return  # a trailer: nothing in it concerns us
        name = name.lower()
        headers = current.headers
        if name in headers:
            if name in _ONCE:
                self._stop(400, f"header {name.decode('ascii', 'replace')} comes twice")
            value = b"%b, %b" % (headers[name], value)
        headers[name] = value

    def on_headers_complete(self) -> None:
        current = self.current
        assert current is not None
        parser = self._parser
        assert parser is not None
        current.headers_done = True
        current.method = parser.get_method().decode()
        current.keep_alive = parser.should_keep_alive()
        current.upgrade = parser.should_upgrade()
        current.chunked = b"transfer-encoding" in current.headers
        current.length = int(current.headers.get(b"content-length", 0))
        version = parser.get_http_version()
        if version != "1.1":
            current.old = version == "1.0"
            if not current.old:
                self._stop(505, "this server speaks HTTP/1.1")
        if current.chunked:
            if current.headers[b"transfer-encoding"].strip().lower() != b"chunked":
                self._stop(501, "the only transfer coding taken is chunked")
            if current.upgrade or current.old:
                self._stop(400, "a chunked body is not expected here")

    def on_chunk_header(self) -> None:
        current = self.current
        assert current is not None
        current.chunks += 1
        if current.chunks > self._hub.settings.max_chunks:
            self._stop(413, "the body has too many chunks", Reason.TOO_LARGE)

    def on_body(self, data: bytes) -> None:
        current = self.current
        assert current is not None
        current.filled += len(data)
        if current.chunked:
            limit = current.limit or self._hub.settings.max_body_bytes
            if current.filled > limit:
                self._stop(413, f"the body has more than {limit} bytes", Reason.TOO_LARGE)
            if not self._hub.charge(len(data), self._client):
                strict = self._hub.settings.triton_strict
                status = status_of(Reason.MEMORY_LIMIT, triton_strict=strict).http
                self._stop(status, "too many bodies are on their way", Reason.MEMORY_LIMIT)
            current.charged += len(data)
            # One growing buffer: a list of tiny pieces would take forty times their size.
            if isinstance(current.body, bytearray):
                current.body += data
            else:
                current.body = bytearray(data)
        else:
            current.pieces.append(data)

    def on_message_complete(self) -> None:
        current = self.current
        assert current is not None
        # The parser passes over the body of a request with an upgrade; `_pass_over` has it.
        if not (current.upgrade and current.length):
            self.complete(current)

    def _stop(self, status: int, message: str, reason: Reason = Reason.BAD_INPUT) -> None:
        self._refusal = Refusal(status, reason, message)
        raise _StopParsingError


__all__ = ["Refusal", "RequestReader"]
