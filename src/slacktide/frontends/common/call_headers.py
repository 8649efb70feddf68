"""Reads the headers of an inference call, for HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping

from slacktide.wire.calls import CallContext
from slacktide.wire.parameters import STEERING_HEADERS, HeaderFields, parse_parameters, read_headers

STEERING = frozenset(name.encode() for name in STEERING_HEADERS)
_NO_LOOK_ALIKES: Mapping[str, str] = {}
"""Look-alikes of parameters are left to the data plane, which may refuse them."""
NAMING = frozenset((b"traceparent", b"x-request-id"))
"""Headers that identify a call and so differ from call to call."""
_MAX_ID = 256


def read_steering(headers: Mapping[bytes, bytes]) -> HeaderFields:
    """Parse the parameters and timeouts in headers. Raises BadField naming the header, so that a
    bad one is refused before the body is read."""
    fields = read_headers(
        (name.decode(), headers[name].decode("latin-1").strip())
        for name in STEERING.intersection(headers)
    )
    parse_parameters(fields.parameters, _NO_LOOK_ALIKES)
    return fields


def context_of(
    headers: Mapping[bytes, bytes], first_byte: float, client: str, transport: str, connection: str
) -> CallContext:
    """The context of a call, without its budget."""
    context = CallContext(first_byte, client, transport, connection=connection)
    name_call(context, headers)
    return context


def name_call(context: CallContext, headers: Mapping[bytes, bytes]) -> None:
    """Set the ids that the client gave its call."""
    if b"x-request-id" in headers:
        context.request_id = headers[b"x-request-id"].decode("latin-1")[:_MAX_ID]
    if b"traceparent" in headers:
        context.traceparent = headers[b"traceparent"].decode("latin-1").strip()
