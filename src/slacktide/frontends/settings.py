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
    """Seconds that a body may take, apart from the time that its size allows it (HTTP), or from a
    call's metadata to its message (gRPC); then 408 or CANCELLED."""
    triton_strict: bool = False
    """Answer overload and missed deadlines as Triton does: 503, UNAVAILABLE."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float) and not value > 0:
                raise ValueError(f"{field.name} must be positive, got {value}")


@dataclass(frozen=True, slots=True)
class HttpSettings(FrontEndSettings):
    """Of one HTTP server."""

    header_timeout_s: float = 10.0
    """Seconds from the first byte of a request to the end of its headers; then 408."""
    min_body_rate: float = 16 * KIB
    """Bytes/s: each that has come gives a body that much more time (as Apache's reqtimeout)."""
    idle_timeout_s: float = 75.0
    """Seconds a connection may be quiet between requests; then it is closed."""
    write_timeout_s: float = 30.0
    """Seconds a client may leave its answer unread; then the connection is cut."""
    linger_s: float = 2.0
    """Seconds to go on reading (and discarding) after an early refusal, so that the client
    reads our answer before the kernel resets the connection."""
    tick_s: float = 0.5
    """Seconds between looks at the clock for all of the above: their accuracy."""

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
    max_buffered_bytes: int = 256 * MIB
    """Bodies on their way into private memory (chunked, control), over all connections; beyond
    that: 429."""
    max_buffered_per_client: int = 128 * MIB
    """The same for one client address."""
    skip_bytes: int = 1 * MIB
    """The rest of a refused body is read up to this length to keep the connection."""

    compress_min_bytes: int = 16 * KIB
    """Answers shorter than that are never compressed."""
    compress_max_bytes: int = 1 * MIB
    """Nor are longer ones: compression does about 100 MB/s."""
    write_high_bytes: int = 1 * MIB
    """Unsent bytes of a connection above which nothing more is read from it."""
    receive_bytes: int = 32 * KIB
    """Size of the receive buffer. Bodies that do not fit beside their headers are announced and
    received in place, so larger is not better."""

    allowed_origins: frozenset[bytes] = frozenset()
    """Origins (lower case) whose pages may read answers (CORS). The gate admits them."""


@dataclass(frozen=True, slots=True)
class TlsPem:
    """Contents of PEM files. With `client_ca`, clients must show a certificate signed by it."""

    certificate_chain: bytes
    private_key: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class GrpcSettings(FrontEndSettings):
    """Of one gRPC server."""

    max_concurrent_calls: int = 256
    """Calls at a time on one connection, and so messages of which no limit on memory knows until
    they are whole; a client's further calls wait on its side (grpc-core
    refuses, as UNAVAILABLE, those that cross with the limit)."""
    max_connections: int = 1024
    max_metadata_bytes: int = 16 * 1024
    stream_in_flight: int = 256
    """Requests of one ModelStreamInfer that are unanswered or unsent; then reading pauses, and
    HTTP/2's flow control holds the client back."""
    connection_idle_s: float = 300.0
    """A connection without calls is closed after this long."""
    keepalive_s: float = 60.0
    """A silent connection is probed this often, so that a vanished client's calls are cancelled."""
    keepalive_timeout_s: float = 20.0
    min_ping_interval_s: float = 10.0
    """Clients that probe us more often than this are disconnected."""
    health_poll_s: float = 0.5
    """How often Health/Watch looks for a change."""

    def channel_arguments(self) -> list[tuple[str, int]]:
        """grpc-core's names for all of this (github.com/grpc/grpc, channel_arg_names.h)."""
        return [
            ("grpc.max_receive_message_length", self.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self.max_concurrent_calls),
            ("grpc.max_allowed_incoming_connections", self.max_connections),
            ("grpc.max_metadata_size", self.max_metadata_bytes),
            ("grpc.absolute_max_metadata_size", self.max_metadata_bytes),
            ("grpc.max_connection_idle_ms", _milliseconds(self.connection_idle_s)),
            ("grpc.keepalive_time_ms", _milliseconds(self.keepalive_s)),
            ("grpc.keepalive_timeout_ms", _milliseconds(self.keepalive_timeout_s)),
            ("grpc.keepalive_permit_without_calls", 1),
            (
                "grpc.http2.min_ping_interval_without_data_ms",
                _milliseconds(self.min_ping_interval_s),
            ),
            # Two servers on one port would share its connections without a word.
            ("grpc.so_reuseport", 0),
        ]


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1e3))
