"""Admission over HTTP: every request passes here, once, before it reaches its handler.

In this order: is there such a path and method, may this client use it (the one gate for all
routes), can its body be taken, does its handler want it.
"""

from __future__ import annotations

from slacktide.domain import Reason
from slacktide.frontends.http.context import HttpContext
from slacktide.frontends.http.messages import (
    ClientRequest,
    HttpResponse,
    cors_lines,
    error_response,
    failure_response,
)
from slacktide.frontends.security import Verdict

_PASS = Verdict.PASS


def open_request(context: HttpContext, request: ClientRequest) -> None:
    """Find the route of a request whose headers are here. A refusal becomes its response."""
    request.opened = True
    try:
        _open(context, request)
    except Exception as error:
        request.response = failure_response(error, triton_strict=context.settings.triton_strict)


def _open(context: HttpContext, request: ClientRequest) -> None:
    settings = context.settings
    if request.method == "OPTIONS" and cors_lines(request.headers, settings.allowed_origins):
        request.response = HttpResponse()
        return
    found = context.router.match(request.target)
    if found is None:
        request.response = error_response(404, "Not Found")
        return
    route = found.routes.get(request.method)
    if route is None:
        allow = ", ".join(sorted(found.routes))
        line = b"Allow: %b\r\n" % allow.encode()
        request.response = error_response(405, f"use {allow} here", extra=line)
        return
    if context.authorize is not None:
        verdict = context.authorize(route.group, request.headers)
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
        request.response = error_response(413, message)
        return
    if receiver is None:
        return
    request.response = receiver.open(request)
    if request.response is None:
        # Only from here on does the receiver hold something that must be ended.
        request.receiver = receiver


def place_for(context: HttpContext, request: ClientRequest) -> memoryview | None:
    """Where to receive a body of known length; None if it was refused, which is the response."""
    try:
        if request.receiver is not None:
            place = request.receiver.announce(request, request.length)
        else:
            context.charge(request, request.length)
            request.body = bytearray(request.length)
            place = memoryview(request.body)
    except Exception as error:
        request.abandoned(Reason.RUNTIME_ERROR)
        place = failure_response(error, triton_strict=context.settings.triton_strict)
    if isinstance(place, HttpResponse):
        request.response = place
        return None
    return place
