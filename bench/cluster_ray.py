"""Ray Serve as the supervisor of two servers under load: what dies, and what goes on.

Two Ray nodes of this machine (the first has the head) have a server each, clients offer half of
what one can do to each. Needs an environment with Ray (`make ray`). Rows:

- `replica`, `node`, `head`: `kill -9` of a supervisor, of all processes of the second node, of the
  head with its node; the node and the head are started again at once.
- `away`: requests of a tiny model before the head dies, and while it is away.
- `scaling`: twice the load on a pool of one server, which may have two.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench import servers
from bench.clients import latencies
from bench.cluster_fault_load import RECOVERY_S, FaultRun, Seen, loaded, member_of, until
from bench.cluster_servers import CAPACITY, Member, load_spec, make_repository, wait_linked
from bench.machine import CACHE, ROOT
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.models import oip_body
from bench.processes import tree
from slacktide.cluster.folder_lock import LockHolder, holder_of
from slacktide.lab.workloads import Replay

BIN = ROOT / ".cache" / "ray" / "bin"
HEAD, NODE = HOSTS = ("127.0.0.2", "127.0.0.3")
ADOPTED_S = 5.0
AWAY_S = 61.0
REST_S, DOUBLED_S = 5.0, 10.0
"""Time between an adoption and the next fault, and before the load is doubled."""
STATED = {
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_niceness": "0",
}
"""Health checks and priority, as in docs/cluster.md."""


class RayCluster:
    """Ray with a folder of its own. Use it as a context manager."""

    def __init__(self, repository: Path, replicas: dict[str, int]) -> None:
        self._root = CACHE / "cluster_ray"
        token = self._root / "token"
        token.write_text("peers-of-one-benchmark")
        token.chmod(0o600)
        document = {
            "name": "bench",
            "repository": str(repository),
            "peer_token_file": str(token),
            "servers": [{"name": "pool", "replicas": replicas, "cores": 1}],
        }
        (self._root / "bench.yaml").write_text(json.dumps(document))
        self._address = f"{HEAD}:{servers.free_ports(1)[0]}"
        self._environment = {
            **os.environ,
            **STATED,
            "HOME": str(self._root),
            "XDG_STATE_HOME": str(self._root / "state"),
            "RAY_ADDRESS": self._address,
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
        }
        self._ray_folder = tempfile.mkdtemp(prefix="ray-")  # a longer path has no room for sockets
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RayCluster:
        self._run(str(BIN / "ray"), "get-auth-token", "--generate")
        self.start(HEAD)
        self.start(NODE)
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            self._run(str(BIN / "python"), "-m", "slacktide", "cluster", "down")
        for host in HOSTS:
            self.kill(host)
        shutil.rmtree(self._ray_folder, ignore_errors=True)
        for holder in filter(None, map(holder_of, self._root.rglob("servers/*/lock"))):
            os.kill(holder.pid, signal.SIGKILL)

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, env=self._environment, check=True, capture_output=True, timeout=120.0
        )

    def start(self, host: str) -> None:
        """Start the processes of a node."""
        command = [str(BIN / "ray"), "start", "--block", "--node-ip-address", host]
        command += ["--num-cpus", "4"]
        if host == HEAD:
            command += ["--head", "--port", self._address.rpartition(":")[2]]
            command += ["--include-dashboard", "false", "--temp-dir", self._ray_folder]
        else:
            command += ["--address", self._address]
        log = (self._root / f"{host}.log").open("ab")
        self.nodes[host] = subprocess.Popen(
            command, env=self._environment, stdout=log, stderr=log, start_new_session=True
        )

    def kill(self, host: str) -> None:
        """Kill all processes of a node, which do not have servers among them."""
        node = self.nodes.pop(host, None)
        if node is None:
            return
        for pid in tree(node.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        node.wait()

    def up(self) -> None:
        """Run the cluster's file, once the head answers."""
        command = (str(BIN / "python"), "-m", "slacktide", "cluster", "up")

        def succeed() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._run(*command, str(self._root / "bench.yaml"))
                return True
            return False

        until(succeed)

    def holder(self, host: str, lock: str, number: int = 0) -> LockHolder | None:
        folder = self._root / f"state/slacktide/clusters/bench/servers/pool-{host}-{number}"
        holder = holder_of(folder / lock)
        return holder if holder is not None and holder.pid else None

    def member(self, host: str, number: int = 0) -> Member | None:
        holder = self.holder(host, "lock", number)
        if holder is None or "ports" not in holder.document:
            return None
        member = member_of({**holder.document, "name": holder.document["machine"]})
        return member if member.is_ready() else None

    def members(self) -> list[Member]:
        """The two servers, the one of the second node first. Waits until both are ready."""
        return [until(partial(self.member, host)) for host in (NODE, HEAD)]

    def asked_at(self) -> float:
        """When Serve asked for one more server, by its log."""
        (log,) = Path(self._ray_folder).glob("session_latest/logs/serve/controller_*.log")
        line = [line for line in log.read_text().splitlines() if "Adding 1 replica" in line][-1]
        words = line.split()
        return datetime.fromisoformat(f"{words[1]} {words[2].replace(',', '.')}").timestamp()

    def claimed(self, host: str, previous: int) -> LockHolder:
        """Wait until a replica other than `previous` supervises the server of a node."""

        def find() -> LockHolder | None:
            holder = self.holder(host, "supervisor")
            return None if holder is None or holder.pid == previous else holder

        return until(find)


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
                    faults = FaultRun()
                    script = partial(_repeat, count, fault, cluster)
                    specs = [
                        load_spec(member, "slow", 0.5 * CAPACITY, 900.0, number)
                        for number, member in enumerate(cluster.members())
                    ]
                    faults.add(*asyncio.run(loaded(specs, script)))
                    limit = ADOPTED_S if name == "replica" else math.inf
                    faults.show(result, f"Ray: {name} killed", back=limit)
            if options.wants("away"):
                _without_head(result, cluster, 10.0 if options.quick else AWAY_S)
    if options.wants("scaling"):
        with RayCluster(repository, {"min": 1, "max": 2}) as cluster:
            _scaling(result, cluster)
    return result


def _repeat(count: int, fault: Callable[[RayCluster], None], cluster: RayCluster) -> list[Seen]:
    """Raises RuntimeError if a server did not go on, or was not adopted."""
    seen = []
    for _ in range(count):
        pids = [member.pid for member in cluster.members()]
        begin = time.monotonic()
        fault(cluster)
        seen.append(Seen(begin, back_s=time.monotonic() - begin))
        if [member.pid for member in cluster.members()] != pids:
            raise RuntimeError("a server was not adopted")
        time.sleep(REST_S)
    return seen


def _kill_replica(cluster: RayCluster) -> None:
    holder = cluster.holder(NODE, "supervisor")
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    cluster.claimed(NODE, holder.pid)


def _kill_node(cluster: RayCluster) -> None:
    holder = cluster.holder(NODE, "supervisor")
    assert holder is not None
    cluster.kill(NODE)
    cluster.start(NODE)
    cluster.claimed(NODE, holder.pid)


def _kill_head(cluster: RayCluster) -> None:
    """The node goes with it: a new head does not know it."""
    holders = {host: cluster.holder(host, "supervisor") for host in HOSTS}
    for host in HOSTS:
        cluster.kill(host)
    for host in HOSTS:
        cluster.start(host)
    cluster.up()
    for host, holder in holders.items():
        assert holder is not None
        cluster.claimed(host, holder.pid)


FAULTS = {"replica": _kill_replica, "node": _kill_node, "head": _kill_head}


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
    gone = until(lambda: cluster.holder(NODE, "supervisor") is None) and time.monotonic() - killed
    after.append(ask(count=count))
    rate = median(part.mean() for part in before) / median(part.mean() for part in after)
    tail = median(np.percentile(part, 99) for part in after)
    tail /= median(np.percentile(part, 99) for part in before)
    result.figures += [
        Figure("head away: requests/s ÷ before", float(rate), "×", at_least(0.98)),
        Figure("head away: p99 ÷ before", float(tail), "×", at_most(1.02)),
        Figure("head away: the node's supervisor ended after", float(gone), "s"),
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
    asked = cluster.asked_at() - time.time() + time.monotonic() - doubled
    in_time = client.endings[client.due >= ready + RECOVERY_S] == 0
    result.figures += [
        Figure("doubled load: another server asked for after", asked, "s", at_most(3.0)),
        Figure("doubled load: it is ready after", ready - doubled, "s"),
        Figure("doubled load: in time from 3 s later", float(in_time.mean()), "", at_least(0.95)),
        Figure("doubled load: requests without an outcome", client.unended, "", at_most(0)),
    ]
