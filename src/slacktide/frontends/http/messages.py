"""`ClientRequest` with its answer, `HttpResponse` as handlers make it, its bytes on the wire."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from slacktide.domain import Outcome, Reason
from slacktide.frontends.refusals import Refusal, refusal_of
from slacktide.wire.calls import Buffer

if TYPE_CHECKING:
    from slacktide.frontends.http.infer import InferEndpoint
    from slacktide.frontends.http.router import HttpRoute

JSON = b"application/json"
OCTETS = b"application/octet-stream"


@dataclass(slots=True, eq=False, repr=False)
class ClientRequest:
    """One request on its way through a connection, with its answer.

    Handlers read its first part; the rest is its connection's business.
    """

    first_byte: float
    """Monotonic seconds."""
    client: str
    """Peer address without port."""
    connection: str = ""
    """Peer address with port."""
    method: str = ""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By lower-case name."""
    params: Mapping[str, str] = field(init=False)
    """The decoded parts of the path; there once it has its `route`."""
    body: Buffer = b""
    request_id: str = ""
    """For the access log, where the body holds one; else `X-Request-Id` is logged."""
    outcome: Outcome | None = None
    """Of an inference request, for the access log."""
    state: Any = None
    """Belongs to the route's handler."""

    keep_alive: bool = False
    old: bool = False
    """HTTP/1.0."""
    headers_done: bool = False
    chunked: bool = False
    length: int = 0
    """Content-Length; 0 if there is none."""
    limit: int = 0
    """Most bytes of body the route takes; known once `opened`."""
    filled: int = 0
    """Bytes of body that have come."""
    body_since: float | None = None
    """When the wait for the body began."""
    pieces: list[bytes] = field(default_factory=list)
    """Body that came with its headers."""
    awaits_continue: bool = False
    opened: bool = False
    """Routed, past the gate."""
    route: HttpRoute | None = None
    receiver: InferEndpoint | None = None
    charged: int = 0
    """Bytes of the common buffer it holds."""
    linger: bool = False
    """Its answer goes out before its body has come in."""
    response: HttpResponse | None = None

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


_NO_NUMBERS: Mapping[str, int] = {}
_REASON_LINES = {reason: b"slacktide-reason: %b\r\n" % reason.label.encode() for reason in Reason}


def error_response(
    status: int,
    message: str,
    *,
    reason: Reason | None = None,
    numbers: Mapping[str, int] = _NO_NUMBERS,
    extra: bytes = b"",
) -> HttpResponse:
    """Every error has this one form; stock clients read `error`. A request that ended for a
    `reason` is told it, with its `numbers`."""
    if reason is None:
        return HttpResponse(status, (orjson.dumps({"error": message}),), JSON, extra)
    document = {"error": message, "reason": reason.label, **numbers}
    return HttpResponse(status, (orjson.dumps(document),), JSON, _REASON_LINES[reason] + extra)


def failure_response(error: Exception, *, triton_strict: bool = False) -> HttpResponse:
    """The answer to a request whose handling raised."""
    return refusal_response(refusal_of(error, triton_strict=triton_strict))


def refusal_response(refusal: Refusal) -> HttpResponse:
    status = refusal.status.http
    extra = retry_after(status, refusal.retry_after_s)
    return error_response(
        status, refusal.message, reason=refusal.reason, numbers=refusal.numbers, extra=extra
    )


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
