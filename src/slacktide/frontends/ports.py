"""What front ends (HTTP, gRPC) may ask of the server: one data plane, one control plane.

Front ends convert, call, convert back; they hold no rule of their own. Everything runs on one
event loop; callbacks come on that loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from slacktide.domain import Reason
from slacktide.domain.tensors import ModelInterface
from slacktide.wire.calls import Buffer, CallContext, InferCall, InferReply, Parameter


class Group(StrEnum):
    """What an endpoint is for: every route and every gRPC method belongs to exactly one.

    One gate decides by group what may be called, over HTTP and gRPC alike. Triton's names where it
    has one.
    """

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


class Ticket(Protocol):
    """A call in the system. `cancel` may come at any time, also after the answer."""

    def cancel(self, reason: Reason) -> None: ...


class Upload(Protocol):
    """A body on its way, announced. Exactly one of `complete`, `refuse` or `cancel` ends it."""

    def body(self) -> memoryview:
        """`length` writable bytes of shared memory to receive the body into."""
        ...

    def complete(self, call: InferCall, reply: Callable[[InferReply], None]) -> Ticket:
        """The body is here and parsed; tensors are views into `body()` where they can be."""
        ...

    def refuse(self, reason: Reason, message: str) -> None:
        """The body turned out bad; the front end answers by itself."""
        ...

    def cancel(self, reason: Reason) -> None: ...


class DataPlane(Protocol):
    """Inference."""

    def infer(
        self, call: InferCall, context: CallContext, reply: Callable[[InferReply], None]
    ) -> Ticket:
        """Submit a complete call. `reply` is called exactly once, never from inside this call,
        unless the ticket is cancelled first; then it is not called at all."""
        ...

    def announce(
        self,
        model: str,
        version: str | None,
        length: int,
        parameters: Mapping[str, Parameter],
        context: CallContext,
    ) -> Upload | InferReply:
        """The headers of a call are here, its body of `length` bytes is not.

        `parameters` are those that headers or metadata can carry. Returns the upload, or the
        refusal (sent before the body is read).
        """
        ...

    def body_refused(
        self,
        model: str,
        version: str | None,
        reason: Reason,
        message: str,
        context: CallContext,
    ) -> None:
        """The front end turned a call away itself (malformed body, too large): it is counted."""
        ...


class ControlPlane(Protocol):
    """Everything that is not inference. All JSON values are plain Python."""

    def live(self) -> bool: ...

    def ready(self) -> bool: ...

    def model_ready(self, model: str, version: str | None) -> bool: ...

    def server_metadata(self) -> dict[str, Any]:
        """`name`, `version`, `extensions`."""
        ...

    def describe(self, model: str, version: str | None) -> ModelDescription:
        """Raises ControlError."""
        ...

    def config(self, model: str, version: str | None) -> dict[str, Any]:
        """Triton ModelConfig as JSON, proto field names. Raises ControlError."""
        ...

    def statistics(self, model: str | None, version: str | None) -> dict[str, Any]:
        """`{"model_stats": [...]}` as Triton's, numbers as numbers. Raises ControlError."""
        ...

    def repository_index(self, ready_only: bool) -> list[dict[str, str]]: ...

    async def load(self, model: str, parameters: Mapping[str, Parameter | Buffer]) -> None:
        """Load or reload. Raises ControlError."""
        ...

    async def unload(self, model: str) -> None:
        """Raises ControlError."""
        ...
