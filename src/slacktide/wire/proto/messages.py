"""The message classes of both services, made from the committed descriptor set.

They live in a private pool (see `slacktide.wire.proto.private_pool`), so that `tritonclient`
and the stock health package can be imported into the same process. The `.pyi` beside this file
gives type checkers their fields.
"""

from __future__ import annotations

from google.protobuf.message import Message

from slacktide.wire.proto.private_pool import private_pool

INFERENCE_SERVICE = "inference.GRPCInferenceService"
HEALTH_SERVICE = "grpc.health.v1.Health"

_pool = private_pool()


def service_methods(service: str) -> dict[str, tuple[type[Message], type[Message]]]:
    """Method name → (request class, answer class) of a service. Raises KeyError if unknown."""
    methods = _pool.descriptors.FindServiceByName(service).methods
    return {
        method.name: (
            _pool.message(method.input_type.full_name),
            _pool.message(method.output_type.full_name),
        )
        for method in methods
    }


def _class(name: str) -> type[Message]:
    return _pool.message(f"inference.{name}")


InferParameter = _class("InferParameter")
InferTensorContents = _class("InferTensorContents")
ModelInferRequest = _class("ModelInferRequest")
ModelInferResponse = _class("ModelInferResponse")
ModelStreamInferResponse = _class("ModelStreamInferResponse")

ServerLiveRequest = _class("ServerLiveRequest")
ServerLiveResponse = _class("ServerLiveResponse")
ServerReadyRequest = _class("ServerReadyRequest")
ServerReadyResponse = _class("ServerReadyResponse")
ModelReadyRequest = _class("ModelReadyRequest")
ModelReadyResponse = _class("ModelReadyResponse")
ServerMetadataRequest = _class("ServerMetadataRequest")
ServerMetadataResponse = _class("ServerMetadataResponse")
ModelMetadataRequest = _class("ModelMetadataRequest")
ModelMetadataResponse = _class("ModelMetadataResponse")
ModelConfigRequest = _class("ModelConfigRequest")
ModelConfigResponse = _class("ModelConfigResponse")
ModelStatisticsRequest = _class("ModelStatisticsRequest")
ModelStatisticsResponse = _class("ModelStatisticsResponse")

ModelRepositoryParameter = _class("ModelRepositoryParameter")
RepositoryIndexRequest = _class("RepositoryIndexRequest")
RepositoryIndexResponse = _class("RepositoryIndexResponse")
RepositoryModelLoadRequest = _class("RepositoryModelLoadRequest")
RepositoryModelLoadResponse = _class("RepositoryModelLoadResponse")
RepositoryModelUnloadRequest = _class("RepositoryModelUnloadRequest")
RepositoryModelUnloadResponse = _class("RepositoryModelUnloadResponse")

HealthCheckRequest = _pool.message("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _pool.message("grpc.health.v1.HealthCheckResponse")

_serving = HealthCheckResponse.DESCRIPTOR.enum_types_by_name["ServingStatus"].values_by_name
SERVING: int = _serving["SERVING"].number
NOT_SERVING: int = _serving["NOT_SERVING"].number
SERVICE_UNKNOWN: int = _serving["SERVICE_UNKNOWN"].number
