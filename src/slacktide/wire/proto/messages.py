"""The message classes of all services and of model configurations, made on first use from the
committed descriptor set.

They have their own pool, because `tritonclient` and the stock health package register the same
names (`inference.ModelConfig`, …) in the default pool, and a pool can hold only one definition of a
name. The `.pyi` file next to this one declares the classes and their fields for type checkers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"
REFLECTION_SERVICE = "grpc.reflection.v1.ServerReflection"
FRAME_SERVICE = "slacktide.v1.FrameService"
PEER_SERVICE = "slacktide.v1.Peers"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""Values of HealthCheckResponse.ServingStatus."""


def _files() -> Sequence[descriptor_pb2.FileDescriptorProto]:
    serialized = files(__package__).joinpath("descriptors.binpb").read_bytes()
    return descriptor_pb2.FileDescriptorSet.FromString(serialized).file


@cache
def private_pool() -> DescriptorPool:
    """The pool of all messages; pass it to `text_format` and `json_format`."""
    pool = DescriptorPool()
    for file in _files():
        pool.Add(file)
    return pool


@cache
def _classes() -> dict[str, type[Message]]:
    """Every message class of the pool by full name, kept for the life of the process. protobuf
    itself holds classes weakly: an unused class is collected and made again, and a thread that asks
    for it during the collection gets a class that is half destroyed."""
    pool, classes = private_pool(), {}
    messages = [
        message
        for file in _files()
        for message in pool.FindFileByName(file.name).message_types_by_name.values()
    ]
    while messages:
        message = messages.pop()
        classes[message.full_name] = message_factory.GetMessageClass(message)
        messages.extend(message.nested_types)
    return classes


def message_class(full_name: str) -> type[Message]:
    """The class of a message, always the same object. Raises KeyError if unknown."""
    return _classes()[full_name]


def service_methods(service: str) -> dict[str, tuple[type[Message], type[Message]]]:
    """The (request class, answer class) of each method of a service, by name. Raises KeyError if
    the service is unknown."""
    return {
        method.name: (
            message_class(method.input_type.full_name),
            message_class(method.output_type.full_name),
        )
        for method in private_pool().FindServiceByName(service).methods
    }


def __getattr__(name: str) -> type[Message]:
    packages = ["inference", "slacktide.v1"]
    if name.startswith("HealthCheck"):
        packages = ["grpc.health.v1"]
    elif name.startswith("ServerReflection"):
        packages = ["grpc.reflection.v1"]
    for package in packages:
        with suppress(KeyError):
            message_type = globals()[name] = message_class(f"{package}.{name}")
            return message_type
    raise AttributeError(f"there is no message {name}")
