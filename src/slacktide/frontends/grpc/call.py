"""`GrpcCall`: one gRPC call, which is a stream of HTTP/2, and the frame around every method.

A call is judged at its headers: the gate first, then the method. Its messages come one by one
(`intake.py`). An answer is headers, messages, and trailers with the status; a refusal trailers
alone. Everything runs in callbacks on the loop. What a callback raises ends the call with its
status.
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
    """A call in progress. Subclasses take messages and answer."""

    __slots__ = ("_begun", "_leaving", "_logged", "_put_out", "first_byte", "model", "outcome")

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self.first_byte = protocol.now
        """Monotonic seconds when its headers arrived."""
        self.model = ""
        """For the log."""
        self.outcome: Outcome | None = None
        """Of a call that is one request."""
        self._leaving = 0
        """Bytes of the common buffer that answers hold."""
        self._put_out = 0
        """Bytes of answers since it was last flushed."""
        self._begun = self._logged = False

    # ---------------------------------------------------------------- for subclasses to take

    def begin(self) -> None:
        """The gate has let it pass. What this raises ends the call."""

    def cancelled(self, reason: Reason) -> None:
        """It ends without an answer, or with a refusal."""

    def failed(self, error: Exception) -> None:
        """It ends with the refusal that `error` means."""
        self.cancelled(Reason.RUNTIME_ERROR)

    def drain(self) -> None:
        """The server takes no more requests."""

    def about(self) -> tuple[str, str]:
        """Model and request id, for the log."""
        return self.model, self.said.headers.get(b"x-request-id", b"").decode("latin-1")

    # ---------------------------------------------------------------- its beginning, and the clock

    def opened(self) -> None:
        said, state = self.said, self.state
        state.calls += 1
        try:
            if said.http_status != 200:
                self._begun = True  # a client that does not speak gRPC: HTTP's status is all
                self._end(header_block(said.http_status, ()), str(said.http_status))
                return
            method = said.method
            if method is not None and state.authorize is not None:
                # Browsers do not speak gRPC, so no page is behind its `:authority`, and what comes
                # through a proxy has its Origin. A content type of pages has been refused.
                verdict = state.authorize(method.group, said.headers)
                if verdict is not Verdict.PASS:
                    name = "UNAUTHENTICATED" if verdict.status == 401 else "PERMISSION_DENIED"
                    raise Refusal(WireStatus(verdict.status, name), verdict.value)
            if state.calls > state.settings.max_calls:
                message = "there are too many calls at a time"
                raise Refusal(status_of(Reason.CLIENT_LIMIT), message, Reason.CLIENT_LIMIT)
            if said.error is not None:
                self.fail(said.error)  # not raised: it would keep the frames of every call
                return
            self.begin()
        except Exception as error:
            self.fail(error)

    def check(self, now: float) -> None:
        """Look at the clock."""
        limits, budget = self.state.limits, self.said.budget_s
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

    # ---------------------------------------------------------------- what goes out

    def answer(self, pieces: Sequence[Buffer]) -> None:
        """The one answer of a unary call, in pieces."""
        if not self.finished:
            self._put(pieces)
            self._end(_OK_TRAILERS, "OK")

    def write(self, pieces: Sequence[Buffer]) -> None:
        """One of many answers, in pieces."""
        if not self.finished:
            self._put(pieces)
            self._flush()

    def finish(self) -> None:
        """The end of many answers."""
        if not self.finished:
            self._end(_OK_TRAILERS, "OK")

    def fail(self, error: Exception) -> None:
        if self.finished:
            if not isinstance(error, (WireError, Refusal)):
                refusal_of(error, operation=self.said.name)
            return
        self.failed(error)
        if not self.finished:
            strict = self.state.limits.triton_strict
            self.refuse(refusal_of(error, triton_strict=strict, operation=self.said.name))

    def refuse(self, refusal: Refusal) -> None:
        """End with a status."""
        if self.outcome is None and refusal.reason is not None:
            self.outcome = Outcome(refusal.reason, self.first_byte)
        self._end(header_block(None, trailers_of(refusal)), refusal.status.grpc)

    def _put(self, pieces: Sequence[Buffer]) -> None:
        connection, size = self.connection, sum(map(len, pieces))
        if not self._begun:
            self._begun = True
            connection.begin(self, _ANSWER_HEAD)
        connection.send(self, [PREFIX.pack(0, size), *pieces], PREFIX.size + size)
        self._put_out += size

    def _end(self, trailers: bytes, status: str) -> None:
        self.connection.finish(self, trailers if self._begun else _ANSWER_HEAD + trailers)
        self._ended(status)
        self._flush()

    def _flush(self) -> None:
        """Send what has been put out. What a client does not take is counted: beyond its part of
        memory, it does without."""
        if not self.unsent:
            self._put_out = 0
            self.protocol.flush_soon()
            return
        self.protocol.flush()
        size, self._put_out = self._put_out, 0
        if self.unsent:
            try:
                self.state.hold(self.protocol.client, size)
                self._leaving += size
            except WireError:
                self.connection.reset(self, ErrorCode.ENHANCE_YOUR_CALM)
                self.protocol.flush_soon()

    def sent(self) -> None:
        if not self.unsent:
            self._release(self._leaving)
            self._leaving = 0
            if self.many:
                self.go_on()

    # ---------------------------------------------------------------- its end

    def aborted(self) -> None:
        if not self._logged:
            try:
                self.cancelled(Reason.CLIENT_CANCELLED if self.whole else Reason.NO_BODY)
            except Exception as error:
                refusal_of(error, operation=self.said.name)
            self._ended("CANCELLED")
        self._release(self._leaving)
        self._leaving = 0

    def _ended(self, status: str) -> None:
        """It has its status."""
        self._logged = True
        self.let_all_go()
        state = self.state
        state.calls -= 1
        if state.access_log is not None:
            seconds = state.clock() - self.first_byte
            client, name, (model, id) = self.protocol.client, self.said.name, self.about()
            method = self.said.method
            health = method is not None and method.group is EndpointGroup.HEALTH
            state.log_access(
                AccessRecord(
                    "grpc", client, name, model, status, seconds, id, None, "", self.outcome, health
                )
            )
