"""The door of the HTTP front end: every request passes here, once, before its handler hears of it.

In this order: is there such a path and method, may this client use it (the one gate for all
routes), can its body be taken, does its handler want it.
"""

from __future__ import annotations

from slacktide.domain import Reason
from slacktide.frontends.http.exchange import Exchange
from slacktide.frontends.http.hub import Hub
from slacktide.frontends.http.messages import Response, cors_lines, error_response, failure_response
from slacktide.frontends.security import Verdict
from slacktide.wire.errors import WireError

_PASS = Verdict.PASS


def open_exchange(hub: Hub, exchange: Exchange) -> None:
    """Find the route of a request whose headers are here. A refusal becomes its response."""
    exchange.opened = True
    try:
        _open(hub, exchange)
    except Exception as error:
        exchange.response = failure_response(error, triton_strict=hub.settings.triton_strict)


def _open(hub: Hub, exchange: Exchange) -> None:
    settings = hub.settings
    if exchange.method == "OPTIONS" and cors_lines(exchange.headers, settings.allowed_origins):
        exchange.response = Response()
        return
    found = hub.router.match(exchange.target)
    if found is None:
        exchange.response = error_response(404, "Not Found")
        return
    route = found.routes.get(exchange.method)
    if route is None:
        allow = ", ".join(sorted(found.routes))
        line = b"Allow: %b\r\n" % allow.encode()
        exchange.response = error_response(405, f"use {allow} here", extra=line)
        return
    if hub.authorize is not None:
        verdict = hub.authorize(route.group, exchange.headers)
        if verdict is not _PASS:
            status = verdict.status.http
            line = b"WWW-Authenticate: Bearer\r\n" if status == 401 else b""
            exchange.response = error_response(status, verdict.value, extra=line)
            return
    exchange.route = route
    exchange.params = found.params
    receiver = route.receiver
    exchange.limit = settings.max_request_bytes if receiver else settings.max_control_bytes
    expect = exchange.headers.get(b"expect")
    if expect is not None and expect.strip().lower() != b"100-continue":
        exchange.response = error_response(417, "the only expectation met is 100-continue")
        return
    if max(exchange.length, exchange.filled) > exchange.limit:
        message = f"body: expected at most {exchange.limit} bytes, got {exchange.length}"
        if receiver is not None:
            receiver.refuse(exchange, Reason.TOO_LARGE, message)
        exchange.response = error_response(413, message)
        return
    if receiver is None:
        return
    exchange.response = receiver.open(exchange)
    if exchange.response is None:
        # Only from here on does the receiver hold something that must be ended.
        exchange.receiver = receiver


def place_for(hub: Hub, exchange: Exchange) -> memoryview | None:
    """Where to receive a body of known length; None if it was refused, which is the response."""
    try:
        if exchange.receiver is not None:
            place = exchange.receiver.announce(exchange, exchange.length)
        elif hub.charge(exchange.length, exchange.client):
            exchange.charged = exchange.length
            exchange.body = bytearray(exchange.length)
            place = memoryview(exchange.body)
        else:
            place = failure_response(
                WireError(Reason.MEMORY_LIMIT, "too many bodies are on their way"),
                triton_strict=hub.settings.triton_strict,
            )
    except Exception as error:
        exchange.abandoned(Reason.RUNTIME_ERROR)
        place = failure_response(error, triton_strict=hub.settings.triton_strict)
    if isinstance(place, Response):
        exchange.response = place
        return None
    return place
