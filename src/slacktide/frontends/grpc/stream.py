"""ModelStreamInfer: many requests in flight on one stream, each answered when it finishes.

Messages wait while too many requests are unanswered or have unsent answers (`intake.py`). A
request's clock starts when its message is complete, or with its first bytes if it is long. The
stream's own gRPC deadline limits every request on it.

A failed request is answered with an `error_message` and the stream continues, unless the client's
metadata has `triton_grpc_error: true`: then the first failure ends the stream with its status. Each
request gets exactly one answer, marked `triton_final_response`. So there is never an empty final
response, and `triton_enable_empty_final_response` is accepted without effect. When the stream ends,
unanswered requests are cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.frontends.common.refusals import Refusal
from slacktide.frontends.grpc.inference import InferRequest, StreamRpc
from slacktide.frontends.grpc.intake import NOWHERE
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.http2 import Head
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.wire.calls import Buffer, InferReply
from slacktide.wire.grpc_messages import REASON, encode_stream_error

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

GRPC_ERROR_KEY = b"triton_grpc_error"


class StreamInfer(StreamRpc):
    """A call of ModelStreamInfer."""

    __slots__ = ("_current", "_unanswered")

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> None:
        super().__init__(protocol, id, head, call_head)
        self._unanswered: dict[InferRequest, None] = {}
        """Unanswered requests in order of arrival."""
        self._current: InferRequest | None = None
        """The request whose message is arriving."""

    # ---------------------------------------------------------------- requests

    def is_full(self) -> bool:
        return len(self._unanswered) + self._unsent_count >= self.state.settings.stream_in_flight

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        if self._draining:
            return NOWHERE
        if length <= DIRECT_BYTES:
            return None
        request = self._current = self._begin()
        return request.place_for(length, beginning)

    def message(self, message: Buffer) -> None:
        request, self._current = self._current, None
        if request is not None:
            request.take(message)
        else:
            self.taker()(message)

    def taker(self) -> Callable[[Buffer], None]:
        return self._pass_over if self._draining else self._begin().take

    def _pass_over(self, message: Buffer) -> None:
        """Discard a message that came while draining."""

    def _begin(self) -> InferRequest:
        """Begin a request, whose clock starts now."""
        now, budget = self.state.clock(), self.call_head.budget_s
        if budget is not None:
            budget = max(0.0, budget - (now - self.first_byte))
        request = InferRequest(self, "grpc-stream", now, budget)
        self._unanswered[request] = None
        return request

    # ---------------------------------------------------------------- answers

    def answer_request(self, request: InferRequest, reply: InferReply) -> None:
        if reply.outputs is None:
            self.refuse_request(request, request.refusal_in(reply))
        else:
            pieces = self.state.codec.stream_reply_pieces(reply, request.output_names)
            self._answer(request, pieces)

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        if request is self._current:
            self._current = None
        super().turned_away(request, error)

    def refuse_request(self, request: InferRequest, refusal: Refusal) -> None:
        if self.call_head.headers.get(GRPC_ERROR_KEY, b"").lower() == b"true":
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
        self.put_answer(pieces)

    def has_unanswered(self) -> bool:
        return bool(self._unanswered)

    def cancelled(self, reason: Reason) -> None:
        requests, self._unanswered, self._current = self._unanswered, {}, None
        for request in requests:
            request.cancel(Reason.CLIENT_CANCELLED)
