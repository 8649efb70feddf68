"""ModelInfer: one message in, one answer out.

A client may announce its message before sending it: metadata `slacktide-bytes`
(length of the serialized message), `slacktide-model` and, if wanted, `slacktide-model-version`
(gRPC itself names the model only inside the message). The call is then known, and may be refused,
before its body is read. Without these the call is known when its message is complete; its deadline
runs from its metadata either way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from slacktide.domain import Reason
from slacktide.frontends.grpc.rpc import GrpcCall
from slacktide.frontends.ports import DataPlane, InferenceCall
from slacktide.frontends.refusals import refusal_in
from slacktide.frontends.unpacking import DIRECT_BYTES, Unpacker
from slacktide.wire.calls import Buffer, CallContext, InferReply, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_codec import GrpcCodec
from slacktide.wire.grpc_messages import model_of
from slacktide.wire.parameters import (
    BYTES_HEADER,
    MODEL_KEY,
    STEERING_HEADERS,
    VERSION_KEY,
    parse_length,
    read_headers,
)


def read_metadata(rpc: GrpcCall) -> tuple[CallContext, dict[str, Parameter]]:
    """What the metadata of a call says. Raises BadField naming the metadata key."""
    metadata = rpc.metadata
    budget = rpc.budget_s()
    parameters: dict[str, Parameter] = {}
    if not STEERING_HEADERS.isdisjoint(metadata):
        headers = read_headers(metadata.items())
        parameters = headers.parameters
        if headers.budget_s is not None and (budget is None or headers.budget_s < budget):
            budget = headers.budget_s
    context = CallContext(
        rpc.first_byte,
        rpc.client,
        "grpc",
        budget,
        metadata.get("x-request-id", ""),
        metadata.get("traceparent"),
        rpc.connection,
    )
    return context, parameters


@dataclass(frozen=True, slots=True)
class ModelInfer:
    """The handler of ModelInfer."""

    data: DataPlane
    codec: GrpcCodec
    max_request_bytes: int
    triton_strict: bool
    unpacker: Unpacker

    async def __call__(self, rpc: GrpcCall) -> bytes:
        context, parameters = read_metadata(rpc)
        answered: asyncio.Future[InferReply] = asyncio.get_running_loop().create_future()
        call: InferenceCall | None = None
        place: memoryview | None = None
        version = rpc.metadata.get(VERSION_KEY) or None
        if BYTES_HEADER in rpc.metadata and MODEL_KEY in rpc.metadata:
            call, place = self._announce(rpc, version, context, parameters)
        try:
            message = await rpc.message()
        except BaseException:  # also where the client cancelled: no body will come
            if call is not None:
                call.cancel(Reason.NO_BODY)
            raise
        try:
            form: Buffer = message if place is None else _put(message, place)
            if len(message) > DIRECT_BYTES:
                if call is None:
                    rpc.model = model_of(message)
                    call = self.data.call(rpc.model, None, context)
                unpacked = await self.unpacker.raw_form(message, rpc.client)
                form = form if unpacked is message else unpacked
            request = self.codec.read(form)
            rpc.request_id = request.id or rpc.request_id
            if call is None or place is None:
                rpc.model = request.model
                call = self.data.call(request.model, request.version, context)
            elif (request.model, request.version) != (rpc.model, version):
                raise BadField(MODEL_KEY, f"the message's model {request.model!r}", rpc.model)
            infer = request.call(parameters)
            wanted = infer.outputs
            call.submit(infer, _settle(answered))
            del message, form, request, infer  # the data plane has copied the tensors
            reply = await answered
            rpc.outcome = reply.outcome
        except WireError as error:
            if call is not None:
                call.refuse(error.reason, error.message)
            raise
        except BaseException as error:
            if call is not None:
                left = isinstance(error, asyncio.CancelledError)
                call.cancel(Reason.CLIENT_CANCELLED if left else Reason.RUNTIME_ERROR)
            raise
        if reply.outputs is None:
            raise refusal_in(reply, triton_strict=self.triton_strict)
        return self.codec.encode_reply(reply, wanted)

    def _announce(
        self,
        rpc: GrpcCall,
        version: str | None,
        context: CallContext,
        parameters: dict[str, Parameter],
    ) -> tuple[InferenceCall, memoryview]:
        """The call, and where its message belongs. Raises Refusal or WireError."""
        model = rpc.model = rpc.metadata[MODEL_KEY]
        call = self.data.call(model, version, context)
        try:
            length = parse_length(BYTES_HEADER, rpc.metadata[BYTES_HEADER])
            if length > self.max_request_bytes:
                expected = f"at most {self.max_request_bytes} bytes"
                raise BadField(BYTES_HEADER, expected, length, Reason.TOO_LARGE)
        except WireError as error:
            call.refuse(error.reason, error.message)
            raise
        place = call.announce(length, parameters)
        if isinstance(place, InferReply):
            raise refusal_in(place, triton_strict=self.triton_strict)
        return call, place


def _put(message: bytes, place: memoryview) -> memoryview:
    """The message, in the place that was announced for it. Raises BadField if it is longer."""
    if len(message) > len(place):
        raise BadField(BYTES_HEADER, f"the message's {len(message)} bytes", len(place))
    place = place[: len(message)]
    place[:] = message
    return place


def _settle(answered: asyncio.Future[InferReply]) -> Callable[[InferReply], None]:
    """The reply callback of a unary call."""

    def settle(reply: InferReply) -> None:
        if not answered.done():  # a cancelled call may have been answered in the same turn
            answered.set_result(reply)

    return settle
