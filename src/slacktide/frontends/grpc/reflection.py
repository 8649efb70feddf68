"""Server reflection (grpc.reflection.v1, and v1alpha, which differs only in name). `grpcurl` uses
it to learn the services and messages of a server."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FileDescriptor

from slacktide.frontends.grpc.call import GrpcCall
from slacktide.frontends.grpc.control import parsed
from slacktide.frontends.grpc.metadata import GrpcMethod
from slacktide.frontends.ports import EndpointGroup
from slacktide.wire.calls import Buffer
from slacktide.wire.proto import messages as m

_ALPHA_SERVICE = m.REFLECTION_SERVICE.replace("v1", "v1alpha")
_NOT_FOUND: Final = 5
_UNIMPLEMENTED: Final = 12


def reflection_methods() -> dict[str, dict[str, GrpcMethod]]:
    """For each service, its methods by name."""
    table = {"ServerReflectionInfo": GrpcMethod(EndpointGroup.METADATA, ReflectionCall)}
    return {m.REFLECTION_SERVICE: table, _ALPHA_SERVICE: table}


class ReflectionCall(GrpcCall):
    """A call of ServerReflectionInfo, with one answer to each message."""

    __slots__ = ()

    many = True

    def is_full(self) -> bool:
        return bool(self.unsent)

    def message(self, message: Buffer) -> None:
        request = parsed(m.ServerReflectionRequest, message)
        answer = m.ServerReflectionResponse(
            valid_host=request.host, original_request=request, **_answer_to(request)
        )
        self.write([answer.SerializeToString()])

    def settle(self) -> None:
        if self.ended:
            self.finish()

    def drain(self) -> None:
        self.finish()


def _answer_to(request: m.ServerReflectionRequest) -> dict[str, Any]:
    pool, kind = m.private_pool(), request.WhichOneof("message_request")
    if kind == "list_services":
        names = (m.INFERENCE_SERVICE, m.FRAME_SERVICE, m.HEALTH_SERVICE, m.REFLECTION_SERVICE)
        return {"list_services_response": {"service": [{"name": name} for name in names]}}
    try:
        if kind == "file_by_filename":
            file = pool.FindFileByName(request.file_by_filename)
        elif kind == "file_containing_symbol":
            file = _file_of(request.file_containing_symbol)
        else:
            return _error(_UNIMPLEMENTED, "extensions are not supported")
    except KeyError:
        return _error(_NOT_FOUND, "no such file or symbol")
    return {"file_descriptor_response": {"file_descriptor_proto": _with_dependencies(file)}}


def _file_of(symbol: str) -> FileDescriptor:
    """The file that defines a symbol. Raises KeyError."""
    pool = m.private_pool()
    try:
        return pool.FindFileContainingSymbol(symbol)
    except KeyError:  # this lookup finds everything but methods
        return pool.FindMethodByName(symbol).containing_service.file


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error_response": {"error_code": code, "error_message": message}}


def _with_dependencies(file: FileDescriptor) -> list[bytes]:
    """A file and all its imports, serialized, each once."""
    serialized: dict[str, bytes] = {}
    queue = [file]
    while queue:
        dependency = queue.pop()
        if dependency.name not in serialized:
            serialized[dependency.name] = dependency.serialized_pb
            queue.extend(dependency.dependencies)
    return list(serialized.values())
