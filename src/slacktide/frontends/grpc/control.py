"""Health, metadata, statistics, repository: parse, ask the control plane, serialize.

Shared memory, tracing and logging are there too, and answered as clients expect, but not supported:
asking for regions finds none and unregistering has nothing to do, as stock clients do both without
being asked. Registering, and changing settings, is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from slacktide.domain import Reason
from slacktide.domain.tensors import TensorSpec
from slacktide.frontends.grpc.rpc import GrpcCall, GrpcHandler, GrpcMethod
from slacktide.frontends.ports import ControlPlane, EndpointGroup
from slacktide.wire.calls import Buffer, Parameter
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import INFERENCE_SERVICE, service_methods

Request = TypeVar("Request", bound=Message)


def unary(
    request_class: type[Request], answer: Callable[[GrpcCall, Request], Awaitable[Message]]
) -> GrpcHandler:
    """The handler that parses a `request_class`, calls `answer` and serializes what it returns."""

    async def behaviour(rpc: GrpcCall) -> bytes:
        try:
            request = request_class.FromString(await rpc.message())
        except DecodeError:
            what = request_class.DESCRIPTOR.name
            raise WireError(Reason.BAD_INPUT, f"message: not a {what}") from None
        return (await answer(rpc, request)).SerializeToString()

    return behaviour


@dataclass(frozen=True, slots=True)
class ControlMethods:
    """The handlers of one control plane."""

    control: ControlPlane

    def table(self) -> dict[str, GrpcMethod]:
        """Method name → row."""
        return {
            "ServerLive": GrpcMethod(EndpointGroup.HEALTH, unary(m.ServerLiveRequest, self._live)),
            "ServerReady": GrpcMethod(
                EndpointGroup.HEALTH, unary(m.ServerReadyRequest, self._ready)
            ),
            "ModelReady": GrpcMethod(
                EndpointGroup.HEALTH, unary(m.ModelReadyRequest, self._model_ready)
            ),
            "ServerMetadata": GrpcMethod(
                EndpointGroup.METADATA, unary(m.ServerMetadataRequest, self._server)
            ),
            "ModelMetadata": GrpcMethod(
                EndpointGroup.METADATA, unary(m.ModelMetadataRequest, self._model)
            ),
            "ModelConfig": GrpcMethod(
                EndpointGroup.CONFIG, unary(m.ModelConfigRequest, self._config)
            ),
            "ModelStatistics": GrpcMethod(
                EndpointGroup.STATISTICS, unary(m.ModelStatisticsRequest, self._statistics)
            ),
            "RepositoryIndex": GrpcMethod(
                EndpointGroup.REPOSITORY, unary(m.RepositoryIndexRequest, self._index)
            ),
            "RepositoryModelLoad": GrpcMethod(
                EndpointGroup.CONTROL, unary(m.RepositoryModelLoadRequest, self._load)
            ),
            "RepositoryModelUnload": GrpcMethod(
                EndpointGroup.CONTROL, unary(m.RepositoryModelUnloadRequest, self._unload)
            ),
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
        metadata = self.control.server_metadata()
        return m.ServerMetadataResponse(
            name=metadata["name"], version=metadata["version"], extensions=metadata["extensions"]
        )

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
        keys = ("name", "version", "state", "reason")
        models = [
            m.RepositoryIndexResponse.ModelIndex(**{key: row.get(key, "") for key in keys})
            for row in self.control.repository_index(request.ready)
        ]
        return m.RepositoryIndexResponse(models=models)

    async def _load(self, rpc: GrpcCall, request: m.RepositoryModelLoadRequest) -> Message:
        _only_repository(request.repository_name)
        rpc.model = request.model_name
        parameters: dict[str, Parameter | Buffer] = {}
        for name, parameter in request.parameters.items():
            member = parameter.WhichOneof("parameter_choice")
            if member is not None:
                parameters[name] = getattr(parameter, member)
        await self.control.load(request.model_name, parameters)
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


_FINDS_NOTHING = (
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryUnregister",
)
_SHARED_MEMORY = "shared memory is not supported; send tensors in the message"
_SETTINGS = "settings cannot be read or changed over the network"
_REFUSED = {
    "SystemSharedMemoryRegister": (EndpointGroup.SHARED_MEMORY, _SHARED_MEMORY),
    "CudaSharedMemoryRegister": (EndpointGroup.SHARED_MEMORY, _SHARED_MEMORY),
    "TraceSetting": (EndpointGroup.TRACE, _SETTINGS),
    "LogSettings": (EndpointGroup.LOGGING, _SETTINGS),
}


def unsupported_table() -> dict[str, GrpcMethod]:
    """Method name → row."""
    classes = service_methods(INFERENCE_SERVICE)
    table = {name: _finds_nothing(*classes[name]) for name in _FINDS_NOTHING}
    for name, (group, message) in _REFUSED.items():
        table[name] = _refused(group, classes[name][0], message)
    return table


def _finds_nothing(request_class: type[Message], answer_class: type[Message]) -> GrpcMethod:
    async def say(_rpc: GrpcCall, _request: Message) -> Message:
        return answer_class()

    return GrpcMethod(EndpointGroup.SHARED_MEMORY, unary(request_class, say))


def _refused(group: EndpointGroup, request_class: type[Message], message: str) -> GrpcMethod:
    async def refuse(_rpc: GrpcCall, _request: Message) -> Message:
        raise ControlError("unsupported", message)

    return GrpcMethod(group, unary(request_class, refuse))
