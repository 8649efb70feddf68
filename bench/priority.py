"""A worker's policy, niceness and slice in the kernel's scheduler: what each brings and costs.

Workers are started as always and then put into each place in turn, from outside, in short rounds.
The *neighbour* is a program that computes without end on the servers' core, of another login
session (another autogroup of the kernel's scheduler, see sched(7)) or in a control group beside
that of the worker, as another container is.

    hop        the tiny MLP, one batch at a time after a pause of 4 to 8 ms, driven from the
               clients' core beside the neighbour: p50 and p99
    busy hop   the same where the driver computes meanwhile, as the loop of a busy server does: what
               else runs on the machine is then on the worker's core
    batch      the residual classifier beside the neighbour, one batch after the other: p50
    loop       a whole server on the servers' core whose worker computes without end, no neighbour:
               how long `/v2/health/live` takes, which the loop answers by itself: p50 and p99
    requests   tiny MLP, 1,000 requests/s, the whole server on one core, no neighbour: rows a batch
               and CPU time a request; a worker that pushes the loop aside makes small batches

A place is `policy nice`, with the slice in ms where one is asked for (sched_setattr(2), since Linux
6.12: a process with a shorter one is let in sooner and gets no more time); `loop` says that the
server's loop has that slice as well. Needs root. `--quick`: two rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import random
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from bench import models, servers
from bench.clients import latencies, read_answer
from bench.machine import cores, pin, pinned
from bench.measurement import Figure, Options, Result, Table
from bench.offer import Offered, offer
from bench.processes import PROC, tree
from bench.resize import Workers
from bench.servers import Serving
from slacktide.executors.cgroups import control_groups
from slacktide.lab.workloads import Fixed, Poisson

SEED = 1
RATE = 1_000.0
_SET_ATTR = {"x86_64": 314, "aarch64": 274}
"""Numbers of sched_setattr(2)."""
_GROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands."""

    policy: int
    nice: int
    slice_ms: float = 0.0
    loop: bool = False
    """Whether the server's loop has the slice too."""

    def __str__(self) -> str:
        name = {os.SCHED_OTHER: "other", os.SCHED_BATCH: "batch"}[self.policy]
        own = f" slice {self.slice_ms:g}" if self.slice_ms else ""
        return f"{name} {self.nice}{own}{' loop' if self.loop else ''}"

    def put(self, pid: int) -> None:
        """Put every thread of a process there. Raises OSError."""
        for thread in (PROC / str(pid) / "task").iterdir():
            set_attributes(int(thread.name), self.policy, self.nice, self.slice_ms)


WAS = Place(os.SCHED_BATCH, 5)
PLACES = (
    WAS,
    Place(os.SCHED_OTHER, 5),
    Place(os.SCHED_OTHER, 0),
    Place(os.SCHED_OTHER, 5, 1.0),
    Place(os.SCHED_OTHER, 5, 0.1),
    Place(os.SCHED_OTHER, 0, 0.1),
)
SERVED = (
    *PLACES,
    Place(os.SCHED_OTHER, 5, 0.1, loop=True),
    Place(os.SCHED_OTHER, 5, 1.0, loop=True),
)


def set_attributes(thread: int, policy: int, nice: int, slice_ms: float) -> None:
    """sched_setattr(2). Raises OSError."""
    attributes = struct.pack("=IIQiIQQQII", 56, policy, 0, nice, 0, int(slice_ms * 1e6), 0, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(_SET_ATTR[platform.machine()], thread, attributes, 0):
        raise OSError(ctypes.get_errno(), "sched_setattr")


def run(options: Options) -> Result:
    """All parts, or those that `--rows` names."""
    result = Result("priority", seeds=(SEED,))
    where = cores()
    if where.shared or os.geteuid() != 0:
        result.remarks.append("needs two cores, and root to give a worker a better place")
        return result
    pin(where.client)
    random.seed(SEED)
    for beside, neighbour in (("session", _session), ("control group", _control_group)):
        for part, measure in (("hop", _hops), ("busy hop", _busy_hops), ("batch", _batches)):
            if options.wants(f"{part} {beside}"):
                with contextlib.ExitStack() as stack:
                    times = asyncio.run(measure(options, lambda s=stack, n=neighbour: n(s)))  # type: ignore[misc]
                _show(f"{part}, neighbour in another {beside}", times, "ms", result)
    if options.wants("loop") or options.wants("requests"):
        _server(options, result)
    return result


def _show(
    title: str,
    times: Found,
    unit: str,
    result: Result,
    *,
    tail: bool = True,
) -> None:
    """Figures: the ratio to how it was, of the medians of each round; a table of p50 and p99."""
    if not times:
        result.remarks.append(f"{title}: not possible here")
        return
    lines = []
    for place, rounds in times.items():
        flat = [value for samples in rounds for value in samples]
        lines.append(
            (str(place), *(f"{np.percentile(flat, q):.3f}" for q in ((50, 99) if tail else (50,))))
        )
        ratios = tuple(median(a) / median(b) for a, b in zip(rounds, times[WAS], strict=True))
        if place is not WAS:
            name = f"{title}: {place} ÷ {WAS}, p50"
            result.figures.append(Figure(name, median(ratios), "×", samples=ratios))
    columns = ("place", "p50", "p99") if tail else ("place", "median")
    result.tables.append(Table(f"{title}, {unit}", columns, tuple(lines)))
    result.details[title] = {str(place): rounds for place, rounds in times.items()}


def _rounds(options: Options) -> int:
    return 2 if options.quick else 10


# ── neighbours ───────────────────────────────────────────────────────────────────────────────────

Move = Callable[[int], None]
"""Puts a process beside the neighbour."""


def _busy(stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    program = pinned(cores().server, [sys.executable, "-c", "while True: pass"])
    running = subprocess.Popen(program, start_new_session=True)
    stack.callback(running.wait)
    stack.callback(running.kill)
    return running


def _session(stack: contextlib.ExitStack) -> Move | None:
    """A neighbour of another session; None where the kernel makes no autogroups."""
    switch = PROC / "sys/kernel/sched_autogroup_enabled"
    if not switch.exists() or switch.read_text().strip() != "1":
        return None
    _busy(stack)
    return lambda pid: None


def _control_group(stack: contextlib.ExitStack) -> Move | None:
    """A neighbour in a control group beside the worker's; None where none can be made."""
    root = next((g.folder for g in control_groups("cpu")), None)
    if root is None:
        return None
    ours, theirs = (root / f"bench-{os.getpid()}-{name}" for name in ("ours", "theirs"))
    back = root / "cgroup.procs"
    try:
        for folder in (ours, theirs):
            folder.mkdir()
            stack.callback(_remove, folder, back)
        (theirs / "cgroup.procs").write_text(str(_busy(stack).pid))
    except OSError:
        return None
    return lambda pid: (ours / "cgroup.procs").write_text(str(pid)) and None


def _remove(folder: Path, back: Path) -> None:
    for pid in (folder / "cgroup.procs").read_text().split():
        with contextlib.suppress(OSError):
            back.write_text(pid)
    for _ in range(100):  # those that have just ended leave in a moment
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.02)


# ── workers alone ────────────────────────────────────────────────────────────────────────────────


Found = dict[Place, list[list[float]]]
"""ms by place, in rounds; empty where there can be no such neighbour."""
Neighbour = Callable[[], Move | None]


async def _hops(options: Options, neighbour: Neighbour) -> Found:
    return await _driven(options, neighbour, "mlp", 20)


async def _busy_hops(options: Options, neighbour: Neighbour) -> Found:
    return await _driven(options, neighbour, "mlp", 20, busy=True)


async def _batches(options: Options, neighbour: Neighbour) -> Found:
    return await _driven(options, neighbour, "residual", 10, pauses=False)


async def _driven(
    options: Options,
    neighbour: Neighbour,
    model: str,
    count: int,
    *,
    pauses: bool = True,
    busy: bool = False,
) -> Found:
    """Batches of one row, `count` of them in each place and round."""
    times: Found = {place: [] for place in PLACES}
    async with Workers() as workers:
        worker, _ = await workers.start((cores().server,), model=model)
        pid = worker.handle.pid
        assert pid is not None
        move = neighbour()
        if move is None:
            return {}
        move(pid)
        with contextlib.nullcontext() if busy else _let_in_first():
            for _ in range(_rounds(options)):
                for place in PLACES:
                    place.put(pid)
                    taken = []
                    for _ in range(count):
                        end = time.perf_counter() + random.uniform(0.004, 0.008)
                        while busy and time.perf_counter() < end:
                            pass
                        if pauses and not busy:
                            await asyncio.sleep(end - time.perf_counter())
                        batch = asyncio.ensure_future(worker.run(1))
                        while busy and not batch.done():
                            await asyncio.sleep(0)
                        taken.append(await batch * 1e3)
                    times[place].append(taken)
    return times


@contextlib.contextmanager
def _let_in_first() -> Iterator[None]:
    """This thread does not wait for others: what it waits for is what is measured."""
    with contextlib.suppress(OSError):  # a control group may have no time for it
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


# ── a server ─────────────────────────────────────────────────────────────────────────────────────


def _server(options: Options, result: Result) -> None:
    repository = models.variant_repository(
        "priority",
        {
            name: (models.model_file(name).read_bytes(), "max_batch: 32\n")
            for name in ("mlp", "residual")
        },
    )
    with servers.slacktide(repository) as serving:
        if options.wants("loop"):
            with _computing(serving), _let_in_first():
                times = _each(options, serving, lambda: _alive(serving, 100))
            _show("loop, on its worker's core", times, "ms", result)
        if options.wants("requests"):
            rows: Found = {place: [] for place in SERVED}
            spent: Found = {place: [] for place in SERVED}
            for number in range(_rounds(options)):
                for place in SERVED:
                    _put(serving, place)
                    first, other = _served(serving, 1.0 if options.quick else 3.0, SEED + number)
                    rows[place].append([first])
                    spent[place].append([other])
            _show("requests: rows a batch", rows, "rows", result, tail=False)
            _show("requests: CPU time of a request", spent, "µs", result, tail=False)


def _put(serving: Serving, place: Place) -> None:
    """Put the workers there, and the loop if it takes part."""
    forked = [pid for pid in tree(serving.pid) if b"executors.fork_server" in _command(pid)]
    for pid in forked[1:]:  # the first is the process that forks
        place.put(pid)
    set_attributes(serving.pid, os.SCHED_OTHER, 0, place.slice_ms if place.loop else 0.0)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes()
    return b""


def _each(options: Options, serving: Serving, measure: Callable[[], list[float]]) -> Found:
    times: Found = {place: [] for place in SERVED}
    for _ in range(_rounds(options)):
        for place in SERVED:
            _put(serving, place)
            times[place].append(measure())
    return times


@contextlib.contextmanager
def _computing(serving: Serving) -> Iterator[None]:
    """Two clients that ask the residual classifier without a pause."""
    body = models.oip_body(models.requests("residual", 1)[0])
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            latencies(serving, serving.path_of("residual"), body, count=20)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for client in asking:
        client.start()
    try:
        yield
    finally:
        ended.set()
        for client in asking:
            client.join()


def _alive(serving: Serving, count: int) -> list[float]:
    """ms of requests for health, 2 to 5 ms apart, on one connection."""
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    times = []
    with socket.create_connection(("127.0.0.1", serving.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            time.sleep(random.uniform(0.002, 0.005))
            begin = time.perf_counter()
            connection.sendall(request)
            read_answer(connection, serving.name)
            times.append((time.perf_counter() - begin) * 1e3)
    return times


def _served(serving: Serving, seconds: float, seed: int) -> tuple[float, float]:
    """Rows a batch, and CPU time of the whole server in µs a request."""
    before, cpu = _batch_rows(serving), _cpu(serving)
    load = Offered("mlp", Poisson(RATE), Fixed(0.05))
    offer(serving, [load], duration=seconds, warmup=0.0, seed=seed)
    rows, batches = (b - a for a, b in zip(before, _batch_rows(serving), strict=True))
    return rows / max(1.0, batches), (_cpu(serving) - cpu) * 1e6 / max(1.0, rows)


def _batch_rows(serving: Serving) -> tuple[float, float]:
    """(rows, batches) of the MLP so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{serving.metrics_port}/metrics") as answer:
        page = answer.read().decode()
    lines = [line for line in page.splitlines() if 'model="mlp"' in line]
    return tuple(  # type: ignore[return-value]
        sum(
            float(line.split()[-1])
            for line in lines
            if line.startswith(f"slacktide_batch_rows_{end}")
        )
        for end in ("sum", "count")
    )


def _cpu(serving: Serving) -> float:
    """Seconds of CPU time of all its processes."""
    ticks = 0
    for pid in tree(serving.pid):
        with contextlib.suppress(OSError):
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
