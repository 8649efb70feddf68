"""The status codes and the message of an outcome, for both protocols.

With `triton_strict`, overload and missed deadlines are answered as Triton does: 503 and
UNAVAILABLE. gRPC statuses are names (`RESOURCE_EXHAUSTED`), so that this file needs no gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from slacktide.domain import Outcome, OutcomeKind, Reason


class WireStatus(NamedTuple):
    """The statuses of an answer. HTTP 499 appears only in logs: the client has gone."""

    http: int
    grpc: str


OK = WireStatus(200, "OK")
_BUSY = WireStatus(429, "RESOURCE_EXHAUSTED")
_TOO_LATE = WireStatus(504, "DEADLINE_EXCEEDED")
_AWAY = WireStatus(503, "UNAVAILABLE")
_BROKEN = WireStatus(500, "INTERNAL")
_CANCELLED = WireStatus(499, "CANCELLED")

STATUS: Mapping[Reason, WireStatus] = {
    Reason.ON_TIME: OK,
    Reason.EARLY_EXIT: OK,
    Reason.PARTIAL: OK,
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
    Reason.UNMEASURED: WireStatus(422, "FAILED_PRECONDITION"),
    Reason.DRAINING: _AWAY,
    Reason.UNAVAILABLE: _AWAY,
    Reason.BAD_INPUT: WireStatus(400, "INVALID_ARGUMENT"),
    Reason.NOT_FOUND: WireStatus(404, "NOT_FOUND"),
    Reason.TOO_LARGE: WireStatus(413, "INVALID_ARGUMENT"),
    Reason.CRASHED: _BROKEN,
    Reason.RUNTIME_ERROR: _BROKEN,
    Reason.CLIENT_CANCELLED: _CANCELLED,
    Reason.DISCONNECTED: _CANCELLED,
    Reason.NO_BODY: WireStatus(408, "CANCELLED"),
}

CONTROL_STATUS: Mapping[str, WireStatus] = {
    "not_found": WireStatus(404, "NOT_FOUND"),
    "bad_input": WireStatus(400, "INVALID_ARGUMENT"),
    "unavailable": _AWAY,
    "unsupported": WireStatus(501, "UNIMPLEMENTED"),
    "forbidden": WireStatus(403, "PERMISSION_DENIED"),
    "internal": _BROKEN,
}
"""Status by the kind of a `ControlError`."""

_STRICT = {_BUSY: _AWAY, _TOO_LATE: _AWAY}


def status_of(
    reason: Reason, *, has_result: bool = True, triton_strict: bool = False
) -> WireStatus:
    """The status for an outcome. `has_result` is False if a late result was discarded."""
    status = STATUS[reason]
    if reason.kind is OutcomeKind.LATE and not has_result:
        status = _TOO_LATE
    return _STRICT.get(status, status) if triton_strict else status


_SENTENCES: Mapping[Reason, str] = {
    Reason.AFTER_DEADLINE: "the result came after the deadline and was discarded as requested",
    Reason.SHORTER_THAN_ALONE: "the model needs more time for this request than is left",
    Reason.EXPIRED: "the deadline has passed",
    Reason.HOPELESS: "the request can no longer be answered in time",
    Reason.CROWDED_OUT: "earlier requests took longer than expected and left no time",
    Reason.BEHIND_OVERRUN: "the batch ahead of this request took longer than planned",
    Reason.BEHIND_WORK: "the request cannot be answered in time behind the waiting work",
    Reason.QUEUE_FULL: "the queue is full",
    Reason.MEMORY_LIMIT: "the memory for requests in flight is exhausted",
    Reason.CLIENT_LIMIT: "this client has too many requests in flight, or cancels too many",
    Reason.CRASHED_BEFORE: "the same input has just crashed the model",
    Reason.CONNECTION_BLOCKED: "several inputs from this connection have crashed the model",
    Reason.UNMEASURED: "no request of this shape has been timed, as the p99 guarantee requires; "
    "a request without a deadline is served",
    Reason.DRAINING: "the model is being unloaded",
    Reason.UNAVAILABLE: "the model is unavailable",
    Reason.CRASHED: "the model crashed or hung on this request",
    Reason.RUNTIME_ERROR: "the model failed on this request",
}


MOST_MICROSECONDS: Final = 2**53 - 1
"""Largest number in an answer. Every JSON parser reads it exactly."""


def microseconds(seconds: float) -> int:
    """Round to whole microseconds, at most `MOST_MICROSECONDS` in magnitude."""
    return round(min(max(-MOST_MICROSECONDS, seconds * 1e6), MOST_MICROSECONDS))


def numbers_of(outcome: Outcome) -> dict[str, int]:
    """The numbers of a refusal, in microseconds: `budget_us` left until the deadline, `needed_us`
    that the request takes even alone, `queue_us` until a lane was expected to be free. Unknown
    numbers are left out."""
    numbers = {}
    if outcome.budget_s is not None:
        numbers["budget_us"] = microseconds(outcome.budget_s)
    if outcome.needed_s is not None:
        numbers["needed_us"] = microseconds(outcome.needed_s)
    if outcome.wait_s is not None:
        numbers["queue_us"] = microseconds(outcome.wait_s)
    return numbers


def message_for(outcome: Outcome, model: str) -> str:
    """The message about a request to `model` that has no result."""
    sentence = _SENTENCES.get(outcome.reason)
    detail = outcome.detail
    if sentence is None:
        return detail or f"model {model!r}: {outcome.reason.label}"
    return f"model {model!r}: {sentence}" + (f" ({detail})" if detail else "")
