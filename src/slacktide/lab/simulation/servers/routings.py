"""Routings of simulated servers: by the rule of `peers`, or without forwarding."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from slacktide.domain import Request
from slacktide.lab.simulation.servers.world import Routing, SimulatedServers
from slacktide.peers import ForwardingRule, LoadReport, PeerCall, PeerLoads


class Alone(Routing):
    """A routing without forwarding: every request stays where it arrived. Base class of the
    others."""

    def __init__(self, servers: SimulatedServers, name: str) -> None:
        self.servers, self.name = servers, name
        self.random = Random(f"{name} chooses")
        self.up: list[str] = []
        """Peers that are up."""

    def on_arrival(self, request: Request, *, now: float) -> str | None:
        return None

    def on_refusal(self, request: Request, tried: Sequence[str], *, now: float) -> str | None:
        return None

    def sent(self, request: Request, server: str, *, now: float) -> None:
        pass

    def answered(self, request: Request, server: str, *, in_time: bool | None, now: float) -> None:
        pass

    def joined(self, server: str, *, now: float) -> None:
        self.left(server, now=now)
        self.up.append(server)

    def left(self, server: str, *, now: float) -> None:
        if server in self.up:
            self.up.remove(server)

    def reported(self, server: str, report: LoadReport, facts: Any, *, now: float) -> None:
        pass


class ByRule(Alone):
    """Forwards requests by the rule of a live server (`peers`)."""

    def __init__(self, servers: SimulatedServers, name: str) -> None:
        super().__init__(servers, name)
        self.loads = PeerLoads()
        self.rule = ForwardingRule(self.loads, self.random)
        self._calls: dict[tuple[int, str], PeerCall] = {}

    def on_arrival(self, request: Request, *, now: float) -> str | None:
        if request.best_effort:
            return None
        home = self.servers.load(self.name, request.model, now=now)
        nbytes = self.servers.hop.request_bytes
        return self.rule.on_arrival(home, request.rows, nbytes, request.deadline - now, now=now)

    def on_refusal(self, request: Request, tried: Sequence[str], *, now: float) -> str | None:
        budget, nbytes = request.deadline - now, self.servers.hop.request_bytes
        if self.name not in tried:
            home = self.servers.load(self.name, request.model, now=now)
            if home.wait_s + home.alone_s <= budget:
                return self.name
        return self.rule.on_refusal(
            request.model, request.rows, nbytes, budget, now=now, tried=tried
        )

    def sent(self, request: Request, server: str, *, now: float) -> None:
        if server != self.name:
            self._calls[request.id, server] = self.loads.sent(
                server,
                request.model,
                request.rows,
                now=now,
                nbytes=self.servers.hop.request_bytes,
                budget_s=request.deadline - now,
            )

    def answered(self, request: Request, server: str, *, in_time: bool | None, now: float) -> None:
        call = self._calls.pop((request.id, server), None)
        if call is not None:
            self.loads.answered(call, in_time=in_time, now=now)

    def joined(self, server: str, *, now: float) -> None:
        super().joined(server, now=now)
        hop = self.servers.hop
        self.loads.joined(server, now=now)
        self.loads.measured(server, rtt_s=2.0 * hop.seconds, bytes_per_s=hop.bytes_per_s)

    def left(self, server: str, *, now: float) -> None:
        super().left(server, now=now)
        self.loads.left(server)

    def reported(self, server: str, report: LoadReport, facts: Any, *, now: float) -> None:
        self.loads.reported(server, report, now=now)
