"""How a request ends: exactly one `Outcome`, with a `Reason`.

A caller first asks "what became of my request?" (`OutcomeKind`) and then "why?" (`Reason`). Every
reason belongs to exactly one kind. Both are independent of protocols: each front end has one table
from reason to status code.
"""

from __future__ import annotations

from enum import Enum

from slacktide.domain.read_only import read_only


class OutcomeKind(Enum):
    """The ways in which a request can end."""

    SERVED = "served"
    """Answered before its deadline (or at any time, if it is best effort)."""
    LATE = "late"
    """Computed, but after its deadline."""
    DROPPED = "dropped"
    """Given up, because it could no longer be on time."""
    REJECTED = "rejected"
    """Refused for load, limits or bad input."""
    FAILED = "failed"
    """The model crashed or raised an error."""
    CANCELLED = "cancelled"
    """Withdrawn by its client."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is slower Python code


class Reason(Enum):
    """Why a request ended as it did; `kind` is the kind of its outcome."""

    _value_: tuple[str, OutcomeKind]
    label: str
    kind: OutcomeKind

    ON_TIME = ("on_time", OutcomeKind.SERVED)
    EARLY_EXIT = ("early_exit", OutcomeKind.SERVED)
    """On time, answered by a ramp inside the model that was confident enough."""
    PARTIAL = ("partial", OutcomeKind.SERVED)
    """On time, but with only the complete stages of a pipeline; the detail names the others."""

    AFTER_DEADLINE = ("after_deadline", OutcomeKind.LATE)

    SHORTER_THAN_ALONE = ("shorter_than_alone", OutcomeKind.DROPPED)
    """The budget is less than the model takes for this request alone."""
    EXPIRED = ("expired", OutcomeKind.DROPPED)
    """The deadline passed while the request waited."""
    HOPELESS = ("hopeless", OutcomeKind.DROPPED)
    """P(on time) fell below the scheduler's drop level while the request waited."""
    CROWDED_OUT = ("crowded_out", OutcomeKind.DROPPED)
    """It was admitted, but work ahead of it took longer and left no time for it."""
    BEHIND_OVERRUN = ("behind_overrun", OutcomeKind.DROPPED)
    """The batch ahead took longer than planned, and the policy had planned this request for the
    next batch."""

    BEHIND_WORK = ("behind_work", OutcomeKind.REJECTED)
    """The work ahead of it leaves too little time to meet its deadline."""
    QUEUE_FULL = ("queue_full", OutcomeKind.REJECTED)
    MEMORY_LIMIT = ("memory_limit", OutcomeKind.REJECTED)
    CLIENT_LIMIT = ("client_limit", OutcomeKind.REJECTED)
    """The client has more requests or bytes in flight than it may have."""
    DRAINING = ("draining", OutcomeKind.REJECTED)
    """The server is shutting down, or the model is being unloaded."""
    CRASHED_BEFORE = ("crashed_before", OutcomeKind.REJECTED)
    """The same input crashed the model recently."""
    CONNECTION_BLOCKED = ("connection_blocked", OutcomeKind.REJECTED)
    """Several inputs from this connection crashed the model recently."""
    UNMEASURED = ("unmeasured", OutcomeKind.REJECTED)
    """Its run time cannot be predicted, and the model guarantees its p99."""
    UNAVAILABLE = ("unavailable", OutcomeKind.REJECTED)
    """The model is not loaded, still loading, or down."""
    BAD_INPUT = ("bad_input", OutcomeKind.REJECTED)
    NOT_FOUND = ("not_found", OutcomeKind.REJECTED)
    TOO_LARGE = ("too_large", OutcomeKind.REJECTED)

    CRASHED = ("crashed", OutcomeKind.FAILED)
    """Twice, a replica died while it ran this request."""
    RUNTIME_ERROR = ("runtime_error", OutcomeKind.FAILED)
    """The model raised an error on this request."""

    CLIENT_CANCELLED = ("client_cancelled", OutcomeKind.CANCELLED)
    DISCONNECTED = ("disconnected", OutcomeKind.CANCELLED)
    NO_BODY = ("no_body", OutcomeKind.CANCELLED)
    """The request was announced, but its body never came."""

    __hash__ = object.__hash__


for _reason in Reason:  # read for every request; an attribute costs a third of a property
    _reason.label, _reason.kind = _reason._value_


@read_only
class Outcome:
    """The end of a request.

    `queue_s` lasts from arrival to the start of the batch that answered it, `compute_s` from then
    to the answer (both 0 if it never ran). `budget_s` is deadline − end: negative if late, None for
    best effort. If a request ended for lack of time, `needed_s` is the time that it needs alone,
    and `wait_s` the predicted time until a lane was free for it; None if the policy did not predict
    them. `ramp` is the position of the early exit that answered it, None if none did. `detail` is
    part of recordings, which replay bit for bit, so its texts must not change.
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
    """Tell a client its outcome. Sent once for each request. Code passes all fields by position,
    which is twice as fast."""

    id: int = 0
    """Id of the request."""
    cause: int = 0
    """See commands.py."""


@read_only
class AnswerFrame(Outcome):
    """Tell a client the outcome of its frame. Sent once for each frame. The answer holds the
    outputs of complete stages, even if the reason is `partial`."""

    id: int = 0
    pipeline: str = ""
    missing: tuple[str, ...] = ()
    """Incomplete stages, in order."""
