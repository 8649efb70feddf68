"""Health, metadata, statistics, repository: parse, ask the control plane, serialize."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from slacktide.domain import Reason
from slacktide.domain.tensors import TensorSpec
from slacktide.server.groups import Group
from slacktide.server.grpc.rpc import Behaviour, Method, Rpc
from slacktide.server.ports import ControlError, ControlPlane
from slacktide.wire.calls import Buffer, Parameter
from slacktide.wire.errors import WireError
from slacktide.wire.proto import messages as m

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
