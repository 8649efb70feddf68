"""How a request can end, as its client sees it, and what that counts as. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from slacktide.domain import OutcomeKind
from slacktide.load.report import Ending


class Result(Enum):
    """What came back. Whether an answer was on time is decided later, from the clock."""

    ANSWERED = "answered"
    """200, OK."""
    OVERLOADED = "overloaded"
    """429, RESOURCE_EXHAUSTED."""
    TIMED_OUT = "timed_out"
    """504, DEADLINE_EXCEEDED: dropped by the server."""
    UNAVAILABLE = "unavailable"
    """503, UNAVAILABLE."""
    BAD_REQUEST = "bad_request"
    """Any other 4xx, INVALID_ARGUMENT and the like: our own mistake."""
    SERVER_ERROR = "server_error"
    """Any other status."""
    TRANSPORT_ERROR = "transport_error"
    """No connection, or it broke before the answer was complete."""
    GAVE_UP = "gave_up"
    """The client's patience ended."""


ON_TIME = Ending("on_time", OutcomeKind.SERVED)
AFTER_DEADLINE = Ending("after_deadline", OutcomeKind.LATE)

_REFUSALS_AND_FAILURES: Mapping[Result, OutcomeKind] = {
    Result.OVERLOADED: OutcomeKind.REJECTED,
    Result.TIMED_OUT: OutcomeKind.DROPPED,
    Result.UNAVAILABLE: OutcomeKind.REJECTED,
    Result.BAD_REQUEST: OutcomeKind.REJECTED,
    Result.SERVER_ERROR: OutcomeKind.FAILED,
    Result.TRANSPORT_ERROR: OutcomeKind.FAILED,
    Result.GAVE_UP: OutcomeKind.CANCELLED,
}

ENDINGS: tuple[Ending, ...] = (
    ON_TIME,
    AFTER_DEADLINE,
    *(Ending(result.value, kind) for result, kind in _REFUSALS_AND_FAILURES.items()),
)
"""Every ending a report may count."""

ENDING_OF: Mapping[Result, int] = {
    result: number for number, result in enumerate(_REFUSALS_AND_FAILURES, start=2)
}
"""Index into ENDINGS of every result but ANSWERED."""

_HTTP: Mapping[int, Result] = {
    200: Result.ANSWERED,
    429: Result.OVERLOADED,
    503: Result.UNAVAILABLE,
    504: Result.TIMED_OUT,
}
_GRPC: Mapping[str, Result] = {
    "OK": Result.ANSWERED,
    "RESOURCE_EXHAUSTED": Result.OVERLOADED,
    "DEADLINE_EXCEEDED": Result.TIMED_OUT,
    "UNAVAILABLE": Result.UNAVAILABLE,
    **dict.fromkeys(
        (
            "INVALID_ARGUMENT",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "FAILED_PRECONDITION",
            "OUT_OF_RANGE",
            "PERMISSION_DENIED",
            "UNAUTHENTICATED",
        ),
        Result.BAD_REQUEST,
    ),
}


def of_http(status: int) -> Result:
    """The result that an HTTP status stands for."""
    known = _HTTP.get(status)
    if known is not None:
        return known
    return Result.BAD_REQUEST if 400 <= status < 500 else Result.SERVER_ERROR


def of_grpc(status: str) -> Result:
    """The result that a gRPC status (its name) stands for."""
    return _GRPC.get(status, Result.SERVER_ERROR)
