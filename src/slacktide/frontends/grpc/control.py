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
from slacktide.frontends.grpc.rpc import Behaviour, Method, Rpc
from slacktide.frontends.ports import ControlPlane, Group
from slacktide.wire.calls import Buffer, Parameter
from slacktide.wire.errors import ControlError, WireError
from slacktide.wire.proto import messages as m
from slacktide.wire.proto.messages import INFERENCE_SERVICE, service_methods

Request = TypeVar("Request", bound=Message)


def unary(
    request_class: type[Request], answer: Callable[[Rpc, Request], Awaitable[Message]]
) -> Behaviour:
    """The handler that parses a `request_class`, calls `answer` and serializes what it returns."""

    async def behaviour(rpc: Rpc) -> bytes:
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

    def table(self) -> dict[str, Method]:
        """Method name → row."""
        return {
            "ServerLive": Method(Group.HEALTH, unary(m.ServerLiveRequest, self._live)),
            "ServerReady": Method(Group.HEALTH, unary(m.ServerReadyRequest, self._ready)),
            "ModelReady": Method(Group.HEALTH, unary(m.ModelReadyRequest, self._model_ready)),
            "ServerMetadata": Method(Group.METADATA, unary(m.ServerMetadataRequest, self._server)),
            "ModelMetadata": Method(Group.METADATA, unary(m.ModelMetadataRequest, self._model)),
            "ModelConfig": Method(Group.CONFIG, unary(m.ModelConfigRequest, self._config)),
            "ModelStatistics": Method(
                Group.STATISTICS, unary(m.ModelStatisticsRequest, self._statistics)
            ),
            "RepositoryIndex": Method(
                Group.REPOSITORY, unary(m.RepositoryIndexRequest, self._index)
            ),
            "RepositoryModelLoad": Method(
                Group.CONTROL, unary(m.RepositoryModelLoadRequest, self._load)
            ),
            "RepositoryModelUnload": Method(
                Group.CONTROL, unary(m.RepositoryModelUnloadRequest, self._unload)
            ),
        }

    async def _live(self, rpc: Rpc, request: m.ServerLiveRequest) -> Message:
        return m.ServerLiveResponse(live=self.control.live())

    async def _ready(self, rpc: Rpc, request: m.ServerReadyRequest) -> Message:
        return m.ServerReadyResponse(ready=self.control.ready())

    async def _model_ready(self, rpc: Rpc, request: m.ModelReadyRequest) -> Message:
        rpc.model = request.name
        ready = self.control.model_ready(request.name, request.version or None)
        return m.ModelReadyResponse(ready=ready)

    async def _server(self, rpc: Rpc, request: m.ServerMetadataRequest) -> Message:
        metadata = self.control.server_metadata()
        return m.ServerMetadataResponse(
            name=metadata["name"], version=metadata["version"], extensions=metadata["extensions"]
        )

    async def _model(self, rpc: Rpc, request: m.ModelMetadataRequest) -> Message:
        rpc.model = request.name
        about = self.control.describe(request.name, request.version or None)
        return m.ModelMetadataResponse(
            name=about.name,
            versions=about.versions,
            platform=about.platform,
            inputs=[_tensor(spec) for spec in about.interface.inputs],
            outputs=[_tensor(spec) for spec in about.interface.outputs],
        )

    async def _config(self, rpc: Rpc, request: m.ModelConfigRequest) -> Message:
        rpc.model = request.name
        config = self.control.config(request.name, request.version or None)
        response = m.ModelConfigResponse()
        # Keys of our own beside Triton's have no place in its message.
        json_format.ParseDict(config, response.config, ignore_unknown_fields=True)
        return response

    async def _statistics(self, rpc: Rpc, request: m.ModelStatisticsRequest) -> Message:
        rpc.model = request.name
        statistics = self.control.statistics(request.name or None, request.version or None)
        response = m.ModelStatisticsResponse()
        json_format.ParseDict(statistics, response, ignore_unknown_fields=True)
        return response

    async def _index(self, rpc: Rpc, request: m.RepositoryIndexRequest) -> Message:
        _only_repository(request.repository_name)
        keys = ("name", "version", "state", "reason")
        models = [
            m.RepositoryIndexResponse.ModelIndex(**{key: row.get(key, "") for key in keys})
            for row in self.control.repository_index(request.ready)
        ]
        return m.RepositoryIndexResponse(models=models)

    async def _load(self, rpc: Rpc, request: m.RepositoryModelLoadRequest) -> Message:
        _only_repository(request.repository_name)
        rpc.model = request.model_name
        parameters: dict[str, Parameter | Buffer] = {}
        for name, parameter in request.parameters.items():
            member = parameter.WhichOneof("parameter_choice")
            if member is not None:
                parameters[name] = getattr(parameter, member)
        await self.control.load(request.model_name, parameters)
        return m.RepositoryModelLoadResponse()

    async def _unload(self, rpc: Rpc, request: m.RepositoryModelUnloadRequest) -> Message:
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
    "SystemSharedMemoryRegister": (Group.SHARED_MEMORY, _SHARED_MEMORY),
    "CudaSharedMemoryRegister": (Group.SHARED_MEMORY, _SHARED_MEMORY),
    "TraceSetting": (Group.TRACE, _SETTINGS),
    "LogSettings": (Group.LOGGING, _SETTINGS),
}


def unsupported_table() -> dict[str, Method]:
    """Method name → row."""
    classes = service_methods(INFERENCE_SERVICE)
    table = {name: _finds_nothing(*classes[name]) for name in _FINDS_NOTHING}
    for name, (group, message) in _REFUSED.items():
        table[name] = _refused(group, classes[name][0], message)
    return table


def _finds_nothing(request_class: type[Message], answer_class: type[Message]) -> Method:
    async def say(_rpc: Rpc, _request: Message) -> Message:
        return answer_class()

    return Method(Group.SHARED_MEMORY, unary(request_class, say))


def _refused(group: Group, request_class: type[Message], message: str) -> Method:
    async def refuse(_rpc: Rpc, _request: Message) -> Message:
        raise ControlError("unsupported", message)

    return Method(group, unary(request_class, refuse))
