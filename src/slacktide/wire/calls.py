"""Protocol-neutral inference calls and replies, which both front ends convert to and from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slacktide.domain import Outcome
from slacktide.domain.tensors import Datatype

Parameter = bool | int | float | str
Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class InputTensor:
    """An input tensor. `data` is always raw little-endian bytes; the front end has converted JSON
    and typed contents."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


@dataclass(slots=True)
class InferCall:
    """An inference request. `outputs` names the requested outputs; empty means all."""

    model: str
    version: str | None
    id: str
    inputs: list[InputTensor]
    outputs: list[str] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """Request parameters. Our headers or metadata are merged in under their parameter names."""
    classification: Mapping[str, int] | None = None
    """Number of classes to return instead of the values, by output; None: all return values."""


@dataclass(slots=True, eq=False)
class CallContext:
    """Where a call comes from, and its timing."""

    first_byte: float
    """Time at which its first byte arrived, in monotonic seconds."""
    client: str
    """Peer address without port: the key of limits, and of bandwidth outside sessions."""
    transport: str
    """`http`, `grpc`, `grpc-stream` or `frames`."""
    transport_budget_s: float | None = None
    """Seconds from the first byte that the transport allows (grpc-timeout, timeout headers)."""
    request_id: str = ""
    traceparent: str | None = None
    connection: str = ""
    """Peer address with port; empty if it does not identify a connection."""
    session: str = ""
    """Id of its frame session. To planners and schedulers, the session is the client."""
    complete_at: float | None = None
    """Expected time of its last byte, in a session; None: estimated from the client's other
    bodies."""
    read_s: float = 0.0
    """Seconds of its deadline that were spent on reading long JSON or typed contents."""
    redirected: bool = False
    """Whether another server has sent the client here; such a call is answered here."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """The requirements of a client that streams frames."""

    model: str
    version: str | None
    rate: float
    """Frames per second, > 0."""
    slo: float
    """Seconds from capture to the answer's arrival at the client, > 0."""
    floor: float = 0.0
    """Lowest useful accuracy, 0 to 1."""
    weight: float = 1.0
    name: str = ""
    """Name shown to people."""
    bytes_per_s: float = 0.0
    """Rate of the client's link; 0: unknown."""


@dataclass(frozen=True, slots=True)
class SizeAdvice:
    """Advice to a session on the frames to send."""

    size: int = 0
    """Side of its images in pixels; 0: any size."""
    variant: str = ""
    mapped: bool = True
    """Whether answers are expected in time."""
    bytes_per_s: float = 0.0
    """Measured rate of the session's link; 0: not known yet."""


@dataclass(slots=True)
class OutputValue:
    """An output of a reply. `data` is raw little-endian bytes owned by the reply."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


@dataclass(slots=True)
class InferReply:
    """The reply to a call. `outputs` is None if there is no result; `message` then says why."""

    outcome: Outcome
    model: str
    version: str
    id: str
    outputs: list[OutputValue] | None
    message: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """Top-level response parameters (timing, if requested)."""
    retry_after_s: float | None = None
    variant: str = ""
    """The variant that ran; empty if none did or the model has only one."""

    def in_order(self, requested: Sequence[str]) -> list[OutputValue]:
        """The outputs in the order of `requested`."""
        outputs = self.outputs or []
        if len(requested) > 1:
            rank = {name: place for place, name in enumerate(requested)}
            outputs = sorted(outputs, key=lambda output: rank.get(output.name, len(rank)))
        return outputs
