"""The listening ports of a server: HTTP, gRPC, metrics, control; one gate before all of them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping

from slacktide.executors.arena import MemoryBudget
from slacktide.frontends.grpc import GrpcServer, GrpcSettings
from slacktide.frontends.grpc import rpc as grpc_rpc
from slacktide.frontends.grpc.settings import TlsPem
from slacktide.frontends.http import AccessLog, HttpServer, HttpSettings, Route, inference_routes
from slacktide.frontends.http import hub as http_hub
from slacktide.frontends.ports import ControlPlane, DataPlane, Group
from slacktide.frontends.security import ASKED, Credentials, Gate, PortRules, Verdict
from slacktide.frontends.unpacking import Unpacker
from slacktide.observability.access import AccessLogger
from slacktide.observability.metrics import Metrics, metrics_routes
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
        credentials: Credentials,
        access: AccessLogger | None,
        clock: Callable[[], float],
        budget: MemoryBudget,
    ) -> None:
        """`clock`: monotonic seconds at which what is read now has come."""
        self._settings = settings
        self._credentials, gate = credentials, credentials.gate
        rules, for_control = settings.rules(), settings.rules(control_port=True)
        http_access = None if access is None else access.http

        def http(routes: Iterable[Route], rules: PortRules, access: AccessLog | None) -> HttpServer:
            options = http_settings_of(settings, rules)
            gated = http_gate(gate, rules)
            return HttpServer(
                routes,
                options,
                authorize=gated,
                access_log=access,
                clock=clock,
                unpacker=unpacker,
            )

        unpacker = Unpacker(budget)
        routes = inference_routes(data, control, http_settings_of(settings, rules), unpacker)
        others = [route for route in routes if route.group is not Group.INFERENCE]
        self._servers: dict[str, HttpServer | GrpcServer] = {}
        if settings.http_port is not None:
            self._servers["http"] = http(routes, rules, http_access)
        if settings.grpc_port is not None:
            self._servers["grpc"] = GrpcServer(
                data,
                control,
                grpc_settings_of(settings),
                authorize=grpc_gate(gate, rules),
                access_log=None if access is None else access.grpc,
                clock=clock,
                unpacker=unpacker,
            )
        if settings.metrics_port is not None:
            self._servers["metrics"] = http(metrics_routes(metrics), rules, None)
        if settings.control_port is not None:
            self._servers["control"] = http(others, for_control, http_access)

    async def start(self) -> None:
        """Bind every port. Raises OSError naming the port that cannot be had."""
        settings, held = self._settings, self._credentials

        def pem() -> TlsPem:
            return TlsPem(*(held.pem or ()))

        for name, server in self._servers.items():
            host, port = settings.host_of(name), getattr(settings, f"{name}_port")
            if isinstance(server, GrpcServer):
                starting = server.start(host, port, None if held.pem is None else pem)
            else:
                starting = server.start(host, port, held.context)
            await _named(f"{name}-port", starting)

    def port(self, name: str) -> int | None:
        """What `http`, `grpc`, `metrics` or `control` listens on; None if it does not."""
        server = self._servers.get(name)
        return None if server is None else server.port

    def addresses(self) -> str:
        """Where to connect, for people."""
        host_of = self._settings.host_of
        return ", ".join(f"{n} {host_of(n)}:{server.port}" for n, server in self._servers.items())

    async def drain(self, timeout_s: float) -> None:
        """Stop listening; answer what is in flight, for at most so many seconds."""
        served = (server for name, server in self._servers.items() if name != "metrics")
        await asyncio.gather(*(server.drain(timeout_s) for server in served))

    async def close(self) -> None:
        """Close every port and cut what is connected."""
        for server in self._servers.values():
            await server.close()


async def _named(setting: str, start: Awaitable[None]) -> None:
    try:
        await start
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            setting = "control-host" if setting == "control-port" else "host"
        raise OSError(error.errno, f"{setting}: {error.strerror or error}") from None


def http_settings_of(settings: ServerSettings, rules: PortRules) -> HttpSettings:
    control = HttpSettings().max_control_bytes
    return HttpSettings(
        header_timeout_s=settings.header_timeout_s,
        body_timeout_s=settings.body_timeout_s,
        idle_timeout_s=settings.idle_timeout_s,
        max_connections=settings.max_connections,
        max_body_bytes=settings.max_request_bytes,
        # A load call that brings files is as large as they are.
        max_control_bytes=(
            settings.max_request_bytes if settings.allow_uploads and rules.control else control
        ),
        triton_strict=settings.triton_strict,
        allowed_origins=rules.origins,
    )


def grpc_settings_of(settings: ServerSettings) -> GrpcSettings:
    return GrpcSettings(
        max_message_bytes=settings.max_request_bytes,
        max_connections=settings.max_connections,
        body_timeout_s=settings.body_timeout_s,
        triton_strict=settings.triton_strict,
    )


def http_gate(gate: Gate, rules: PortRules) -> http_hub.Authorize:
    """The gate as the HTTP front end asks it."""

    passed = Verdict.PASS

    def authorize(group: Group, headers: Mapping[bytes, bytes]) -> http_hub.Denial | None:
        verdict = gate.judge(group, headers, rules)
        return None if verdict is passed else http_hub.Denial(verdict.value, verdict.status)

    return authorize


def grpc_gate(gate: Gate, rules: PortRules) -> grpc_rpc.Authorize:
    """The gate as the gRPC front end asks it. grpc.aio tells nobody the `:authority`; browsers do
    not speak gRPC, and what comes through a proxy has its Origin."""
    names = {name: name.decode() for name in ASKED if name != b"content-type"}

    def authorize(group: Group, metadata: Mapping[str, str]) -> grpc_rpc.Denial | None:
        asked = {n: metadata[text].encode() for n, text in names.items() if text in metadata}
        verdict = gate.judge(group, asked, rules)
        if verdict is Verdict.PASS:
            return None
        grpc = "UNAUTHENTICATED" if verdict.status == 401 else "PERMISSION_DENIED"
        return grpc_rpc.Denial(WireStatus(verdict.status, grpc), verdict.value)

    return authorize
