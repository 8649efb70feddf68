"""Two Ray nodes on this machine, with a server each, for `cluster_ray`."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from datetime import datetime
from functools import partial
from pathlib import Path

from bench import servers
from bench.cluster_fault_load import member_of, until
from bench.cluster_servers import Member
from bench.machine import CACHE, ROOT
from bench.processes import tree
from slacktide.cluster.folder_lock import LockHolder, holder_of

BIN = ROOT / ".cache" / "ray" / "bin"
HEAD, NODE = HOSTS = ("127.0.0.2", "127.0.0.3")
LOCKS = {"replica": "replica", "supervisor": "lock", "server": "servers/{name}/lock"}
"""Paths of locks below the folder of a place."""
AGENT_PORTS = {HEAD: 52365, NODE: 52366}
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
        for holder in filter(None, map(holder_of, self._root.rglob("lock"))):
            os.kill(holder.pid, signal.SIGKILL)

    def _run(self, *command: str) -> None:
        subprocess.run(
            command, env=self._environment, check=True, capture_output=True, timeout=120.0
        )

    def start(self, host: str) -> None:
        """Start the processes of a node."""
        command = [str(BIN / "ray"), "start", "--block", "--node-ip-address", host]
        # Agents also bind loopback, where the second would try for 3.5 s to have the first's port.
        command += ["--num-cpus", "4", "--dashboard-agent-listen-port", str(AGENT_PORTS[host])]
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
        until(self._is_open)  # an attempt before that takes seconds of the head's processors
        command = (str(BIN / "python"), "-m", "slacktide", "cluster", "up")

        def succeed() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                self._run(*command, str(self._root / "bench.yaml"))
                return True
            return False

        until(succeed)

    def _is_open(self) -> bool:
        host, _, port = self._address.rpartition(":")
        with socket.socket() as attempt:
            return attempt.connect_ex((host, int(port))) == 0

    def holder(self, host: str, lock: str, number: int = 0) -> LockHolder | None:
        name = f"pool-{host}-{number}"
        path = LOCKS[lock].format(name=name)
        holder = holder_of(self._root / "state/slacktide/clusters/bench" / name / path)
        return holder if holder is not None and holder.pid else None

    def member(self, host: str, number: int = 0) -> Member | None:
        holder = self.holder(host, "server", number)
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

    def succeeded(self, host: str, lock: str, previous: int) -> LockHolder:
        """Wait until a process other than `previous` holds a lock."""

        def find() -> LockHolder | None:
            holder = self.holder(host, lock)
            return None if holder is None or holder.pid == previous else holder

        return until(find)

    def supervised(self, *killed: int) -> Member:
        """Wait until the second node's server is ready and its supervisor knows it, and neither of
        them is one of `killed`."""

        def find() -> Member | None:
            supervisor, member = self.holder(NODE, "supervisor"), self.member(NODE)
            if supervisor is None or member is None or {supervisor.pid, member.pid} & {*killed}:
                return None
            server = supervisor.document.get("servers", {}).get(member.machine, {})
            return member if server.get("phase") == "ready" else None

        return until(find)
