"""Ray Serve as the supervisor of two servers under load: what dies, and what goes on.

Two Ray nodes of this machine (the first has the head) have a server each, clients offer half of
what one can do to each. Needs an environment with Ray (`make ray`). Rows:

- `replica`, `supervisor`: `kill -9` of the replica of a server, and of its supervisor.
- `node`, `head`: of all Ray processes of the second node, of the head with its node; they are
  started again once the server is supervised.
- `node_server`, `head_server`: of the second node's server too.
- `machine`: of all processes of the second node, so Ray must start its server.
- `away`: requests of a tiny model before the head dies, and while it is away.
- `scaling`: twice the load on a pool of one server, which may have two.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np

from bench import servers
from bench.clients import latencies
from bench.cluster_fault_load import RECOVERY_S, FaultRun, Seen, loaded, process_age_s, until
from bench.cluster_servers import CAPACITY, load_spec, make_repository, wait_linked
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.models import oip_body
from bench.ray_nodes import BIN, HEAD, HOSTS, LOCKS, NODE, RayCluster
from slacktide.lab.workloads import Replay

ADOPTED_S, BACK_S = 5.0, 2.0
AWAY_S = 61.0
REST_S, DOUBLED_S = 5.0, 10.0
"""Time between an adoption and the next fault, and before the load is doubled."""


def run(options: Options) -> Result:
    """Every row, or those of `--rows`."""
    result = Result("cluster_ray")
    if not BIN.exists():
        result.remarks.append("no Ray here: make ray")
        return result
    repository, count = make_repository("cluster_ray"), 1 if options.quick else 3
    if any(map(options.wants, (*FAULTS, "away"))):
        with RayCluster(repository, {"min": 2, "max": 2}) as cluster:
            wait_linked(cluster.members())
            for name, fault in FAULTS.items():
                if options.wants(name):
                    faults, held = FaultRun(), list[float]()
                    script = partial(_repeat, count, fault, cluster, held)
                    specs = [
                        load_spec(member, "slow", 0.5 * CAPACITY, 900.0, number)
                        for number, member in enumerate(cluster.members())
                    ]
                    faults.add(*asyncio.run(loaded(specs, script)))
                    faults.show(result, f"Ray: {name} killed", back=fault.limit_s)
                    label = f"Ray: {name} killed: the server has a replica after, most"
                    result.figures.append(Figure(label, max(held), "s", samples=tuple(held)))
            if options.wants("away"):
                _without_head(result, cluster, 10.0 if options.quick else AWAY_S)
    if options.wants("scaling"):
        with RayCluster(repository, {"min": 1, "max": 2}) as cluster:
            _scaling(result, cluster)
    return result


@dataclass(frozen=True, slots=True)
class Fault:
    """What is killed on the second node, at the same time."""

    locks: tuple[str, ...] = ()
    """Processes that hold these locks."""
    nodes: tuple[str, ...] = ()
    """Nodes whose Ray processes are killed."""
    limit_s: float = BACK_S
    """Limit of the time until the server is supervised, without its own start."""


FAULTS = {
    "replica": Fault(("replica",), limit_s=ADOPTED_S),
    "supervisor": Fault(("supervisor",), limit_s=ADOPTED_S),
    "node": Fault(nodes=(NODE,), limit_s=ADOPTED_S),
    "head": Fault(nodes=HOSTS, limit_s=ADOPTED_S),
    "node_server": Fault(("server",), (NODE,)),
    "head_server": Fault(("server",), HOSTS),
    "machine": Fault(("supervisor", "server"), (NODE,), math.inf),
}


def _repeat(count: int, fault: Fault, cluster: RayCluster, held: list[float]) -> list[Seen]:
    """Repeat a fault. `held` gets the seconds until servers had replicas again. Raises RuntimeError
    if a server that was not killed did not go on."""
    restarts = []
    for _ in range(count):
        members = cluster.members()
        holders = {lock: cluster.holder(NODE, lock) for lock in LOCKS}
        replicas = [(host, cluster.holder(host, "replica")) for host in fault.nodes]
        if "replica" in fault.locks:
            replicas.append((NODE, holders["replica"]))
        killed = [holder.pid for lock in fault.locks if (holder := holders[lock])]
        begin = time.monotonic()
        for host in fault.nodes:
            cluster.kill(host)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        if fault.limit_s == math.inf:
            cluster.start(NODE)
        member = cluster.supervised(*killed)
        back_s = time.monotonic() - begin
        goes_on = "server" not in fault.locks
        start_s = math.nan if goes_on else process_age_s(member.pid)
        restarts.append(Seen(begin, back_s=back_s, start_s=start_s))
        for host in fault.nodes:
            if host not in cluster.nodes:
                cluster.start(host)
        if HEAD in fault.nodes:
            cluster.up()
        for host, replica in replicas:
            assert replica is not None
            cluster.succeeded(host, "replica", replica.pid)
        held.append(time.monotonic() - begin)
        if cluster.members() != [member, members[1]] or (member == members[0]) != goes_on:
            raise RuntimeError("a server was not adopted")
        time.sleep(REST_S)
    return restarts


def _without_head(result: Result, cluster: RayCluster, seconds: float) -> None:
    """Kill the head's processes; those of the node end by themselves after a minute."""
    member, body = cluster.members()[0], oip_body({"x": np.ones((1, 2), np.float32)})
    serving = servers.Serving("slacktide", member.port, "/v2/models/{model}/infer")
    ask = partial(latencies, serving, serving.path_of("tiny"), body, host=member.host)
    count = round(2.0 / float(ask(count=1000).mean()))
    before = [ask(count=count) for _ in range(round(seconds / 4.0))]
    cluster.kill(HEAD)
    killed, after = time.monotonic(), []
    while time.monotonic() < killed + seconds:
        after.append(ask(count=count))
    gone = until(lambda: cluster.holder(NODE, "replica") is None) and time.monotonic() - killed
    after.append(ask(count=count))
    rate = median(part.mean() for part in before) / median(part.mean() for part in after)
    tail = median(np.percentile(part, 99) for part in after)
    tail /= median(np.percentile(part, 99) for part in before)
    result.figures += [
        Figure("head away: requests/s ÷ before", float(rate), "×", at_least(0.98)),
        Figure("head away: p99 ÷ before", float(tail), "×", at_most(1.02)),
        Figure("head away: the node's replica ended after", float(gone), "s"),
    ]


def _scaling(result: Result, cluster: RayCluster) -> None:
    """.6 of a server's capacity for 10 s, then twice as much."""
    first = until(lambda: cluster.member(HEAD) or cluster.member(NODE))
    second = NODE if first.host == HEAD else HEAD
    rate, draw = 0.6 * CAPACITY, np.random.default_rng(1)
    halves = [begin + np.cumsum(draw.exponential(1.0 / rate, 3000)) for begin in (0.0, DOUBLED_S)]
    arrivals = Replay(np.sort(np.concatenate(halves)))
    spec = load_spec(first, "slow", rate, 150.0)
    spec = replace(spec, streams=(replace(spec.streams[0], arrivals=arrivals),))
    ready = 0.0

    def script() -> list[Seen]:
        nonlocal ready
        until(partial(cluster.member, second))
        ready = time.monotonic()
        time.sleep(RECOVERY_S + 20.0)
        return []

    (client,), _ = asyncio.run(loaded([spec], script))
    doubled = float(client.due[0] - arrivals.instants[0]) + DOUBLED_S
    requested_at = cluster.asked_at() - time.time() + time.monotonic() - doubled
    in_time = client.endings[client.due >= ready + RECOVERY_S] == 0
    result.figures += [
        Figure("doubled load: another server asked for after", requested_at, "s", at_most(3.0)),
        Figure("doubled load: it is ready after", ready - doubled, "s"),
        Figure("doubled load: in time from 3 s later", float(in_time.mean()), "", at_least(0.95)),
        Figure("doubled load: requests without an outcome", client.unended, "", at_most(0)),
    ]
