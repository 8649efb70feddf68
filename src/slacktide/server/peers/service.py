"""`PeerService`: all parts that only a server with peers has."""

from __future__ import annotations

import random
import re
import secrets
import socket
from collections.abc import Iterable
from typing import Any

from slacktide.frontends.common.security import Credentials
from slacktide.observability.metrics.families import MetricFamily
from slacktide.observability.metrics.own import peer_families
from slacktide.peers import ForwardingRule, PeerLoads
from slacktide.server.calls.data_plane import ServerDataPlane
from slacktide.server.front_ends import FrontEnds
from slacktide.server.peers.dialler import PeerDialler
from slacktide.server.peers.forwarding import ForwardingPlane
from slacktide.server.peers.host import ServerPeers
from slacktide.server.peers.moving import SessionMover
from slacktide.server.settings import ServerSettings


class PeerService:
    """Starts and ends the links of a server. Belongs to the server's loop."""

    def __init__(
        self, settings: ServerSettings, home: ServerDataPlane, credentials: Credentials
    ) -> None:
        self._settings = settings
        machine = settings.machine or machine_name(settings.grpc_port)
        loads = PeerLoads()
        rule = ForwardingRule(loads, random.Random())
        self.host = ServerPeers(machine, home, loads)
        self.plane = ForwardingPlane(home, self.host, loads, rule)
        """The data plane for clients."""
        self._mover = SessionMover(home, self.host, loads)
        self.dialler = PeerDialler(self.host, machine, settings.peers, credentials)
        """The host to give to the gRPC port."""

    async def start(self, front_ends: FrontEnds) -> None:
        """Start to dial. The links belong to the gRPC port, which already listens."""
        settings = self._settings
        http, grpc = (settings.client_address(front_ends.port(name)) for name in ("http", "grpc"))
        self.host.advertise(http=http, grpc=grpc, tls=settings.tls is not None)
        self.host.tick()
        self._mover.start()
        await self.dialler.start(front_ends.grpc_server)

    def drain(self) -> None:
        """Accept no more calls from peers: this server shuts down."""
        self.host.drain()

    async def close(self) -> None:
        """Stop dialling."""
        self._mover.close()
        await self.dialler.close()

    def families(self) -> Iterable[MetricFamily]:
        """Metrics of peers and of forwarded requests."""
        return peer_families(self.host.states(), self.host.forwarded)

    def status(self) -> dict[str, Any]:
        """This server's name, the linked peers, and the state of each address."""
        status = self.dialler.status()
        return {
            "machine": self.host.machine,
            "peers": self.host.status(),
            "addresses": status["addresses"],
            "notes": status["notes"],
        }


def machine_name(grpc_port: int | None) -> str:
    """The default name: host name and gRPC port, or random text if the port is not fixed."""
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).strip(".-")[:100] or "server"
    return f"{host}:{grpc_port or secrets.token_hex(3)}"
