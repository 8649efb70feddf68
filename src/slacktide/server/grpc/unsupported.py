"""Shared memory, tracing and logging: there, and answered as clients expect, but not supported.

Asking for regions finds none and unregistering has nothing to do: stock clients do both without
being asked. Registering, and changing settings, is refused.
"""

from __future__ import annotations

from google.protobuf.message import Message

from slacktide.server.groups import Group
from slacktide.server.grpc.control import unary
from slacktide.server.grpc.rpc import Method, Rpc
from slacktide.server.ports import ControlError
from slacktide.wire.proto.messages import INFERENCE_SERVICE, service_methods

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
