"""What front ends (HTTP, gRPC) may ask of the server: one data plane, one control plane.

Front ends convert, call, convert back; they hold no rule of their own. Everything runs on one
event loop; callbacks come on that loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from slacktide.domain import Outcome, Reason

if TYPE_CHECKING:  # numpy is not loaded to complete a command line
    from slacktide.domain.tensors import ModelInterface
    from slacktide.wire.calls import (
        Buffer,
        CallContext,
        InferCall,
        InferReply,
        Parameter,
        SessionTerms,
        SizeAdvice,
    )


class EndpointGroup(StrEnum):
    """What an endpoint is for: every route and every gRPC method belongs to exactly one. One gate
    decides by group what may be called, over HTTP and gRPC alike. Triton's names where it has
    one."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    CONFIG = "model-config"
    STATISTICS = "statistics"
    REPOSITORY = "model-repository"
    CONTROL = "model-control"
    """Loading and unloading, which Triton counts to its repository."""
    SHARED_MEMORY = "shared-memory"
    TRACE = "trace"
    LOGGING = "logging"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What the metadata endpoint says of a loaded version."""

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    interface: ModelInterface


class AccessRecord(NamedTuple):
    """One line of the access log: an answer, or its absence."""

    transport: str
    """`http` or `grpc`."""
    client: str
    """Address without port."""
    method: str
    """`POST`, or a method's full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
    target: str
    """The path of an HTTP request, without its query; the model of a gRPC call."""
    status: int | str
    """Of HTTP (499: the client left before its answer); or gRPC's name for it (CANCELLED)."""
    seconds: float
    """From the first byte of the request, or a call's metadata, to the end of its answer's
    making; of a stream once for all its requests."""
    request_id: str
    bytes_sent: int | None = None
    """Length of the answer's body, over HTTP."""
    model: str = ""
    """The model that the path of an HTTP request names."""
    outcome: Outcome | None = None
    """Of an inference request, as far as it is known; of a stream None."""
    health: bool = False
    """Whether it answers a health probe."""


AccessLog = Callable[[AccessRecord], None]


class InferenceCall(Protocol):
    """One call, from its headers to its one reply. `announce` it if its body is still on the way,
    then `submit` it; a call whose body is here is submitted at once. `refuse` or `cancel` may end
    it instead."""

    def announce(
        self,
        length: int,
        parameters: Mapping[str, Parameter],
        given_up: Callable[[InferReply], None] | None = None,
    ) -> memoryview | InferReply:
        """A body of `length` bytes is to come; `parameters` are those that the headers carry.
        Returns as much writable shared memory to receive it into, or the refusal, which ends the
        call. The memory is not to be written to once the call is submitted or has ended.

        `given_up` is called where the call is given up before it is submitted: then it is not to be
        submitted, but still refused or cancelled. None: what is submitted has that reply."""

    def submit(self, call: InferCall, reply: Callable[[InferReply], None]) -> None:
        """Its body is here and parsed; after `announce`, tensors are views into the memory given
        where they can be. `reply` is called exactly once, never from inside this method, unless
        the call is cancelled first; then it is not called at all."""

    def refuse(self, reason: Reason, message: str) -> None:
        """The front end turns the call away (a malformed body, too large) and answers by itself:
        it is counted. Not after `submit`."""

    def cancel(self, reason: Reason) -> None:
        """The client has gone. At any time, also after the reply."""


class FrameSession(Protocol):
    """A client that streams frames. Seconds are of the front end's clock."""

    id: str
    terms: SessionTerms
    rtt: float
    """Seconds there and back for a message of no length, as the front end measures it."""

    @property
    def advice(self) -> SizeAdvice | None:
        """None: it is still to be planned for."""

    def welcome(self) -> tuple[str, Sequence[tuple[str, int, float]]]:
        """The input that takes its images; the model's variants: name, size, accuracy."""

    def change(self, terms: SessionTerms) -> None:
        """It wants something else. Raises WireError."""

    def told(self, bytes_per_s: float) -> None:
        """What it measures of its link itself."""

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        """Seconds that so many bytes are expected to take."""

    def arrived(self, nbytes: int, seconds: float, size: tuple[int, int], *, now: float) -> None:
        """A frame is here, after `seconds` on its way (0: not timed). Width and height of its image
        as announced; 0: not said."""

    def idle(self, now: float) -> None:
        """Called about once a second: if no frame has come for long, planners are to know."""

    def stalled(self, came: int, of: int, seconds: float, *, now: float) -> None:
        """A frame has been given up when so many of its bytes had come in so many seconds."""

    def answered(self, outcome: Outcome | None, now: float) -> None:
        """A frame has its answer; None: no outcome, the front end has refused it."""

    def close(self) -> None:
        """It is gone. Safe to repeat."""


class DataPlane(Protocol):
    """Inference."""

    def largest_body(self, model: str | None = None, version: str | None = None) -> int:
        """Bytes of the largest inputs that this model takes, or any if none is named; 0: their
        shapes set no bound."""
        ...

    def has_slo(self, model: str, version: str | None) -> bool:
        """Whether requests that state no deadline have one."""
        ...

    def call(self, model: str, version: str | None, context: CallContext) -> InferenceCall:
        """The headers of a call are here. `version` None: the latest."""

    def open_session(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> FrameSession:
        """A client wants to stream frames. `advise` is called when what it is told changes. Raises
        WireError."""


class ControlPlane(Protocol):
    """Everything that is not inference. All JSON values are plain Python."""

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def model_ready(self, model: str, version: str | None) -> bool: ...

    def server_metadata(self) -> dict[str, Any]:
        """`name`, `version`, `extensions`."""

    def describe(self, model: str, version: str | None) -> ModelDescription:
        """Raises ControlError."""

    def config(self, model: str, version: str | None) -> dict[str, Any]:
        """Triton ModelConfig as JSON, proto field names. Raises ControlError."""

    def statistics(self, model: str | None, version: str | None) -> dict[str, Any]:
        """`{"model_stats": [...]}` as Triton's, numbers as numbers. Raises ControlError."""

    def sessions(self) -> list[dict[str, Any]]:
        """The clients that stream frames, one object for each."""

    async def repository_index(self, ready_only: bool) -> list[dict[str, str]]: ...

    async def load(self, model: str, parameters: Mapping[str, Parameter | Buffer]) -> None:
        """Load or reload. Raises ControlError."""

    async def unload(self, model: str, *, dependents: bool = False) -> None:
        """`dependents`: with a pipeline, also the models that no other one needs. Raises
        ControlError."""
