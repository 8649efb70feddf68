"""Clusters of processes on this machine: `place` writes what should run, `LocalCluster` keeps it
running.

`place` writes the commands of all servers into the cluster's folder. The supervising process reads
them at its start and whenever they change, so the commands outlive the process. Servers whose flags
or release changed are replaced one at a time: the new one loads its models, then takes over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from slacktide._version import __version__
from slacktide.cluster.file import FIRST_PORT, LOOPBACK, PORTS, STEP, Address, ClusterFile
from slacktide.cluster.folder_lock import FolderLock, LockHolder, holder_of
from slacktide.cluster.processes import LOCK, end_process, opened_process, spawn, stop_server
from slacktide.cluster.supervisor import LOG, ServerCommand, ServerPhase, Supervisor
from slacktide.models.repository.paths import write_atomically

PLAN = "cluster.json"
_LOOK_S = 0.2
_APART_S = 1.0
"""Time from one start of a supervisor to the next."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The servers that should run."""

    file: Path
    """The file that lists them."""
    on_ray: bool = False
    """Whether Ray runs them; `servers` and `ports` are then unknown."""
    revision: str = field(default_factory=partial(secrets.token_hex, 6))
    """Differs from the revision of every other plan."""
    ports: Mapping[str, int] = field(default_factory=dict)
    """HTTP ports by name."""
    servers: tuple[ServerCommand, ...] = ()


_PLANS = TypeAdapter(ClusterPlan)


def clusters_folder() -> Path:
    """Return the folder with a folder for each cluster of this user."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "slacktide" / "clusters"


def place(cluster: ClusterFile, folder: Path, file: Path) -> None:
    """Write the commands for a cluster into its folder. A server keeps the ports that it had.
    Raises OSError."""
    addresses = _addresses(cluster, folder)
    processors = sorted(os.sched_getaffinity(0))
    turns, commands = cycle(processors), []
    for name, server, _ in cluster.members():
        cores = server.cores or 0
        command = cluster.command(
            server,
            folder / "servers" / name,
            name=name,
            address=addresses[name],
            addresses=addresses.values(),
            processors=tuple(islice(turns, cores)) if cores < len(processors) else (),
        )
        commands.append(command)
    ports = {name: port for name, (_, port) in addresses.items()}
    write_plan(folder, ClusterPlan(file, ports=ports, servers=tuple(commands)))


def write_plan(folder: Path, plan: ClusterPlan) -> None:
    """Write a plan into the cluster's folder. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PLAN, _PLANS.dump_json(plan, indent=1))


def read_plan(folder: Path) -> ClusterPlan:
    """Read what `write_plan` wrote. Raises OSError."""
    try:
        return _PLANS.validate_json((folder / PLAN).read_bytes())
    except ValueError:
        raise OSError(f"{folder / PLAN}: not a plan of this release; delete it") from None


def running_plan(folder: Path) -> ClusterPlan | None:
    """Read the plan of a cluster that runs, here or on Ray; None if the cluster does not run."""
    with suppress(OSError):
        plan = read_plan(folder)
        if plan.on_ray or supervisor_of(folder) or any(c.holder() for c in plan.servers):
            return plan
    return None


def _addresses(cluster: ClusterFile, folder: Path) -> dict[str, Address]:
    """Choose host and HTTP port of each server: the stated port, else its earlier port, else a free
    port."""
    ports = {name: port for name, _, port in cluster.members() if port is not None}
    with suppress(OSError):
        earlier = read_plan(folder).ports.items()
        ports = {name: port for name, port in earlier if _is_apart(port, ports.values())} | ports
    addresses = {}
    for name, server, _ in cluster.members():
        host = server.host or LOOPBACK
        if name not in ports:
            ports[name] = _free_port(host, ports.values())
        addresses[name] = host, ports[name]
    return addresses


def _is_apart(port: int, excluded: Iterable[int]) -> bool:
    return all(abs(port - neighbour) >= len(PORTS) for neighbour in excluded)


def _free_port(host: str, excluded: Iterable[int]) -> int:
    """Return a port that is free, as are the next ports, below the ports of outgoing
    connections."""
    for port in range(FIRST_PORT, 32_000, STEP):
        if _is_apart(port, excluded):
            with suppress(OSError), ExitStack() as attempt:
                for distance in PORTS.values():
                    attempt.enter_context(socket.create_server((host, port + distance)))
                return port
    raise OSError(f"no free ports on {host}")


def supervisor_of(folder: Path) -> LockHolder | None:
    """Return the process that supervises a cluster; None if there is none."""
    return holder_of(folder / LOCK)


async def stop_all(folder: Path) -> None:
    """Stop a cluster's supervisor and all its servers, and return when they have ended."""
    while (holder := supervisor_of(folder)) is not None:
        if holder.pid:
            await end_process(holder.pid, math.inf)
        await asyncio.sleep(_LOOK_S / 10)
    await asyncio.gather(*map(stop_server, (folder / "servers").iterdir()))


def start_supervisor(folder: Path) -> int:
    """Start the process that supervises a cluster, detached from this one. Returns its id."""
    return spawn([sys.executable, "-P", "-m", __spec__.name, str(folder)], folder / LOG)


def end_earlier_supervisor(folder: Path) -> None:
    """Kill the supervisor of a cluster if it has another release. Its servers go on."""
    holder = supervisor_of(folder)
    if holder is not None and holder.pid and holder.document.get("release") != __version__:
        with suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGKILL)


async def keep_supervised(folder: Path) -> None:
    """Start a supervisor of a cluster whenever there is none, until cancelled. Raises OSError."""
    while True:
        holder, began = supervisor_of(folder), time.monotonic()
        if holder is None or holder.pid:
            pid = start_supervisor(folder) if holder is None else holder.pid
            with suppress(ProcessLookupError), opened_process(pid) as (_, ended):
                await ended
        await asyncio.sleep(max(_LOOK_S / 10, began + _APART_S - time.monotonic()))


class LocalCluster:
    """Keeps the servers of a plan running. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError: EBUSY if another process supervises this cluster."""
        self._folder = folder
        self._supervisors: dict[str, Supervisor] = {}
        self._revision = ""
        """The plan that has been carried out."""
        self._update = ""
        """The state of an update in words."""
        self._lock = FolderLock(folder / LOCK)
        self._lock.acquire(release=__version__)

    async def run(self) -> None:
        """Keep servers running. A cancellation leaves them to `stop`, or running."""
        while True:
            plan = read_plan(self._folder)
            if plan.revision != self._revision:
                await self._carry_out(plan)
                self._revision = plan.revision
                self._report()
            await asyncio.sleep(_LOOK_S)

    async def stop(self) -> None:
        """Drain and stop the servers."""
        self._update = "stopping"
        await asyncio.gather(*map(self._end, list(self._supervisors)))
        self._lock.release()

    async def _carry_out(self, plan: ClusterPlan) -> None:
        """Start, replace and stop servers until exactly the servers of the plan run."""
        commands = {command.name: command for command in plan.servers}
        self._update = "starting servers"
        await asyncio.gather(*map(self._end, self._supervisors.keys() - commands))
        for folder in (self._folder / "servers").iterdir():  # of an earlier supervisor
            if folder.name not in commands:
                await stop_server(folder)
        outdated = []
        for name, command in commands.items():
            supervisor, holder = self._supervisors.get(name), command.holder()
            if supervisor is not None and supervisor.phase is ServerPhase.PAUSED:
                await self._end(name)  # the new command may start immediately
                supervisor = None
            is_other = holder is not None and not command.is_current(holder, __version__)
            if supervisor is None:
                self._begin(command)
            elif supervisor.command.arguments != command.arguments:
                is_other = True
            elif not is_other:
                supervisor.command = command  # it may have other peers now
            if is_other:
                outdated.append(command)
        for command in outdated:
            self._update = f"replacing {command.name}"
            self._report()
            supervisor = self._supervisors[command.name]
            if not await supervisor.replace(command):
                self._update = f"halted: {command.name} goes on unchanged: {supervisor.message}"
                return
        self._update = ""

    def _begin(self, command: ServerCommand) -> Supervisor:
        supervisor = self._supervisors[command.name] = Supervisor(command, self._report)
        supervisor.start()
        return supervisor

    async def _end(self, name: str) -> None:
        await self._supervisors[name].stop()
        del self._supervisors[name]

    def _report(self) -> None:
        servers = {
            name: {key: getattr(supervisor, key) for key in ("phase", "restarts", "message")}
            for name, supervisor in self._supervisors.items()
        }
        state = {"revision": self._revision, "update": self._update, "servers": servers}
        with suppress(OSError):  # a full disk must not end the supervisor
            self._lock.write(release=__version__, **state)


def server_states(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the state of each server as its locks have it. Raises OSError."""
    supervisor = supervisor_of(folder)
    servers = {} if supervisor is None else supervisor.document.get("servers", {})
    for command in read_plan(folder).servers:
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
            "restarts": report.get("restarts", 0),
            "message": report.get("message", ""),
            "log": str(command.folder / LOG),
        }


async def main(folder: Path) -> None:
    """Supervise a cluster until a signal, then stop its servers. Raises OSError."""
    cluster, loop = LocalCluster(folder), asyncio.get_running_loop()
    running = loop.create_task(cluster.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with suppress(asyncio.CancelledError):
        await running
    await cluster.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(main(Path(sys.argv[1])))
