"""ModelInfer: one message in, one answer out.

A client may announce its message before sending it (DESIGN §4, Notice): metadata `slacktide-bytes`
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
from slacktide.server.grpc.rpc import Refusal, Rpc, retry_metadata
from slacktide.server.ports import DataPlane, Ticket, Upload
from slacktide.wire.calls import CallContext, InferReply, Parameter
from slacktide.wire.errors import BadField, WireError
from slacktide.wire.grpc_messages import encode_reply, read_request
from slacktide.wire.parameters import BYTES_HEADER, parse_length, read_headers
from slacktide.wire.status import status_of

MODEL_KEY = "slacktide-model"
VERSION_KEY = "slacktide-model-version"
REASON_KEY = "slacktide-reason"
"""Trailing metadata of a refusal: the label of its reason."""


@dataclass(slots=True)
class Door:
    """What the metadata of a call says, ready for the data plane."""

    context: CallContext
    parameters: dict[str, Parameter]

    @classmethod
    def of(cls, rpc: Rpc) -> Door:
        """Raises BadField naming the metadata key."""
        metadata = rpc.metadata
        headers = read_headers(metadata.items())
        budget = rpc.budget_s()
        if headers.budget_s is not None and (budget is None or headers.budget_s < budget):
            budget = headers.budget_s
        context = CallContext(
            first_byte=rpc.first_byte,
            client=rpc.client,
            transport="grpc",
            transport_budget_s=budget,
            request_id=metadata.get("x-request-id", ""),
            traceparent=metadata.get("traceparent"),
        )
        return cls(context, headers.parameters)


@dataclass(frozen=True, slots=True)
class ModelInfer:
    """The handler of ModelInfer."""

    data: DataPlane
    max_message_bytes: int
    triton_strict: bool

    async def __call__(self, rpc: Rpc) -> bytes:
        door = Door.of(rpc)
        answered: asyncio.Future[InferReply] = asyncio.get_running_loop().create_future()
        announced = None
        if BYTES_HEADER in rpc.metadata and MODEL_KEY in rpc.metadata:
            announced = self._announce(rpc, door)
        if announced is None:
            ticket, wanted = self._submit(await rpc.message(), rpc, door, answered)
        else:
            ticket, wanted = await self._complete(announced, rpc, door, answered)
        try:
            reply = await answered
        except asyncio.CancelledError:
            ticket.cancel(Reason.CLIENT_CANCELLED)
            raise
        if reply.outputs is None:
            raise refusal_of(reply, triton_strict=self.triton_strict)
        return encode_reply(reply, wanted)

    def _submit(
        self, message: bytes, rpc: Rpc, door: Door, answered: asyncio.Future[InferReply]
    ) -> tuple[Ticket, list[str]]:
        # A function of its own, so that nothing holds the message while the call waits: the data
        # plane has copied the tensors.
        request = read_request(message)
        rpc.model, rpc.request_id = request.model, request.id
        try:
            call = request.call(door.parameters)
        except WireError as error:
            if request.model:
                self.data.body_refused(request.model, request.version, error.reason, error.message)
            raise
        return self.data.infer(call, door.context, _settle(answered)), call.outputs

    def _announce(self, rpc: Rpc, door: Door) -> Upload:
        model = rpc.model = rpc.metadata[MODEL_KEY]
        version = rpc.metadata.get(VERSION_KEY) or None
        try:
            length = parse_length(BYTES_HEADER, rpc.metadata[BYTES_HEADER])
            if length > self.max_message_bytes:
                expected = f"at most {self.max_message_bytes} bytes"
                raise BadField(BYTES_HEADER, expected, length, Reason.TOO_LARGE)
        except WireError as error:
            self.data.body_refused(model, version, error.reason, error.message)
            raise
        answer = self.data.announce(model, version, length, door.parameters, door.context)
        if isinstance(answer, InferReply):
            raise refusal_of(answer, triton_strict=self.triton_strict)
        return answer

    async def _complete(
        self, upload: Upload, rpc: Rpc, door: Door, answered: asyncio.Future[InferReply]
    ) -> tuple[Ticket, list[str]]:
        try:
            message = await rpc.message()
        except BaseException:  # also where the client cancelled: its body will not come either
            upload.cancel(Reason.NO_BODY)
            raise
        try:
            body = upload.body()
            if len(message) > len(body):
                raise BadField(BYTES_HEADER, f"the message's {len(message)} bytes", len(body))
            body = body[: len(message)]
            body[:] = message
            request = read_request(body)
            rpc.request_id = request.id
            version = rpc.metadata.get(VERSION_KEY) or None
            if (request.model, request.version) != (rpc.model, version):
                raise BadField(MODEL_KEY, f"the message's model {request.model!r}", rpc.model)
            call = request.call(door.parameters)
        except WireError as error:
            upload.refuse(error.reason, error.message)
            raise
        return upload.complete(call, _settle(answered)), call.outputs


def refusal_of(reply: InferReply, *, triton_strict: bool) -> Refusal:
    """What ends a call that got this reply, which has no outputs."""
    reason = reply.outcome.reason
    status = status_of(reason, has_result=False, triton_strict=triton_strict)
    trailing = ((REASON_KEY, reason.label), *retry_metadata(reply.retry_after_s))
    return Refusal(status, reply.message or reason.label.replace("_", " "), trailing)


def _settle(answered: asyncio.Future[InferReply]) -> Callable[[InferReply], None]:
    """The reply callback of a unary call."""

    def settle(reply: InferReply) -> None:
        if not answered.done():  # a cancelled call may have been answered in the same turn
            answered.set_result(reply)

    return settle


__all__ = ["MODEL_KEY", "REASON_KEY", "VERSION_KEY", "Door", "ModelInfer", "refusal_of"]
