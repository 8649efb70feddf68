"""How a request ends: exactly one `Outcome`, with a `Reason`.

The first question of a caller is "what became of my request?" (`OutcomeKind`), the second
"why?" (`Reason`). Every reason belongs to exactly one kind. Neither knows a protocol: each front
end holds one table from reason to status code.
"""

from __future__ import annotations

from enum import Enum

from slacktide.domain.read_only import read_only


class OutcomeKind(Enum):
    """What became of a request."""

    SERVED = "served"
    """Answered before its deadline (or at any time, if it is best effort)."""
    LATE = "late"
    """Computed, but after its deadline."""
    DROPPED = "dropped"
    """Given up: it could no longer be on time."""
    REJECTED = "rejected"
    """Refused for load, limits or bad input."""
    FAILED = "failed"
    """The model crashed or raised."""
    CANCELLED = "cancelled"
    """Withdrawn by its client."""

    __hash__ = object.__hash__  # members are single; Enum's own hashes the name, in Python


class Reason(Enum):
    """Why a request ended as it did; `kind` says as what."""

    _value_: tuple[str, OutcomeKind]
    label: str
    kind: OutcomeKind

    ON_TIME = ("on_time", OutcomeKind.SERVED)
    EARLY_EXIT = ("early_exit", OutcomeKind.SERVED)
    """On time as well: a ramp in the middle of the model was sure enough."""
    PARTIAL = ("partial", OutcomeKind.SERVED)
    """On time, with what was complete of a pipeline: the detail names the other stages."""

    AFTER_DEADLINE = ("after_deadline", OutcomeKind.LATE)

    SHORTER_THAN_ALONE = ("shorter_than_alone", OutcomeKind.DROPPED)
    """The budget is below what the model needs for this request alone."""
    EXPIRED = ("expired", OutcomeKind.DROPPED)
    """The deadline passed while the request waited."""
    HOPELESS = ("hopeless", OutcomeKind.DROPPED)
    """P(on time) fell below the scheduler's drop level while the request waited."""
    CROWDED_OUT = ("crowded_out", OutcomeKind.DROPPED)
    """It was admitted, but the work ahead of it took longer and left it no place."""
    BEHIND_OVERRUN = ("behind_overrun", OutcomeKind.DROPPED)
    """The batch ahead took longer than planned, and the policy had planned this one behind it."""

    BEHIND_WORK = ("behind_work", OutcomeKind.REJECTED)
    """Cannot be met behind the work that is ahead of it."""
    QUEUE_FULL = ("queue_full", OutcomeKind.REJECTED)
    MEMORY_LIMIT = ("memory_limit", OutcomeKind.REJECTED)
    CLIENT_LIMIT = ("client_limit", OutcomeKind.REJECTED)
    """More requests or bytes in flight than one client may have."""
    DRAINING = ("draining", OutcomeKind.REJECTED)
    """The server is shutting down, or the model is being unloaded."""
    CRASHED_BEFORE = ("crashed_before", OutcomeKind.REJECTED)
    """The same input has crashed the model lately."""
    CONNECTION_BLOCKED = ("connection_blocked", OutcomeKind.REJECTED)
    """Several inputs that came over this connection have."""
    UNMEASURED = ("unmeasured", OutcomeKind.REJECTED)
    """Its run time cannot be judged, and the model guarantees its p99."""
    UNAVAILABLE = ("unavailable", OutcomeKind.REJECTED)
    """The model is not loaded, still loading, or down."""
    BAD_INPUT = ("bad_input", OutcomeKind.REJECTED)
    NOT_FOUND = ("not_found", OutcomeKind.REJECTED)
    TOO_LARGE = ("too_large", OutcomeKind.REJECTED)

    CRASHED = ("crashed", OutcomeKind.FAILED)
    """The replica died under this request twice."""
    RUNTIME_ERROR = ("runtime_error", OutcomeKind.FAILED)
    """The model raised on this request."""

    CLIENT_CANCELLED = ("client_cancelled", OutcomeKind.CANCELLED)
    DISCONNECTED = ("disconnected", OutcomeKind.CANCELLED)
    NO_BODY = ("no_body", OutcomeKind.CANCELLED)
    """Announced, but its body never came."""

    __hash__ = object.__hash__


for _reason in Reason:  # read for each request: attributes cost a third of properties
    _reason.label, _reason.kind = _reason._value_


@read_only
class Outcome:
    """The one end of a request.

    `queue_s` runs from arrival to the start of the batch that answered it, `compute_s` from
    there to the answer (both 0 if it never ran); `budget_s` is deadline − end, negative if
    late, None for best effort. Where a request ended for lack of time, `needed_s` is what it had to
    have left even alone, and `wait_s` the time until a lane was expected to take it, as the policy
    reckoned; None where it did not. `ramp` is the position of the early exit that answered it, None
    if none did.
    """

    reason: Reason
    at: float
    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0
    budget_s: float | None = None
    detail: str = ""
    needed_s: float | None = None
    wait_s: float | None = None
    ramp: int | None = None

    @property
    def kind(self) -> OutcomeKind:
        return self.reason.kind


@read_only
class Answer(Outcome):
    """The engine's command to tell a client its outcome. Sent once for each request. All fields are
    always given, by position: that is twice as fast."""

    id: int = 0
    """Of the request."""
    cause: int = 0
    """See commands.py."""


@read_only
class AnswerFrame(Outcome):
    """The outcome of a frame. Sent once for each. What its children gave is the answer, also where
    the reason is `partial`."""

    id: int = 0
    pipeline: str = ""
    missing: tuple[str, ...] = ()
    """Stages that are not complete, in order."""
