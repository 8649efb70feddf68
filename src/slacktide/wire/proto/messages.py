"""The message classes of all services and of model configurations, made from the committed
descriptor set when they are first asked for.

They live in a pool of their own, apart from the process-wide default pool: `tritonclient` and the
stock health package register the same names there (`inference.ModelConfig`, …), and two definitions
of one name cannot live in one pool. The `.pyi` beside this file names the classes and gives type
checkers their fields.
"""

from __future__ import annotations

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
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""Values of HealthCheckResponse.ServingStatus."""


@cache
def private_pool() -> DescriptorPool:
    """Everything that we read and write; what `text_format` and `json_format` want too."""
    pool = DescriptorPool()
    serialized = files(__package__).joinpath("descriptors.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(serialized).file:
        pool.Add(file)
    return pool


def message_class(full_name: str) -> type[Message]:
    """The class of a message, the same one at every call. Raises KeyError if unknown."""
    return message_factory.GetMessageClass(private_pool().FindMessageTypeByName(full_name))


def service_methods(service: str) -> dict[str, tuple[type[Message], type[Message]]]:
    """Method name → (request class, answer class) of a service. Raises KeyError if unknown."""
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
            found = globals()[name] = message_class(f"{package}.{name}")
            return found
    raise AttributeError(f"there is no message {name}")
