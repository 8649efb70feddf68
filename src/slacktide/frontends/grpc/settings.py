"""What can be set on the gRPC front end, and how grpc-core is told."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.frontends.sizes import MIB


@dataclass(frozen=True, slots=True)
class TlsPem:
    """Contents of PEM files. With `client_ca`, clients must show a certificate signed by it."""

    certificate_chain: bytes
    private_key: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Limits and timeouts. Bytes, seconds, counts."""

    max_message_bytes: int = 64 * MIB
    """Largest message taken, as Triton's default for HTTP bodies; grpc-core's own default of 4 MiB
    is too small for images in batches. Larger ones end in RESOURCE_EXHAUSTED. Answers are not
    limited."""
    max_concurrent_calls: int = 256
    """Calls at a time on one connection, and so messages of which no limit on memory knows until
    they are whole; a client's further calls wait on its side (grpc-core
    refuses, as UNAVAILABLE, those that cross with the limit)."""
    max_connections: int = 1024
    max_metadata_bytes: int = 16 * 1024
    stream_in_flight: int = 256
    """Requests of one ModelStreamInfer that are unanswered or unsent; then reading pauses, and
    HTTP/2's flow control holds the client back."""
    body_timeout_s: float = 30.0
    """From a call's metadata to its message."""
    connection_idle_s: float = 300.0
    """A connection without calls is closed after this long."""
    keepalive_s: float = 60.0
    """A silent connection is probed this often, so that a vanished client's calls are cancelled."""
    keepalive_timeout_s: float = 20.0
    min_ping_interval_s: float = 10.0
    """Clients that probe us more often than this are disconnected."""
    health_poll_s: float = 0.5
    """How often Health/Watch looks for a change."""
    triton_strict: bool = False
    """Overload and missed deadlines answer UNAVAILABLE, as Triton's do."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, bool) and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def channel_arguments(self) -> list[tuple[str, int]]:
        """grpc-core's names for all of this (github.com/grpc/grpc, channel_arg_names.h)."""
        return [
            ("grpc.max_receive_message_length", self.max_message_bytes),
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
