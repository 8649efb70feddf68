"""Health, metadata, statistics and repository over gRPC: parse, call the control plane, serialize.

`health_methods` implements grpc.health.v1, which Kubernetes' gRPC probes use. The empty service
name and the inference service's name mean the server; any other is the name of a model.

Shared memory, tracing and logging are not supported. Listing regions finds none and unregistering
does nothing, because stock clients call both unprompted. Registering regions and changing settings
is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from slacktide.domain import Reason
from slacktide.domain.tensors import TensorSpec
from slacktide.frontends.grpc.call import GrpcCall
from slacktide.frontends.grpc.metadata import CallHead, GrpcMethod
from slacktide.frontends.http2 import Head
from slacktide.frontends.ports import ControlPlane, EndpointGroup
from slacktide.frontends.settings import KIB
from slacktide.wire.calls import Buffer
from slacktide.wire.errors import BadField, ControlError, WireError
from slacktide.wire.grpc_messages import read_parameters
from slacktide.wire.parameters import unload_dependents
from slacktide.wire.proto import messages as m

if TYPE_CHECKING:
    from slacktide.frontends.grpc.protocol import GrpcConnection

MOST_CONTROL = 64 * KIB
"""Maximum bytes of a message parsed on the loop. Load calls may be longer, as they carry files."""
MessageT = TypeVar("MessageT", bound=Message)
Answer = Callable[[GrpcCall, Any], Message | Awaitable[Message]] | str | None
"""How a method answers. A function returns the message; text is the message of a refusal; None
means an empty message."""

_SHARED_MEMORY = "shared memory is not supported; send tensors in the message"
_SETTINGS = "settings cannot be read or changed over the network"


class ControlCall(GrpcCall):
    """A call with one message, of `request_class`, and an answer, which may take time."""

    __slots__ = ("_answer", "_answer_class", "_request_class")

    def __init__(
        self,
        protocol: GrpcConnection,
        id: int,
        head: Head,
        call_head: CallHead,
        request_class: type[Message],
        answer_class: type[Message],
        answer: Answer,
    ) -> None:
        super().__init__(protocol, id, head, call_head)
        self._request_class, self._answer_class = request_class, answer_class
        self._answer = answer

    def message(self, message: Buffer) -> None:
        request, answer = parsed(self._request_class, message), self._answer
        if answer is None:
            self._reply(self._answer_class())
        elif isinstance(answer, str):
            raise ControlError("unsupported", answer)
        else:
            reply = answer(self, request)
            if isinstance(reply, Message):
                self._reply(reply)
            else:
                self.later(reply, self._reply)

    def _reply(self, reply: Message) -> None:
        self.answer([reply.SerializeToString()])


def unary(
    group: EndpointGroup, request: type[Message], reply: type[Message], answer: Answer
) -> GrpcMethod:
    """A method that parses a `request` and serializes a `reply`."""
    make = partial(ControlCall, request_class=request, answer_class=reply, answer=answer)
    return GrpcMethod(group, make)


def parsed(request_class: type[MessageT], message: Buffer) -> MessageT:
    """Parse a message. Raises WireError."""
    limit = MOST_CONTROL
    if len(message) > limit and request_class is not m.RepositoryModelLoadRequest:
        raise BadField("message", f"at most {limit} bytes", len(message), Reason.TOO_LARGE)
    try:
        return request_class.FromString(bytes(message))
    except DecodeError:
        message_name = request_class.DESCRIPTOR.name
        raise WireError(Reason.BAD_INPUT, f"message: not a {message_name}") from None


@dataclass(frozen=True, slots=True)
class ControlMethods:
    """The methods of a control plane."""

    control: ControlPlane

    def table(self) -> dict[str, GrpcMethod]:
        """The methods by name."""
        rows: dict[str, tuple[EndpointGroup, Answer]] = {
            "ServerLive": (EndpointGroup.HEALTH, self._live),
            "ServerReady": (EndpointGroup.HEALTH, self._ready),
            "ModelReady": (EndpointGroup.HEALTH, self._model_ready),
            "ServerMetadata": (EndpointGroup.METADATA, self._server),
            "ModelMetadata": (EndpointGroup.METADATA, self._model),
            "ModelConfig": (EndpointGroup.CONFIG, self._config),
            "ModelStatistics": (EndpointGroup.STATISTICS, self._statistics),
            "RepositoryIndex": (EndpointGroup.REPOSITORY, self._index),
            "RepositoryModelLoad": (EndpointGroup.CONTROL, self._load),
            "RepositoryModelUnload": (EndpointGroup.CONTROL, self._unload),
            "SystemSharedMemoryStatus": (EndpointGroup.SHARED_MEMORY, None),
            "SystemSharedMemoryRegister": (EndpointGroup.SHARED_MEMORY, _SHARED_MEMORY),
            "SystemSharedMemoryUnregister": (EndpointGroup.SHARED_MEMORY, None),
            "CudaSharedMemoryStatus": (EndpointGroup.SHARED_MEMORY, None),
            "CudaSharedMemoryRegister": (EndpointGroup.SHARED_MEMORY, _SHARED_MEMORY),
            "CudaSharedMemoryUnregister": (EndpointGroup.SHARED_MEMORY, None),
            "TraceSetting": (EndpointGroup.TRACE, _SETTINGS),
            "LogSettings": (EndpointGroup.LOGGING, _SETTINGS),
        }
        classes = m.service_methods(m.INFERENCE_SERVICE)
        return {
            name: unary(group, *classes[name], answer) for name, (group, answer) in rows.items()
        }

    def _live(self, rpc: GrpcCall, request: m.ServerLiveRequest) -> Message:
        return m.ServerLiveResponse(live=self.control.live())

    def _ready(self, rpc: GrpcCall, request: m.ServerReadyRequest) -> Message:
        return m.ServerReadyResponse(ready=self.control.ready())

    def _model_ready(self, rpc: GrpcCall, request: m.ModelReadyRequest) -> Message:
        rpc.model = request.name
        ready = self.control.model_ready(request.name, request.version or None)
        return m.ModelReadyResponse(ready=ready)

    def _server(self, rpc: GrpcCall, request: m.ServerMetadataRequest) -> Message:
        return m.ServerMetadataResponse(**self.control.server_metadata())

    def _model(self, rpc: GrpcCall, request: m.ModelMetadataRequest) -> Message:
        rpc.model = request.name
        about = self.control.describe(request.name, request.version or None)
        return m.ModelMetadataResponse(
            name=about.name,
            versions=about.versions,
            platform=about.platform,
            inputs=[_tensor(spec) for spec in about.interface.inputs],
            outputs=[_tensor(spec) for spec in about.interface.outputs],
        )

    def _config(self, rpc: GrpcCall, request: m.ModelConfigRequest) -> Message:
        rpc.model = request.name
        config = self.control.config(request.name, request.version or None)
        response = m.ModelConfigResponse()
        # Triton's message has no fields for our own keys.
        json_format.ParseDict(config, response.config, ignore_unknown_fields=True)
        return response

    def _statistics(self, rpc: GrpcCall, request: m.ModelStatisticsRequest) -> Message:
        rpc.model = request.name
        statistics = self.control.statistics(request.name or None, request.version or None)
        response = m.ModelStatisticsResponse()
        json_format.ParseDict(statistics, response, ignore_unknown_fields=True)
        return response

    async def _index(self, rpc: GrpcCall, request: m.RepositoryIndexRequest) -> Message:
        _only_repository(request.repository_name)
        index = await self.control.repository_index(request.ready)
        models = [m.RepositoryIndexResponse.ModelIndex(**row) for row in index]
        return m.RepositoryIndexResponse(models=models)

    async def _load(self, rpc: GrpcCall, request: m.RepositoryModelLoadRequest) -> Message:
        _only_repository(request.repository_name)
        rpc.model = request.model_name
        await self.control.load(request.model_name, read_parameters(request.parameters))
        return m.RepositoryModelLoadResponse()

    async def _unload(self, rpc: GrpcCall, request: m.RepositoryModelUnloadRequest) -> Message:
        _only_repository(request.repository_name)
        rpc.model = request.model_name
        dependents = unload_dependents(read_parameters(request.parameters))
        await self.control.unload(request.model_name, dependents=dependents)
        return m.RepositoryModelUnloadResponse()


def _tensor(spec: TensorSpec) -> m.ModelMetadataResponse.TensorMetadata:
    return m.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype.wire_name, shape=spec.shape
    )


def _only_repository(name: str) -> None:
    if name:
        raise ControlError("unsupported", "there is only one repository; leave its name empty")


class WatchCall(GrpcCall):
    """A call of Health/Watch: sends the status now and after every change, even of a model that is
    still unknown. Draining the server ends the call."""

    __slots__ = ()

    def message(self, message: Buffer) -> None:
        service = parsed(m.HealthCheckRequest, message).service
        self.later(self._watch(service), lambda _: self.finish())

    async def _watch(self, service: str) -> None:
        state, last_status = self.state, None
        while not state.drained.is_set():
            try:
                status = health_of(state.control, service)
            except ControlError:
                status = m.SERVICE_UNKNOWN
            if status != last_status:
                last_status = status
                self._send_status(status)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(state.drained.wait(), state.settings.health_poll_s)
        if last_status != m.NOT_SERVING:
            self._send_status(m.NOT_SERVING)

    def _send_status(self, status: int) -> None:
        self.write([m.HealthCheckResponse(status=status).SerializeToString()])


def health_methods(control: ControlPlane) -> dict[str, GrpcMethod]:
    """The health methods by name."""

    def check(rpc: GrpcCall, request: m.HealthCheckRequest) -> Message:
        return m.HealthCheckResponse(status=health_of(control, request.service))

    group = EndpointGroup.HEALTH
    return {
        "Check": unary(group, m.HealthCheckRequest, m.HealthCheckResponse, check),
        "Watch": GrpcMethod(group, WatchCall),
    }


def health_of(control: ControlPlane, service: str) -> int:
    """The health status of the server or a model. Raises ControlError (not_found) for an unknown
    model."""
    if service in ("", m.INFERENCE_SERVICE):
        return m.SERVING if control.ready() else m.NOT_SERVING
    if control.model_ready(service, None):
        return m.SERVING
    try:
        control.describe(service, None)
    except ControlError as error:
        if error.kind == "not_found":
            raise
    return m.NOT_SERVING
