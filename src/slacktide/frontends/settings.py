"""What can be set on the front ends. Every limit bounds memory or time that a client can take."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """What all have. Bytes, seconds, counts. Raises ValueError if one is not positive."""

    max_connections: int = 4096
    max_request_bytes: int = 64 * MIB
    """Body of an inference request, as sent and as inflated, or its message: Triton's default.
    Larger: 413 or RESOURCE_EXHAUSTED. Answers are not limited."""
    body_timeout_s: float = 30.0
    """Seconds that a body may take, apart from the time that its size allows it, over gRPC from the
    call's metadata; then 408 or CANCELLED."""
    triton_strict: bool = False
    """Answer overload and missed deadlines as Triton does: 503, UNAVAILABLE."""
    header_timeout_s: float = 10.0
    """Seconds from the first byte of a request to the end of its headers; then
    408 or GOAWAY."""
    min_body_rate: float = 16 * KIB
    """Bytes/s: each that has come gives a body that much more time (as Apache's reqtimeout)."""
    write_timeout_s: float = 30.0
    """Seconds a client may leave its answer unread; then the connection is cut."""
    linger_s: float = 2.0
    """Seconds to go on reading (and discarding) after an early refusal, so that the client
    reads our answer before the kernel resets the connection."""
    tick_s: float = 0.5
    """Seconds between looks at the clock for all of these: their accuracy."""
    max_buffered_bytes: int = 256 * MIB
    """Bodies on their way into private memory (chunked, control, gRPC) and gRPC answers that
    their client does not take, over all connections; beyond that: 429, RESOURCE_EXHAUSTED."""
    max_buffered_per_client: int = 128 * MIB
    """The same for one client address."""
    write_high_bytes: int = 1 * MIB
    """Unsent bytes of a connection above which nothing more is read from it."""
    receive_bytes: int = 32 * KIB
    """Size of the receive buffer. Bodies that do not fit beside their headers are announced and
    received in place, so larger is not better."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not value > 0:
                raise ValueError(f"{field.name} must be positive, got {value}")


@dataclass(frozen=True, slots=True)
class HttpSettings(FrontEndSettings):
    """Of one HTTP server."""

    idle_timeout_s: float = 75.0
    """Seconds a connection may be quiet between requests; then it is closed."""

    max_pipelined: int = 32
    """Requests of one connection in the works at once; the rest wait unread."""

    max_target_bytes: int = 8 * KIB
    """Length of the request target; longer: 414."""
    max_header_bytes: int = 32 * KIB
    max_headers: int = 100
    """More headers than that, in bytes or number: 431."""
    max_json_bytes: int = 8 * MIB
    """JSON part of an inference request: it takes up to forty times its size while it is parsed;
    larger: 413."""
    max_control_bytes: int = 64 * KIB
    """Body of any other request: its JSON is parsed on the event loop; larger: 413."""
    max_chunks: int = 65_536
    """Chunks of a chunked body (Triton's limit); more: 413."""
    skip_bytes: int = 1 * MIB
    """The rest of a refused body is read up to this length to keep the connection."""

    compress_min_bytes: int = 16 * KIB
    """Answers shorter than that are never compressed."""
    compress_max_bytes: int = 1 * MIB
    """Nor are longer ones: compression does about 100 MB/s."""

    allowed_origins: frozenset[bytes] = frozenset()
    """Origins (lower case) whose pages may read answers (CORS). The gate admits them."""


@dataclass(frozen=True, slots=True)
class GrpcSettings(FrontEndSettings):
    """Of one gRPC server."""

    max_concurrent_calls: int = 256
    """Calls at a time on one connection; a client's further calls wait on its side, and those that
    cross with the limit are refused as not begun."""
    max_connections: int = 1024
    max_calls: int = 65_536
    """Calls at a time over all connections: one takes a KiB; beyond that: RESOURCE_EXHAUSTED."""
    max_metadata_bytes: int = 16 * KIB
    """Longer: RESOURCE_EXHAUSTED; far longer: the connection ends."""
    stream_in_flight: int = 256
    """Requests of one ModelStreamInfer that are unanswered or unsent; then reading pauses, and
    HTTP/2's flow control holds the client back."""
    connection_idle_s: float = 300.0
    """A connection without calls is closed after this long."""
    keepalive_s: float = 60.0
    """A silent connection is probed this often, so that a vanished client's calls are cancelled."""
    keepalive_timeout_s: float = 20.0
    health_poll_s: float = 0.5
    """How often Health/Watch looks for a change."""
    receive_bytes: int = 64 * KIB
    """Messages come in frames of 16 KiB: a few of them at a time."""
