"""The listening ports of a server: HTTP, gRPC, metrics; one gate before all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from slacktide.server.access import AccessLogger
from slacktide.server.groups import Group
from slacktide.server.grpc import GrpcServer, GrpcSettings
from slacktide.server.grpc import rpc as grpc_rpc
from slacktide.server.grpc.settings import TlsPem
from slacktide.server.http import HttpServer, HttpSettings
from slacktide.server.http import hub as http_hub
from slacktide.server.metrics import Metrics, metrics_routes
from slacktide.server.ports import ControlPlane, DataPlane
from slacktide.server.security import Gate, Verdict
from slacktide.server.settings import ServerSettings
from slacktide.wire.status import WireStatus


class FrontEnds:
    """Starts, drains and closes the ports together."""

    def __init__(
        self,
        settings: ServerSettings,
        data: DataPlane,
        control: ControlPlane,
        metrics: Metrics,
        gate: Gate,
        access: AccessLogger | None,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: monotonic seconds at which what is read now has come."""
        self._settings = settings
        self._http: HttpServer | None = None
        self._grpc: GrpcServer | None = None
        self._metrics: HttpServer | None = None
        http_settings = http_settings_of(settings)
        http_access = None if access is None else access.http
        if settings.http_port is not None:
            self._http = HttpServer.for_inference(
                data,
                control,
                http_settings,
                authorize=http_gate(gate),
                access_log=http_access,
                clock=clock,
            )
        if settings.grpc_port is not None:
            self._grpc = GrpcServer(
                data,
                control,
                grpc_settings_of(settings),
                authorize=grpc_gate(gate),
                access_log=None if access is None else access.grpc,
                clock=clock,
            )
        if settings.metrics_port is not None:
            self._metrics = HttpServer(
                metrics_routes(metrics), http_settings, authorize=http_gate(gate)
            )

    async def start(self) -> None:
        """Bind every port. Raises OSError naming the port that cannot be had."""
        settings, tls = self._settings, self._settings.tls
        context = None if tls is None else tls.context()
        if self._http is not None and settings.http_port is not None:
            await _named("http-port", self._http.start(settings.host, settings.http_port, context))
        if self._grpc is not None and settings.grpc_port is not None:
            pem = None if tls is None else TlsPem(*tls.read())
            await _named("grpc-port", self._grpc.start(settings.host, settings.grpc_port, pem))
        if self._metrics is not None and settings.metrics_port is not None:
            await _named(
                "metrics-port", self._metrics.start(settings.host, settings.metrics_port, context)
            )

    @property
    def http_port(self) -> int | None:
        return None if self._http is None else self._http.port

    @property
    def grpc_port(self) -> int | None:
        return None if self._grpc is None else self._grpc.port

    @property
    def metrics_port(self) -> int | None:
        return None if self._metrics is None else self._metrics.port

    def addresses(self) -> str:
        """Where to connect, for people."""
        ports = {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}
        host = self._settings.host
        return ", ".join(f"{name} {host}:{port}" for name, port in ports.items() if port)

    async def drain(self, timeout_s: float) -> None:
        """Stop listening; answer what is in flight, for at most so many seconds."""
        waiting: list[Awaitable[object]] = []
        if self._http is not None:
            waiting.append(self._http.drain(timeout_s))
        if self._grpc is not None:
            waiting.append(self._grpc.drain(timeout_s))
        await asyncio.gather(*waiting)

    async def close(self) -> None:
        """Close every port and cut what is connected."""
        for server in (self._http, self._grpc, self._metrics):
            if server is not None:
                await server.close()


async def _named(setting: str, start: Awaitable[None]) -> None:
    try:
        await start
    except OSError as error:
        raise OSError(error.errno, f"{setting}: {error.strerror or error}") from None


def http_settings_of(settings: ServerSettings) -> HttpSettings:
    control = HttpSettings().max_control_bytes
    return HttpSettings(
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        max_connections=settings.max_connections,
        max_body_bytes=settings.max_request_bytes,
        # A load call that brings files is as large as they are.
        max_control_bytes=settings.max_request_bytes if settings.allow_uploads else control,
        triton_strict=settings.triton_strict,
    )


def grpc_settings_of(settings: ServerSettings) -> GrpcSettings:
    return GrpcSettings(
        max_message_bytes=settings.max_request_bytes,
        max_connections=settings.max_connections,
        body_timeout_s=settings.body_timeout_s,
        triton_strict=settings.triton_strict,
    )


def http_gate(gate: Gate) -> http_hub.Authorize | None:
    """The gate as the HTTP front end asks it; None if it lets everything pass."""
    if not gate.guarded:
        return None

    def authorize(group: Group, headers: Mapping[bytes, bytes]) -> http_hub.Denial | None:
        verdict = gate.judge(group, headers.get(b"authorization"))
        return None if verdict is Verdict.PASS else http_hub.Denial(verdict.value)

    return authorize


def grpc_gate(gate: Gate) -> grpc_rpc.Authorize | None:
    """The gate as the gRPC front end asks it."""
    if not gate.guarded:
        return None

    def authorize(group: Group, metadata: Mapping[str, str]) -> grpc_rpc.Denial | None:
        verdict = gate.judge(group, metadata.get("authorization"))
        if verdict is Verdict.PASS:
            return None
        return grpc_rpc.Denial(WireStatus(401, "UNAUTHENTICATED"), verdict.value)

    return authorize


__all__ = ["FrontEnds", "grpc_gate", "http_gate"]
