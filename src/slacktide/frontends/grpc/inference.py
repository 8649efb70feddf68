"""ModelInfer: one message in, one answer out.

A client may announce its message before sending it: metadata `slacktide-bytes` (length of the
serialized message), `slacktide-model` and, if wanted, `slacktide-model-version` (gRPC itself names
the model only inside the message). The call is then known, and may be refused, before its body is
read. A long message that is not announced is known by its beginning, where its model is named and
its tensors begin: serializers write fields in the order of their numbers. In both cases it comes
into the slot of its request. Any other call is known when its message is complete; its deadline
runs from its headers either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slacktide.domain import Reason
from slacktide.frontends.call_headers import context_of
from slacktide.frontends.grpc.call import GrpcCall
from slacktide.frontends.grpc.metadata import CallHead
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import InferenceCall
from slacktide.frontends.refusals import Refusal, refusal_in
from slacktide.frontends.unpacking import DIRECT_BYTES
from slacktide.wire.calls import Buffer, CallContext, InferReply
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import model_of, target_before_tensors, typed_bytes
from slacktide.wire.parameters import BYTES_HEADER, MODEL_KEY, VERSION_KEY, parse_length

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

_BYTES, _MODEL, _VERSION = (name.encode() for name in (BYTES_HEADER, MODEL_KEY, VERSION_KEY))


class UnaryInfer(GrpcCall):
    """A call of ModelInfer."""

    __slots__ = ("_call", "_context", "_slot", "_submitted", "_told", "_wanted")

    def __init__(self, protocol: GrpcConnection, id: int, head: Head, said: CallHead) -> None:
        super().__init__(protocol, id, head, said)
        self._context: CallContext
        self._call: InferenceCall | None = None
        """None until its model is known, and once it has ended."""
        self._slot: memoryview | None = None
        """Where its message belongs, once announced."""
        self._told: tuple[str, str | None] | None = None
        """Model and version that it was announced for."""
        self._wanted: Sequence[str] = ()
        self._submitted = False

    def begin(self) -> None:
        protocol, headers = self.protocol, self.said.headers
        context = self._context = context_of(
            headers, self.first_byte, protocol.client, "grpc", protocol.peer
        )
        context.transport_budget_s = self.said.budget_s
        if _BYTES in headers and _MODEL in headers:
            version = headers.get(_VERSION, b"").decode("latin-1") or None
            self._know(headers[_MODEL].decode("latin-1"), version)
            length = parse_length(BYTES_HEADER, headers[_BYTES])
            limit = self.state.limits.max_request_bytes
            if length > limit:
                raise BadField(BYTES_HEADER, f"at most {limit} bytes", length, Reason.TOO_LARGE)
            self._announce(length)

    def _know(self, model: str, version: str | None) -> InferenceCall:
        self.model, self._told = model, (model, version)
        call = self._call = self.state.data.call(model, version, self._context)
        return call

    def _announce(self, length: int) -> None:
        assert self._call is not None
        place = self._call.announce(length, self.said.parameters)
        if isinstance(place, InferReply):
            self._call = None
            raise refusal_in(place, triton_strict=self.state.limits.triton_strict)
        self._slot = place

    def place_for(self, length: int, begun: memoryview) -> memoryview | None:
        if self._slot is None and length > DIRECT_BYTES:
            target = target_before_tensors(begun)
            if target is not None:
                self._know(*target)
                self._announce(length)
        if self._slot is not None:
            self._slot = _part(self._slot, length)
        return self._slot

    def message(self, message: Buffer) -> None:
        if self._slot is not None and message is not self._slot:
            place = _part(self._slot, len(message))
            place[:] = message
            message = place
        if len(message) > DIRECT_BYTES and self._is_typed(message):
            unpacked = self.state.unpacker.raw_form(message, self.protocol.client)
            self.later(unpacked, self._submit)
        else:
            self._submit(message)

    def _is_typed(self, message: Buffer) -> bool:
        """Whether it has long typed contents. They, or what is wrong, are its model's."""
        try:
            typed = typed_bytes(message) > DIRECT_BYTES
        except WireError:
            if self._call is None:
                self._know(model_of(message), None)
            raise
        if typed and self._call is None:
            self._know(model_of(message), None)
            self._told = None
        return typed

    def _submit(self, message: Buffer) -> None:
        request = self.state.codec.read(message)
        if request.id:
            self.request_id = request.id
        call, target = self._call, (request.model, request.version)
        if call is None or self._told is None:
            call = self._know(*target)
        elif target != self._told:
            key = MODEL_KEY if _MODEL in self.said.headers else "model_name"
            raise BadField(key, f"the message's model {request.model!r}", self._told[0])
        infer = request.call(self.said.parameters)
        self._wanted = infer.outputs
        call.submit(infer, self._reply)
        self._submitted = True

    def _reply(self, reply: InferReply) -> None:
        self._call = None
        self.outcome = reply.outcome
        try:
            if reply.outputs is None:
                raise refusal_in(reply, triton_strict=self.state.limits.triton_strict)
            self.answer(self.state.codec.reply_pieces(reply, self._wanted))
        except Exception as error:
            self.fail(error)

    def failed(self, error: Exception) -> None:
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

    def cancelled(self, reason: Reason) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel(reason)


def _part(slot: memoryview, length: int) -> memoryview:
    """So much of what was announced. Raises BadField if it is less."""
    if length > len(slot):
        raise BadField(BYTES_HEADER, f"the message's {length} bytes", len(slot))
    return slot if length == len(slot) else slot[:length]
