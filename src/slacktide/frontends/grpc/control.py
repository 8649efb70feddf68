"""Health, metadata, statistics, repository: parse, ask the control plane, serialize.

`HealthMethods` is grpc.health.v1, which Kubernetes' gRPC probes ask: the empty service name is the
server (ready or not), as is the inference service's own; any other is taken as a model's name.

Shared memory, tracing and logging are there too, and answered as clients expect, but not supported:
asking for regions finds none and unregistering has nothing to do, as stock clients do both without
being asked. Registering, and changing settings, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from slacktide.domain import Reason
from slacktide.domain.tensors import TensorSpec
from slacktide.frontends.grpc.rpc import GrpcCall, GrpcHandler, GrpcMethod
from slacktide.frontends.ports import ControlPlane, EndpointGroup
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.grpc_messages import read_parameters
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import (
    INFERENCE_SERVICE,
    NOT_SERVING,
    SERVICE_UNKNOWN,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
    service_methods,
)

MessageT = TypeVar("MessageT", bound=Message)
Answer = Callable[[GrpcCall, Any], Awaitable[Message]] | str | None
"""What a method answers its request; a sentence: it refuses so; None: an empty message."""

_SHARED_MEMORY = "shared memory is not supported; send tensors in the message"
_SETTINGS = "settings cannot be read or changed over the network"


def unary(request_class: type[Message], answer_class: type[Message], answer: Answer) -> GrpcHandler:
    """The handler that parses a `request_class` and serializes its answer."""

    async def handle(rpc: GrpcCall) -> bytes:
        request = await _received(rpc, request_class)
        if answer is None:
            return answer_class().SerializeToString()
        if isinstance(answer, str):
            raise ControlError("unsupported", answer)
        return (await answer(rpc, request)).SerializeToString()

    return handle


async def _received(rpc: GrpcCall, request_class: type[MessageT]) -> MessageT:
    try:
        return request_class.FromString(await rpc.message())
    except DecodeError:
        what = request_class.DESCRIPTOR.name
        raise WireError(Reason.BAD_INPUT, f"message: not a {what}") from None


@dataclass(frozen=True, slots=True)
class ControlMethods:
    """The handlers of one control plane."""

    control: ControlPlane

    def table(self) -> dict[str, GrpcMethod]:
        """Method name → row."""
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
        classes = service_methods(INFERENCE_SERVICE)
        return {
            name: GrpcMethod(group, unary(*classes[name], answer))
            for name, (group, answer) in rows.items()
        }

    async def _live(self, rpc: GrpcCall, request: m.ServerLiveRequest) -> Message:
        return m.ServerLiveResponse(live=self.control.live())

    async def _ready(self, rpc: GrpcCall, request: m.ServerReadyRequest) -> Message:
        return m.ServerReadyResponse(ready=self.control.ready())

    async def _model_ready(self, rpc: GrpcCall, request: m.ModelReadyRequest) -> Message:
        rpc.model = request.name
        ready = self.control.model_ready(request.name, request.version or None)
        return m.ModelReadyResponse(ready=ready)

    async def _server(self, rpc: GrpcCall, request: m.ServerMetadataRequest) -> Message:
        return m.ServerMetadataResponse(**self.control.server_metadata())

    async def _model(self, rpc: GrpcCall, request: m.ModelMetadataRequest) -> Message:
        rpc.model = request.name
        about = self.control.describe(request.name, request.version or None)
        return m.ModelMetadataResponse(
            name=about.name,
            versions=about.versions,
            platform=about.platform,
            inputs=[_tensor(spec) for spec in about.interface.inputs],
            outputs=[_tensor(spec) for spec in about.interface.outputs],
        )

    async def _config(self, rpc: GrpcCall, request: m.ModelConfigRequest) -> Message:
        rpc.model = request.name
        config = self.control.config(request.name, request.version or None)
        response = m.ModelConfigResponse()
        # Keys of our own beside Triton's have no place in its message.
        json_format.ParseDict(config, response.config, ignore_unknown_fields=True)
        return response

    async def _statistics(self, rpc: GrpcCall, request: m.ModelStatisticsRequest) -> Message:
        rpc.model = request.name
        statistics = self.control.statistics(request.name or None, request.version or None)
        response = m.ModelStatisticsResponse()
        json_format.ParseDict(statistics, response, ignore_unknown_fields=True)
        return response

    async def _index(self, rpc: GrpcCall, request: m.RepositoryIndexRequest) -> Message:
        _only_repository(request.repository_name)
        index = self.control.repository_index(request.ready)
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
        await self.control.unload(request.model_name)
        return m.RepositoryModelUnloadResponse()


def _tensor(spec: TensorSpec) -> m.ModelMetadataResponse.TensorMetadata:
    return m.ModelMetadataResponse.TensorMetadata(
        name=spec.name, datatype=spec.datatype.wire_name, shape=spec.shape
    )


def _only_repository(name: str) -> None:
    if name:
        raise ControlError("unsupported", "there is one repository; leave its name empty")


@dataclass(frozen=True, slots=True)
class HealthMethods:
    """The handlers. `drained` ends the watches, which would otherwise outlive the server."""

    control: ControlPlane
    poll_s: float
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    def table(self) -> dict[str, GrpcMethod]:
        """Method name → row."""
        return {
            "Check": GrpcMethod(
                EndpointGroup.HEALTH, unary(HealthCheckRequest, HealthCheckResponse, self._check)
            ),
            "Watch": GrpcMethod(EndpointGroup.HEALTH, self._watch, streams=True),
        }

    async def _check(self, rpc: GrpcCall, request: HealthCheckRequest) -> Message:
        return HealthCheckResponse(status=self._status(request.service))

    async def _watch(self, rpc: GrpcCall) -> None:
        """The status now and after every change; an unknown name may become known."""
        service = (await _received(rpc, HealthCheckRequest)).service
        said = None
        while not self.drained.is_set():
            try:
                status = self._status(service)
            except ControlError:
                status = SERVICE_UNKNOWN
            if status != said:
                said = status
                await rpc.context.write(HealthCheckResponse(status=status).SerializeToString())
            try:
                await asyncio.wait_for(self.drained.wait(), self.poll_s)
            except TimeoutError:
                continue
        if said != NOT_SERVING:
            await rpc.context.write(HealthCheckResponse(status=NOT_SERVING).SerializeToString())

    def _status(self, service: str) -> int:
        """Raises ControlError (not_found) for an unknown model."""
        if service in ("", INFERENCE_SERVICE):
            return SERVING if self.control.ready() else NOT_SERVING
        if self.control.model_ready(service, None):
            return SERVING
        try:
            self.control.describe(service, None)
        except ControlError as error:
            if error.kind == "not_found":
                raise
        return NOT_SERVING
