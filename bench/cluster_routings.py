"""Baselines for the forwarding rule: forwarding of refusals alone, a router that knows
everything, and balancers, each at the door of every server.

A balancer sees all servers, its own included, whose state it reads without delay. A refused request
is tried once more where the balancer would send it next. All pay for the hops.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median
from typing import Any

from slacktide.domain import Outcome, OutcomeKind, Request
from slacktide.lab.simulation.servers.routings import Alone, ByRule
from slacktide.lab.simulation.servers.world import SimulatedServers
from slacktide.peers import LoadReport

AVERAGED_S = 1.0
"""Time constant of moving averages."""


@dataclass(slots=True)
class ServerState:
    """Facts about a server that it reports, apart from its loads."""

    in_flight: int = 0
    recent: list[tuple[int, float]] = field(default_factory=list)
    """(in flight at arrival, latency in seconds) of its last requests."""
    rate: float = 0.0
    """Requests ended per second, a moving average, like the next two."""
    errors: float = 0.0
    """Requests refused or dropped per second."""
    utilisation: float = 0.0
    """Offered work divided by what lanes can do."""
    at: float = 0.0

    def age(self, now: float) -> None:
        """Let the moving averages fall until `now`."""
        decay = math.exp((self.at - now) / AVERAGED_S)
        self.at = now
        self.rate, self.errors = self.rate * decay, self.errors * decay
        self.utilisation *= decay


class WatchedServers(SimulatedServers):
    """Servers that count what balancers go by."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.states: defaultdict[str, ServerState] = defaultdict(ServerState)
        self.under_way: dict[tuple[int, str], tuple[str, float]] = {}
        """Calls on their way: (server, arrival there)."""
        self._arrived: dict[tuple[int, str], tuple[int, float]] = {}
        """(in flight at arrival, arrival) of requests that servers hold."""
        super().__init__(*arguments, **options)

    def facts(self, name: str) -> ServerState:
        state = self.states[name]
        if name in self.terms.liars:
            return ServerState(0, [(0, 0.0)], state.rate, 0.0, 0.01)
        return replace(state, recent=list(state.recent))

    def probe(self, name: str, done: Callable[[ServerState, float], None], *, now: float) -> None:
        """Ask a server for its facts; `done` is called when the answer is here, if it comes."""
        at = self._delayed(now + 2.0 * self.hop.seconds)
        if at is not None and self.alive(name):
            state = self.facts(name)
            self._put(at, lambda now: done(state, now))

    def _submit(self, attempt: Any, request: Request, now: float) -> None:
        super()._submit(attempt, request, now)
        name, state = attempt.target, self.states[attempt.target]
        if self._servers[name].held.get(request.id) is attempt:
            self._arrived[request.id, name] = state.in_flight, now
            state.in_flight += 1
            state.age(now)
            state.utilisation += self.load(name, request.model, now=now).row_s / AVERAGED_S

    def _done(self, server: Any, id: int, outcome: Outcome, now: float) -> None:
        in_flight, arrival = self._arrived.pop((id, server.name))
        request, state = server.held[id].request, self.states[server.name]
        served = outcome.reason.kind is OutcomeKind.SERVED
        state.in_flight -= 1
        seconds = now - arrival if served else request.deadline - request.arrival
        state.recent = [*state.recent[-47:], (in_flight, seconds)]
        state.age(now)
        state.rate += 1.0 / AVERAGED_S
        state.errors += (not served) / AVERAGED_S
        super()._done(server, id, outcome, now)


class OnRefusal(ByRule):
    """Only what was refused is forwarded."""

    def on_arrival(self, request: Request, *, now: float) -> str | None:
        return None


class Oracle(Alone):
    """Sends each request to the server that truly starts it soonest, calls on their way included,
    and asks one more after a refusal. It pays for the hops."""

    def __init__(self, servers: WatchedServers, name: str) -> None:
        super().__init__(servers, name)
        self._sent = servers.under_way

    def _seconds(self, server: str, request: Request, now: float) -> float:
        load = self.servers.load(server, request.model, now=now)
        wait = load.wait_s + load.row_s * sum(
            1 for target, at in self._sent.values() if target == server and at > now
        )
        if server == self.name:
            return wait + load.alone_s
        hop = self.servers.hop
        return max(wait, hop.request_s) + hop.seconds + load.alone_s

    def _soonest(self, request: Request, tried: Sequence[str], now: float) -> str | None:
        servers = [self.name, *self.up]
        left = [server for server in servers if server not in tried and self.servers.alive(server)]
        return min(left, key=lambda server: self._seconds(server, request, now), default=None)

    def on_arrival(self, request: Request, *, now: float) -> str | None:
        return self._soonest(request, (), now)

    def on_refusal(self, request: Request, tried: Sequence[str], *, now: float) -> str | None:
        return self._soonest(request, tried, now)

    def sent(self, request: Request, server: str, *, now: float) -> None:
        for key, (_, at) in list(self._sent.items()):
            if at <= now:
                del self._sent[key]
        if server != self.name:
            self._sent[request.id, server] = server, now + self.servers.hop.request_s


class LeastOutstanding(Alone):
    """The server with the fewest requests that this door has sent and that have no answer yet
    (HAProxy's leastconn). Ties are drawn."""

    def __init__(self, servers: WatchedServers, name: str) -> None:
        super().__init__(servers, name)
        self.outstanding: Counter[str] = Counter()

    def candidates(self, tried: Sequence[str]) -> list[str]:
        return [server for server in (self.name, *self.up) if server not in tried]

    def choice(self, candidates: list[str], request: Request, now: float) -> str | None:
        fewest = min([self.outstanding[server] for server in candidates], default=0)
        least = [server for server in candidates if self.outstanding[server] == fewest]
        return self.random.choice(least) if least else None

    def on_arrival(self, request: Request, *, now: float) -> str | None:
        return self.choice(self.candidates(()), request, now)

    def on_refusal(self, request: Request, tried: Sequence[str], *, now: float) -> str | None:
        return self.choice(self.candidates(tried), request, now)

    def sent(self, request: Request, server: str, *, now: float) -> None:
        self.outstanding[server] += 1

    def answered(self, request: Request, server: str, *, in_time: bool | None, now: float) -> None:
        self.outstanding[server] -= 1


class TwoChoices(LeastOutstanding):
    """The better of two drawn servers, by the requests in flight that they have last reported, and
    those sent since (Mitzenmacher 2001)."""

    def __init__(self, servers: WatchedServers, name: str) -> None:
        super().__init__(servers, name)
        self.reported_in_flight: Counter[str] = Counter()

    def choice(self, candidates: list[str], request: Request, now: float) -> str | None:
        drawn = self.random.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=self.in_flight, default=None)

    def in_flight(self, server: str) -> int:
        if server == self.name:
            return self.servers.states[server].in_flight
        return self.reported_in_flight[server]

    def sent(self, request: Request, server: str, *, now: float) -> None:
        self.reported_in_flight[server] += 1

    def answered(self, request: Request, server: str, *, in_time: bool | None, now: float) -> None:
        pass

    def reported(self, server: str, report: LoadReport, state: ServerState, *, now: float) -> None:
        self.reported_in_flight[server] = state.in_flight


class WeightedRoundRobin(LeastOutstanding):
    """gRPC's client-side weighted round robin (gRFC A58): a server's weight is its rate divided by
    its utilisation and error rate ÷ rate, from its ORCA reports; the next is the server whose
    virtual deadline, 1 ÷ weight after its last turn, comes first. No blackout period."""

    def __init__(self, servers: WatchedServers, name: str) -> None:
        super().__init__(servers, name)
        self.weights: dict[str, float] = {}
        self.turns: dict[str, float] = {}

    def choice(self, candidates: list[str], request: Request, now: float) -> str | None:
        own = self.servers.states[self.name]
        own.age(now)
        self._weigh(self.name, own)
        mean = sum(self.weights.values()) / max(1, len(self.weights)) or 1.0
        best, soonest = None, inf
        start = min([self.turns.get(server, 0.0) for server in candidates], default=0.0)
        for server in candidates:
            weight = self.weights.get(server) or mean
            turn = max(self.turns.get(server, 0.0), start) + 1.0 / weight
            if turn < soonest:
                best, soonest = server, turn
        if best is not None:
            self.turns[best] = soonest
        return best

    def _weigh(self, server: str, state: ServerState) -> None:
        if state.utilisation > 0.0 and state.rate > 0.0:
            self.weights[server] = state.rate / (state.utilisation + state.errors / state.rate)

    def reported(self, server: str, report: LoadReport, state: ServerState, *, now: float) -> None:
        self._weigh(server, state)


POOL, PROBES, REMOVED, HOT, DELTA = 16, 3, 1, 0.84, 1.0
"""Prequal (NSDI 24, §4): probes in the pool, probes sent and removed per request, the quantile of
requests in flight from which a server is hot, and the surplus of probes over their uses."""
PROBE_AGE_S = 1.0


class _Probe:
    __slots__ = ("at", "in_flight", "latency", "server", "uses")

    def __init__(self, server: str, in_flight: int, latency: float, at: float, uses: float) -> None:
        self.server, self.in_flight, self.latency = server, in_flight, latency
        self.at, self.uses = at, uses


def _latency(state: ServerState, in_flight: int) -> float:
    """Median of the recent latencies at about so many requests in flight (§4.1)."""
    near = sorted(state.recent, key=lambda neighbour: abs(neighbour[0] - in_flight))[:9]
    return median([seconds for _, seconds in near]) if near else 0.0


class Prequal(LeastOutstanding):
    """The hot-cold rule: of the probes whose requests in flight are below the quantile HOT, the one
    with the lowest latency; if all are hot, the one with the fewest in flight. The own server is
    probed at each choice without delay, and round trips are added to latencies."""

    def __init__(self, servers: WatchedServers, name: str) -> None:
        super().__init__(servers, name)
        self.pool: list[_Probe] = []
        self.seen: deque[int] = deque(maxlen=128)
        self.oldest_next = True
        others = max(2, len(servers.names) - 1)
        kept = (1.0 - min(POOL / others, 0.5)) * PROBES - REMOVED
        self.uses = max(1.0, (1.0 + DELTA) / kept) if kept > 0.0 else 1.0

    def choice(self, candidates: list[str], request: Request, now: float) -> str | None:
        self._probe(now)
        self.pool = [p for p in self.pool if now - p.at < PROBE_AGE_S and p.server in self.up]
        own = self.servers.states[self.name]
        probes = [probe for probe in self.pool if probe.server in candidates]
        if self.name in candidates:
            latency = _latency(own, own.in_flight)
            probes.append(_Probe(self.name, own.in_flight, latency, now, inf))
        if not probes:
            return self.random.choice(candidates) if candidates else None
        limit = sorted(self.seen)[int(HOT * len(self.seen))] if self.seen else 0
        cold = [probe for probe in probes if probe.in_flight <= limit]
        if cold:
            chosen = min(cold, key=lambda probe: probe.latency)
        else:
            chosen = min(probes, key=lambda probe: probe.in_flight)
        chosen.uses -= 1.0
        for probe in probes:
            probe.in_flight += probe.server == chosen.server
        if chosen.uses <= 0.0:
            self.pool = [probe for probe in self.pool if probe is not chosen]
        self._remove(limit)
        return chosen.server

    def _remove(self, limit: int) -> None:
        """Remove the oldest and the worst probe in turn."""
        if len(self.pool) > 1:
            if self.oldest_next:
                worst = min(self.pool, key=lambda probe: probe.at)
            else:
                hot = [probe for probe in self.pool if probe.in_flight > limit]
                if hot:
                    worst = max(hot, key=lambda probe: probe.in_flight)
                else:
                    worst = max(self.pool, key=lambda probe: probe.latency)
            self.pool.remove(worst)
        self.oldest_next = not self.oldest_next

    def _probe(self, now: float) -> None:
        for server in self.random.sample(self.up, min(PROBES, len(self.up))):

            def done(state: ServerState, now: float, server: str = server) -> None:
                self.seen.append(state.in_flight)
                latency = _latency(state, state.in_flight) + 2.0 * self.servers.hop.seconds
                self.pool.append(_Probe(server, state.in_flight, latency, now, self.uses))
                del self.pool[:-POOL]

            self.servers.probe(server, done, now=now)

    def sent(self, request: Request, server: str, *, now: float) -> None:
        pass

    def answered(self, request: Request, server: str, *, in_time: bool | None, now: float) -> None:
        pass
