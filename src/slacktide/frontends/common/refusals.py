"""`Refusal`: the reason why a client gets no result, independent of the protocol.

HTTP turns it into a response (http/messages.py), gRPC into a call's status (grpc/call.py).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slacktide.domain import Reason
from slacktide.wire.calls import InferReply
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.status import CONTROL_STATUS, WireStatus, microseconds, numbers_of, status_of

log = logging.getLogger("slacktide.server")

_FOR_LACK_OF_TIME = frozenset(
    (
        Reason.SHORTER_THAN_ALONE, Reason.EXPIRED, Reason.HOPELESS, Reason.CROWDED_OUT,
        Reason.BEHIND_OVERRUN, Reason.BEHIND_WORK,
    )
)  # fmt: skip
_NO_NUMBERS: Mapping[str, int] = {}


class Refusal(Exception):  # noqa: N818  # an answer, not an error of ours
    """A request that gets no result. The message goes to the client as it is."""

    def __init__(
        self,
        status: WireStatus,
        message: str,
        reason: Reason | None = None,
        retry_after_s: float | None = None,
        numbers: Mapping[str, int] = _NO_NUMBERS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason
        """Reason of the outcome, if the call has an outcome."""
        self.retry_after_s = retry_after_s
        self.numbers = numbers
        """See `numbers_of`."""


def refusal_of(error: Exception, *, triton_strict: bool = False, operation: str = "") -> Refusal:
    """The refusal for an exception raised in `operation`. Details of a bug go only to the log."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, WireError):
        reason = error.reason
        return Refusal(status_of(reason, triton_strict=triton_strict), error.message, reason)
    if isinstance(error, ControlError):
        return Refusal(CONTROL_STATUS[error.kind], str(error))
    log.error("%s failed", operation or "a request handler", exc_info=error)
    return Refusal(CONTROL_STATUS["internal"], "internal error")


def refusal_in(reply: InferReply, *, triton_strict: bool = False, read_s: float = 0.0) -> Refusal:
    """The refusal for a reply without outputs. `read_s`: seconds that reading the request took,
    which the message states if the request ran out of time."""
    reason = reply.outcome.reason
    status = status_of(reason, has_result=False, triton_strict=triton_strict)
    message = reply.message or reason.label.replace("_", " ")
    numbers = numbers_of(reply.outcome)
    if read_s and "budget_us" in numbers and reason in _FOR_LACK_OF_TIME:
        numbers["read_us"] = microseconds(read_s)
        message += f"; reading its values took {read_s * 1e3:.0f} ms: send binary data"
    return Refusal(status, message, reason, reply.retry_after_s, numbers)
