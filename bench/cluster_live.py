"""Three servers of this machine that answer for each other: what forwarding gains and costs.

Models and servers are those of `cluster_servers`. Rows:

- `gain`: all clients at one server, at 1.45 × its capacity, alone and with peers, and at .9 of all
  three; the same arrivals in virtual time.
- `forwarded`: 100 KB to a server whose lane another model keeps busy, so that a peer answers;
  beside the same requests sent to that peer itself.
- `idle`: requests of a tiny model to a server with idle peers, and to one without, in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np

from bench import servers
from bench.clients import latencies
from bench.cluster_servers import (
    CAPACITY,
    FIXED_S,
    MOST_ROWS,
    ROW_S,
    SLO_S,
    WIDE,
    Member,
    everyone,
    load_spec,
    make_repository,
    nobody,
    on_time,
    started,
    unended,
    wait_linked,
)
from bench.machine import ROOT
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.models import oip_body
from bench.offer import sent
from bench.processes import cpu_seconds, tree
from slacktide.domain import Deployment, LaneSpec, Plan, PoolId, Route
from slacktide.engine import Engine, PoolParts, PoolView
from slacktide.lab.load.schedule import Schedule
from slacktide.lab.simulation import AsExpected, DrawnRequest, Simulation
from slacktide.lab.simulation.servers.routings import ByRule
from slacktide.lab.simulation.servers.world import SimulatedServers
from slacktide.lab.simulation.world.driver import Answered
from slacktide.profiles import CorrectedTimes, LatencyTable
from slacktide.scheduling import PoolRecipe


def run(options: Options) -> Result:
    """Every row, or those of `--rows`."""
    result = Result("cluster_live")
    repository = make_repository("cluster_live")
    if options.wants("gain"):
        _gain(result, repository, seconds=15.0 if options.quick else 40.0)
    if options.wants("forwarded"):
        _forwarded(result, repository, count=100 if options.quick else 400)
    if options.wants("idle"):
        _idle(result, repository, rounds=5 if options.quick else 15)
    return result


def _gain(result: Result, repository: Path, seconds: float) -> None:
    for times, count, limit in ((1.45, 1, 0.0), (1.45, 3, 0.99), (2.7, 3, 0.0)):
        with started(repository, count, everyone) as members:
            wait_linked(members)
            spec = load_spec(members[0], "slow", times * CAPACITY, seconds)
            schedule, log = asyncio.run(sent(spec))
            share = members[0].forwarded() / len(log) if count > 1 else 0.0
        live, virtual = on_time(log), _simulated(schedule, count)
        name = f"{times:g} × at one of {count}"
        result.figures += [
            Figure(f"{name}: on time", live, "", at_least(limit) if limit else None),
            Figure(f"{name}: on time in virtual time", virtual),
            Figure(f"{name}: virtual - live", 100 * abs(virtual - live), "points", at_most(2.0)),
            Figure(f"{name}: forwarded", share),
            Figure(f"{name}: requests without an outcome", unended(log), "", at_most(0)),
        ]


def _simulated(schedule: Schedule, count: int) -> float:
    """The share of the same requests that is served in time in virtual time."""
    pool, times = PoolId("slow", "1"), LatencyTable.linear(FIXED_S, ROW_S, MOST_ROWS)
    deployment = Deployment(pool, "lane", MOST_ROWS)
    plan = Plan((LaneSpec("lane", (0,)),), (deployment,), (Route("slow", pool),))

    def parts(pool: PoolId, max_batch: int, view: PoolView) -> PoolParts:
        recipe = PoolRecipe("slack")
        return recipe.parts(CorrectedTimes(times), max_batch=max_batch, view=view)

    def simulation(name: str, answered: Answered, begin: float) -> Simulation:
        truth = AsExpected(CorrectedTimes(times))
        return Simulation(Engine(parts), plan, truth, answered=answered, begin=begin)

    names = [f"s{number}" for number in range(count)]
    simulated = SimulatedServers(names, simulation, ByRule, models=["slow"])
    simulated.run(
        (names[0], DrawnRequest(id, "slow", due, due + SLO_S))
        for id, due in enumerate(schedule.due.tolist())
    )
    return simulated.score.goodput


def _forwarded(result: Result, repository: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    wide = oip_body({"x": rng.normal(size=(1, WIDE)).astype(np.float32)})
    with started(repository, 2, everyone) as members:
        wait_linked(members)
        home = members[0]
        home_serving, peer_serving = (
            servers.Serving("slacktide", member.port, "/v2/models/{model}/infer", pid=member.pid)
            for member in members
        )
        path = home_serving.path_of("wide")
        there: list[float] = []
        direct: list[float] = []
        spent_there: list[tuple[float, float]] = []
        spent_direct: list[tuple[float, float]] = []
        with _blocked(home):
            for _ in range(5):
                for serving, seconds, spent in (
                    (home_serving, there, spent_there),
                    (peer_serving, direct, spent_direct),
                ):
                    pids = tuple(pid for member in members for pid in tree(member.pid))
                    before, begin = cpu_seconds(pids), time.perf_counter()
                    seconds += latencies(serving, path, wide, count=count // 5).tolist()
                    took = time.perf_counter() - begin
                    spent.append((cpu_seconds(pids) - before, took))
        share = home.forwarded() / count
    extra_cpu = (sum(cpu for cpu, _ in spent_there) - sum(cpu for cpu, _ in spent_direct)) / count
    result.figures += [
        Figure("100 KB: forwarded of those sent to the busy server", share, "", at_least(0.95)),
        Figure("100 KB: p50, forwarded", median(there) * 1e3, "ms"),
        Figure("100 KB: p50, sent to that peer", median(direct) * 1e3, "ms"),
        Figure("100 KB: more at p50", (median(there) - median(direct)) * 1e3, "ms", at_most(0.5)),
        Figure("100 KB: more CPU, both servers", extra_cpu * 1e6, "µs", at_most(200)),
    ]


@contextlib.contextmanager
def _blocked(member: Member) -> Iterator[None]:
    """Keep the server's only lane busy with batches of a second, which have no deadline."""
    words = ["load", f"http://127.0.0.1:{member.port}", "--model", "blocker"]
    words += ("--arrivals", "poisson:8", "--duration", "5m")
    child = subprocess.Popen(
        [sys.executable, "-m", "slacktide", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        while member.total("slacktide_queue_requests", 'model="blocker"') < 4:
            time.sleep(0.05)
        yield
    finally:
        child.kill()
        child.wait()


def _idle(result: Result, repository: Path, rounds: int) -> None:
    body = oip_body({"x": np.ones((1, 2), np.float32)})
    with (
        started(repository, 3, everyone) as members,
        started(repository, 1, nobody) as (alone,),
    ):
        wait_linked(members)
        rates: dict[int, list[float]] = {alone.port: [], members[0].port: []}
        for _ in range(rounds):
            for port in rates:
                serving = servers.Serving("slacktide", port, "/v2/models/{model}/infer")
                seconds = latencies(serving, serving.path_of("tiny"), body, count=400)
                rates[port].append(1.0 / float(seconds.mean()))
    ratios = tuple(linked / without for without, linked in zip(*rates.values(), strict=True))
    name = "idle peers: requests/s ÷ without"
    result.figures.append(Figure(name, median(ratios), "×", at_least(0.98), samples=ratios))
