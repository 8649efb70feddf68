"""`ClientRequest`, its `RequestHead`, and `HttpResponse`, which handlers make."""

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
    """The parsed head of a request. A remembered head is shared by all requests that begin with the
    same bytes, so do not change it (`HttpContext.remember`)."""

    method: str = ""
    target: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By lower-case name."""
    length: int = 0
    """Content-Length; 0 if there is none."""
    chunked: bool = False
    keep_alive: bool = False
    is_http_1_0: bool = False
    """Whether the request uses HTTP/1.0."""
    whole: bool = False
    """Whether the whole head has been read and accepted."""
    raw: bytes = b""
    """Bytes of the head, if worth remembering."""
    route: HttpRoute | None = None
    """The endpoint that the head names. The fields below are set together with it."""
    authority: bytes = b""
    """Host in an absolute target, which the gate judges as it does the Host header."""
    params: Mapping[str, str] = field(default_factory=dict)
    """The decoded parameters in the path."""
    limit: int = 0
    """Maximum bytes of a body that the route accepts."""
    accepts: bytes = b""
    """The content coding that the client accepts, if any."""
    infer: InferHead | None = None
    """Fields of an inference call."""


NO_HEAD = RequestHead()
"""Head of a request whose own head has not been read yet."""


class ClientRequest(CallContext):
    """A request on its way through a connection, with its answer. It is the context of the
    inference call that it makes, if any. Handlers read `head` and `body`."""

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
        """Bytes received of a body that did not come with its head."""
        self.body_since: float | None = None
        """Time at which the wait for the body began."""
        self.awaits_continue = False
        self.charged = 0
        """Bytes charged to the shared memory limits."""
        self.opened = False
        """Whether the request has been routed and judged by the gate."""
        self.linger = False
        """Whether the answer is sent before the body has arrived."""
        self.owner: HttpConnection | None = None
        """The connection that takes the answer, once a handler has the request."""
        self.response: HttpResponse | None = None
        self.receiver: InferEndpoint | None = None
        """For inference: the endpoint, the call until it ends, the format of the answer, and the
        task that works on a long body or answer."""
        self.call: InferenceCall | None = None
        self.answer = ALL_BINARY
        self.unpacking: asyncio.Task[None] | None = None
        self.outcome: Outcome | None = None
        """Outcome of inference, for the access log."""

    def refused(self, reason: Reason, message: str) -> None:
        """Count a refusal by the connection itself."""
        if self.receiver is not None:
            self.receiver.refuse(self, reason, message)

    def abandoned(self, reason: Reason) -> None:
        """Cancel its call, for instance because the client has gone."""
        if self.receiver is not None and self.response is None:
            self.receiver.abandon(self, reason)

    def replied(self, reply: InferReply) -> None:
        """Take the reply of its call."""
        assert self.receiver is not None
        self.receiver.replied(self, reply)

    def respond(self, response: HttpResponse) -> None:
        """Answer the request. Called once, at any time."""
        assert self.owner is not None
        if self.head.accepts:
            self.owner.compress(self, response)
        else:
            self.owner.settle(self, response)


class HttpResponse:
    """An answer. `body` is sent as it is, piece by piece; `extra` is complete header lines."""

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
    """An error answer: stock clients read `error`; `reason` and its `numbers` are added if there is
    one."""
    if reason is None:
        return HttpResponse(status, (orjson.dumps({"error": message}),), JSON, extra)
    document = {"error": message, "reason": reason.label, **numbers}
    return HttpResponse(status, (orjson.dumps(document),), JSON, _REASON_LINES[reason] + extra)


def failure_response(error: Exception, *, triton_strict: bool = False) -> HttpResponse:
    """The answer to a request whose handler raised."""
    return refusal_response(refusal_of(error, triton_strict=triton_strict))


def refusal_response(refusal: Refusal) -> HttpResponse:
    status = refusal.status.http
    extra = retry_after(status, refusal.retry_after_s)
    return error_response(
        status, refusal.message, reason=refusal.reason, numbers=refusal.numbers, extra=extra
    )


def retry_after(status: int, seconds: float | None) -> bytes:
    """The Retry-After line, which goes with 429, and with 503 if the wait is known."""
    if status == 429 or (status == 503 and seconds is not None):
        return b"Retry-After: %d\r\n" % max(1, math.ceil(seconds or 1.0))
    return b""


def cors_lines(headers: Mapping[bytes, bytes], allowed: frozenset[bytes]) -> bytes:
    """CORS headers that let a page of an allowed origin send its request and read the answer; empty
    for other origins."""
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
    """The status line and the headers that every answer has."""
    return b"%b%bContent-Length: %d\r\n" % (
        _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status,
        b"Content-Type: %b\r\n" % content_type if length else b"",
        length,
    )


# In HTTP, `deflate` means a zlib stream. `Inflation` (unpacking.py) inflates requests.

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_LEVEL: Final = 1
"""Tensors gain little from higher levels."""


SUPPORTED = b"Accept-Encoding: gzip, deflate\r\n"


def encoding_of(header: bytes) -> bytes | None:
    """The coding in a Content-Encoding header: b"" for none, None if unsupported."""
    name = header.strip().lower()
    if name in (b"", b"identity"):
        return b""
    return name if name in _WINDOW else None


def chosen_encoding(accept: bytes) -> bytes:
    """gzip or deflate if the Accept-Encoding header allows one, else b"" (no coding)."""
    allowed: dict[bytes, bool] = {}
    for item in accept.lower().split(b","):
        name, _, weight = item.partition(b";")
        allowed[name.strip()] = not _is_zero(weight)
    for name in (b"gzip", b"deflate"):
        if allowed.get(name, allowed.get(b"*", False)):
            return name
    return b""


def compressed(response: HttpResponse, encoding: bytes) -> HttpResponse:
    """The response, compressed. Its Inference-Header-Content-Length does not change."""
    stream = zlib.compressobj(_LEVEL, wbits=_WINDOW[encoding])
    pieces = [stream.compress(piece) for piece in response.body]
    pieces.append(stream.flush())
    line = b"Content-Encoding: %b\r\nVary: Accept-Encoding\r\n" % encoding
    return HttpResponse(response.status, pieces, response.content_type, response.extra + line)


def _is_zero(weight: bytes) -> bool:
    """True for `q=0`, `q=0.0` and the like."""
    name, _, value = weight.partition(b"=")
    return name.strip() == b"q" and not value.strip().strip(b"0.")
