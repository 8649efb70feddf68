"""`CallHead`: the meaning of a call's headers; `trailers_of`: the trailers of a refusal."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from slacktide.frontends.common.call_headers import STEERING, read_steering
from slacktide.frontends.common.refusals import Refusal
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import EndpointGroup
from slacktide.wire.calls import Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.parameters import NEVER_S
from slacktide.wire.status import CONTROL_STATUS, WireStatus

if TYPE_CHECKING:
    from slacktide.frontends.grpc.call import GrpcCall
    from slacktide.frontends.grpc.protocol import GrpcConnection

REASON_KEY = "slacktide-reason"
"""Trailer with the reason of a refusal. Trailers with its numbers have names of the same form."""
LEAST_PUSHBACK_MS: Final = 100
"""Minimum wait for clients that retry automatically, so that they do not all come back at once."""
CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of the statuses by number."""
CONTENT_TYPE = (b"content-type", b"application/grpc")
ENCODINGS = (b"gzip", b"deflate")
TOO_LONG = WireStatus(413, "RESOURCE_EXHAUSTED")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_NOT_PLAIN = re.compile(rb"[^ -$&-~]")
_MOST_WORDS: Final = 1024
"""Maximum bytes of a status message."""


@dataclass(frozen=True, slots=True)
class GrpcMethod:
    """A method in the service table. `make` makes the call."""

    group: EndpointGroup
    make: Callable[[GrpcConnection, int, Head, CallHead], GrpcCall]


class CallHead:
    """The meaning of a call's headers. Cached with them, so that calls with the same headers share
    it."""

    __slots__ = (
        "budget_s", "encoding", "error", "headers", "http_status", "method", "name", "parameters",
    )  # fmt: skip

    def __init__(self, head: Head, methods: Mapping[bytes, GrpcMethod], max_metadata: int) -> None:
        headers = self.headers = head.headers
        path = headers[b":path"]
        self.name = path.decode("latin-1")
        self.method = methods.get(path)
        self.encoding = headers.get(b"grpc-encoding", b"identity")
        self.http_status = 200
        self.error: Exception | None = None
        """Why the call cannot be served; reported only if the gate admits the call."""
        self.budget_s: float | None = None
        """Seconds from the first byte to the deadline: the smallest timeout given."""
        self.parameters: dict[str, Parameter] = {}
        kind = headers.get(b"content-type", b"")
        if headers[b":method"] != b"POST":
            self.http_status = 405
        elif kind[:16] != b"application/grpc" or kind[16:17] not in (b"", b"+", b";"):
            self.http_status = 415
        try:
            self._read(head, max_metadata)
        except (WireError, Refusal) as error:
            self.error = error

    def _read(self, head: Head, max_metadata: int) -> None:
        headers = self.headers
        if head.size > max_metadata:
            raise Refusal(TOO_LONG, f"metadata: expected at most {max_metadata} bytes")
        if self.method is None:
            raise Refusal(CONTROL_STATUS["unsupported"], f"unknown method {self.name}")
        if self.encoding != b"identity" and self.encoding not in ENCODINGS:
            message = "grpc-encoding: expected identity, gzip or deflate"
            raise Refusal(CONTROL_STATUS["unsupported"], message)
        timeout = headers.get(b"grpc-timeout")
        if timeout is not None:
            match = _TIMEOUT.fullmatch(timeout)
            if match is None:
                raise BadField("grpc-timeout", "at most 8 digits and a unit", timeout)
            seconds = int(match[1]) * _UNITS[match[2]]
            # Some clients send the largest number there is, which means no deadline.
            self.budget_s = seconds if seconds < NEVER_S else None
        if self.method.group is EndpointGroup.INFERENCE and not STEERING.isdisjoint(headers):
            fields = read_steering(headers)
            self.parameters = fields.parameters
            if fields.budget_s is not None:
                stated = self.budget_s
                self.budget_s = fields.budget_s if stated is None else min(stated, fields.budget_s)


def trailers_of(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    """Status, reason with its numbers, and when to retry, for applications and for gRPC's own
    retries. The wait is never zero: a place may be free within a millisecond, but not for all
    refused calls."""
    words = refusal.message.encode()[:_MOST_WORDS]
    words = _NOT_PLAIN.sub(lambda match: b"%%%02X" % ord(match[0]), words)
    trailers = [
        (b"grpc-status", b"%d" % CODES.index(refusal.status.grpc)),
        (b"grpc-message", words),
    ]
    if refusal.reason is not None:
        trailers.append((REASON_KEY.encode(), refusal.reason.label.encode()))
    for name, number in refusal.numbers.items():
        trailers.append((b"slacktide-" + name.replace("_", "-").encode(), b"%d" % number))
    seconds = refusal.retry_after_s
    if seconds is not None:
        pushback_ms = max(LEAST_PUSHBACK_MS, ceil(seconds * 1e3))
        trailers.append((b"retry-after", b"%d" % max(1, ceil(seconds))))
        trailers.append((b"grpc-retry-pushback-ms", b"%d" % pushback_ms))
    if refusal.status.grpc == "UNIMPLEMENTED":
        trailers.append((b"grpc-accept-encoding", b"identity,gzip,deflate"))
    return trailers
