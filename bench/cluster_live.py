"""Three servers of this machine that answer for each other: what forwarding gains and costs.

The model answers from a stated profile (60 ms alone, 340 ms for 8 rows, deadline 500 ms), so two
cores can play three servers. Rows:

- `gain`: all clients at one server, at 1.45 × its capacity: alone, and with peers.
- `forwarded`: 100 KB to a server whose lane another model keeps busy, so that a peer answers;
  beside the same requests sent to that peer itself.
- `idle`: requests of a tiny model to a server with idle peers, and to one without, in turn.
- `faults`: clients at each of three servers, at half of their capacity together; one server is
  killed, it is stopped for three seconds, or its links are cut for 3 and for 15 s. What counts is
  what happens to the requests sent to the two others.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import orjson
from onnx import TensorProto, helper

from bench import servers
from bench.clients import latencies
from bench.machine import CACHE, ROOT
from bench.measurement import Figure, Options, Result, at_least, at_most
from bench.models import oip_body
from bench.offer import sent
from bench.processes import cpu_seconds, tree
from slacktide.executors.onnx_file import OnnxFile
from slacktide.lab.load.generate import prepare
from slacktide.lab.load.request_log import ENDINGS, RequestLog
from slacktide.lab.load.spec import LoadSpec, Stream, Target, Transport
from slacktide.lab.netem.proxy import LinkProxy
from slacktide.lab.workloads import BandwidthTrace, Fixed, Poisson, TraceLink
from slacktide.models.profile_cache import ProfileCache
from slacktide.models.repository.profile_store import ProfileStore
from slacktide.models.repository.repository import Repository
from slacktide.profiles import LatencyTable, ProfileRecord

FIXED_S, ROW_S, MOST_ROWS, SLO_S = 0.020, 0.040, 8, 0.5
CAPACITY = MOST_ROWS / (FIXED_S + MOST_ROWS * ROW_S)
"""Requests per second of one server."""
WIDE = 25_600
"""Floats of a request of 100 KB."""
RESET_S, SILENCE_S, RECOVERY_S = 0.1, 1.5, 3.0


@dataclass(frozen=True, slots=True)
class Member:
    """One of the servers."""

    machine: str
    pid: int
    port: int
    metrics_port: int

    def fetch(self, path: str, port: int | None = None) -> bytes:
        url = f"http://127.0.0.1:{port or self.port}{path}"
        with urllib.request.urlopen(url, timeout=2.0) as answer:
            return bytes(answer.read())

    def uses(self, machine: str) -> bool:
        """Whether it forwards to the peer of this name."""
        document = orjson.loads(self.fetch("/v2/slacktide/peers"))
        return any(
            peer["machine"] == machine and peer["state"] == "up" for peer in document["peers"]
        )

    def forwarded(self) -> int:
        """Number of calls that it has sent to peers."""
        return self._sum("slacktide_forwarded_requests_total", 'direction="out"')

    def queued(self, model: str) -> int:
        """Number of requests of a model that wait."""
        return self._sum("slacktide_queue_requests", f'model="{model}"')

    def _sum(self, family: str, label: str) -> int:
        lines = self.fetch("/metrics", self.metrics_port).decode().splitlines()
        return round(
            sum(
                float(line.rpartition(" ")[2])
                for line in lines
                if line.startswith(f"{family}{{") and label in line
            )
        )


def run(options: Options) -> Result:
    """Every row, or those of `--rows`."""
    result = Result("cluster_live")
    repository = _repository()
    if options.wants("gain"):
        _gain(result, repository, seconds=15.0 if options.quick else 40.0)
    if options.wants("forwarded"):
        _forwarded(result, repository, count=100 if options.quick else 400)
    if options.wants("idle"):
        _idle(result, repository, rounds=5 if options.quick else 15)
    if options.wants("faults"):
        _faults(result, repository, options)
    return result


# ── servers ──────────────────────────────────────────────────────────────────────────────────


def _repository() -> Path:
    root = CACHE / "cluster_live"
    shutil.rmtree(root, ignore_errors=True)
    slow = f"executor: profiled\nmax_batch: {MOST_ROWS}\nslo: {SLO_S * 1e3:g}ms\n"
    _model(root, "slow", slow, 2, FIXED_S, ROW_S)
    _model(root, "wide", "executor: profiled\nmax_batch: 4\nslo: 2s\n", WIDE, 0.002, 0.0005)
    _model(root, "blocker", "executor: profiled\nmax_batch: 1\n", 2, 0.2, 0.0)
    _model(root, "tiny", "max_batch: 8\nslo: 2s\n", 2, None, None)
    return root


def _model(
    root: Path, name: str, settings: str, floats: int, fixed_s: float | None, row_s: float | None
) -> None:
    """y = x for rows of `floats` floats, whose stored profile states these times."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (root / name / "slacktide.yaml").write_text(settings)
    x, y = (
        helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", floats]) for tensor in "xy"
    )
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], name, [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    if fixed_s is None or row_s is None:
        return
    (definition,) = Repository(root).read(name)
    file = OnnxFile(definition.model_path, definition.data_root)
    interface = file.interface(definition.settings.max_batch)
    assert interface is not None
    table = LatencyTable.linear(fixed_s, row_s, interface.max_batch)
    document = {
        "record": ProfileRecord(table, {"x": (floats,)}).to_dict(),
        "interface": interface.to_dict(),
        "dependence": "",
    }
    ProfileStore().save(definition, ProfileCache._key(definition), document)


@contextlib.contextmanager
def _started(
    repository: Path,
    count: int,
    peers: Callable[[int, Sequence[int]], Sequence[int]],
    ports: Sequence[int] = (),
) -> Iterator[list[Member]]:
    """`count` servers. `peers` chooses the ports that a server dials, by its number and the gRPC
    ports of all. They are linked when the block begins. Raises ServerFailedError."""
    ports = ports or servers.free_ports(3 * count)
    http, grpc, metrics = ports[:count], ports[count : 2 * count], ports[2 * count :]
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(count):
            dialled = peers(number, grpc)
            command = [sys.executable, "-m", "slacktide", "serve", str(repository)]
            for kind, of_kind in (("http", http), ("grpc", grpc), ("metrics", metrics)):
                command += [f"--{kind}-port", str(of_kind[number])]
            if dialled:
                command += ["--machine", f"s{number}", "--peers"]
                command.append(",".join(f"127.0.0.1:{port}" for port in dialled))
            up = stack.enter_context(
                servers.process("slacktide", command, http[number], "/v2/health/ready")
            )
            members.append(Member(f"s{number}", up.pid, http[number], metrics[number]))
        yield members


def _everyone(number: int, grpc: Sequence[int]) -> list[int]:
    return [port for other, port in enumerate(grpc) if other != number]


def _nobody(number: int, grpc: Sequence[int]) -> list[int]:
    return []


def _linked(members: Sequence[Member]) -> None:
    """Wait until all use each other. Raises TimeoutError."""
    give_up = time.monotonic() + 30.0
    while not all(
        member.uses(peer.machine) for member in members for peer in members if peer is not member
    ):
        if time.monotonic() > give_up:
            raise TimeoutError("the servers are not linked after 30 s")
        time.sleep(0.05)


# ── load ─────────────────────────────────────────────────────────────────────────────────────


def _spec(member: Member, model: str, rate: float, seconds: float, seed: int = 1) -> LoadSpec:
    return LoadSpec(
        target=Target(Transport.HTTP, "127.0.0.1", member.port),
        streams=(Stream(model, Poisson(rate), Fixed(SLO_S)),),
        duration=seconds,
        warmup=0.0,
        seed=seed,
        patience=2.0,
    )


def _on_time(log: RequestLog) -> float:
    return float((log.endings() == 0).mean())


def _gain(result: Result, repository: Path, seconds: float) -> None:
    rate = 1.45 * CAPACITY
    with _started(repository, 1, _nobody) as (alone,):
        _, log = asyncio.run(sent(_spec(alone, "slow", rate, seconds)))
        result.figures.append(Figure("alone: on time", _on_time(log)))
    with _started(repository, 3, _everyone) as members:
        _linked(members)
        _, log = asyncio.run(sent(_spec(members[0], "slow", rate, seconds)))
        share = members[0].forwarded() / len(log)
    result.figures += [
        Figure("with two peers: on time", _on_time(log), "", at_least(0.99)),
        Figure("forwarded", share),
        Figure("requests without an outcome", _unended(log), "", at_most(0)),
    ]


def _unended(log: RequestLog) -> int:
    return len(log) - log.ended_count


def _forwarded(result: Result, repository: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    wide = oip_body({"x": rng.normal(size=(1, WIDE)).astype(np.float32)})
    with _started(repository, 2, _everyone) as members:
        _linked(members)
        home = members[0]
        home_serving, peer_serving = (
            servers.Serving("slacktide", member.port, "/v2/models/{model}/infer", pid=member.pid)
            for member in members
        )
        path = home_serving.path_of("wide")
        there, direct, spent_there, spent_direct = [], [], [], []
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
    """Keep the server's only lane busy with batches of 200 ms, which have no deadline."""
    words = ("load", f"http://127.0.0.1:{member.port}", "--model", "blocker")
    words += ("--arrivals", "poisson:8", "--duration", "5m")
    child = subprocess.Popen(
        [sys.executable, "-m", "slacktide", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        while member.queued("blocker") < 4:
            time.sleep(0.05)
        yield
    finally:
        child.kill()
        child.wait()


def _idle(result: Result, repository: Path, rounds: int) -> None:
    body = oip_body({"x": np.ones((1, 2), np.float32)})
    with (
        _started(repository, 3, _everyone) as members,
        _started(repository, 1, _nobody) as (alone,),
    ):
        _linked(members)
        rates: dict[int, list[float]] = {alone.port: [], members[0].port: []}
        for _ in range(rounds):
            for port in rates:
                serving = servers.Serving("slacktide", port, "/v2/models/{model}/infer")
                seconds = latencies(serving, serving.path_of("tiny"), body, count=400)
                rates[port].append(1.0 / float(seconds.mean()))
    ratios = tuple(linked / without for without, linked in zip(*rates.values(), strict=True))
    name = "idle peers: requests/s ÷ without"
    result.figures.append(Figure(name, median(ratios), "×", at_least(0.98), samples=ratios))


# ── faults ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to server 0 or its links."""

    name: str
    kind: str
    """`kill`, `stop` or `cut`."""
    seconds: float
    """How long it lasts; infinite: to the end."""
    unnoticed_s: float
    """Time after which its peers must no longer choose it."""

    def begin(self, member: Member, links: Sequence[LinkProxy]) -> None:
        if self.kind == "cut":
            for link in links:
                link.cut()
        else:
            number = signal.SIGKILL if self.kind == "kill" else signal.SIGSTOP
            os.kill(member.pid, number)

    def end(self, member: Member, links: Sequence[LinkProxy]) -> None:
        if self.kind == "stop":
            os.kill(member.pid, signal.SIGCONT)
        for link in links:
            link.mend()


FAULTS = (
    Fault("server killed", "kill", math.inf, RESET_S),
    Fault("server stopped for 3 s", "stop", 3.0, SILENCE_S),
    Fault("links cut for 3 s", "cut", 3.0, SILENCE_S),
    Fault("links cut for 15 s", "cut", 15.0, SILENCE_S),
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the clients of the two other servers and these servers saw."""

    unended: int
    """Requests without an outcome, of all clients."""
    lost: int
    """Requests to the two others that failed, by transport or server."""
    noticed_s: float
    goodput: float
    """Share in time, of requests to the two others from `RECOVERY_S` after the fault on."""


def _faults(result: Result, repository: Path, options: Options) -> None:
    for fault in FAULTS:
        if options.quick and fault.seconds == 15.0:
            continue
        rounds = 1 if options.quick else 10 if fault.kind == "kill" else 3
        seen = [asyncio.run(_play(repository, fault, seed)) for seed in range(rounds)]
        noticed = tuple(observed.noticed_s for observed in seen)
        goodputs = tuple(observed.goodput for observed in seen)
        unended, lost = (sum(getattr(o, name) for o in seen) for name in ("unended", "lost"))
        result.figures += [
            Figure(f"{fault.name}: requests without an outcome", unended, "", at_most(0)),
            Figure(f"{fault.name}: lost at the others", lost, "", at_most(0)),
            Figure(
                f"{fault.name}: its peers stop choosing it after",
                *(max(noticed), "s", at_most(fault.unnoticed_s)),
                samples=noticed,
            ),
            Figure(
                f"{fault.name}: in time at the others, {RECOVERY_S:g} s later",
                *(min(goodputs), "", at_least(0.95)),
                samples=goodputs,
            ),
        ]


async def _play(repository: Path, fault: Fault, seed: int) -> Observed:
    """One run: clients at each server at half of what all three can do."""
    lasting = 0.0 if fault.seconds == math.inf else fault.seconds
    begin_s, seconds = 4.0, 4.0 + lasting + 2.0 * RECOVERY_S + 2.0
    fast = TraceLink(BandwidthTrace([0.0], [1e9]), 0.0)
    ports = servers.free_ports(9)
    async with contextlib.AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(LinkProxy(fast, "127.0.0.1", port))
            for port in ports[4:6]
        ]
        for link in links:
            link.begin(time.monotonic())
        cut_ports = [link.port for link in links]

        def peers(number: int, grpc: Sequence[int]) -> list[int]:
            return cut_ports if number == 0 else [port for port in grpc[1:] if port != grpc[number]]

        block = _started(repository, 3, peers, ports=ports)
        members = await asyncio.to_thread(block.__enter__)
        try:
            await asyncio.to_thread(_linked, members)
            specs = [
                _spec(member, "slow", 0.5 * CAPACITY, seconds, seed * 3 + number)
                for number, member in enumerate(members)
            ]
            prepared = [await prepare(spec) for spec in specs]
            runs = [
                asyncio.create_task(sent(spec, ready))
                for spec, ready in zip(specs, prepared, strict=True)
            ]
            await asyncio.sleep(begin_s)
            fault.begin(members[0], links)
            noticed_s = await asyncio.to_thread(_noticed, members[1:])
            if lasting:
                await asyncio.sleep(max(0.0, lasting - noticed_s))
                fault.end(members[0], links)
            logs = await asyncio.gather(*runs)
        finally:
            if fault.kind == "stop":
                fault.end(members[0], links)
            await asyncio.to_thread(block.__exit__, None, None, None)
    unended = sum(_unended(log) for _, log in logs)
    lost, served, late = 0, 0, 0
    failures = [i for i, ending in enumerate(ENDINGS) if ending.label in _FAILURES]
    for schedule, log in logs[1:]:
        endings = log.endings()
        lost += int(np.isin(endings, failures).sum())
        after = schedule.due >= begin_s + RECOVERY_S
        served += int((endings[after] == 0).sum())
        late += int((endings[after] != 0).sum())
    return Observed(unended, lost, noticed_s, served / (served + late))


_FAILURES = frozenset(("transport_error", "server_error", "unavailable", "gave_up"))


def _noticed(members: Sequence[Member]) -> float:
    """Seconds from now until none of `members` uses server 0."""
    begin = time.monotonic()
    while any(member.uses("s0") for member in members):
        if time.monotonic() - begin > 10.0:
            return math.inf
        time.sleep(0.005)
    return time.monotonic() - begin
