"""Clients that go on while something happens to a server, and what they saw; for `cluster_faults`
and `cluster_ray`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bench.cluster_servers import SLO_S, Member, unended
from bench.machine import CACHE, ROOT, cores, pinned
from bench.measurement import Figure, Result, Table, at_least, at_most
from slacktide.cluster.folder_lock import LockHolder
from slacktide.cluster.local import server_states, supervisor_of
from slacktide.lab.load.generate import carry_out, prepare
from slacktide.lab.load.request_log import ENDINGS
from slacktide.lab.load.run import Progress
from slacktide.lab.load.spec import LoadSpec

Found = TypeVar("Found")
BEFORE_S, RECOVERY_S = 4.0, 3.0
"""Time of load before the first fault, and after a fault until goodput is scored."""
SLACK_S = 0.5
"""Tolerance of instants when requests are blamed on a fault."""
LOST = frozenset(("transport_error", "server_error", "unavailable", "gave_up", "bad_request"))
COLUMNS = (
    "fault", "count", "requests", "in time", "late", "refused", "failed", "lost elsewhere",
    "noticed s: median, most", "back s", "own start s", "goodput",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """One fault."""

    at: float
    """Monotonic time at which it began."""
    noticed_s: float = math.nan
    """Time until no peer chose the server."""
    back_s: float = math.nan
    """Time until the server was ready again."""
    start_s: float = math.nan
    """Part of `back_s` since its process was started."""


@dataclass(frozen=True, slots=True)
class ClientLog:
    """The requests of one client. Arrays have shape (n,)."""

    due: NDArray[np.float64]
    """Monotonic times."""
    endings: NDArray[np.int64]
    latency_s: NDArray[np.float64]
    unended: int
    errors: Mapping[str, int]
    """Sentences of failures."""

    def lost(self) -> NDArray[np.bool_]:
        """Which requests were neither answered nor refused for lack of time."""
        lost = [number for number, ending in enumerate(ENDINGS) if ending.label in LOST]
        return np.isin(self.endings, lost)

    def between(self, begin: float, end: float) -> NDArray[np.bool_]:
        return (self.due >= begin) & (self.due < end)


async def loaded(
    specs: Sequence[LoadSpec], script: Callable[[], list[Seen]]
) -> tuple[list[ClientLog], list[Seen]]:
    """Run the script in a thread while clients send."""
    prepared = [await prepare(spec) for spec in specs]
    stop, origins = asyncio.Event(), [math.nan] * len(specs)

    def observer(number: int) -> Callable[[Progress], None]:
        def observe(progress: Progress) -> None:
            origins[number] = time.monotonic() - progress.elapsed_s

        return observe

    runs = [
        asyncio.create_task(carry_out(ready, observer(number), stop))
        for number, ready in enumerate(prepared)
    ]
    await asyncio.sleep(BEFORE_S)
    try:
        faults = await asyncio.to_thread(script)
    finally:
        stop.set()
        logs = [log for _, log in await asyncio.gather(*runs)]
    clients = []
    for ready, log, origin in zip(prepared, logs, origins, strict=True):
        due = ready.schedule.due[: log.submitted] + origin
        clients.append(ClientLog(due, log.endings(), log.latency(), unended(log), log.errors()))
    return clients, faults


class FaultRun:
    """The clients and faults of a row, from one run or several."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.goodputs: list[float] = []
        self.counts = np.zeros(len(ENDINGS), np.int64)
        self.unended = self.elsewhere = 0
        self.errors: Counter[str] = Counter()

    def add(
        self, clients: Sequence[ClientLog], faults: Sequence[Seen], *, excused: int = 0
    ) -> None:
        """Score a run. `clients`: first those of the server that the faults are of. `excused`:
        number of requests that were on something else that died."""
        self.seen += faults
        self.unended += sum(client.unended for client in clients)
        for client in clients:
            self.errors.update(client.errors)
            self.counts += np.bincount(client.endings, minlength=len(ENDINGS))
        mine, *others = clients
        blamed = np.zeros(mine.due.size, bool)
        for fault in faults:
            if not math.isnan(fault.start_s):  # it died, and what its clients had sent with it
                end = fault.at + fault.back_s + SLACK_S
                blamed |= mine.between(fault.at - SLO_S - SLACK_S, end)
        lost = int((mine.lost() & ~blamed).sum())
        self.elsewhere += max(
            0, lost + sum(int(client.lost().sum()) for client in others) - excused
        )
        ends = [*(fault.at for fault in faults[1:]), math.inf]
        for fault, end in zip(faults, ends, strict=True):
            scored = [c.endings[c.between(fault.at + RECOVERY_S, end)] == 0 for c in others]
            self.goodputs.append(float(np.concatenate(scored).mean()))

    def show(
        self, result: Result, name: str, *, noticed: float = math.inf, back: float = math.inf
    ) -> None:
        """Add figures and a row of the table. `noticed`, `back`: limits of `noticed_s` and of
        `back_s` without the server's own start."""
        noticed_all, back_all, start_all = (
            tuple(
                getattr(fault, part) for fault in self.seen if not math.isnan(getattr(fault, part))
            )
            for part in ("noticed_s", "back_s", "start_s")
        )
        result.figures += [
            Figure(f"{name}: requests without an outcome", self.unended, "", at_most(0)),
            Figure(f"{name}: lost elsewhere", self.elsewhere, "", at_most(0)),
            Figure(f"{name}: in time at the others, {RECOVERY_S:g} s later, least",
                   min(self.goodputs), "", at_least(0.95), samples=tuple(self.goodputs)),
        ]  # fmt: skip
        if noticed_all:
            limit = None if noticed == math.inf else at_most(noticed)
            label = f"{name}: peers stop choosing it after, most"
            result.figures.append(Figure(label, max(noticed_all), "s", limit, "", noticed_all))
        if back < math.inf:
            waits = tuple(
                fault.back_s - (0.0 if math.isnan(fault.start_s) else fault.start_s)
                for fault in self.seen
            )
            label = f"{name}: back after, without its own start, most"
            result.figures.append(Figure(label, max(waits), "s", at_most(back), "", waits))
        counts = {ending.label: int(n) for ending, n in zip(ENDINGS, self.counts, strict=True)}
        failed = sum(counts[label] for label in LOST)
        row = [name, len(self.seen), sum(counts.values()), counts["on_time"]]
        row += [counts["after_deadline"], counts["overloaded"] + counts["timed_out"], failed]
        row += [self.elsewhere, *map(_shown, (noticed_all, back_all, start_all))]
        if self.elsewhere:
            result.remarks.append(f"{name}: {dict(self.errors.most_common(5))}")
        if not result.tables:
            result.tables.append(Table("faults", COLUMNS, ()))
        rows = (*result.tables[0].rows, (*map(str, row), f"{min(self.goodputs):.3f}"))
        result.tables[0] = Table("faults", COLUMNS, rows)


def _shown(samples: Sequence[float]) -> str:
    return f"{median(samples):.3g}, {max(samples):.3g}" if samples else ""


class LocalCluster:
    """Three servers that `slacktide cluster up --local` keeps running, on the servers' core. Use it
    as a context manager."""

    def __init__(self, repository: Path, **flags: Any) -> None:
        self._root, self._repository, self._flags = CACHE / "cluster_faults", repository, flags
        self.folder = self._root / "state" / "slacktide" / "clusters" / "bench"

    def __enter__(self) -> LocalCluster:
        self.up()
        return self

    def __exit__(self, *error: object) -> None:
        self._call("down", str(self._root / "bench.yaml"))

    def up(self, **flags: Any) -> float:
        """Run `cluster up` with further flags of servers. Returns the seconds that it took. Raises
        CalledProcessError."""
        self._flags |= flags
        document = {
            "repository": str(self._repository),
            "serve": self._flags,
            "servers": [{"name": f"s{number}"} for number in range(3)],
        }
        (self._root / "bench.yaml").write_text(json.dumps(document))
        begin = time.monotonic()
        self._call("up", str(self._root / "bench.yaml"), "--local")
        return time.monotonic() - begin

    def _call(self, *words: str) -> None:
        command = [sys.executable, "-m", "slacktide", "cluster", *words]
        environment = {
            **os.environ,
            "XDG_STATE_HOME": str(self._root / "state"),
            "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))),
        }
        subprocess.run(
            pinned(cores().server, command), env=environment, check=True, capture_output=True
        )

    def members(self) -> list[Member]:
        return [member_of(state) for state in server_states(self.folder) if state["ports"]]

    def supervisor(self) -> LockHolder | None:
        return supervisor_of(self.folder)

    def successor(self, victim: Member) -> Member:
        """Wait until another process is ready in the victim's place."""

        def find() -> Member | None:
            for member in self.members():
                if member.machine == victim.machine and member.pid != victim.pid:
                    return member if member.is_ready() else None
            return None

        return until(find)


def member_of(document: Mapping[str, Any]) -> Member:
    """The server that a supervisor, or the lock of its folder, describes."""
    name, pid, ports, host = (document[key] for key in ("name", "pid", "ports", "host"))
    return Member(name, pid, ports["http"], ports["metrics"], ports["grpc"], host)


def until(condition: Callable[[], Found | None], limit_s: float = 120.0) -> Found:
    """Poll until the condition is true, and return what it returned. Raises TimeoutError."""
    give_up = time.monotonic() + limit_s
    while not (outcome := condition()):
        if time.monotonic() > give_up:
            raise TimeoutError(f"not in {limit_s:g} s")
        time.sleep(0.005)
    return outcome


def noticed_s(begin: float, peers: Sequence[Member], machine: str = "s0") -> float:
    """Seconds from `begin` until no peer uses the server."""
    until(lambda: not any(peer.uses(machine) for peer in peers), 20.0)
    return time.monotonic() - begin


def process_age_s(pid: int) -> float:
    """Seconds since a process was started."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
