"""`ClientRequest` with its `RequestHead` and its answer, `HttpResponse` as handlers make it."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import orjson

from slacktide.domain import Outcome, Reason
from slacktide.frontends.common.refusals import Refusal, refusal_of
from slacktide.wire.calls import Buffer, CallContext, InferReply
from slacktide.wire.oip_json import ALL_BINARY

if TYPE_CHECKING:
    from slacktide.frontends.http.infer import InferEndpoint, InferHead
    from slacktide.frontends.http.protocol import HttpConnection
    from slacktide.frontends.http.router import HttpRoute
    from slacktide.frontends.ports import InferenceCall

JSON = b"application/json"
OCTETS = b"application/octet-stream"


@dataclass(slots=True, eq=False, repr=False)
class RequestHead:
    """What the head of a request says. A remembered one is shared by all requests that begin with
    its bytes: it is not changed any more (`HttpContext.remember`)."""

    method: str = ""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By lower-case name."""
    length: int = 0
    """Content-Length; 0 if there is none."""
    chunked: bool = False
    keep_alive: bool = False
    old: bool = False
    """HTTP/1.0."""
    whole: bool = False
    """All of it has been read, and may be taken."""
    raw: bytes = b""
    """Its bytes, where they are worth remembering."""
    route: HttpRoute | None = None
    """What it asks for; what follows is known with it."""
    authority: bytes = b""
    """The host that an absolute target names: the gate judges it as it does the Host header."""
    params: Mapping[str, str] = field(default_factory=dict)
    """The decoded parts of the path."""
    limit: int = 0
    """Most bytes of body that the route takes."""
    accepts: bytes = b""
    """The coding in which a long answer may go."""
    infer: InferHead | None = None
    """What it says of an inference call."""


NO_HEAD = RequestHead()
"""Of a request of which not enough has come."""


class ClientRequest(CallContext):
    """One request on its way through a connection, with its answer. It is the context of the call
    that it makes, if it is one for inference. Handlers read `head` and `body`."""

    __slots__ = (
        "answer", "awaits_continue", "body", "body_since", "call", "charged", "filled", "head",
        "keep_alive", "linger", "opened", "outcome", "owner", "receiver", "response", "unpacking",
    )  # fmt: skip

    def __init__(self, first_byte: float, client: str, connection: str = "") -> None:
        super().__init__(first_byte, client, "http", connection=connection)
        self.head = NO_HEAD
        self.body: Buffer = b""
        self.keep_alive = False
        self.filled = 0
        """Bytes that have come of a body that did not come with its head."""
        self.body_since: float | None = None
        """When the wait for them began."""
        self.awaits_continue = False
        self.charged = 0
        """Bytes of the common buffer it holds."""
        self.opened = False
        """Routed, past the gate."""
        self.linger = False
        """Its answer goes out before its body has come in."""
        self.owner: HttpConnection | None = None
        """What its answer goes to, once it has been handed on."""
        self.response: HttpResponse | None = None
        self.receiver: InferEndpoint | None = None
        """Of inference: what has it from here on, with its call until that has ended, how to
        answer, and what is done beside the loop."""
        self.call: InferenceCall | None = None
        self.answer = ALL_BINARY
        self.unpacking: asyncio.Task[None] | None = None
        self.outcome: Outcome | None = None
        """Of inference, for the access log."""

    def refused(self, reason: Reason, message: str) -> None:
        """Have the receiver count that the connection itself turned the request away."""
        if self.receiver is not None:
            self.receiver.refuse(self, reason, message)

    def abandoned(self, reason: Reason) -> None:
        """Its client has gone."""
        if self.receiver is not None and self.response is None:
            self.receiver.abandon(self, reason)

    def replied(self, reply: InferReply) -> None:
        """This is what its call has come to."""
        assert self.receiver is not None
        self.receiver.replied(self, reply)

    def respond(self, response: HttpResponse) -> None:
        """Answer it, once, at any time."""
        assert self.owner is not None
        if self.head.accepts:
            self.owner.compress(self, response)
        else:
            self.owner.settle(self, response)


class HttpResponse:
    """One answer. `body` is sent as it is, piece by piece; `extra` are whole header lines."""

    __slots__ = ("body", "content_type", "extra", "length", "status")

    def __init__(
        self,
        status: int = 200,
        body: Sequence[Buffer] = (),
        content_type: bytes = JSON,
        extra: bytes = b"",
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.extra = extra
        self.length = 0
        for piece in body:
            self.length += len(piece)


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


@lru_cache(maxsize=1024)
def opening_lines(status: int, content_type: bytes, length: int) -> bytes:
    """Status line and headers that every answer has: what answers differ in is `extra`."""
    return b"%b%bContent-Length: %d\r\n" % (
        _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status,
        b"Content-Type: %b\r\n" % content_type if length else b"",
        length,
    )


# Codings: `deflate` is a zlib stream, as HTTP says. Requests are inflated by `Inflation`
# (unpacking.py).

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_LEVEL: Final = 1
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
    return HttpResponse(response.status, pieces, response.content_type, response.extra + line)


def _is_zero(weight: bytes) -> bool:
    """True for `q=0`, `q=0.0` and the like."""
    name, _, value = weight.partition(b"=")
    return name.strip() == b"q" and not value.strip().strip(b"0.")
