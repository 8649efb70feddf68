"""Settings of the front ends. Each limit bounds the memory or time that a client can take."""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class FrontEndSettings:
    """Settings common to HTTP and gRPC: bytes, seconds and counts. Raises ValueError if a setting
    is not positive."""

    max_connections: int = 4096
    max_request_bytes: int = 64 * MIB
    """Maximum size of an inference request's body or message, both as sent and as inflated (the
    default is Triton's). A larger one gets 413 or RESOURCE_EXHAUSTED. Answers are not limited."""
    body_timeout_s: float = 30.0
    """Seconds that a body may take, on top of what `min_body_rate` allows for its size; over gRPC
    they start with the call's metadata. After that: 408 or CANCELLED."""
    triton_strict: bool = False
    """Answer overload and missed deadlines as Triton does: with 503 or UNAVAILABLE."""
    load_reports: bool = False
    """Put a load report into every answer to an inference request."""
    header_timeout_s: float = 10.0
    """Seconds from the first byte of a request to the end of its headers; after that, 408 or
    GOAWAY."""
    min_body_rate: float = 16 * KIB
    """Minimum bytes per second of a body: each time this many bytes have arrived, the body's
    timeout is extended by a second (like Apache's reqtimeout)."""
    write_timeout_s: float = 30.0
    """Seconds a client may leave its answer unread before the connection is cut."""
    linger_s: float = 2.0
    """Seconds for which the rest of a refused body is read and discarded, so that the client reads
    our answer before the kernel resets the connection."""
    tick_s: float = 0.5
    """Seconds between checks of these timeouts, which is also their accuracy."""
    max_buffered_bytes: int = 256 * MIB
    """Maximum bytes, over all connections, of bodies received into private memory (chunked,
    control, gRPC) and of gRPC answers that clients have not read. Beyond that: 429 or
    RESOURCE_EXHAUSTED."""
    max_buffered_per_client: int = 128 * MIB
    """Limit like `max_buffered_bytes`, but for one client address."""
    write_high_bytes: int = 1 * MIB
    """Unsent bytes above which a connection is no longer read."""
    receive_bytes: int = 32 * KIB
    """Size of the receive buffer. A body that does not fit into it with its headers is announced to
    the engine and received directly into its slot, so a larger buffer is not better."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not value > 0:
                raise ValueError(f"{field.name}: expected more than 0, got {value}")


@dataclass(frozen=True, slots=True)
class HttpSettings(FrontEndSettings):
    """Settings of an HTTP server."""

    idle_timeout_s: float = 75.0
    """Seconds a connection may be quiet between requests before it is closed."""

    max_pipelined: int = 32
    """Requests of one connection handled at a time; further ones wait unread."""

    max_target_bytes: int = 8 * KIB
    """Maximum length of the request target; a longer one gets 414."""
    max_header_bytes: int = 32 * KIB
    max_headers: int = 100
    """Maximum number of headers. More of them, or more than `max_header_bytes`, get 431."""
    max_json_bytes: int = 8 * MIB
    """Maximum JSON part of an inference request; a larger one gets 413. Parsing needs memory of up
    to forty times its size."""
    max_control_bytes: int = 64 * KIB
    """Maximum body of any other request, whose JSON is parsed on the event loop; a larger one gets
    413."""
    max_chunks: int = 65_536
    """Maximum chunks of a chunked body (Triton's limit); more of them get 413."""
    skip_bytes: int = 1 * MIB
    """Longest remainder of a refused body that is read to keep the connection."""

    compress_min_bytes: int = 16 * KIB
    """Shorter answers are never compressed."""
    compress_max_bytes: int = 1 * MIB
    """Longer answers are never compressed: compression runs at about 100 MB/s."""

    allowed_origins: frozenset[bytes] = frozenset()
    """Origins, in lower case, whose pages are served and may read the answers (CORS)."""


@dataclass(frozen=True, slots=True)
class GrpcSettings(FrontEndSettings):
    """Settings of a gRPC server."""

    max_concurrent_calls: int = 256
    """Concurrent calls on one connection. Further calls wait in the client; those sent before it
    learned the limit are refused with REFUSED_STREAM."""
    max_connections: int = 1024
    max_calls: int = 65_536
    """Concurrent calls over all connections, about a KiB each; beyond that: RESOURCE_EXHAUSTED."""
    max_metadata_bytes: int = 16 * KIB
    """Maximum metadata of a call. Longer metadata gets RESOURCE_EXHAUSTED; far longer metadata ends
    the connection."""
    stream_in_flight: int = 256
    """Requests of one stream that may be unanswered, or answered but unsent. At the limit, reading
    pauses, and HTTP/2's flow control holds the client back."""
    connection_idle_s: float = 300.0
    """Seconds without calls after which a connection is closed."""
    keepalive_s: float = 60.0
    """Seconds between probes of a silent connection, which find clients that have vanished."""
    keepalive_timeout_s: float = 20.0
    health_poll_s: float = 0.5
    """Seconds between Health/Watch's checks for a changed status."""
    receive_bytes: int = 256 * KIB
    """Size of the receive buffer; it holds most messages, including their frame headers."""
