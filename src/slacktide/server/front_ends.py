"""The listening ports of a server: HTTP, gRPC, metrics and control, behind one gate."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from slacktide.executors.hand_over.arena import MemoryBudget
from slacktide.frontends.common.security import Credentials, PortRules
from slacktide.frontends.grpc import GrpcServer
from slacktide.frontends.http import HttpRoute, HttpServer, inference_routes
from slacktide.frontends.listener import EVERY_ADDRESS
from slacktide.frontends.ports import AccessLog, ControlPlane, DataPlane, EndpointGroup, PeerHost
from slacktide.frontends.settings import FrontEndSettings, GrpcSettings, HttpSettings
from slacktide.frontends.unpacking import Unpacker
from slacktide.observability.metrics import Metrics, metrics_routes
from slacktide.server.settings import ServerSettings
from slacktide.server.takeover import PortKey

_FROM_HERE = {**dict.fromkeys(EVERY_ADDRESS, "localhost"), "0.0.0.0": "127.0.0.1"}
"""Address to connect to on this machine, by wildcard address."""

IDLE_S = 5.0
"""Time for a last request on each idle connection of a server that another has superseded."""


class FrontEnds:
    """Starts, drains and closes the ports together."""

    def __init__(
        self,
        settings: ServerSettings,
        data: DataPlane,
        control: ControlPlane,
        metrics: Metrics,
        credentials: Credentials,
        access: AccessLog | None,
        clock: Callable[[], float],
        budget: MemoryBudget,
        peers: PeerHost | None = None,
    ) -> None:
        """`clock`: returns the arrival time of the data being read, in monotonic seconds. `peers`:
        host of the links of other servers; None: no links."""
        self._settings = settings
        self._credentials, gate = credentials, credentials.gate
        rules, for_control = settings.rules(), settings.rules(control_port=True)

        def http(
            routes: Iterable[HttpRoute], rules: PortRules, access: AccessLog | None
        ) -> HttpServer:
            return HttpServer(
                routes,
                http_settings_of(settings, rules),
                authorize=gate.on(rules),
                access_log=access,
                clock=clock,
                unpacker=unpacker,
            )

        unpacker = Unpacker(budget)
        routes = inference_routes(data, control, http_settings_of(settings, rules), unpacker)
        control_routes = [route for route in routes if route.group is not EndpointGroup.INFERENCE]
        self._servers: dict[str, HttpServer | GrpcServer] = {}
        if settings.http_port is not None:
            self._servers["http"] = http(routes, rules, access)
        if settings.grpc_port is not None:
            self._servers["grpc"] = GrpcServer(
                data,
                control,
                GrpcSettings(**_common(settings)),
                authorize=gate.on(rules),
                access_log=access,
                clock=clock,
                unpacker=unpacker,
                peers=peers,
                peer_access=credentials.peers,
            )
        if settings.metrics_port is not None:
            self._servers["metrics"] = http(metrics_routes(metrics), rules, None)
        if settings.control_port is not None:
            self._servers["control"] = http(control_routes, for_control, access)

    async def start(
        self, sockets: Mapping[PortKey, Sequence[socket.socket]] = MappingProxyType({})
    ) -> None:
        """Listen on every port, on `sockets` or by binding it. Raises OSError naming the flag of a
        port that cannot be bound."""
        credentials = self._credentials
        for name, server in self._servers.items():
            _, host, port = key = self._key_of(name)
            context = credentials.http2_context if name == "grpc" else credentials.context
            try:
                await server.start(host, port, context, sockets.get(key, ()))
            except OSError as error:
                raise bind_error(error, name, host, port) from None

    def _key_of(self, name: str) -> PortKey:
        return name, self._settings.host_of(name), getattr(self._settings, f"{name}_port")

    def descriptors(self) -> dict[PortKey, list[int]]:
        """The listening sockets of each port."""
        return {self._key_of(name): server.descriptors() for name, server in self._servers.items()}

    @property
    def grpc_server(self) -> GrpcServer:
        """The gRPC server. Raises KeyError if there is none."""
        server = self._servers["grpc"]
        assert isinstance(server, GrpcServer)
        return server

    def port(self, name: str) -> int | None:
        """Port of `http`, `grpc`, `metrics` or `control`; None if it does not listen."""
        server = self._servers.get(name)
        return None if server is None else server.port

    def ports(self) -> dict[str, int]:
        """Every port that listens, by name."""
        return {name: server.port for name, server in self._servers.items()}

    @property
    def local_host(self) -> str:
        """Address at which this machine reaches the ports other than the control port."""
        host = self._settings.host_of("http")
        return "127.0.0.1" if host in ("*", "", "0.0.0.0") else "::1" if host == "::" else host

    def addresses(self) -> str:
        """Return addresses to connect to from this machine, for the log."""
        host_of = self._settings.host_of
        places = ((name, host_of(name), server.port) for name, server in self._servers.items())
        return ", ".join(f"{name} {address_of(host, port)}" for name, host, port in places)

    async def drain(self, timeout_s: float, *, is_superseded: bool = False) -> None:
        """Stop listening, and answer requests in flight for at most `timeout_s` seconds.
        `is_superseded`: another server listens now. Idle connections then get time for a last
        request, whose answer closes them, and the metrics port closes too."""
        idle_s = IDLE_S if is_superseded else 0.0
        drained = (s for name, s in self._servers.items() if is_superseded or name != "metrics")
        await asyncio.gather(*(server.drain(timeout_s, idle_s) for server in drained))

    async def close(self) -> None:
        """Close every port and connection."""
        for server in self._servers.values():
            await server.close()


def address_of(host: str, port: int) -> str:
    """Return the address at which this machine reaches a port that listens on `host`."""
    if host in _FROM_HERE:
        return f"{_FROM_HERE[host]}:{port} (all addresses)"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_ADVICE = {
    errno.EADDRINUSE: "choose another port, or 0 for any free port",
    errno.EACCES: "ports below 1024 need the privilege to bind them",
    errno.EADDRNOTAVAIL: "this machine has no such address",
}


def bind_error(error: OSError, name: str, host: str, port: int) -> OSError:
    """Return an error that names the flag and value of a port that cannot be bound."""
    number, flag = error.errno, f"--{name}-port {port}"
    if isinstance(error, socket.gaierror) or number in (errno.EADDRNOTAVAIL, errno.EINVAL):
        flag = f"--{'control-' if name == 'control' else ''}host {host}"
    why = os.strerror(number) if number and number > 0 else error.strerror or str(error)
    advice = f"; {_ADVICE[number]}" if number in _ADVICE else ""
    return OSError(number, f"{flag}: {why}{advice}")


def http_settings_of(settings: ServerSettings, rules: PortRules) -> HttpSettings:
    control = HttpSettings().max_control_bytes
    return HttpSettings(
        **_common(settings),
        idle_timeout_s=settings.idle_timeout_s,
        # Load calls may contain model files.
        max_control_bytes=(
            settings.max_request_bytes if settings.allow_uploads and rules.control else control
        ),
        allowed_origins=rules.origins,
    )


def _common(settings: ServerSettings) -> dict[str, Any]:
    names = {field.name for field in fields(FrontEndSettings)}
    return {
        field.name: getattr(settings, field.name)
        for field in fields(settings)
        if field.name in names
    }
