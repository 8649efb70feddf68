"""`ClientRequest` with its answer, `HttpResponse` as handlers make it, its bytes on the wire."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from slacktide.domain import Reason
from slacktide.frontends.refusals import Refusal, refusal_of
from slacktide.wire.calls import Buffer

if TYPE_CHECKING:
    from slacktide.frontends.http.router import HttpRoute, Receiver

JSON = b"application/json"
OCTETS = b"application/octet-stream"


class ClientRequest:
    """One request on its way through a connection, with its answer.

    Handlers read its first part; the rest is its connection's business.
    """

    __slots__ = (
        "awaits_continue",
        "body",
        "body_since",
        "charged",
        "chunked",
        "client",
        "connection",
        "filled",
        "first_byte",
        "headers",
        "headers_done",
        "keep_alive",
        "length",
        "limit",
        "linger",
        "method",
        "old",
        "opened",
        "params",
        "pieces",
        "receiver",
        "request_id",
        "response",
        "route",
        "state",
        "target",
    )

    def __init__(self, first_byte: float, client: str, connection: str = "") -> None:
        self.first_byte = first_byte
        """Monotonic seconds."""
        self.client = client
        """Peer address without port."""
        self.connection = connection
        """Peer address with port."""
        self.method = ""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        """By lower-case name."""
        self.params: Mapping[str, str] = {}
        """The decoded parts of the path."""
        self.body: Buffer = b""
        self.request_id = ""
        """For the access log, where the body holds one; else `X-Request-Id` is logged."""
        self.state: Any = None
        """Belongs to the route's handler."""

        self.keep_alive = False
        self.old = False
        """HTTP/1.0."""
        self.headers_done = False
        self.chunked = False
        self.length = 0
        """Content-Length; 0 if there is none."""
        self.limit = 0
        """Most bytes of body the route takes; known once `opened`."""
        self.filled = 0
        """Bytes of body that have come."""
        self.body_since: float | None = None
        """When the wait for the body began."""
        self.pieces: list[bytes] = []
        """Body that came with its headers."""
        self.awaits_continue = False
        self.opened = False
        """Routed, past the gate."""
        self.route: HttpRoute | None = None
        self.receiver: Receiver | None = None
        self.charged = 0
        """Bytes of the common buffer it holds."""
        self.linger = False
        """Its answer goes out before its body has come in."""
        self.response: HttpResponse | None = None

    def refused(self, reason: Reason, message: str) -> None:
        """Have the receiver count that the connection itself turned the request away."""
        if self.receiver is not None:
            self.receiver.refuse(self, reason, message)

    def abandoned(self, reason: Reason) -> None:
        """Its client has gone."""
        if self.receiver is not None and self.response is None:
            self.receiver.abandon(self, reason)


class HttpResponse(NamedTuple):
    """One answer. `body` is sent as it is, piece by piece; `extra` are whole header lines."""

    status: int = 200
    body: Sequence[bytes] = ()
    content_type: bytes = JSON
    extra: bytes = b""

    @property
    def length(self) -> int:
        return sum(map(len, self.body))


def json_response(document: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, (orjson.dumps(document),))


def error_response(status: int, message: str, *, extra: bytes = b"") -> HttpResponse:
    """Every error has this one form; stock clients read `error`."""
    return HttpResponse(status, (orjson.dumps({"error": message}),), JSON, extra)


def failure_response(error: Exception, *, triton_strict: bool = False) -> HttpResponse:
    """The answer to a request whose handling raised."""
    return refusal_response(refusal_of(error, triton_strict=triton_strict))


def refusal_response(refusal: Refusal) -> HttpResponse:
    status = refusal.status.http
    extra = retry_after(status, refusal.retry_after_s)
    return error_response(status, refusal.message, extra=extra)


def retry_after(status: int, seconds: float | None) -> bytes:
    """The Retry-After line that goes with 429, and with 503 where the wait is known."""
    if status == 429 or (status == 503 and seconds is not None):
        return b"Retry-After: %d\r\n" % max(1, math.ceil(seconds or 1.0))
    return b""


def cors_lines(headers: Mapping[bytes, bytes], allowed: frozenset[bytes]) -> bytes:
    """What lets a page of a listed origin read an answer, and send what its browser asks about
    first; nothing for all others."""
    origin = headers.get(b"origin", b"").lower()
    if origin not in allowed:
        return b""
    lines = b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin
    if b"access-control-request-method" in headers:
        lines += (
            b"Access-Control-Allow-Methods: GET, POST\r\nAccess-Control-Allow-Headers: %b\r\n"
            % (headers.get(b"access-control-request-headers", b""))
        )
    return lines


_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


def render_head(response: HttpResponse, length: int, *, close: bool, keep_alive_1_0: bool) -> bytes:
    """Status line and headers. `length` is that of the body as sent."""
    connection = b""
    if close:
        connection = b"Connection: close\r\n"
    elif keep_alive_1_0:
        connection = b"Connection: keep-alive\r\n"
    kind = b"Content-Type: %b\r\n" % response.content_type if length else b""
    return b"%b%b%b%bContent-Length: %d\r\n\r\n" % (
        _STATUS_LINES.get(response.status) or b"HTTP/1.1 %d \r\n" % response.status,
        kind,
        response.extra,
        connection,
        length,
    )


# Codings: `deflate` is a zlib stream, as HTTP says. Requests are inflated by `Inflation`
# (unpacking.py).

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_LEVEL = 1
"""Tensors gain little from higher levels."""


SUPPORTED = b"Accept-Encoding: gzip, deflate\r\n"


def encoding_of(header: bytes) -> bytes | None:
    """The coding a Content-Encoding header names, b"" for none; None if we do not know it."""
    name = header.strip().lower()
    if name in (b"", b"identity"):
        return b""
    return name if name in _WINDOW else None


def chosen_encoding(accept: bytes) -> bytes:
    """gzip or deflate if the Accept-Encoding header allows one, else b"" (send as it is)."""
    allowed: dict[bytes, bool] = {}
    for item in accept.lower().split(b","):
        name, _, weight = item.partition(b";")
        allowed[name.strip()] = not _is_zero(weight)
    for name in (b"gzip", b"deflate"):
        if allowed.get(name, allowed.get(b"*", False)):
            return name
    return b""


def compressed(response: HttpResponse, encoding: bytes) -> HttpResponse:
    """The response under that coding; the Inference-Header-Content-Length stays as it was."""
    stream = zlib.compressobj(_LEVEL, wbits=_WINDOW[encoding])
    pieces = [stream.compress(piece) for piece in response.body]
    pieces.append(stream.flush())
    line = b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % encoding
    return response._replace(body=pieces, extra=response.extra + line)


def _is_zero(weight: bytes) -> bool:
    """True for `q=0`, `q=0.0` and the like."""
    name, _, value = weight.partition(b"=")
    return name.strip() == b"q" and not value.strip().strip(b"0.")
