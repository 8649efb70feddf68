"""`LoadSpec`: what a load run sends, where, and how it is judged; and errors that prevent a run.
`build.py` makes a `LoadSpec` from a command line."""

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
    """A run that cannot start. Failures of single requests are outcomes, and are counted."""


class LoadSpecError(LoadError):
    """An invalid description of a run. `flag` is the flag at fault."""

    def __init__(self, flag: str, message: str) -> None:
        super().__init__(f"{flag}: {message}")
        self.flag = flag


class TargetError(LoadError):
    """The server cannot be reached, or lacks the model."""


def require_grpc() -> None:
    """Raise a LoadError that names the remedy if grpcio is not installed."""
    if find_spec("grpc") is None:
        remedy = "install it with: pip install 'slacktide[grpc-client]'"
        raise LoadError(f"load over gRPC needs grpcio; {remedy}")


Shape = tuple[int, ...]


class Transport(Enum):
    """Protocol that carries requests."""

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
    """Address to connect to instead, such as a proxy. Requests and certificates still name the
    server."""

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
    """Tensors drawn from the seed, with the shapes and types of the model's metadata. Floats are
    standard normal. Integers are 0 ≤ i < `integers`; the default is 2, because 0 and 1 are valid
    as token ids of any vocabulary and as masks."""

    integers: int = 2
    variety: int = 8
    """Number of different payloads for each combination of shape and rows."""

    def __post_init__(self) -> None:
        for name, value in (("integers", self.integers), ("variety", self.variety)):
            if value < 1:
                raise LoadSpecError("payload", f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class FilePayload:
    """Tensors from files, one file drawn for each request. `.npy`: the model's only input; `.npz`:
    one array for each input, by name; `.json`: a whole request body of the Open Inference Protocol
    (HTTP only). If the model batches, axis 0 is the rows."""

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        if not self.paths:
            raise LoadSpecError("payload", "expected at least one file")


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
    """1 (highest) to 5; 0 sends no priority, which servers treat as 3."""
    rows: tuple[int, ...] = (1,)
    """Possible numbers of rows of a random payload; one is drawn for each request."""
    shapes: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)
    """Input → shapes (without the batch axis) of random payloads, for inputs with free axes. If
    there are several shapes, one is drawn for each request; inputs with equally many shapes are
    drawn together, so that ids and masks stay equally long. Free axes of other inputs are 1."""
    payload: Payload = RandomPayload()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    """Further request parameters, e.g. `late=discard`."""
    name: str = ""
    """Name in reports; if empty, model and application are used."""

    def __post_init__(self) -> None:
        if not self.rows or any(rows < 1 for rows in self.rows):
            raise LoadSpecError("rows", f"must be 1 or more, got {self.rows}")
        if not 0 <= self.priority <= 5:
            raise LoadSpecError("priority", f"must be 0 to 5, got {self.priority}")
        if len({len(shapes) for shapes in self.shapes.values()} - {1}) > 1:
            raise LoadSpecError("shape", "expected one shape for each input, or equally many")
        if "timeout" in self.parameters:
            raise LoadSpecError("parameter", "timeout: expected none, --deadline sets it")

    @property
    def label(self) -> str:
        suffix = f"/{self.application}" if self.application else ""
        return self.name or f"{self.model}{suffix}"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """A whole run. `LoadFlags` explains the fields that are also flags. Times are in seconds."""

    target: Target
    streams: tuple[Stream, ...]
    duration: float
    warmup: float = 0.0
    seed: int = 0
    connections: int | None = None
    patience: float = 10.0
    """Seconds after its deadline (best effort: due time) at which a request is given up."""
    upload: float = 0.0
    """Seconds from a request's headers to its body; the deadline counts from the headers."""
    link: ConstantLink | TraceLink | None = None
    """The link to the server, which a proxy emulates; its time 0 is the start of the run. Deadlines
    are end to end, so the server is told only the time that the link leaves."""
    shared_link: bool = False
    send_deadlines: bool = True
    """If False, only the client knows the deadlines, and judges by them."""
    spin: bool = False
    """Busy-wait before sends, which is more precise by some tens of microseconds."""
    lateness_warning: float = 0.005
    title: str = ""

    def __post_init__(self) -> None:
        if not self.streams:
            raise LoadSpecError("stream", "expected at least one stream")
        labels = [stream.label for stream in self.streams]
        if len(set(labels)) != len(labels):
            raise LoadSpecError("stream", f"expected distinct names, got {sorted(labels)}")
        for name, value, least in (
            ("duration", self.duration, 1e-3),
            ("warmup", self.warmup, 0.0),
            ("patience", self.patience, 0.0),
            ("upload", self.upload, 0.0),
        ):
            if not least <= value < float("inf"):
                raise LoadSpecError(name, f"must be at least {least:g} s, got {value!r}")
        if self.link is not None and self.upload > 0.0:
            raise LoadSpecError("upload", "expected none with --link, which delays bodies")
        if self.link is None and self.shared_link:
            raise LoadSpecError("shared-link", "needs --link")
        if self.seed < 0:
            raise LoadSpecError("seed", f"must not be negative, got {self.seed}")
        if self.connections is not None and self.connections < 1:
            raise LoadSpecError("connections", f"must be at least 1, got {self.connections}")
        if self.target.transport is Transport.GRPC and self.upload > 0.0:
            message = "expected an http:// target: gRPC sends no body after its headers"
            raise LoadSpecError("upload", message)

    @property
    def length(self) -> float:
        """Seconds during which requests are sent."""
        return self.warmup + self.duration


def describe(spec: LoadSpec) -> dict[str, Any]:
    """Return the spec as plain JSON values for reports, without secrets."""
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
        "shapes": {
            name: [list(shape) for shape in shapes] for name, shapes in stream.shapes.items()
        },
        "payload": _describe_payload(stream.payload),
        "parameters": dict(stream.parameters),
    }


def _describe_payload(payload: Payload) -> str:
    if isinstance(payload, FilePayload):
        return "files: " + ", ".join(path.name for path in payload.paths)
    return f"random: integers below {payload.integers}, {payload.variety} of each shape"
