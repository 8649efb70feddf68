"""A scenario with several servers: each has the scenario's cores and models, requests enter at some
of them, and the servers forward requests to each other by the rule of a live server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial
from random import Random

from slacktide.domain import Outcome, Request, suggestion
from slacktide.lab.simulation.items import Item, rng_for
from slacktide.lab.simulation.scenario.cell_reader import CellReader
from slacktide.lab.simulation.scenario.reading import Cell
from slacktide.lab.simulation.scenario.server_sections import ScaleOutSection
from slacktide.lab.simulation.scenario.world import World
from slacktide.lab.simulation.servers.routings import ByRule
from slacktide.lab.simulation.servers.world import Death, HopTerms, SimulatedServers
from slacktide.lab.simulation.world.driver import Answered, Simulation
from slacktide.models.repository.settings_file import Path as Place

WINDOW_S = 3.0
"""Time constant of the average of offered work, in seconds."""


class ServersRun(CellReader):
    """One run of the servers of a cell. Raises ScenarioError."""

    def __init__(self, cell: Cell, world: World) -> None:
        super().__init__(cell)
        self._world = world
        self.simulations: list[Simulation] = []
        """The simulations of all servers; a server that came back has a second one."""
        self.forwarded = 0
        """Requests that were forwarded, without those of the warm-up."""
        scenario, dying = self._scenario, set[str]()
        for name, model in scenario.models.items():
            for key in ("variants", "exits"):
                if getattr(model, key):
                    raise self._refuse(("models", name, key), "expected none with 'servers'")
        for name, application in scenario.applications.items():
            for key in ("link", "notice"):
                if getattr(application, key) is not None:
                    raise self._refuse(("applications", name, key), "expected none with 'servers'")
            for server in application.enters:
                self._check_server(("applications", name, "enters"), server)
        for number, death in enumerate(scenario.deaths):
            place: Place = ("deaths", number, "server")
            self._check_server(place, death.server)
            if death.server in dying:
                raise self._refuse(place, f"expected one death of {death.server!r}, got two")
            dying.add(death.server)

    def _check_server(self, place: Place, server: str) -> None:
        servers = self._scenario.servers
        if server not in servers:
            raise self._refuse(place, f"no server {server!r}; {suggestion(server, servers)}")

    def run(self, items: Iterable[Item], seed: int, kappa: float, answered: Answered) -> None:
        """Run `items`, which are requests; `answered` is called with each outcome."""
        scenario, hop = self._scenario, self._scenario.hop

        def ended(request: Request, outcome: Outcome, is_forwarded: bool) -> None:
            self.forwarded += is_forwarded and scenario.warmup <= request.arrival < scenario.length
            answered(request, outcome)

        servers = SimulatedServers(
            list(scenario.servers),
            partial(self._simulation, seed, kappa),
            ByRule,
            models=list(self._world.models),
            hop=HopTerms(0.5 * hop.rtt, float(hop.bandwidth or math.inf), hop.payload),
            seed=seed,
            ended=ended,
        )
        deaths = [
            Death(death.server, death.at, death.back or math.inf) for death in scenario.deaths
        ]
        servers.run(self._entering(servers, items, seed), deaths)

    def _simulation(
        self, seed: int, kappa: float, name: str, answered: Answered, begin: float
    ) -> Simulation:
        stated = self._scenario.servers.get(name)
        world = self._world if stated is None else self._world.slower(1.0 / stated.speed)
        drawn = rng_for(seed, f"server {name} of start {len(self.simulations)}").integers(2**62)
        simulation = world.simulation(int(drawn), answered=answered, kappa=kappa, begin=begin)
        self.simulations.append(simulation)
        return simulation

    def _entering(
        self, servers: SimulatedServers, items: Iterable[Item], seed: int
    ) -> Iterator[tuple[str, Request]]:
        """Yield each request and the server that it enters: any that is up, if the application may
        enter several."""
        random, scenario = Random(f"{seed} enters"), self._scenario
        scale_out = None
        if scenario.scale_out is not None:
            scale_out = _ScaleOut(scenario.scale_out, servers)
        for request in items:
            assert isinstance(request, Request)
            names = scenario.applications[request.application].enters or servers.names
            up = [name for name in names if servers.alive(name)] or names
            home = up[int(random.random() * len(up))]
            if scale_out is not None:
                scale_out.offered(request, home, now=request.arrival)
            yield home, request


class _ScaleOut:
    """Starts servers, as the autoscalers of Kubernetes do: as many as would bring the mean offered
    share to its target."""

    def __init__(self, section: ScaleOutSection, servers: SimulatedServers) -> None:
        self._section, self._servers = section, servers
        self._work, self._at = 0.0, 0.0
        """Sum of the servers' offered shares."""

    def offered(self, request: Request, home: str, *, now: float) -> None:
        """Count a request that enters at `home`."""
        section, servers = self._section, self._servers
        row_s = servers.load(home, request.model, now=now).row_s if servers.alive(home) else 0.0
        self._work *= math.exp((self._at - now) / WINDOW_S)
        self._work += request.rows * row_s / WINDOW_S
        self._at = now
        while len(servers.names) < min(section.most, math.ceil(self._work / section.target)):
            # With a space, so that no server in the file has this name.
            servers.add(f"added {len(servers.names)}", now + section.starts_in)
