"""ModelStreamInfer: many requests in flight on one stream, answers as they finish.

What is unanswered or unsent is counted; beyond a limit messages wait (`intake.py`). A request's
clock starts when its message is complete, or when it begins if it is long; the stream's own gRPC
deadline limits every request on it.

A request that fails is answered with an `error_message` and the stream goes on, unless the client's
metadata says `triton_grpc_error: true`: then the first failure ends the stream with its status.
Each request gets exactly one answer, marked `triton_final_response`, so there is never an empty
final one to send: `triton_enable_empty_final_response` is accepted and changes nothing. When the
stream ends, whatever is unanswered is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.frontends.common.refusals import Refusal, refusal_of
from slacktide.frontends.grpc.inference import InferenceRpc, InferRequest
from slacktide.frontends.grpc.intake import NOWHERE
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.http2 import Head
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.wire.calls import Buffer, InferReply
from slacktide.wire.errors import WireError
from slacktide.wire.grpc_messages import REASON, encode_stream_error
from slacktide.wire.status import status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

GRPC_ERROR_KEY = b"triton_grpc_error"


class StreamInfer(InferenceRpc):
    """A call of ModelStreamInfer."""

    __slots__ = ("_coming", "_draining", "_strict", "_unanswered", "_unsent")

    many = True

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self._unanswered: dict[InferRequest, None] = {}
        """In the order they came."""
        self._unsent = 0
        """Answers that may not all have gone out."""
        self._coming: InferRequest | None = None
        """The one whose message has begun."""
        self._draining = False
        self._strict = self.state.limits.triton_strict

    # ---------------------------------------------------------------- requests

    def is_full(self) -> bool:
        return len(self._unanswered) + self._unsent >= self.state.settings.stream_in_flight

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        if self._draining:
            return NOWHERE
        if length <= DIRECT_BYTES:
            return None
        request = self._coming = self._begin()
        return request.place_for(length, begun)

    def message(self, message: Buffer) -> None:
        request, self._coming = self._coming, None
        if request is not None:
            request.take(message)
        else:
            self.taker()(message)

    def taker(self) -> Callable[[Buffer], None]:
        return self._pass_over if self._draining else self._begin().take

    def _pass_over(self, message: Buffer) -> None:
        """It came when no more requests were taken."""

    def _begin(self) -> InferRequest:
        """A request whose clock starts now."""
        now, budget = self.state.clock(), self.said.budget_s
        if budget is not None:
            budget = max(0.0, budget - (now - self.first_byte))
        request = InferRequest(self, "grpc-stream", now, budget)
        self._unanswered[request] = None
        return request

    # ---------------------------------------------------------------- answers

    def replied(self, request: InferRequest, reply: InferReply) -> None:
        turns = self.state.turns
        since = turns.clock()
        try:
            if reply.outputs is None:
                self._refuse(request, request.refusal_in(reply))
            else:
                pieces = self.state.codec.stream_reply_pieces(reply, request.wanted)
                self._answer(request, pieces)
        except Exception as error:
            self.fail(error)
        turns.spent(self.protocol.client, since)

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        if request is self._coming:
            self._coming = None
        if isinstance(error, (WireError, Refusal)):
            self._refuse(request, refusal_of(error, triton_strict=self._strict))
        else:
            self.fail(error)

    def _refuse(self, request: InferRequest, refusal: Refusal) -> None:
        if self.said.headers.get(GRPC_ERROR_KEY, b"").lower() == b"true":
            self.fail(refusal)
            return
        reason = "" if refusal.reason is None else refusal.reason.label
        error = encode_stream_error(
            refusal.message,
            model=request.model,
            version=request.version,
            id=request.id,
            parameters={REASON: reason, **refusal.numbers},
        )
        self._answer(request, [error])

    def _answer(self, request: InferRequest, pieces: list[Buffer]) -> None:
        del self._unanswered[request]
        self._unsent += 1
        self.write(pieces)
        if not self.unsent:
            self._unsent = 0
        self.go_on()

    def sent(self) -> None:
        if not self.unsent:
            self._unsent = 0
        super().sent()

    def settle(self) -> None:
        if not self._unanswered:
            if self.ended:
                self.finish()
            elif self._draining:
                self.refuse(Refusal(status_of(Reason.DRAINING), "the server is shutting down"))

    # ---------------------------------------------------------------- the end

    def drain(self) -> None:
        self._draining = True
        self.go_on()

    def cancelled(self, reason: Reason) -> None:
        requests, self._unanswered, self._coming = self._unanswered, {}, None
        for request in requests:
            request.cancel(Reason.CLIENT_CANCELLED)
