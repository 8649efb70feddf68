"""`SimulatedServers`: several servers that forward requests to each other, in virtual time.

Each server is a `Simulation` of its own, with an engine, a runtime, a scheduler and lanes. One heap
holds messages on their way, reports and deaths; the earliest event of this heap and of all
simulations comes next. The `Routing` of each server decides where its requests go. A request has
one outcome, which its home (the server at which it arrived) records. A server to which a request
was sent never sends it on; if that server refuses it, the request may be tried once more, at home
or elsewhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, Protocol

from slacktide.domain import Notice, Outcome, OutcomeKind, Reason, Request, Submitted
from slacktide.engine import Engine, next_start
from slacktide.lab.simulation.items import SimulationError, rng_for
from slacktide.lab.simulation.world.driver import Answered, Simulation
from slacktide.peers import LoadReport, LoadReporter, ModelLoad

REPORT_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class HopTerms:
    """The way between any two servers."""

    seconds: float = 0.0003
    """Seconds that an empty message takes one way."""
    bytes_per_s: float = math.inf
    request_bytes: int = 0

    @property
    def request_s(self) -> float:
        """Seconds that a request takes one way."""
        return self.seconds + self.request_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class ReportTerms:
    """Faults of the reports of loads: delays, losses, lies."""

    delay_s: float = 0.0
    """Maximum delay of a report in seconds; each delay is drawn uniformly from 0 to this."""
    loss: float = 0.0
    """Share of the reports that are lost."""
    liars: frozenset[str] = frozenset()
    """Servers that always report that they are free."""


@dataclass(frozen=True, slots=True)
class Death:
    """A server dies at `at`; it is empty and up again at `back`."""

    server: str
    at: float
    back: float = math.inf
    silent_s: float = 0.0
    """Seconds until its peers notice the death, in addition to a hop."""


class Routing(Protocol):
    """Decides where the requests of one server go."""

    def on_arrival(self, request: Request, *, now: float) -> str | None:
        """The server that gets `request`; None: it stays here."""

    def on_refusal(self, request: Request, tried: Sequence[str], *, now: float) -> str | None:
        """The server to try next, which may be this one; None: there is none."""

    def sent(self, request: Request, server: str, *, now: float) -> None: ...

    def answered(self, request: Request, server: str, *, in_time: bool | None, now: float) -> None:
        """Note the answer to a request that was sent; `in_time` None: the request was lost."""

    def joined(self, server: str, *, now: float) -> None: ...

    def left(self, server: str, *, now: float) -> None: ...

    def reported(self, server: str, report: LoadReport, facts: Any, *, now: float) -> None:
        """Note a report. `facts`: the result of `SimulatedServers.facts` when the report was
        made."""


@dataclass(slots=True)
class ServersScore:
    """The outcomes of a run."""

    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of requests by kind of outcome, a value of `OutcomeKind`. Requests lost with a server
    count as `failed`."""
    in_time: Counter[str] = field(default_factory=Counter)
    """Requests served in time, by model."""
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by model."""
    forwarded: int = 0
    """Requests that were sent to a peer at least once."""

    @property
    def goodput(self) -> float:
        """Share of all requests that was served in time."""
        return sum(self.in_time.values()) / max(1, sum(self.requests.values()))


class _Server:
    __slots__ = (
        "alive", "due", "held", "name", "received", "reporters", "routing", "simulation"
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.due = math.inf
        """Instant of its next event."""
        self.simulation: Simulation
        self.routing: Routing
        self.held: dict[int, _Attempt] = {}
        """By id: the requests in its engine."""
        self.received: Counter[str] = Counter()
        """Calls received, by peer."""
        self.reporters: dict[str, LoadReporter] = {}


class _Attempt:
    """A request that has no outcome yet."""

    __slots__ = ("home", "request", "target", "tried")

    def __init__(self, request: Request, home: str) -> None:
        self.request, self.home = request, home
        self.target = home
        self.tried: list[str] = []


class SimulatedServers:
    """All servers of one run. Use an instance for one run only."""

    def __init__(
        self,
        names: Sequence[str],
        simulation: Callable[[str, Answered, float], Simulation],
        routing: Callable[[SimulatedServers, str], Routing],
        *,
        models: Sequence[str],
        hop: HopTerms | None = None,
        reports: ReportTerms | None = None,
        tries: int = 2,
        seed: int = 0,
        ended: Callable[[Request, Outcome, bool], None] | None = None,
    ) -> None:
        """`simulation`: (server, answered, begin) -> the server's simulation. `tries`: maximum
        number of servers that a request is sent to. `ended` is called with each request, its
        outcome, and whether it was forwarded."""
        self.names, self.models = list(names), tuple(models)
        self.hop, self.terms = hop or HopTerms(), reports or ReportTerms()
        self.now = 0.0
        self.score = ServersScore()
        self._make, self._routing, self._tries, self._ended = simulation, routing, tries, ended
        self._random = rng_for(seed, "reports between servers")
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._put_down = 0
        self._open: dict[int, _Attempt] = {}
        self._servers: dict[str, _Server] = {}
        self._due: list[tuple[float, str]] = []
        for name in names:
            self._join(name, 0.0)

    def add(self, name: str, at: float) -> None:
        """Let another server join at `at`, which must not be in the past."""
        self.names.append(name)
        self._put(at, partial(self._join, name))

    def _join(self, name: str, now: float) -> None:
        """Start an empty server, for the first time or again."""
        is_new = name not in self._servers
        server = self._servers[name] = _Server(name)

        def answered(request: Request | Notice, outcome: Outcome) -> None:
            if server.alive:
                self._done(server, request.id, outcome, outcome.at)

        server.simulation = self._make(name, answered, now)
        server.simulation.begin(())
        self._next_turn(server)
        server.routing = self._routing(self, name)
        for peer in [peer for peer in self._servers.values() if peer is not server]:
            for sender, receiver in ((server, peer), (peer, server)):
                if is_new:
                    at = now + REPORT_EVERY_S * float(self._random.random())
                    self._put(at, partial(self._tick, sender.name, receiver.name))
                if peer.alive:
                    sender.reporters[receiver.name] = LoadReporter()
                    sender.received[receiver.name] = 0
                    sender.routing.joined(receiver.name, now=now)
                    self._put(now, partial(self._report, sender, receiver.name, is_hello=True))

    # ── for routings ─────────────────────────────────────────────────────────────────────────

    def engine(self, name: str) -> Engine:
        """The engine of a server."""
        return self._servers[name].simulation.engine

    def alive(self, name: str) -> bool:
        """Whether a server is up."""
        return self._servers[name].alive

    def load(self, name: str, model: str, *, now: float) -> ModelLoad:
        """The true load of a server."""
        start = next_start(self.engine(name), model, now=now)
        return ModelLoad(model, start.wait_s, start.alone_s, start.row_s)

    def facts(self, name: str) -> Any:
        """Facts that a server reports in addition to its loads, for routings that use them."""
        return None

    # ── the run ──────────────────────────────────────────────────────────────────────────────

    def run(self, arrivals: Iterable[tuple[str, Request]], deaths: Sequence[Death] = ()) -> None:
        """Let (home, request) arrive, in order of arrival, and go on until all have an outcome.
        Raises SimulationError if a request never gets an outcome."""
        for death in deaths:
            self._put(death.at, lambda now, death=death: self._die(death, now))  # type: ignore[misc]
        coming = iter(arrivals)
        arrival = next(coming, None)
        while True:
            at = arrival[1].arrival if arrival is not None else math.inf
            if arrival is None and not self._open:
                return
            event_at = self._heap[0][0] if self._heap else math.inf
            while self._due and self._due[0][0] != self._servers[self._due[0][1]].due:
                heappop(self._due)
            server_at = self._due[0][0] if self._due else math.inf
            first = min(at, event_at, server_at)
            if first == math.inf:
                raise SimulationError(f"{len(self._open)} requests have no outcome")
            self.now = first
            if server_at == first:
                server = self._servers[heappop(self._due)[1]]
                server.simulation.turn(first)
                self._next_turn(server)
            elif event_at == first:
                heappop(self._heap)[2](first)
            elif arrival is not None:
                self._arrive(*arrival, first)
                arrival = next(coming, None)

    def _next_turn(self, server: _Server) -> None:
        server.due = math.inf
        self._due_at(server, max(server.simulation.next_at(more=True), self.now))

    def _due_at(self, server: _Server, at: float) -> None:
        if at < server.due:
            server.due = at
            heappush(self._due, (at, server.name))

    def _put(self, at: float, call: Callable[[float], None]) -> None:
        self._put_down += 1
        heappush(self._heap, (at, self._put_down, call))

    # ── requests ─────────────────────────────────────────────────────────────────────────────

    def _arrive(self, home: str, request: Request, now: float) -> None:
        attempt = self._open[request.id] = _Attempt(request, home)
        self.score.requests[request.model] += 1
        server = self._servers[home]
        if not server.alive:
            self._end(attempt, Reason.CRASHED)
            return
        peer = server.routing.on_arrival(request, now=now)
        self._send(attempt, peer or home, now)

    def _send(self, attempt: _Attempt, target: str, now: float) -> None:
        request, home = attempt.request, attempt.home
        attempt.target = target
        attempt.tried.append(target)
        self._servers[home].routing.sent(request, target, now=now)
        if target == home:
            self._submit(attempt, request, now)
            return
        sent = replace(request, deadline=request.deadline - self.hop.seconds)
        self._put(now + self.hop.request_s, lambda now: self._submit(attempt, sent, now))

    def _submit(self, attempt: _Attempt, request: Request, now: float) -> None:
        """Handle the arrival of a request at the server that it was sent to."""
        server, home = self._servers[attempt.target], attempt.home
        if self._open.get(request.id) is not attempt:
            return
        if server.name != home:
            server.received[home] += 1
        if not server.alive:
            self._put(now + self.hop.seconds, lambda now: self._answered(attempt, None, now))
            return
        server.held[request.id] = attempt
        server.simulation.put(now, Submitted(request))
        self._due_at(server, now)

    def _done(self, server: _Server, id: int, outcome: Outcome, now: float) -> None:
        attempt = server.held.pop(id)
        home = attempt.home
        if home == server.name:
            self._answered(attempt, outcome, now)
            return
        self._put(now + self.hop.seconds, lambda now: self._answered(attempt, outcome, now))
        self._report(server, home, now, answering=True)

    def _answered(self, attempt: _Attempt, outcome: Outcome | None, now: float) -> None:
        """Handle a request's answer at its home; None: the server that had the request is gone."""
        request, home = attempt.request, self._servers[attempt.home]
        if self._open.get(request.id) is not attempt:
            return
        served = outcome is not None and outcome.reason.kind is OutcomeKind.SERVED
        if home.name != attempt.target or outcome is not None:
            in_time = None if outcome is None else served and now <= request.deadline
            home.routing.answered(request, attempt.target, in_time=in_time, now=now)
        if outcome is not None and served:
            is_late = now > request.deadline
            self._end(attempt, Reason.AFTER_DEADLINE if is_late else outcome.reason)
            return
        # A lost request is tried again, even if it has been tried as often as is allowed.
        if len(attempt.tried) < self._tries or (outcome is None and attempt.target != home.name):
            target = home.routing.on_refusal(request, attempt.tried, now=now)
            if target is not None and target not in attempt.tried:
                self._send(attempt, target, now)
                return
        self._end(attempt, Reason.CRASHED if outcome is None else outcome.reason)

    def _end(self, attempt: _Attempt, reason: Reason) -> None:
        request, score = attempt.request, self.score
        if self._open.pop(request.id, None) is None:
            raise SimulationError(f"request {request.id} has a second outcome")
        is_forwarded = any(server != attempt.home for server in attempt.tried)
        score.outcomes[reason.kind.value] += 1
        score.forwarded += is_forwarded
        score.in_time[request.model] += reason.kind is OutcomeKind.SERVED
        if self._ended is not None:
            self._ended(request, Outcome(reason, self.now), is_forwarded)

    # ── reports ──────────────────────────────────────────────────────────────────────────────

    def _tick(self, name: str, peer: str, now: float) -> None:
        server = self._servers[name]
        if server.alive:
            self._report(server, peer, now)
        self._put(now + REPORT_EVERY_S, partial(self._tick, name, peer))

    def _report(
        self,
        server: _Server,
        peer: str,
        now: float,
        *,
        answering: bool = False,
        is_hello: bool = False,
    ) -> None:
        """Send a report. The report that is sent with a hello is never lost."""
        if peer not in server.reporters:
            return  # the peer died before this server was up
        loads = [self.load(server.name, model, now=now) for model in self.models]
        if server.name in self.terms.liars:
            loads = [replace(load, wait_s=0.0) for load in loads]
        received, reporter = server.received[peer], server.reporters[peer]
        report = reporter.report(loads, received, now=now, answering=answering)
        at: float | None = now + self.hop.seconds
        if not is_hello:
            at = self._delayed(now + self.hop.seconds)
        if report is None or at is None:
            return
        facts = self.facts(server.name)
        self._put(at, lambda now: self._reported(server, peer, report, facts, now))

    def _reported(
        self, server: _Server, peer: str, report: LoadReport, facts: Any, now: float
    ) -> None:
        if server.alive and self._servers[peer].alive:
            self._servers[peer].routing.reported(server.name, report, facts, now=now)

    def _delayed(self, at: float) -> float | None:
        """Time at which a report arrives; None: the report is lost."""
        terms = self.terms
        if terms.loss and self._random.random() < terms.loss:
            return None
        return at + terms.delay_s * self._random.random() if terms.delay_s else at

    # ── deaths ───────────────────────────────────────────────────────────────────────────────

    def _die(self, death: Death, now: float) -> None:
        server = self._servers[death.server]
        attempts, server.held, server.alive, server.due = server.held, {}, False, math.inf
        noticed = now + self.hop.seconds + death.silent_s
        for attempt in attempts.values():
            if attempt.home != server.name:
                lost = attempt
                self._put(noticed, lambda now, lost=lost: self._answered(lost, None, now))  # type: ignore[misc]
        for attempt in [a for a in self._open.values() if a.home == server.name]:
            self._end(attempt, Reason.CRASHED)
        self._put(noticed, partial(self._gone, server))
        if death.back < math.inf:
            self._put(death.back, partial(self._join, server.name))

    def _gone(self, server: _Server, now: float) -> None:
        """Let the peers notice a death."""
        for peer in self._servers.values():
            if self._servers[server.name] is server:  # not back yet
                peer.routing.left(server.name, now=now)
