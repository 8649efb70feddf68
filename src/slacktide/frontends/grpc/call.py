"""`GrpcCall`: a gRPC call, which is an HTTP/2 stream, and what all methods have in common.

Once its headers have arrived, a call is judged by the gate, then begun by its method. Its messages
come one by one (`intake.py`). An answer is headers, messages and trailers with the status; a
refusal is trailers alone. Everything runs in callbacks on the loop. An exception in a callback ends
the call with the matching status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slacktide.domain import Outcome, Reason
from slacktide.frontends.common.connection import waited
from slacktide.frontends.common.refusals import Refusal, refusal_of
from slacktide.frontends.common.security import Verdict
from slacktide.frontends.grpc.intake import PREFIX, MessageIntake
from slacktide.frontends.grpc.metadata import CONTENT_TYPE, CallHead, trailers_of
from slacktide.frontends.http2 import ErrorCode, Head
from slacktide.frontends.http2.frames import header_block
from slacktide.frontends.ports import AccessRecord, EndpointGroup
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import WireError
from slacktide.wire.status import WireStatus, status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

_ANSWER_HEAD = header_block(200, (CONTENT_TYPE,))
_OK_TRAILERS = header_block(None, ((b"grpc-status", b"0"),))


class GrpcCall(MessageIntake):
    """A call in progress. Subclasses process messages and answer."""

    __slots__ = (
        "_answer_bytes", "_answering", "_logged", "_unflushed", "first_byte", "model", "outcome",
    )  # fmt: skip

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> None:
        super().__init__(protocol, id, head, call_head)
        self.first_byte = protocol.now
        """Time at which its headers arrived, in monotonic seconds."""
        self.model = ""
        """The model's name, for the access log."""
        self.outcome: Outcome | None = None
        """Outcome of a call that is one inference request."""
        self._answer_bytes = 0
        """Bytes charged to the shared memory limits for unsent answers."""
        self._unflushed = 0
        """Bytes of answers since the last flush."""
        self._answering = self._logged = False

    # ---------------------------------------------------------------- for subclasses to override

    def begin(self) -> None:
        """Called once the call has passed the gate. An exception ends the call."""

    def cancelled(self, reason: Reason) -> None:
        """Called when the call ends without an answer, or with a refusal."""

    def failed(self, error: Exception) -> None:
        """Called when the call is about to end with the refusal for `error`."""
        self.cancelled(Reason.RUNTIME_ERROR)

    def drain(self) -> None:
        """Called when the server accepts no more requests."""

    def about(self) -> tuple[str, str]:
        """The model and request id, for the access log."""
        return self.model, self.call_head.headers.get(b"x-request-id", b"").decode("latin-1")

    # ---------------------------------------------------------------- beginning and clock

    def opened(self) -> None:
        call_head, state = self.call_head, self.state
        state.calls += 1
        try:
            if call_head.http_status != 200:
                self._answering = True  # the client does not speak gRPC: send HTTP's status alone
                self._end(header_block(call_head.http_status, ()), str(call_head.http_status))
                return
            method = call_head.method
            if method is not None and state.authorize is not None:
                # Browsers do not speak gRPC, so `:authority` does not name a page; calls through a
                # proxy carry the page's Origin. Content types of pages are refused above.
                require_pass(state.authorize(method.group, call_head.headers))
            if state.calls > state.settings.max_calls:
                message = "too many concurrent calls"
                raise Refusal(status_of(Reason.CLIENT_LIMIT), message, Reason.CLIENT_LIMIT)
            if call_head.error is not None:
                self.fail(
                    call_head.error
                )  # raising it would add every call's frames to its traceback
                return
            self.begin()
        except Exception as error:
            self.fail(error)

    def check(self, now: float) -> None:
        """Enforce the call's deadline and timeouts."""
        limits, budget = self.state.limits, self.call_head.budget_s
        if self.finished:
            return
        if budget is not None and now - self.first_byte >= budget:
            message = "the deadline has passed"
            self.fail(Refusal(status_of(Reason.EXPIRED), message, Reason.EXPIRED))
        elif self.since is not None:
            allowed = limits.body_timeout_s + self.filled / limits.min_body_rate
            if waited(max(self.since, self.protocol.reading_since), now) >= allowed:
                message = "the message did not arrive in time"
                self.fail(Refusal(status_of(Reason.NO_BODY), message, Reason.NO_BODY))

    # ---------------------------------------------------------------- answers

    def answer(self, pieces: Sequence[Buffer]) -> None:
        """Send the only answer of a unary call, in pieces."""
        if not self.finished:
            self._put(pieces)
            self._end(_OK_TRAILERS, "OK")

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Send one of many answers, in pieces."""
        if not self.finished:
            self._put(pieces)
            self._flush()

    def finish(self) -> None:
        """End a call with many answers."""
        if not self.finished:
            self._end(_OK_TRAILERS, "OK")

    def fail(self, error: Exception) -> None:
        if self.finished:
            if not isinstance(error, (WireError, Refusal)):
                refusal_of(error, operation=self.call_head.name)
            return
        self.failed(error)
        if not self.finished:
            strict = self.state.limits.triton_strict
            self.refuse(refusal_of(error, triton_strict=strict, operation=self.call_head.name))

    def refuse(self, refusal: Refusal) -> None:
        """End with the status of a refusal."""
        if self.outcome is None and refusal.reason is not None:
            self.outcome = Outcome(refusal.reason, self.first_byte)
        self._end(header_block(None, trailers_of(refusal)), refusal.status.grpc)

    def _put(self, pieces: Sequence[Buffer]) -> None:
        connection, size = self.connection, sum(map(len, pieces))
        if not self._answering:
            self._answering = True
            connection.begin(self, _ANSWER_HEAD)
        connection.send(self, [PREFIX.pack(0, size), *pieces], PREFIX.size + size)
        self._unflushed += size

    def _end(self, trailers: bytes, status: str) -> None:
        self.connection.finish(self, trailers if self._answering else _ANSWER_HEAD + trailers)
        self._ended(status)
        self._flush()

    def _flush(self) -> None:
        """Send the answers put so far. Answers that a client does not read are charged to the
        client; beyond its limit the call is reset."""
        if not self.unsent:
            self._unflushed = 0
            self.protocol.flush_soon()
            return
        self.protocol.flush()
        size, self._unflushed = self._unflushed, 0
        if self.unsent:
            try:
                self.state.hold(self.protocol.client, size)
                self._answer_bytes += size
            except WireError:
                self.connection.reset(self, ErrorCode.ENHANCE_YOUR_CALM)
                self.protocol.flush_soon()

    def sent(self) -> None:
        if not self.unsent:
            self._release(self._answer_bytes)
            self._answer_bytes = 0
            if self.many:
                self.go_on()

    # ---------------------------------------------------------------- end

    def aborted(self) -> None:
        if not self._logged:
            try:
                self.cancelled(Reason.CLIENT_CANCELLED if self.whole else Reason.NO_BODY)
            except Exception as error:
                refusal_of(error, operation=self.call_head.name)
            self._ended("CANCELLED")
        self._release(self._answer_bytes)
        self._answer_bytes = 0

    def _ended(self, status: str) -> None:
        """Record the status with which the call has ended."""
        self._logged = True
        self.let_all_go()
        self.state.calls -= 1
        if self.state.access_log is not None:
            self._log(status)

    def _log(self, status: str) -> None:
        state = self.state
        seconds = state.clock() - self.first_byte
        client, name, (model, id) = self.protocol.client, self.call_head.name, self.about()
        method = self.call_head.method
        health = method is not None and method.group is EndpointGroup.HEALTH
        state.log_access(
            AccessRecord(
                "grpc", client, name, model, status, seconds, id, None, "", self.outcome, health
            )
        )


def require_pass(verdict: Verdict) -> None:
    """Raise Refusal unless credentials pass."""
    if verdict is not Verdict.PASS:
        name = "UNAUTHENTICATED" if verdict.status == 401 else "PERMISSION_DENIED"
        raise Refusal(WireStatus(verdict.status, name), verdict.value)
