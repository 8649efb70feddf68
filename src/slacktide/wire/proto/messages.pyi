"""Types of the message classes that `messages.py` makes: the fields this project touches.

Written by hand, against the .proto files; a test compares the two.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.containers import (
    MessageMap,
    RepeatedCompositeFieldContainer,
    RepeatedScalarFieldContainer,
    ScalarMap,
)
from google.protobuf.message import Message

INFERENCE_SERVICE: Final[str]
HEALTH_SERVICE: Final[str]
REFLECTION_SERVICE: Final[str]
FRAME_SERVICE: Final[str]
PEER_SERVICE: Final[str]

def private_pool() -> DescriptorPool: ...
def message_class(full_name: str) -> type[Message]: ...
def service_methods(service: str) -> dict[str, tuple[type[Message], type[Message]]]: ...

class ServerLiveRequest(Message):
    def __init__(self) -> None: ...

class ServerLiveResponse(Message):
    live: bool
    def __init__(self, *, live: bool = ...) -> None: ...

class ServerReadyRequest(Message):
    def __init__(self) -> None: ...

class ServerReadyResponse(Message):
    ready: bool
    def __init__(self, *, ready: bool = ...) -> None: ...

class ModelReadyRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str = ..., version: str = ...) -> None: ...

class ModelReadyResponse(Message):
    ready: bool
    def __init__(self, *, ready: bool = ...) -> None: ...

class ServerMetadataRequest(Message):
    def __init__(self) -> None: ...

class ServerMetadataResponse(Message):
    name: str
    version: str
    extensions: RepeatedScalarFieldContainer[str]
    def __init__(
        self, *, name: str = ..., version: str = ..., extensions: Iterable[str] = ...
    ) -> None: ...

class ModelMetadataRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str = ..., version: str = ...) -> None: ...

class ModelMetadataResponse(Message):
    class TensorMetadata(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        def __init__(
            self, *, name: str = ..., datatype: str = ..., shape: Iterable[int] = ...
        ) -> None: ...

    name: str
    versions: RepeatedScalarFieldContainer[str]
    platform: str
    inputs: RepeatedCompositeFieldContainer[TensorMetadata]
    outputs: RepeatedCompositeFieldContainer[TensorMetadata]
    def __init__(
        self,
        *,
        name: str = ...,
        versions: Iterable[str] = ...,
        platform: str = ...,
        inputs: Iterable[TensorMetadata] = ...,
        outputs: Iterable[TensorMetadata] = ...,
    ) -> None: ...

class ModelConfigRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str = ..., version: str = ...) -> None: ...

class ModelConfigResponse(Message):
    @property
    def config(self) -> Message: ...
    def __init__(self) -> None: ...

class ModelStatisticsRequest(Message):
    name: str
    version: str
    def __init__(self, *, name: str = ..., version: str = ...) -> None: ...

class ModelStatisticsResponse(Message):
    def __init__(self) -> None: ...

class InferParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    double_param: float
    uint64_param: int
    def __init__(
        self,
        *,
        bool_param: bool = ...,
        int64_param: int = ...,
        string_param: str = ...,
        double_param: float = ...,
        uint64_param: int = ...,
    ) -> None: ...

class InferTensorContents(Message):
    bool_contents: RepeatedScalarFieldContainer[bool]
    int_contents: RepeatedScalarFieldContainer[int]
    int64_contents: RepeatedScalarFieldContainer[int]
    uint_contents: RepeatedScalarFieldContainer[int]
    uint64_contents: RepeatedScalarFieldContainer[int]
    fp32_contents: RepeatedScalarFieldContainer[float]
    fp64_contents: RepeatedScalarFieldContainer[float]
    bytes_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(
        self,
        *,
        bool_contents: Iterable[bool] = ...,
        int_contents: Iterable[int] = ...,
        int64_contents: Iterable[int] = ...,
        uint_contents: Iterable[int] = ...,
        uint64_contents: Iterable[int] = ...,
        fp32_contents: Iterable[float] = ...,
        fp64_contents: Iterable[float] = ...,
        bytes_contents: Iterable[bytes] = ...,
    ) -> None: ...

class ModelInferRequest(Message):
    class InferInputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        parameters: MessageMap[str, InferParameter]
        @property
        def contents(self) -> InferTensorContents: ...
        def __init__(
            self,
            *,
            name: str = ...,
            datatype: str = ...,
            shape: Iterable[int] = ...,
            parameters: Mapping[str, InferParameter] = ...,
            contents: InferTensorContents = ...,
        ) -> None: ...

    class InferRequestedOutputTensor(Message):
        name: str
        parameters: MessageMap[str, InferParameter]
        def __init__(
            self, *, name: str = ..., parameters: Mapping[str, InferParameter] = ...
        ) -> None: ...

    model_name: str
    model_version: str
    id: str
    parameters: MessageMap[str, InferParameter]
    inputs: RepeatedCompositeFieldContainer[InferInputTensor]
    outputs: RepeatedCompositeFieldContainer[InferRequestedOutputTensor]
    raw_input_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(
        self,
        *,
        model_name: str = ...,
        model_version: str = ...,
        id: str = ...,
        parameters: Mapping[str, InferParameter] = ...,
        inputs: Iterable[InferInputTensor] = ...,
        outputs: Iterable[InferRequestedOutputTensor] = ...,
        raw_input_contents: Iterable[bytes] = ...,
    ) -> None: ...

class ModelInferResponse(Message):
    class InferOutputTensor(Message):
        name: str
        datatype: str
        shape: RepeatedScalarFieldContainer[int]
        def __init__(
            self, *, name: str = ..., datatype: str = ..., shape: Iterable[int] = ...
        ) -> None: ...

    model_name: str
    model_version: str
    id: str
    parameters: MessageMap[str, InferParameter]
    outputs: RepeatedCompositeFieldContainer[InferOutputTensor]
    raw_output_contents: RepeatedScalarFieldContainer[bytes]
    def __init__(
        self,
        *,
        model_name: str = ...,
        model_version: str = ...,
        id: str = ...,
        parameters: Mapping[str, InferParameter] = ...,
        outputs: Iterable[InferOutputTensor] = ...,
        raw_output_contents: Iterable[bytes] = ...,
    ) -> None: ...

class ModelStreamInferResponse(Message):
    error_message: str
    @property
    def infer_response(self) -> ModelInferResponse: ...
    def __init__(
        self, *, error_message: str = ..., infer_response: ModelInferResponse = ...
    ) -> None: ...

class ModelRepositoryParameter(Message):
    bool_param: bool
    int64_param: int
    string_param: str
    bytes_param: bytes
    def __init__(
        self,
        *,
        bool_param: bool = ...,
        int64_param: int = ...,
        string_param: str = ...,
        bytes_param: bytes = ...,
    ) -> None: ...

class RepositoryIndexRequest(Message):
    repository_name: str
    ready: bool
    def __init__(self, *, repository_name: str = ..., ready: bool = ...) -> None: ...

class RepositoryIndexResponse(Message):
    class ModelIndex(Message):
        name: str
        version: str
        state: str
        reason: str
        def __init__(
            self, *, name: str = ..., version: str = ..., state: str = ..., reason: str = ...
        ) -> None: ...

    models: RepeatedCompositeFieldContainer[ModelIndex]
    def __init__(self, *, models: Iterable[ModelIndex] = ...) -> None: ...

class RepositoryModelLoadRequest(Message):
    repository_name: str
    model_name: str
    parameters: MessageMap[str, ModelRepositoryParameter]
    def __init__(
        self,
        *,
        repository_name: str = ...,
        model_name: str = ...,
        parameters: Mapping[str, ModelRepositoryParameter] = ...,
    ) -> None: ...

class RepositoryModelLoadResponse(Message):
    def __init__(self) -> None: ...

class RepositoryModelUnloadRequest(Message):
    repository_name: str
    model_name: str
    parameters: MessageMap[str, ModelRepositoryParameter]
    def __init__(
        self,
        *,
        repository_name: str = ...,
        model_name: str = ...,
        parameters: Mapping[str, ModelRepositoryParameter] = ...,
    ) -> None: ...

class RepositoryModelUnloadResponse(Message):
    def __init__(self) -> None: ...

class HealthCheckRequest(Message):
    service: str
    def __init__(self, *, service: str = ...) -> None: ...

class HealthCheckResponse(Message):
    status: int
    def __init__(self, *, status: int = ...) -> None: ...

class ServerReflectionRequest(Message):
    host: str
    file_by_filename: str
    file_containing_symbol: str
    all_extension_numbers_of_type: str
    list_services: str
    def __init__(self, *, host: str = ..., list_services: str = ...) -> None: ...

class ServerReflectionResponse(Message):
    valid_host: str
    original_request: ServerReflectionRequest
    file_descriptor_response: Message
    list_services_response: Message
    error_response: Message
    def __init__(
        self,
        *,
        valid_host: str = ...,
        original_request: ServerReflectionRequest = ...,
        file_descriptor_response: Mapping[str, Any] = ...,
        list_services_response: Mapping[str, Any] = ...,
        error_response: Mapping[str, Any] = ...,
    ) -> None: ...

class ClientMessage(Message):
    hello: Hello
    announcement: Announcement
    frame: Frame
    def __init__(
        self,
        *,
        hello: Hello | None = ...,
        announcement: Announcement | None = ...,
        frame: Frame | None = ...,
    ) -> None: ...

class Hello(Message):
    model: str
    version: str
    rate: float
    slo_ms: float
    accuracy_floor: float
    weight: float
    name: str
    bytes_per_s: float
    def __init__(
        self,
        *,
        model: str = ...,
        version: str = ...,
        rate: float = ...,
        slo_ms: float = ...,
        accuracy_floor: float = ...,
        weight: float = ...,
        name: str = ...,
        bytes_per_s: float = ...,
    ) -> None: ...

class Announcement(Message):
    id: int
    bytes: int
    age_us: int
    width: int
    height: int
    def __init__(
        self,
        *,
        id: int = ...,
        bytes: int = ...,
        age_us: int = ...,
        width: int = ...,
        height: int = ...,
    ) -> None: ...

class Frame(Message):
    id: int
    bytes_per_s: float
    request: ModelInferRequest
    def __init__(
        self, *, id: int = ..., bytes_per_s: float = ..., request: ModelInferRequest | None = ...
    ) -> None: ...

class ServerMessage(Message):
    welcome: Welcome
    acknowledgement: Acknowledgement
    answer: Answer
    advice: Advice
    move: Move
    def __init__(
        self,
        *,
        welcome: Welcome | None = ...,
        acknowledgement: Acknowledgement | None = ...,
        answer: Answer | None = ...,
        advice: Advice | None = ...,
        move: Move | None = ...,
    ) -> None: ...

class Move(Message):
    address: str
    def __init__(self, *, address: str = ...) -> None: ...

class Welcome(Message):
    session: str
    variants: RepeatedCompositeFieldContainer[Variant]
    advice: Advice
    input: str
    keeps_shape: bool
    short_side: float
    def __init__(
        self,
        *,
        session: str = ...,
        variants: Iterable[Variant] = ...,
        advice: Advice | None = ...,
        input: str = ...,
        keeps_shape: bool = ...,
        short_side: float = ...,
    ) -> None: ...

class Variant(Message):
    name: str
    size: int
    accuracy: float
    def __init__(self, *, name: str = ..., size: int = ..., accuracy: float = ...) -> None: ...

class Acknowledgement(Message):
    id: int
    transfer_us: int
    def __init__(self, *, id: int = ..., transfer_us: int = ...) -> None: ...

class Advice(Message):
    size: int
    variant: str
    mapped: bool
    bytes_per_s: float
    def __init__(
        self, *, size: int = ..., variant: str = ..., mapped: bool = ..., bytes_per_s: float = ...
    ) -> None: ...

class Answer(Message):
    id: int
    advice: Advice
    variant: str
    response: ModelInferResponse
    refusal: Refusal
    server_us: int
    def __init__(
        self,
        *,
        id: int = ...,
        advice: Advice | None = ...,
        variant: str = ...,
        response: ModelInferResponse | None = ...,
        refusal: Refusal | None = ...,
        server_us: int = ...,
    ) -> None: ...

class Refusal(Message):
    reason: str
    message: str
    def __init__(self, *, reason: str = ..., message: str = ...) -> None: ...

class PeerMessage(Message):
    hello: HelloPeer
    loads: LoadsOfPeer
    ping: PeerPing
    pong: PeerPing
    call: CallOfPeer
    answer: AnswerOfPeer
    cancel: CancelOfPeer
    goodbye: PeerGoodbye
    def __init__(
        self,
        *,
        hello: HelloPeer | None = ...,
        loads: LoadsOfPeer | None = ...,
        ping: PeerPing | None = ...,
        pong: PeerPing | None = ...,
        call: CallOfPeer | None = ...,
        answer: AnswerOfPeer | None = ...,
        cancel: CancelOfPeer | None = ...,
        goodbye: PeerGoodbye | None = ...,
    ) -> None: ...

class HelloPeer(Message):
    protocol: int
    release: str
    machine: str
    instance: str
    max_bytes: int
    models: ScalarMap[str, str]
    http_address: str
    grpc_address: str
    tls: bool
    def __init__(
        self,
        *,
        protocol: int = ...,
        release: str = ...,
        machine: str = ...,
        instance: str = ...,
        max_bytes: int = ...,
        models: Mapping[str, str] = ...,
        http_address: str = ...,
        grpc_address: str = ...,
        tls: bool = ...,
    ) -> None: ...

class LoadsOfPeer(Message):
    loads: RepeatedCompositeFieldContainer[LoadOfModel]
    received: int
    def __init__(self, *, loads: Iterable[LoadOfModel] = ..., received: int = ...) -> None: ...

class LoadOfModel(Message):
    model: str
    wait_s: float
    alone_s: float
    row_s: float
    def __init__(
        self, *, model: str = ..., wait_s: float = ..., alone_s: float = ..., row_s: float = ...
    ) -> None: ...

class PeerPing(Message):
    id: int
    def __init__(self, *, id: int = ...) -> None: ...

class CallOfPeer(Message):
    id: int
    budget_us: int
    request_id: str
    traceparent: str
    request: ModelInferRequest
    def __init__(
        self,
        *,
        id: int = ...,
        budget_us: int | None = ...,
        request_id: str = ...,
        traceparent: str = ...,
        request: ModelInferRequest | None = ...,
    ) -> None: ...

class AnswerOfPeer(Message):
    id: int
    reason: str
    refused: bool
    queue_s: float
    compute_s: float
    batch_rows: int
    budget_s: float
    needed_s: float
    wait_s: float
    ramp: int
    detail: str
    message: str
    retry_after_s: float
    variant: str
    loads: LoadsOfPeer
    response: ModelInferResponse
    def __init__(
        self,
        *,
        id: int = ...,
        reason: str = ...,
        refused: bool = ...,
        queue_s: float = ...,
        compute_s: float = ...,
        batch_rows: int = ...,
        budget_s: float | None = ...,
        needed_s: float | None = ...,
        wait_s: float | None = ...,
        ramp: int | None = ...,
        detail: str = ...,
        message: str = ...,
        retry_after_s: float | None = ...,
        variant: str = ...,
        loads: LoadsOfPeer | None = ...,
        response: ModelInferResponse | None = ...,
    ) -> None: ...

class CancelOfPeer(Message):
    id: int
    def __init__(self, *, id: int = ...) -> None: ...

class PeerGoodbye(Message):
    why: str
    def __init__(self, *, why: str = ...) -> None: ...

SERVING: Final[int]
NOT_SERVING: Final[int]
SERVICE_UNKNOWN: Final[int]
