"""What can be set on the HTTP front end. Every limit bounds memory or time a client can take."""

from __future__ import annotations

from dataclasses import dataclass

from slacktide.frontends.sizes import KIB, MIB


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Limits and time-outs of one HTTP server. Raises ValueError if one is not positive."""

    header_timeout_s: float = 10.0
    """Seconds from the first byte of a request to the end of its headers; then 408."""
    body_timeout_s: float = 30.0
    """Seconds a body may take, apart from the time its size allows it; then 408."""
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

    max_connections: int = 4096
    max_pipelined: int = 32
    """Requests of one connection in the works at once; the rest wait unread."""

    max_target_bytes: int = 8 * KIB
    """Length of the request target; longer: 414."""
    max_header_bytes: int = 32 * KIB
    max_headers: int = 100
    """More headers than that, in bytes or number: 431."""
    max_body_bytes: int = 64 * MIB
    """Body of an inference request, as sent and as inflated; larger: 413."""
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

    triton_strict: bool = False
    """Answer overload and missed deadlines with 503, as Triton does."""

    allowed_origins: frozenset[bytes] = frozenset()
    """Origins (lower case) whose pages may read answers (CORS). The gate lets them in."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) in (int, float) and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
