"""One table from the reason of an outcome to the status codes of both protocols.

`triton_strict` answers overload and missed deadlines as Triton does: 503 and UNAVAILABLE.
gRPC statuses are names (`RESOURCE_EXHAUSTED`), so that this file needs no gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slacktide.domain import OutcomeKind, Reason


class WireStatus(NamedTuple):
    """What a client sees. HTTP 499 is for logs only: nobody is left to read it."""

    http: int
    grpc: str


OK = WireStatus(200, "OK")
_BUSY = WireStatus(429, "RESOURCE_EXHAUSTED")
_TOO_LATE = WireStatus(504, "DEADLINE_EXCEEDED")
_AWAY = WireStatus(503, "UNAVAILABLE")
_BROKEN = WireStatus(500, "INTERNAL")
_GONE = WireStatus(499, "CANCELLED")

STATUS: Mapping[Reason, WireStatus] = {
    Reason.ON_TIME: OK,
    Reason.EARLY_EXIT: OK,
    Reason.AFTER_DEADLINE: OK,
    Reason.SHORTER_THAN_ALONE: _TOO_LATE,
    Reason.EXPIRED: _TOO_LATE,
    Reason.HOPELESS: _TOO_LATE,
    Reason.CROWDED_OUT: _TOO_LATE,
    Reason.BEHIND_OVERRUN: _TOO_LATE,
    Reason.BEHIND_WORK: _BUSY,
    Reason.QUEUE_FULL: _BUSY,
    Reason.MEMORY_LIMIT: _BUSY,
    Reason.CLIENT_LIMIT: _BUSY,
    Reason.CRASHED_BEFORE: WireStatus(422, "INVALID_ARGUMENT"),
    Reason.CONNECTION_BLOCKED: _BUSY,
    Reason.DRAINING: _AWAY,
    Reason.UNAVAILABLE: _AWAY,
    Reason.BAD_INPUT: WireStatus(400, "INVALID_ARGUMENT"),
    Reason.NOT_FOUND: WireStatus(404, "NOT_FOUND"),
    Reason.TOO_LARGE: WireStatus(413, "INVALID_ARGUMENT"),
    Reason.CRASHED: _BROKEN,
    Reason.RUNTIME_ERROR: _BROKEN,
    Reason.CLIENT_CANCELLED: _GONE,
    Reason.DISCONNECTED: _GONE,
    Reason.NO_BODY: WireStatus(408, "CANCELLED"),
}

LATE_AND_DISCARDED = _TOO_LATE
"""For a computed result that the client asked not to be sent once late."""

CONTROL_STATUS: Mapping[str, WireStatus] = {
    "not_found": WireStatus(404, "NOT_FOUND"),
    "bad_input": WireStatus(400, "INVALID_ARGUMENT"),
    "unavailable": _AWAY,
    "unsupported": WireStatus(501, "UNIMPLEMENTED"),
    "forbidden": WireStatus(403, "PERMISSION_DENIED"),
    "internal": _BROKEN,
}
"""For the kinds of `ControlError`."""

_STRICT = {_BUSY: _AWAY, _TOO_LATE: _AWAY}


def status_of(
    reason: Reason, *, has_result: bool = True, triton_strict: bool = False
) -> WireStatus:
    """The status for an outcome. `has_result` is False where a late result was discarded."""
    status = STATUS[reason]
    if reason.kind is OutcomeKind.LATE and not has_result:
        status = LATE_AND_DISCARDED
    return _STRICT.get(status, status) if triton_strict else status
