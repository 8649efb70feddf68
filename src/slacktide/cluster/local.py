"""Clusters of processes on this machine: `place` writes what should run, `LocalCluster` keeps it
running.

`place` writes the commands of all servers into the cluster's folder. The supervising process takes
them from there, at its start and whenever they change, so that they outlive it. Servers whose flags
or release changed are replaced one at a time: drained, started, ready, then the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slacktide._version import __version__
from slacktide.cluster.file import FIRST_PORT, PORTS, STEP, ClusterFile
from slacktide.cluster.folder_lock import FolderLock, LockHolder, holder_of
from slacktide.cluster.supervisor import (
    LOCK,
    LOG,
    ServerCommand,
    ServerPhase,
    Supervisor,
    end_process,
    spawn,
)

PLAN = "cluster.json"
_LOOK_S = 0.2
READY_S = 120.0
"""Time that a replaced server gets to become ready before the update halts."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The servers that should run."""

    revision: str
    """Differs from that of every other time that it was written."""
    commands: tuple[ServerCommand, ...]


def clusters_folder() -> Path:
    """Return the folder with a folder for each cluster of this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "slacktide" / "clusters"


def place(cluster: ClusterFile, folder: Path) -> None:
    """Write the commands for a cluster into its folder. A server keeps the ports that it had.
    Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses = _addresses(cluster, folder)
    processors, first = sorted(os.sched_getaffinity(0)), 0
    commands = []
    for name, server in cluster.members():
        chosen: tuple[int, ...] = ()
        if server.cores is not None and server.cores < len(processors):
            indices = range(first, first + server.cores)
            chosen = tuple(processors[index % len(processors)] for index in indices)
            first += server.cores
        peers = [
            f"{host}:{port + PORTS['grpc-port']}"
            for peer, (host, port) in addresses.items()
            if peer != name
        ]
        state, address = folder / "servers" / name, addresses[name]
        command = cluster.command(
            server, state, name=name, address=address, peers=peers, processors=chosen
        )
        commands.append(asdict(command))
    ports = {name: port for name, (_, port) in addresses.items()}
    plan = {"written": time.time_ns(), "ports": ports, "servers": commands}
    part = folder / f"{PLAN}.{os.getpid()}"
    part.write_text(json.dumps(plan, indent=1, default=str))
    part.rename(folder / PLAN)


def read_plan(folder: Path) -> ClusterPlan:
    """Read what `place` wrote. Raises OSError."""
    data = (folder / PLAN).read_bytes()
    commands = tuple(
        ServerCommand(name, tuple(arguments), Path(state), tuple(peers), tuple(processors))
        for name, arguments, state, peers, processors in map(
            dict.values, json.loads(data)["servers"]
        )
    )
    return ClusterPlan(hashlib.sha256(data).hexdigest()[:12], commands)


def _addresses(cluster: ClusterFile, folder: Path) -> Mapping[str, tuple[str, int]]:
    """Choose host and HTTP port of each server."""
    earlier: Mapping[str, int] = {}
    with suppress(OSError, ValueError, KeyError):
        earlier = json.loads((folder / PLAN).read_text())["ports"]
    ports: dict[str, int] = {}
    for name, server in cluster.members():
        if server.port is not None:
            number = int(name.rpartition("-")[2]) if server.replicas.min > 1 else 1
            ports[name] = server.port + STEP * (number - 1)
    hosts = {name: server.host or "127.0.0.1" for name, server in cluster.members()}
    for name in hosts.keys() & earlier.keys() - ports.keys():
        if _is_apart(earlier[name], ports.values()):
            ports[name] = earlier[name]
    for name, host in hosts.items():
        if name not in ports:
            ports[name] = _free_port(host, {*ports.values(), *earlier.values()})
    return {name: (host, ports[name]) for name, host in hosts.items()}


def _is_apart(port: int, excluded: Collection[int]) -> bool:
    return all(abs(port - neighbour) >= len(PORTS) for neighbour in excluded)


def _free_port(host: str, excluded: Collection[int]) -> int:
    """Return a port that is free like the next ones, below those of outgoing connections."""
    for port in range(FIRST_PORT, 32_000, STEP):
        if _is_apart(port, excluded):
            with suppress(OSError), ExitStack() as attempt:
                for distance in PORTS.values():
                    attempt.enter_context(socket.create_server((host, port + distance)))
                return port
    raise OSError(f"no free ports on {host}")


def supervisor_of(folder: Path) -> LockHolder | None:
    """Return the process that supervises a cluster; None if none does."""
    return holder_of(folder / LOCK)


async def stop_all(folder: Path) -> None:
    """Stop a cluster's supervisor and all its servers, and return when they have ended."""
    while (holder := supervisor_of(folder)) is not None:
        if holder.pid:
            await end_process(holder.pid, math.inf)
        await asyncio.sleep(_LOOK_S / 10)
    await asyncio.gather(*(_stop(path) for path in (folder / "servers").iterdir()))


async def _stop(folder: Path) -> None:
    """Stop the server with this state folder, if it runs, that nothing supervises."""
    await Supervisor(ServerCommand(folder.name, (), folder)).stop()


def start_supervisor(folder: Path) -> int:
    """Start the process that supervises a cluster, detached from this one. Returns its id."""
    return spawn([sys.executable, "-P", "-m", __spec__.name, str(folder)], folder / LOG)


class LocalCluster:
    """Keeps the servers of a plan running. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError: EBUSY if another process supervises this cluster."""
        self._folder = folder
        self._supervisors: dict[str, tuple[Supervisor, asyncio.Task[None]]] = {}
        self._revision = ""
        """The plan that has been carried out."""
        self._update = ""
        """The state of an update in words."""
        self._lock = FolderLock(folder / LOCK)
        self._lock.acquire(release=__version__)

    async def run(self, stop: asyncio.Event) -> None:
        """Keep servers running until `stop`, then drain and stop them. A cancellation leaves them
        running."""
        stopping = asyncio.create_task(stop.wait())
        while not stop.is_set():
            plan = read_plan(self._folder)
            if plan.revision != self._revision:
                update = asyncio.create_task(self._carry_out(plan))
                await asyncio.wait((update, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not update.done():
                    update.cancel()
                    break
                update.result()
                self._revision = plan.revision
                self._report()
            await asyncio.wait((stopping,), timeout=_LOOK_S)
        self._update = "stopping"
        await asyncio.gather(*(self._end(name) for name in list(self._supervisors)))
        self._lock.release()

    async def _carry_out(self, plan: ClusterPlan) -> None:
        """Start, replace and stop servers until those of the plan run."""
        commands = {command.name: command for command in plan.commands}
        self._update = "starting servers"
        await asyncio.gather(*(self._end(name) for name in self._supervisors.keys() - commands))
        for folder in (self._folder / "servers").iterdir():  # of an earlier supervisor
            if folder.name not in commands:
                await _stop(folder)
        outdated = []
        for name, command in commands.items():
            if name in self._supervisors and self._supervisors[name][0].phase is ServerPhase.PAUSED:
                await self._end(name)  # it need not wait any longer
            supervised = self._supervisors[name][0] if name in self._supervisors else None
            holder = command.holder()
            if (holder is not None and not command.is_current(holder, __version__)) or (
                supervised is not None and supervised.command.arguments != command.arguments
            ):
                outdated.append(command)
            elif supervised is not None:
                supervised.command = command  # it may have other peers now
            if supervised is None:
                self._begin(command)
        for command in outdated:
            self._update = f"replacing {command.name}"
            self._report()
            await self._end(command.name)
            supervisor = self._begin(command)
            with suppress(TimeoutError):
                async with asyncio.timeout(READY_S):
                    while supervisor.phase not in (ServerPhase.READY, ServerPhase.PAUSED):
                        await asyncio.sleep(_LOOK_S / 4)
            if supervisor.phase is not ServerPhase.READY:
                self._update = f"halted: {command.name} did not become ready"
                return
        self._update = ""

    def _begin(self, command: ServerCommand) -> Supervisor:
        supervisor = Supervisor(command, self._report)
        task = asyncio.create_task(supervisor.run())
        self._supervisors[command.name] = supervisor, task
        return supervisor

    async def _end(self, name: str) -> None:
        supervisor, task = self._supervisors[name]
        await supervisor.stop()
        await task
        del self._supervisors[name]

    def _report(self) -> None:
        servers = {
            name: {key: getattr(supervisor, key) for key in ("phase", "restarts", "message")}
            for name, (supervisor, _) in self._supervisors.items()
        }
        state = {"revision": self._revision, "update": self._update, "servers": servers}
        with suppress(OSError):  # a full disk must not end the supervisor
            self._lock.write(release=__version__, **state)


def server_states(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of each server as its locks have it. Raises OSError."""
    supervisor = supervisor_of(folder)
    servers = {} if supervisor is None else supervisor.document.get("servers", {})
    for command in read_plan(folder).commands:
        holder = command.holder()
        document = {} if holder is None else holder.document
        report = servers.get(command.name, {})
        state = report.get("phase", ServerPhase.STOPPED if holder is None else "unsupervised")
        if holder is None and state == ServerPhase.READY:  # it has just ended
            state = ServerPhase.STARTING
        yield {
            "name": command.name,
            "state": state,
            "pid": holder.pid if holder is not None else None,
            "host": document.get("host"),
            "ports": document.get("ports", {}),
            "failed": state == ServerPhase.PAUSED,
            "restarts": report.get("restarts", 0),
            "message": report.get("message", ""),
            "log": str(command.folder / LOG),
        }


async def main(folder: Path) -> None:
    """Supervise a cluster until a signal, then stop its servers. Raises OSError."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await LocalCluster(folder).run(stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main(Path(sys.argv[1])))
