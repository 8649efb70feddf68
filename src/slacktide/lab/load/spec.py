"""`LoadSpec`: what to send, where, and how it will be judged. Data only; `build.py` makes it
from the texts of a command line. And why a run cannot start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slacktide.lab.workloads import Arrivals, ConstantLink, Deadlines, TraceLink
from slacktide.wire.calls import Parameter


class LoadError(Exception):
    """A run that cannot start. What goes wrong with single requests is an outcome, and counted."""


class LoadSpecError(LoadError):
    """A run that cannot be. `flag` names the wrong flag."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag


class TargetError(LoadError):
    """The server cannot be reached, or lacks the model."""


def require_grpc() -> None:
    """Raises LoadError with the remedy if there is no client of gRPC."""
    if find_spec("grpc") is None:
        remedy = "install it with: pip install 'slacktide[grpc-client]'"
        raise LoadError(f"load over gRPC needs grpcio; {remedy}")


Shape = tuple[int, ...]


class Transport(Enum):
    """How requests travel."""

    HTTP = "http"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Target:
    """A server. Over TLS, `ca_file` (PEM) replaces the system's trusted certificates."""

    transport: Transport
    host: str
    port: int
    tls: bool = False
    base_path: str = ""
    """Prefix of every HTTP path, without a trailing slash."""
    token: str | None = field(default=None, repr=False)
    """Bearer token."""
    ca_file: Path | None = None
    via: tuple[str, int] | None = None
    """Address to connect to instead, such as a proxy; requests and certificates name the server.
    """

    @property
    def address(self) -> tuple[str, int]:
        """Address to connect to."""
        return self.via or (self.host, self.port)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.transport.value}{'s' * self.tls}://{self.authority}{self.base_path}"


@dataclass(frozen=True, slots=True)
class RandomPayload:
    """Tensors drawn from the seed, of the shapes and types the model's metadata names. Floats are
    standard normal. Integers are 0 ≤ i < `integers`: 2 by default, because token ids and masks
    alike accept 0 and 1 whatever the vocabulary."""

    integers: int = 2
    variety: int = 8
    """Different payloads made for each combination of shape and rows."""

    def __post_init__(self) -> None:
        for name, value in (("integers", self.integers), ("variety", self.variety)):
            if value < 1:
                raise LoadSpecError("payload", f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class FilePayload:
    """Tensors from files, one of them drawn for each request. `.npy`: the model's only input;
    `.npz`: one array for each input, by name; `.json`: a whole request body as OIP writes it (HTTP
    only). Where the model batches, axis 0 is the rows."""

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.paths:
            raise LoadSpecError("payload", "no files given")


Payload = RandomPayload | FilePayload


@dataclass(frozen=True, slots=True)
class Stream:
    """One application's requests for one model."""

    model: str
    arrivals: Arrivals
    deadlines: Deadlines | None = None
    """None: best effort, every answer is on time."""
    version: str | None = None
    application: str = ""
    priority: int = 0
    """1 (highest) to 5; 0 says nothing, which servers take as 3."""
    rows: tuple[int, ...] = (1,)
    """Rows of a random payload, one choice drawn for each request."""
    shapes: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)
    """Input → shapes (without the batch axis) for random payloads, where the metadata leaves an
    axis free. Several shapes: one is drawn for each request; inputs with as many are drawn
    together, so that ids and masks stay equally long. Free axes not named here are 1."""
    payload: Payload = RandomPayload()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Further request parameters, e.g. `late=discard`."""
    name: str = ""
    """In reports; empty: model and application."""

    def __post_init__(self) -> None:
        if not self.rows or any(rows < 1 for rows in self.rows):
            raise LoadSpecError("rows", f"must be 1 or more, got {self.rows}")
        if not 0 <= self.priority <= 5:
            raise LoadSpecError("priority", f"must be 0 to 5, got {self.priority}")
        if len({len(shapes) for shapes in self.shapes.values()} - {1}) > 1:
            raise LoadSpecError("shape", "inputs with several shapes need equally many")
        if "timeout" in self.parameters:
            raise LoadSpecError("parameter", "timeout is set from the deadline")

    @property
    def label(self) -> str:
        suffix = f"/{self.application}" if self.application else ""
        return self.name or f"{self.model}{suffix}"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A whole run. What are flags too is explained there (`LoadFlags`); times in seconds."""

    target: Target
    streams: tuple[Stream, ...]
    duration: float
    warmup: float = 0.0
    seed: int = 0
    connections: int | None = None
    patience: float = 10.0
    """Best effort: counted from when a request was due. Then its connection is closed too."""
    upload: float = 0.0
    """The deadline counts from the headers."""
    link: ConstantLink | TraceLink | None = None
    """The way to the server, which requests are held to by a proxy; its time 0 is the start of the
    run. Deadlines are end to end: the server gets what the link leaves of them."""
    shared_link: bool = False
    send_deadlines: bool = True
    """False: the client judges by them all the same."""
    spin: bool = False
    """Sharper by some tens of microseconds."""
    lateness_warning: float = 0.005
    title: str = ""

    def __post_init__(self) -> None:
        if not self.streams:
            raise LoadSpecError("stream", "nothing to send")
        labels = [stream.label for stream in self.streams]
        if len(set(labels)) != len(labels):
            raise LoadSpecError("stream", f"two streams share a name: {sorted(labels)}")
        for name, value, least in (
            ("duration", self.duration, 1e-3),
            ("warmup", self.warmup, 0.0),
            ("patience", self.patience, 0.0),
            ("upload", self.upload, 0.0),
        ):
            if not least <= value < float("inf"):
                raise LoadSpecError(name, f"must be at least {least:g} s, got {value!r}")
        if self.link is not None and self.upload > 0.0:
            raise LoadSpecError("upload", "a link itself decides when bodies arrive")
        if self.link is None and self.shared_link:
            raise LoadSpecError("shared-link", "which link? name one")
        if self.seed < 0:
            raise LoadSpecError("seed", f"must not be negative, got {self.seed}")
        if self.connections is not None and self.connections < 1:
            raise LoadSpecError("connections", f"must be at least 1, got {self.connections}")
        if self.target.transport is Transport.GRPC and self.upload > 0.0:
            message = "a body that follows its headers needs an http:// target"
            raise LoadSpecError("upload", message)

    @property
    def length(self) -> float:
        """Seconds during which requests are sent."""
        return self.warmup + self.duration


def describe(spec: LoadSpec) -> dict[str, Any]:
    """The spec as plain JSON values, for reports. No secrets."""
    return {
        "target": spec.target.url,
        "duration_s": spec.duration,
        "warmup_s": spec.warmup,
        "connections": spec.connections,
        "patience_s": spec.patience,
        "upload_s": spec.upload,
        "link": None if spec.link is None else spec.link.describe(),
        "shared_link": spec.shared_link,
        "send_deadlines": spec.send_deadlines,
        "spin": spec.spin,
        "lateness_warning_s": spec.lateness_warning,
        "streams": [_describe_stream(stream, spec.length) for stream in spec.streams],
    }


def _describe_stream(stream: Stream, length: float) -> dict[str, Any]:
    return {
        "name": stream.label,
        "model": stream.model,
        "version": stream.version,
        "application": stream.application,
        "arrivals": stream.arrivals.describe(),
        "mean_rate_rps": stream.arrivals.mean_rate(length),
        "deadlines": stream.deadlines.describe() if stream.deadlines else "none",
        "priority": stream.priority,
        "rows": list(stream.rows),
        "shapes": {name: [list(shape) for shape in some] for name, some in stream.shapes.items()},
        "payload": _describe_payload(stream.payload),
        "parameters": dict(stream.parameters),
    }


def _describe_payload(payload: Payload) -> str:
    if isinstance(payload, FilePayload):
        return "files: " + ", ".join(path.name for path in payload.paths)
    return f"random: integers below {payload.integers}, {payload.variety} of each shape"
