"""ModelInfer, and the inference requests of all inference methods.

An announced message is received straight into the slot of its request. The request may be refused
before the message is read. Clients announce it by metadata: `slacktide-bytes` (length of the
serialized message), `slacktide-model` and, optionally, `slacktide-model-version`, because gRPC
itself names the model only inside the message. The beginning of a long message also announces it,
if it names the model and the tensors come last; serializers write fields in the order of their
numbers. Any other request begins when its message is complete. Either way, a unary call's deadline
runs from its headers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.frontends.common.call_headers import context_of
from slacktide.frontends.common.load_reports import FORMAT_HEADER, report_trailer
from slacktide.frontends.common.refusals import Refusal, refusal_in, refusal_of
from slacktide.frontends.grpc.call import GrpcCall
from slacktide.frontends.grpc.intake import NOWHERE
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import InferenceCall
from slacktide.frontends.unpacking import DIRECT_BYTES, states_timeout
from slacktide.wire.calls import Buffer, InferReply
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import model_of, target_before_tensors, typed_bytes
from slacktide.wire.parameters import BYTES_HEADER, MODEL_KEY, VERSION_KEY, parse_length
from slacktide.wire.status import status_of

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

_BYTES, _MODEL, _VERSION = (name.encode() for name in (BYTES_HEADER, MODEL_KEY, VERSION_KEY))


class InferenceRpc(GrpcCall):
    """A call with inference requests. Each request calls `replied` or `turned_away`, once."""

    __slots__ = ()

    @abstractmethod
    def replied(self, request: InferRequest, reply: InferReply) -> None:
        """Answer a request with its reply."""

    @abstractmethod
    def turned_away(self, request: InferRequest, error: Exception) -> None:
        """Answer a request that ended with an error before it had a reply."""

    def _end(self, trailers: bytes, status: str) -> None:
        if self.state.limits.load_reports or FORMAT_HEADER in self.call_head.headers:
            trailers += report_trailer(self.state.data.offered_share())
        super()._end(trailers, status)


class InferRequest:
    """An inference request, from the beginning of its message to its reply."""

    __slots__ = (
        "_call", "_context", "_rpc", "_slot", "_submitted", "id", "model", "output_names",
        "version",
    )  # fmt: skip

    def __init__(
        self, rpc: InferenceRpc, transport: str, first_byte: float, budget_s: float | None
    ) -> None:
        protocol = rpc.protocol
        self._rpc = rpc
        self._context = context_of(
            rpc.call_head.headers, first_byte, protocol.client, transport, protocol.peer
        )
        self._context.transport_budget_s = budget_s
        self._call: InferenceCall | None = None
        """The call; None before the model is known and after the request has ended."""
        self._slot: memoryview | None = None
        """Memory for the message, once announced."""
        self._submitted = False
        self.model = self.id = ""
        self.version: str | None = None
        """The model's version; empty or None until known."""
        self.output_names: Sequence[str] = ()
        """Requested outputs; empty: all."""

    def _begin_call(self, model: str, version: str | None) -> InferenceCall:
        self.model, self.version = model, version
        call = self._call = self._rpc.state.data.call(model, version, self._context)
        return call

    def announce(self, model: str, version: str | None, length: int | bytes) -> None:
        """Announce a message of `length` bytes, or of the length in a header. Raises Refusal or
        WireError."""
        rpc = self._rpc
        call = self._begin_call(model, version)
        if isinstance(length, bytes):
            limit, length = rpc.state.limits.max_request_bytes, parse_length(BYTES_HEADER, length)
            if length > limit:
                raise BadField(BYTES_HEADER, f"at most {limit} bytes", length, Reason.TOO_LARGE)
        place = self._place(call, length)
        if isinstance(place, InferReply):
            self._call = None
            raise self.refusal_in(place)
        self._slot = place

    def _place(self, call: InferenceCall, length: int) -> memoryview | InferReply:
        return call.announce(length, self._rpc.call_head.parameters)

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        """Memory for a message with this `beginning`; None: any memory will do."""
        try:
            if self._slot is None and length > DIRECT_BYTES:
                target = target_before_tensors(beginning)
                if target is not None:
                    self.announce(*target, length)
            if self._slot is not None:
                self._slot = _part(self._slot, length)
        except (WireError, Refusal) as error:
            self.fail(error)
            return NOWHERE
        return self._slot

    def take(self, message: Buffer, start: int = 0) -> None:
        """Process the complete message, which from `start` on is a ModelInferRequest."""
        rpc = self._rpc
        try:
            if self._slot is not None and message is not self._slot:
                place = _part(self._slot, len(message))
                place[:] = message
                message = place
            if start:
                message = memoryview(message)[start:]
            if len(message) > DIRECT_BYTES and self._is_typed(message):
                rpc.later(self._unpack(message), self._submit, self.fail)
            else:
                self._submit(message)
        except Exception as error:
            self.fail(error)

    async def _unpack(self, message: Buffer) -> Buffer:
        """Convert typed contents to raw contents, in another process."""
        rpc, context = self._rpc, self._context
        since = rpc.state.clock()
        urgent = (
            context.transport_budget_s is not None
            or rpc.state.data.has_slo(self.model, self.version)
            or states_timeout(message)
        )
        raw = await rpc.state.unpacker.raw_form(message, rpc.protocol.client, urgent=urgent)
        context.read_s = rpc.state.clock() - since
        return raw

    def refusal_in(self, reply: InferReply) -> Refusal:
        """The refusal for a reply without outputs."""
        strict = self._rpc.state.limits.triton_strict
        return refusal_in(reply, triton_strict=strict, read_s=self._context.read_s)

    def _is_typed(self, message: Buffer) -> bool:
        """Whether `message` has long typed contents. Also begins the call, so that errors in them
        count for its model."""
        if self._call is None:
            self._begin_call(model_of(message), None)
        return typed_bytes(message) > DIRECT_BYTES

    def _submit(self, message: Buffer) -> None:
        rpc = self._rpc
        request = rpc.state.codec.read(message)
        self.id = request.id
        call = self._call
        if call is None or self._slot is None:
            call = self._begin_call(request.model, request.version)
        elif (request.model, request.version) != (self.model, self.version):
            key = MODEL_KEY if _MODEL in rpc.call_head.headers else "model_name"
            raise BadField(key, f"the message's model {request.model!r}", self.model)
        infer = request.call(rpc.call_head.parameters)
        self.output_names = infer.outputs
        call.submit(infer, self._reply)
        self._submitted = True

    def _reply(self, reply: InferReply) -> None:
        self._call = None
        self._rpc.replied(self, reply)

    def fail(self, error: Exception) -> None:
        """End with the refusal for `error`."""
        self.end(error)
        self._rpc.turned_away(self, error)

    def end(self, error: Exception) -> None:
        """Refuse or cancel the call because of `error`."""
        call, self._call = self._call, None
        if call is None:
            return
        if not isinstance(error, (WireError, Refusal)):
            call.cancel(Reason.RUNTIME_ERROR)
            return
        reason = error.reason or Reason.CLIENT_CANCELLED
        malformed = reason is Reason.TOO_LARGE or isinstance(error, WireError)
        if malformed and not self._submitted:
            call.refuse(reason, error.message)
        else:
            call.cancel(reason)

    def cancel(self, reason: Reason) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel(reason)


class StreamRpc(InferenceRpc):
    """A call with many inference requests, each answered when it finishes."""

    __slots__ = ("_draining", "_unsent_count")

    many = True

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> None:
        super().__init__(protocol, id, head, call_head)
        self._unsent_count = 0
        """Answers that may not have been sent completely."""
        self._draining = False

    @abstractmethod
    def answer_request(self, request: InferRequest, reply: InferReply) -> None:
        """Answer a request with its reply. An exception ends the call."""

    @abstractmethod
    def refuse_request(self, request: InferRequest, refusal: Refusal) -> None:
        """Answer a request with a refusal."""

    @abstractmethod
    def has_unanswered(self) -> bool:
        """Whether any request is unanswered."""

    def replied(self, request: InferRequest, reply: InferReply) -> None:
        turns = self.state.turns
        since = turns.clock()
        try:
            self.answer_request(request, reply)
        except Exception as error:
            self.fail(error)
        turns.charge(self.protocol.client, since)

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        if isinstance(error, (WireError, Refusal)):
            strict = self.state.limits.triton_strict
            self.refuse_request(request, refusal_of(error, triton_strict=strict))
        else:
            self.fail(error)

    def put_answer(self, pieces: Sequence[Buffer]) -> None:
        """Send an answer, in pieces, and process waiting messages."""
        self._unsent_count += 1
        self.write(pieces)
        if not self.unsent:
            self._unsent_count = 0
        self.go_on()

    def sent(self) -> None:
        if not self.unsent:
            self._unsent_count = 0
        super().sent()

    def settle(self) -> None:
        if not self.has_unanswered():
            if self.ended:
                self.finish()
            elif self._draining:
                self.refuse(Refusal(status_of(Reason.DRAINING), "the server is shutting down"))

    def drain(self) -> None:
        self._draining = True
        self.go_on()


class UnaryInfer(InferenceRpc):
    """A call of ModelInfer: one message in, one answer out."""

    __slots__ = ("_request",)

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, call_head: CallHead) -> None:
        super().__init__(protocol, id, head, call_head)
        self._request: InferRequest | None = None
        """None until the gate has let the call pass, and after its end (it refers to this call)."""

    def begin(self) -> None:
        headers = self.call_head.headers
        request = self._request = InferRequest(
            self, "grpc", self.first_byte, self.call_head.budget_s
        )
        if _BYTES in headers and _MODEL in headers:
            version = headers.get(_VERSION, b"").decode("latin-1") or None
            request.announce(headers[_MODEL].decode("latin-1"), version, headers[_BYTES])

    def place_for(self, length: int, beginning: memoryview) -> memoryview | None:
        return None if self._request is None else self._request.place_for(length, beginning)

    def message(self, message: Buffer) -> None:
        if self._request is not None:
            self._request.take(message)

    def replied(self, request: InferRequest, reply: InferReply) -> None:
        self.outcome = reply.outcome
        try:
            if reply.outputs is None:
                raise request.refusal_in(reply)
            self.answer(self.state.codec.reply_pieces(reply, request.output_names))
        except Exception as error:
            self.fail(error)

    def turned_away(self, request: InferRequest, error: Exception) -> None:
        self.fail(error)

    def failed(self, error: Exception) -> None:
        if self._request is not None:
            self._request.end(error)

    def cancelled(self, reason: Reason) -> None:
        if self._request is not None:
            self._request.cancel(reason)

    def about(self) -> tuple[str, str]:
        model, id = super().about()
        return (
            (model, id) if self._request is None else (self._request.model, self._request.id or id)
        )

    def _ended(self, status: str) -> None:
        super()._ended(status)
        self._request = None


def _part(slot: memoryview, length: int) -> memoryview:
    """The first `length` bytes of a slot. Raises BadField if it is shorter."""
    if length > len(slot):
        raise BadField(BYTES_HEADER, f"the message's {length} bytes", len(slot))
    return slot if length == len(slot) else slot[:length]
