"""What arrivals take from a running model: the weight-bound network, requests at a fixed pace.

Everything of a server runs on one core, as small machines have it: each arrival that is handled
while a batch runs pushes the model aside, and leaves the caches to it cold.

    CPU of the loop      of the server's process for an arrival: reading, deciding, answering
    CPU of the worker    for an arrival, the model's own time included
    batch ÷ alone        seconds in the model of the batches that ran, over those of batches of as
                         many rows (one request each) with no arrivals; `CPU` of the worker likewise
    wake-ups             times that the loop waited, for an arrival
    pushed aside         times that the worker lost its core, for a batch

Requests come at equal distances, over HTTP on as many connections as are needed, over gRPC as
streams of one. `--beside FOLDER` runs another server in turn with this one, in the same rounds: a
folder with the package `slacktide` of another commit (its src) or build (hatch_build.py).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import astuple, dataclass
from statistics import median

import numpy as np

from bench import models, servers
from bench.clients import grpc_body, latencies, request_bytes
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, Table, format_number
from bench.processes import PROC, cpu_seconds, tree
from bench.servers import Serving
from slacktide.frontends.http2 import frames as f

MODEL = "dense"
SETTINGS = "slo: 60s\nmax_batch: 32\n"
"""As the example's, but for a deadline that nothing misses: every arrival is served."""
RATES = (300, 1_000)
RUNS_ALONE = 8
"""Of each batch size that occurred."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One round of one row; CPU times in µs."""

    loop: float
    worker: float
    slower: float
    dearer: float
    rows: float
    wakeups: float
    pushed: float
    unanswered: float


COLUMNS = (
    "CPU of the loop, µs",
    "of the worker",
    "batch ÷ alone",
    "CPU ÷ alone",
    "rows a batch",
    "wake-ups",
    "pushed aside",
    "unanswered",
)


def run(options: Options) -> Result:
    """Five rounds of each row (two short ones when quick), some five minutes with one beside."""
    rounds, seconds = (2, 1.5) if options.quick else (5, 4.0)
    pin(cores().client)
    result = Result("left_in_peace")
    file = models.model_file(MODEL).read_bytes()
    with contextlib.ExitStack() as stack:
        up: dict[str, Serving] = {}
        for number, folder in enumerate(("", *options.beside)):
            # A folder each: what a server has learnt of its models lies there.
            repository = models.variant_repository(f"peace{number}", {MODEL: (file, SETTINGS)})
            serving = stack.enter_context(servers.slacktide(repository, source=folder))
            up[folder or "this one"] = serving
        for protocol in ("HTTP", "gRPC"):
            for rate in RATES:
                row = f"{protocol} {rate} a second"
                if options.wants(row):
                    taken_by_server: dict[str, list[Taken]] = {name: [] for name in up}
                    for turn in range(rounds + 1):
                        for name, serving in up.items():
                            once = _once(serving, rate, seconds, grpc=protocol == "gRPC")
                            if turn:  # the first warms up
                                taken_by_server[name].append(once)
                    _show(row, taken_by_server, result)
    return result


def _show(row: str, taken_by_server: dict[str, list[Taken]], result: Result) -> None:
    lines = []
    for name, taken in taken_by_server.items():
        middle = map(median, zip(*map(astuple, taken), strict=True))
        lines.append((name, *map(format_number, middle)))
    result.tables.append(Table(f"dense, {row}", ("server", *COLUMNS), tuple(lines)))
    mine, *others = taken_by_server
    loop = tuple(taken.loop for taken in taken_by_server[mine])
    result.figures.append(Figure(f"{row}: CPU of the loop", median(loop), "µs", samples=loop))
    slower = tuple(taken.slower for taken in taken_by_server[mine])
    result.figures.append(Figure(f"{row}: batch ÷ alone", median(slower), "×", samples=slower))
    for other in others:
        ratios = tuple(
            a.loop / b.loop
            for a, b in zip(taken_by_server[mine], taken_by_server[other], strict=True)
        )
        name = f"{row}: CPU of the loop ÷ {other}"
        result.figures.append(Figure(name, median(ratios), "×", samples=ratios))
    result.details[row] = {
        name: list(map(astuple, taken)) for name, taken in taken_by_server.items()
    }


def _once(serving: Serving, rate: int, seconds: float, *, grpc: bool) -> Taken:
    loop, *others = tree(serving.pid)
    workers = tuple(others)
    client = _GrpcClient(serving) if grpc else _HttpClient(serving)
    client.offer(100, 0.2)
    count = round(rate * seconds)
    before = _batches(serving)
    cpu, worker_cpu = cpu_seconds((loop,)), cpu_seconds(workers)
    waits, pushed = _switches((loop,))[0], _switches(workers)[1]
    client.offer(rate, seconds)
    cpu, worker_cpu = cpu_seconds((loop,)) - cpu, cpu_seconds(workers) - worker_cpu
    waits, pushed = _switches((loop,))[0] - waits, _switches(workers)[1] - pushed
    ran = _since(before, _batches(serving))
    client.close()
    batches = sum(number for number, _ in ran.values())
    served = sum(size * number for size, (number, _) in ran.items())
    in_model = sum(spent for _, spent in ran.values())
    alone, alone_cpu = _alone(serving, workers, {size: number for size, (number, _) in ran.items()})
    return Taken(
        cpu / count * 1e6,
        worker_cpu / count * 1e6,
        in_model / alone,
        worker_cpu / alone_cpu,
        served / batches,
        waits / count,
        pushed / batches,
        count - served,
    )


def _alone(
    serving: Serving, workers: tuple[int, ...], batches: dict[int, int]
) -> tuple[float, float]:
    """Seconds in the model, and CPU time of the worker, of so many batches of each size."""
    rows = models.requests(MODEL, 32)
    path, spent, cpu = serving.path_of(MODEL), 0.0, 0.0
    for size, number in batches.items():
        tensors = {name: np.concatenate([row[name] for row in rows[:size]]) for name in rows[0]}
        body = models.oip_body(tensors)
        before, cpu_before = _batches(serving), cpu_seconds(workers)
        latencies(serving, path, body, count=RUNS_ALONE)
        cpu += number * (cpu_seconds(workers) - cpu_before) / RUNS_ALONE
        spent += number * _since(before, _batches(serving))[size][1] / RUNS_ALONE
    return spent, cpu


Batches = dict[int, tuple[int, float]]
"""Batches that have run and seconds in the model, by their rows."""


def _batches(serving: Serving) -> Batches:
    (stats,) = serving.fetch(f"/v2/models/{MODEL}/stats")["model_stats"]
    spent = {stat["batch_size"]: stat["compute_infer"] for stat in stats["batch_stats"]}
    return {size: (spending["count"], spending["ns"] / 1e9) for size, spending in spent.items()}


def _since(before: Batches, after: Batches) -> Batches:
    differences = {}
    for size, (number, spent) in after.items():
        earlier, earlier_spent = before.get(size, (0, 0.0))
        if number > earlier:
            differences[size] = number - earlier, spent - earlier_spent
    return differences


def _switches(pids: tuple[int, ...]) -> tuple[int, int]:
    """Times that threads of these processes have waited, and been pushed aside."""
    switches: Counter[str] = Counter()
    for pid in pids:
        for thread in (PROC / str(pid) / "task").iterdir():
            for line in (thread / "status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name.endswith("voluntary_ctxt_switches"):
                    switches[name] += int(value)
    return switches["voluntary_ctxt_switches"], switches["nonvoluntary_ctxt_switches"]


# ── clients ──────────────────────────────────────────────────────────────────────────────────────


class _Client(ABC):
    """Sends at a fixed pace, whatever has been answered; the next request never waits."""

    def __init__(self) -> None:
        self._waiting = 0
        self._selector = selectors.DefaultSelector()

    def _connect(self, port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ)
        return connection

    @abstractmethod
    def send(self) -> None:
        """Send one request."""

    @abstractmethod
    def receive(self, connection: socket.socket) -> None:
        """Take what has come."""

    def offer(self, rate: float, seconds: float) -> None:
        """Send, and wait for every answer."""
        begin = time.perf_counter()
        for number in range(round(rate * seconds)):
            while (left := begin + number / rate - time.perf_counter()) > 0:
                # The kernel is late by its timer's slack: the last part is polled for.
                self._take(max(0.0, left - 0.0005))
            self._waiting += 1
            self.send()
        while self._waiting > 0:
            if not self._take(10.0):
                raise RuntimeError("the server has stopped answering")

    def _take(self, seconds: float) -> int:
        ready = self._selector.select(seconds)
        for key, _ in ready:
            assert isinstance(key.fileobj, socket.socket)
            self.receive(key.fileobj)
        return len(ready)

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()


class _HttpClient(_Client):
    """On connections that are taken in turn."""

    def __init__(self, serving: Serving) -> None:
        super().__init__()
        body = models.oip_body(models.requests(MODEL, 1)[0])
        self._request = request_bytes(serving, serving.path_of(MODEL), body)
        self._port = serving.port
        self._idle = deque(self._connect(serving.port) for _ in range(32))

    def send(self) -> None:
        connection = self._idle.popleft() if self._idle else self._connect(self._port)
        connection.sendall(self._request)

    def receive(self, connection: socket.socket) -> None:
        """An answer is short: it comes in one piece."""
        if not connection.recv(1 << 16):
            raise RuntimeError("the server has closed a connection")
        self._waiting -= 1
        self._idle.append(connection)


class _GrpcClient(_Client):
    """Streams of one connection, as frames of our own: no library's time is in the figures."""

    def __init__(self, serving: Serving) -> None:
        super().__init__()
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/inference.GRPCInferenceService/ModelInfer",
            ":authority": "127.0.0.1",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self._head = f.header_block(None, [(n.encode(), v.encode()) for n, v in fields.items()])
        self._body = grpc_body(models.grpc_message(MODEL, models.requests(MODEL, 1)[0])).content
        self._next, self._window, self._held, self._unsent = 1, f.WINDOW, b"", 0
        self._connection = self._connect(serving.grpc_port)
        begin = f.settings([(f.INITIAL_WINDOW, 1 << 20)]) + f.window_update(0, 1 << 30)
        self._connection.sendall(f.PREFACE + begin)

    def send(self) -> None:
        self._unsent += 1
        self._pump()

    def _pump(self) -> None:
        while self._unsent and len(self._body) <= self._window:
            id, ends = self._next, f.END_STREAM
            self._next += 2
            self._unsent -= 1
            self._window -= len(self._body)
            head = f.frame(f.HEADERS, f.END_HEADERS, id, self._head)
            self._connection.sendall(head + f.frame(f.DATA, ends, id, self._body))

    def receive(self, connection: socket.socket) -> None:
        data, at = self._held + connection.recv(1 << 18), 0
        while len(data) - at >= f.HEAD_BYTES:
            word, flags, id = f.FRAME_HEAD.unpack_from(data, at)
            kind, end = word & 0xFF, at + f.HEAD_BYTES + (word >> 8)
            if end > len(data):
                break
            payload, at = data[at + f.HEAD_BYTES : end], end
            if kind == f.RST_STREAM or (kind == f.HEADERS and flags & f.END_STREAM):
                self._waiting -= 1  # a stream that is reset is one too many for an overrun server
            elif kind == f.GOAWAY:
                raise RuntimeError("the server has ended the connection")
            elif kind == f.WINDOW_UPDATE and id == 0:
                self._window += int.from_bytes(payload, "big")
            elif kind in (f.SETTINGS, f.PING) and not flags & f.ACK:
                connection.sendall(f.frame(kind, f.ACK, 0, payload if kind == f.PING else b""))
        self._held = data[at:]
        self._pump()
