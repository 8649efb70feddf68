"""ModelInfer, and what it has in common with a stream: an inference request.

A message that a client announces, by metadata or by its own beginning, comes into the slot of its
request. The metadata are `slacktide-bytes` (length of the serialized message), `slacktide-model`
and, if wanted, `slacktide-model-version` (gRPC itself names the model only inside the message): the
call is then known, and may be refused, before its body is read. The beginning of a long message
says the same where its model is named and its tensors come last: serializers write fields in the
order of their numbers. Any other request is known when its message is complete; a unary call's
deadline runs from its headers either way.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.frontends.common.call_headers import context_of
from slacktide.frontends.common.refusals import Refusal, refusal_in
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

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

_BYTES, _MODEL, _VERSION = (name.encode() for name in (BYTES_HEADER, MODEL_KEY, VERSION_KEY))


class InferenceRpc(GrpcCall):
    """A call with inference requests. Each tells it one of two things, once."""

    __slots__ = ()

    @abstractmethod
    def replied(self, request: InferRequest, reply: InferReply) -> None:
        """A request has its reply."""

    @abstractmethod
    def turned_away(self, request: InferRequest, error: Exception) -> None:
        """A request has ended with an error before it had one."""


class InferRequest:
    """One inference request, from the beginning of its message to its reply."""

    __slots__ = (
        "_call", "_context", "_rpc", "_slot", "_submitted", "id", "model", "version", "wanted",
    )  # fmt: skip

    def __init__(
        self, rpc: InferenceRpc, transport: str, first_byte: float, budget_s: float | None
    ) -> None:
        protocol = rpc.protocol
        self._rpc = rpc
        self._context = context_of(
            rpc.said.headers, first_byte, protocol.client, transport, protocol.peer
        )
        self._context.transport_budget_s = budget_s
        self._call: InferenceCall | None = None
        """None until its model is known, and once it has ended."""
        self._slot: memoryview | None = None
        """Where its message belongs, once announced."""
        self._submitted = False
        self.model = self.id = ""
        self.version: str | None = None
        """As far as they are known."""
        self.wanted: Sequence[str] = ()
        """Names of outputs."""

    def _know(self, model: str, version: str | None) -> InferenceCall:
        self.model, self.version = model, version
        call = self._call = self._rpc.state.data.call(model, version, self._context)
        return call

    def announce(self, model: str, version: str | None, length: int | bytes) -> None:
        """A message of that length is to come; bytes are a header that says it. Raises Refusal or
        WireError."""
        rpc = self._rpc
        call = self._know(model, version)
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
        return call.announce(length, self._rpc.said.parameters)

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        """Where the message belongs that has `begun`; None: anywhere."""
        try:
            if self._slot is None and length > DIRECT_BYTES:
                target = target_before_tensors(begun)
                if target is not None:
                    self.announce(*target, length)
            if self._slot is not None:
                self._slot = _part(self._slot, length)
        except (WireError, Refusal) as error:
            self.fail(error)
            return NOWHERE
        return self._slot

    def take(self, message: Buffer, start: int = 0) -> None:
        """The message is here; from `start` on it is a ModelInferRequest."""
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
        """Its typed contents as raw ones, made in another process."""
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
        """What it is told where it has no result."""
        strict = self._rpc.state.limits.triton_strict
        return refusal_in(reply, triton_strict=strict, read_s=self._context.read_s)

    def _is_typed(self, message: Buffer) -> bool:
        """Whether it has long typed contents. What is wrong with them is their model's."""
        if self._call is None:
            self._know(model_of(message), None)
        return typed_bytes(message) > DIRECT_BYTES

    def _submit(self, message: Buffer) -> None:
        rpc = self._rpc
        request = rpc.state.codec.read(message)
        self.id = request.id
        call = self._call
        if call is None or self._slot is None:
            call = self._know(request.model, request.version)
        elif (request.model, request.version) != (self.model, self.version):
            key = MODEL_KEY if _MODEL in rpc.said.headers else "model_name"
            raise BadField(key, f"the message's model {request.model!r}", self.model)
        infer = request.call(rpc.said.parameters)
        self.wanted = infer.outputs
        call.submit(infer, self._reply)
        self._submitted = True

    def _reply(self, reply: InferReply) -> None:
        self._call = None
        self._rpc.replied(self, reply)

    def fail(self, error: Exception) -> None:
        """It ends with what `error` means."""
        self.end(error)
        self._rpc.turned_away(self, error)

    def end(self, error: Exception) -> None:
        """Its call ends so."""
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


class UnaryInfer(InferenceRpc):
    """A call of ModelInfer: one message in, one answer out."""

    __slots__ = ("_request",)

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self._request: InferRequest | None = None
        """From the gate to the end: they refer to each other."""

    def begin(self) -> None:
        headers = self.said.headers
        request = self._request = InferRequest(self, "grpc", self.first_byte, self.said.budget_s)
        if _BYTES in headers and _MODEL in headers:
            version = headers.get(_VERSION, b"").decode("latin-1") or None
            request.announce(headers[_MODEL].decode("latin-1"), version, headers[_BYTES])

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        return None if self._request is None else self._request.place_for(length, begun)

    def message(self, message: Buffer) -> None:
        if self._request is not None:
            self._request.take(message)

    def replied(self, request: InferRequest, reply: InferReply) -> None:
        self.outcome = reply.outcome
        try:
            if reply.outputs is None:
                raise request.refusal_in(reply)
            self.answer(self.state.codec.reply_pieces(reply, request.wanted))
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
    """So much of what was announced. Raises BadField if it is less."""
    if length > len(slot):
        raise BadField(BYTES_HEADER, f"the message's {length} bytes", len(slot))
    return slot if length == len(slot) else slot[:length]
