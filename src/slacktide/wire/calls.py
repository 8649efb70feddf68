"""A protocol-neutral inference call and its answer: what both front ends convert to and from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slacktide.domain import Outcome
from slacktide.domain.tensors import Datatype

Parameter = bool | int | float | str
Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class InputTensor:
    """One input as it came. `data` is raw little-endian bytes, always:
    JSON and typed contents have been converted by the front end."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


@dataclass(slots=True)
class InferCall:
    """One inference request. `outputs` names the wanted outputs; empty means all."""

    model: str
    version: str | None
    id: str
    inputs: list[InputTensor]
    outputs: list[str] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """Request parameters, with our own headers/metadata merged in under their parameter names."""


@dataclass(slots=True, eq=False)
class CallContext:
    """Where and when a call came in."""

    first_byte: float
    """Monotonic seconds at which its first byte arrived."""
    client: str
    """Peer address without port: what limits are counted by, and bandwidth outside sessions."""
    transport: str
    """`http`, `grpc`, `grpc-stream` or `frames`."""
    transport_budget_s: float | None = None
    """Seconds from first byte that the transport allows (grpc-timeout, timeout headers)."""
    request_id: str = ""
    traceparent: str | None = None
    connection: str = ""
    """Peer address with port; empty where it does not tell connections apart."""
    session: str = ""
    """The stream of frames that it belongs to: the client that planners and schedulers see."""
    complete_at: float | None = None
    """When its last byte is expected, in a session; None: as the client's other bodies came."""
    read_s: float = 0.0
    """Seconds that reading long JSON or typed contents took, of its deadline."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What a client that streams frames has said it wants."""

    model: str
    version: str | None
    rate: float
    """Frames per second, > 0."""
    slo: float
    """Seconds from capture to the answer at the client, > 0."""
    floor: float = 0.0
    """Least accuracy of use, 0 to 1."""
    weight: float = 1.0
    name: str = ""
    """For people."""
    bytes_per_s: float = 0.0
    """Of its link; 0: it does not know."""


@dataclass(frozen=True, slots=True)
class SizeAdvice:
    """What a session is told to send."""

    size: int = 0
    """Side of its images, pixels; 0: as they are."""
    variant: str = ""
    mapped: bool = True
    """False: no answer in time is expected."""
    bytes_per_s: float = 0.0
    """Of its link, as measured; 0: not known yet."""


@dataclass(slots=True)
class OutputValue:
    """One output of the answer; `data` is raw little-endian bytes owned by the answer."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer


@dataclass(slots=True)
class InferReply:
    """The answer to a call. `outputs` is None if there is no result; then `message` says why."""

    outcome: Outcome
    model: str
    version: str
    id: str
    outputs: list[OutputValue] | None
    message: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)
    """Top-level response parameters (timing, where asked for)."""
    retry_after_s: float | None = None
    variant: str = ""
    """Of the model, that ran; empty: none did, or there is but one."""

    def in_order(self, requested: Sequence[str]) -> list[OutputValue]:
        """The outputs as the client asked for them."""
        outputs = self.outputs or []
        if len(requested) > 1:
            rank = {name: place for place, name in enumerate(requested)}
            outputs = sorted(outputs, key=lambda output: rank.get(output.name, len(rank)))
        return outputs
