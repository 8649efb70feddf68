"""The interface between front ends (HTTP, gRPC) and the server: a data plane and a control plane.

Front ends convert, call and convert back; they decide nothing about inference. Everything,
callbacks included, runs on one event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from slacktide.domain import Outcome, Reason

if TYPE_CHECKING:  # numpy is not loaded to complete a command line
    from slacktide.domain.tensors import ModelInterface
    from slacktide.peers.messages import LoadReport, PeerHello
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
    """The purpose of an endpoint. Every route and gRPC method belongs to exactly one group, and one
    gate decides by group what may be called. The names are Triton's where it has such a group."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    CONFIG = "model-config"
    STATISTICS = "statistics"
    REPOSITORY = "model-repository"
    CONTROL = "model-control"
    """Loading and unloading, which Triton counts as `model-repository`."""
    SHARED_MEMORY = "shared-memory"
    TRACE = "trace"
    LOGGING = "logging"
    METRICS = "metrics"
    PEERS = "peers"
    """Links of other servers, which show credentials of their own (`PeerAccess`)."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The metadata of a loaded model version."""

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    interface: ModelInterface
    labels: tuple[str, ...] = ()
    """Names of its classes."""


class AccessRecord(NamedTuple):
    """One line of the access log: a request and how it was answered."""

    transport: str
    """`http` or `grpc`."""
    client: str
    """Address without port."""
    method: str
    """`POST`, or a method's full name, such as `/inference.GRPCInferenceService/ModelInfer`."""
    target: str
    """The path of an HTTP request without its query, or the model of a gRPC call."""
    status: int | str
    """HTTP status (499: the client left before its answer), or name of the gRPC status
    (CANCELLED)."""
    seconds: float
    """Seconds from the first byte of an HTTP request, or a call's metadata, until the answer was
    made. A stream has one record for all its requests."""
    request_id: str
    bytes_sent: int | None = None
    """Length of the answer's body, over HTTP."""
    model: str = ""
    """The model that the path of an HTTP request names."""
    outcome: Outcome | None = None
    """Outcome of an inference request, if known; None for a stream."""
    health: bool = False
    """Whether the request is a health probe."""


AccessLog = Callable[[AccessRecord], None]


class InferenceCall(Protocol):
    """One inference call, from its headers to its single reply. `announce` it if its body is still
    on the way, then `submit` it; `refuse` or `cancel` may end it instead."""

    def elsewhere(self, length: int, parameters: Mapping[str, Parameter]) -> str:
        """The origin (`http://10.0.0.2:8000`) of a server that answers a call with a body of
        `length` bytes sooner, and accepts its client; empty: there is none. If an origin is
        returned, the call has ended without an outcome. Allowed before `announce`."""
        ...

    def announce(
        self,
        length: int,
        parameters: Mapping[str, Parameter],
        given_up: Callable[[InferReply], None] | None = None,
    ) -> memoryview | InferReply:
        """Announce a body of `length` bytes, with the `parameters` of its headers. Returns writable
        shared memory of that size to receive it into, or the refusal, which ends the call. Do not
        write to the memory once the call is submitted or has ended.

        `given_up` is called if the server drops the call before it is submitted. Such a call must
        not be submitted, but must still be refused or cancelled. Without `given_up`, `submit` the
        dropped call as usual: its reply is then the refusal."""

    def submit(self, call: InferCall, reply: Callable[[InferReply], None]) -> None:
        """Submit the parsed body. After `announce`, its tensors are views into the announced memory
        if possible. `reply` is called exactly once and never from inside this method, or not
        at all if the call is cancelled first."""

    def refuse(self, reason: Reason, message: str) -> None:
        """Count a call that the front end itself refuses (its body is malformed or too large). Not
        allowed after `submit`."""

    def cancel(self, reason: Reason) -> None:
        """End the call; its client has usually gone. Allowed at any time, even after the reply."""


class FrameSession(Protocol):
    """A client that streams frames. Times are seconds of the front end's clock."""

    id: str
    terms: SessionTerms
    rtt: float
    """Round-trip time in seconds of an empty message, as the front end measures it."""
    move: Callable[[str], None]
    """Set by the front end. Tells the client that the server at a gRPC address would answer it
    sooner."""

    @property
    def advice(self) -> SizeAdvice | None:
        """The frame size to send; None until the session is planned for."""

    @property
    def keeps_shape(self) -> bool:
        """Whether the model sees images undistorted, so that clients should not squeeze them."""

    @property
    def short_side(self) -> float:
        """Short side of images that keep their shape, as a multiple of the advised size; 0: the
        long side has that size."""

    def welcome(self) -> tuple[str, Sequence[tuple[str, int, float]]]:
        """The input that takes the images, and the model's variants: name, size, accuracy."""

    def change(self, terms: SessionTerms) -> None:
        """Change the session's terms. Raises WireError."""

    def report_rate(self, bytes_per_s: float) -> None:
        """Record the link's rate as measured by the client."""

    def transfer_time(self, nbytes: int, *, now: float) -> float:
        """Expected seconds to transfer `nbytes`."""

    def arrived(self, nbytes: int, seconds: float, size: tuple[int, int], *, now: float) -> None:
        """Record a frame that took `seconds` to arrive (0: not timed). `size`: announced width and
        height of its image; 0 if not announced."""

    def idle(self, now: float) -> None:
        """Called about once a second, so that planners learn of a client that has sent nothing for
        a while."""

    def stalled(self, received: int, length: int, seconds: float, *, now: float) -> None:
        """Record a frame that was dropped when `received` of its `length` bytes had come, in
        `seconds`."""

    def answered(self, outcome: Outcome | None, now: float) -> None:
        """Record a frame's answer. `outcome` None: the front end refused it."""

    def close(self) -> None:
        """End the session. Safe to repeat."""


class DataPlane(Protocol):
    """Inference."""

    def largest_body(self, model: str | None = None, version: str | None = None) -> int:
        """Largest size in bytes of a model's inputs, or of any model's if none is named; 0 if
        their shapes set no bound."""
        ...

    def has_slo(self, model: str, version: str | None) -> bool:
        """Whether requests without a stated deadline get one."""
        ...

    def call(self, model: str, version: str | None, context: CallContext) -> InferenceCall:
        """Begin a call whose headers have arrived. `version` None: the latest."""

    def offered_share(self) -> float:
        """Work that clients offer, as a share of the lanes' capacity."""
        ...

    def open_session(
        self, terms: SessionTerms, address: str, advise: Callable[[SizeAdvice], None]
    ) -> FrameSession:
        """Begin a session for a client that streams frames. `advise` is called when its advice
        changes. Raises WireError."""


class PeerLink(Protocol):
    """A connection to a peer, dialled by either side. Times are seconds."""

    machine: str
    """The peer's name."""
    address: str
    dialled: bool
    """True if this server dialled the link, False if the peer did."""
    rtt: float
    """Round-trip time of an empty message; 0: not measured yet."""

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` can be sent without waiting behind much unsent data, and the peer's
        limit of unanswered calls is not reached."""

    def forward(
        self,
        call: InferCall,
        context: CallContext,
        budget_s: float | None,
        done: Callable[[InferReply | None], None],
    ) -> int:
        """Send a copy of a call, and return its id. `budget_s`: seconds left until its deadline at
        this server; None: best effort. `done` is called once, unless the call is withdrawn: with
        the peer's reply, or with None if the link ended first. It is never called from inside this
        method."""
        ...

    def withdraw(self, id: int) -> None:
        """Tell the peer that nobody waits for the answer to a call, and ignore that answer. Does
        nothing if it has already arrived."""

    def report(self, report: LoadReport) -> None:
        """Send a report. Does nothing if the link has ended."""

    def greet(self, hello: PeerHello) -> None:
        """Send the hello again, because this server's models have changed. The hello of a server
        that shuts down names no models. Does nothing if the link has ended."""

    def close(self, why: str) -> None:
        """Forward and take no more calls. The link ends once those under way are answered. The
        peer gets the sentence `why`."""


class PeerHost(Protocol):
    """The server as its links see it."""

    def hello(self) -> PeerHello:
        """This server's first message."""
        ...

    def joined(self, link: PeerLink, hello: PeerHello) -> None:
        """Handle a peer's hello: its first hello, or a hello that says that its models have
        changed. Raises WireError if the server must not use the link (same machine name, another
        protocol): the link then ends with that sentence."""

    def reported(self, link: PeerLink, report: LoadReport) -> None:
        """Handle a report of a peer's loads."""

    def call(
        self, link: PeerLink, model: str, version: str | None, context: CallContext
    ) -> InferenceCall:
        """Begin a call that a peer has forwarded. It must be answered here: it is not forwarded
        again. `context.transport` is `peer`, `context.client` the peer's name."""
        ...

    def left(self, link: PeerLink, why: str) -> None:
        """Handle the end, or the refusal, of a link. Called once, before `done` of its calls."""


class ControlPlane(Protocol):
    """Everything but inference. All JSON values are plain Python objects."""

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def model_ready(self, model: str, version: str | None) -> bool: ...

    def server_metadata(self) -> dict[str, Any]:
        """`name`, `version`, `extensions`."""

    def describe(self, model: str, version: str | None) -> ModelDescription:
        """Describe a model version. Raises ControlError."""

    def config(self, model: str, version: str | None) -> dict[str, Any]:
        """Triton's ModelConfig as JSON with proto field names. Raises ControlError."""

    def statistics(self, model: str | None, version: str | None) -> dict[str, Any]:
        """Triton's `{"model_stats": [...]}`, with numbers, not text. Raises ControlError."""

    def sessions(self) -> list[dict[str, Any]]:
        """One object for each client that streams frames."""

    def peers(self) -> dict[str, Any]:
        """`machine`, the server's name, and `peers`, an object for each server that it knows; empty
        if it may have none."""

    async def repository_index(self, ready_only: bool) -> list[dict[str, str]]: ...

    async def load(self, model: str, parameters: Mapping[str, Parameter | Buffer]) -> None:
        """Load or reload. Raises ControlError."""

    async def unload(self, model: str, *, dependents: bool = False) -> None:
        """Unload. `dependents`: with a pipeline, also the models that no other pipeline needs.
        Raises ControlError."""
