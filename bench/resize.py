"""Resizing a running worker between one core and two: how soon, how well, at what price.

Workers of the example models, driven one batch after the other without a server in between,
so that what is compared is the workers. They take turns, in short rounds, so that a machine that
slows down slows all of them; the loop that drives them sits on the clients' core, and a worker on
one core has the servers' core to itself.

    effect    a worker with the ladder runs batches without a pause and is resized 200 times, each
              time at another point of a batch: time until the resize is confirmed, until the first
              batch that begins on the new cores, and what that batch takes, as a multiple of what
              one on these cores takes anyhow. Every batch must be answered once, and right
    latency   resized workers, with the ladder and with one session (of two threads, and of sixteen,
              as a worker has that may get sixteen cores), beside workers that were started on these
              cores with a thread for each: p50 (median of the rounds' ratios) and p99 (of each
              fifth of the rounds, median of the ratios: what the host keeps back comes in bursts)
    memory    what workers with a ladder hold more than workers with one session, from outside,
              beside what they announced; after full batches in every session
    server    the residual classifier behind a real server whose planner changes its mind ten times
              a second, at half of what one core can do, Poisson arrivals: after 200 resizes every
              request has been answered with its result
    quota     the same worker under a control group's quota, beside affinity alone; half a core

`--quick`: fewer rounds and resizes.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import servers
from bench.machine import cores, pin
from bench.measurement import Figure, Options, Result, Table, at_least, at_most
from bench.models import measure_bare, model_file, requests, variant_repository
from bench.offer import Offered, offer
from slacktide.domain import BatchFinished, PoolId, Replica, ReplicaLost
from slacktide.executors.allocator import QuotaAllocator, QuotaUnavailableError
from slacktide.executors.hand_over.arena import Arena
from slacktide.executors.ports import (
    BatchOrder,
    BatchOutputs,
    ModelSource,
    OpenedModel,
    Payload,
    Report,
    Resized,
)
from slacktide.executors.process import ProcessExecutor
from slacktide.executors.synthetic_inputs import SyntheticRows, batch_of
from slacktide.lab.load.request_log import ENDINGS
from slacktide.lab.workloads import Fixed, Poisson

MODEL = "residual"
LADDER_MODELS = ("residual", "text", "dense")
COMPARED = (("residual", 1), ("text", 1), ("dense", 1))
"""Models and rows of the batches compared: of few large operators, of many small ones, and bound by
weights."""
ROUND = 20
"""Batches of each worker in a round."""
PARTS = 5
SEED = 1
MIB = 1 << 20
MANY = 16
STARTED, LADDER = "started so", "ladder"
SINGLE, WIDE = "one session", f"one session of {MANY} threads"
EFFECT_MS, TWO_CORES, ONE_CORE = 20.0, 1.05, 1.12
"""Goals: confirmed and running at the new speed within; p50 and p99 ÷ those of a worker started
so."""
MEMORY_GOAL = 1.1
"""Memory taken ÷ announced."""


def run(options: Options) -> Result:
    """All four parts, or those that `--rows` names."""
    result = Result("resize", seeds=(SEED,))
    where = cores()
    if where.shared:
        result.remarks.append("needs two cores: nothing was measured")
        return result
    pin(where.client)
    parts: dict[str, Callable[[Options, Result], Coroutine[Any, Any, None]]] = {
        "effect": _effect,
        "latency": _latency,
        "memory": _memory,
        "quota": _quota,
    }
    if options.wants("server"):
        _server(options, result)
    for name, part in parts.items():
        if options.wants(name):
            asyncio.run(part(options, result))
    return result


def _one() -> tuple[int, ...]:
    return (cores().server,)


def _two() -> tuple[int, ...]:
    return tuple(sorted({cores().server, cores().client}))


class Worker:
    """One replica, a batch at a time. Make it with `Workers.start`."""

    def __init__(
        self,
        executor: ProcessExecutor,
        arena: Arena,
        id: int,
        source: ModelSource,
        on: tuple[int, ...],
    ) -> None:
        self._arena = arena
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._batches = itertools.count()
        self._finished: asyncio.Future[float] = self._loop.create_future()
        self._ready: asyncio.Future[OpenedModel] = self._loop.create_future()
        self.resized: asyncio.Future[tuple[float, Resized]] = self._loop.create_future()
        self.answers = 0
        self.outputs: list[bytes] = []
        """The first output of each member of the last batch."""
        replica = Replica(id, PoolId(source.name, source.version), "lane", on, 32)
        self.handle = executor.start(replica, source, arena, self._report)

    async def ready(self) -> OpenedModel:
        opened = await self._ready
        interface = opened.interface
        generator = np.random.default_rng(SEED)
        rows = SyntheticRows(interface, self._source)
        self.singles: Sequence[Payload] = rows.payloads(
            rows.shapes(), self._arena, generator=generator
        )
        return opened

    async def run(self, rows: int) -> float:
        """Seconds of a batch."""
        self._finished = self._loop.create_future()
        begin = time.perf_counter()
        self.handle.run(BatchOrder(next(self._batches), batch_of(rows, self.singles)))
        return await self._finished - begin

    def ask(self, on: tuple[int, ...]) -> float:
        """Begin a resize; when."""
        self.resized = self._loop.create_future()
        begin = time.perf_counter()
        self.handle.resize(on)
        return begin

    async def resize(self, on: tuple[int, ...]) -> None:
        """Resize, and wait for it. Raises RuntimeError if it gets other cores."""
        self.ask(on)
        _, report = await self.resized
        if report.cores != on:
            raise RuntimeError(f"wanted cores {on}, got {report}")

    @property
    def memory(self) -> int:
        """Bytes resident that are its own."""
        status = Path(f"/proc/{self.handle.pid}/status").read_text()
        (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("RssAnon"))
        return int(kib) * 1024

    def _report(
        self,
        event: Report,
        outputs: BatchOutputs = (),
        *,
        opened: OpenedModel | None = None,
        out_of_memory: bool = False,
    ) -> None:
        now = time.perf_counter()
        if isinstance(event, BatchFinished):
            self.answers += 1
            self.outputs = [member[0][1] for member in outputs]
            self._finished.set_result(now)
        elif isinstance(event, Resized):
            self.resized.set_result((now, event))
        elif opened is not None:
            self._ready.set_result(opened)
        else:
            error = RuntimeError(f"a worker reports {event}")
            for waiting in (self._finished, self._ready, self.resized):
                if not waiting.done() and not isinstance(event, ReplicaLost):
                    waiting.set_exception(error)


class Workers:
    """Starts workers, and ends them with the block."""

    def __init__(self, executor: ProcessExecutor | None = None) -> None:
        self._executor = executor or ProcessExecutor()
        self._arena = Arena(1 << 30)
        self._ids = itertools.count()

    async def start(
        self, on: tuple[int, ...], threads: tuple[int, ...] = (), model: str = MODEL
    ) -> tuple[Worker, OpenedModel]:
        path = model_file(model)
        (request,) = requests(model, 1)
        shapes = {name: tensor.shape[1:] for name, tensor in request.items()}
        source = ModelSource(
            model, "1", path, path.parent, 32, warmup_shapes=shapes, threads=threads
        )
        worker = Worker(self._executor, self._arena, next(self._ids), source, on)
        return worker, await worker.ready()

    async def __aenter__(self) -> Workers:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._executor.close()
        self._arena.close()


async def _effect(options: Options, result: Result) -> None:
    """Resizes in the middle of batches."""
    count = 40 if options.quick else 200
    chance = random.Random(SEED)
    confirmed, begun, slowness = [], [], []
    async with Workers() as workers:
        worker, _ = await workers.start(_one(), (1, 2))
        usual, right = {}, {}
        for on in (_one(), _two()):
            await worker.resize(on)
            usual[on] = median([await worker.run(1) for _ in range(50)])
            right[on] = worker.outputs
        runs = worker.answers
        wrong = 0
        for number in range(count):
            on = (_one(), _two())[number % 2]
            batch = asyncio.ensure_future(worker.run(1))
            await asyncio.sleep(usual[on] * chance.random())
            requested_at = worker.ask(on)
            await batch
            runs += 1
            at, report = await worker.resized
            if report.cores != on:
                raise RuntimeError(f"wanted cores {on}, got {report}")
            begin = time.perf_counter()
            seconds = await worker.run(1)
            wrong += not _alike(worker.outputs, right[on])
            runs += 1
            confirmed.append((at - requested_at) * 1e3)
            begun.append((begin - requested_at) * 1e3)
            slowness.append(seconds / usual[on])
            for _ in range(3):
                await worker.run(1)
                runs += 1
        answered = (worker.answers - wrong) / runs
    usually = " and ".join(f"{seconds * 1e3:.1f}" for seconds in usual.values())
    result.figures += [
        Figure("resize: confirmed, p50", median(confirmed), "ms"),
        Figure("resize: confirmed, longest", max(confirmed), "ms", at_most(EFFECT_MS)),
        Figure(
            "resize: first batch on the new cores begins, longest", max(begun), "ms",
            at_most(EFFECT_MS), "with the rest of the batch that runs",
        ),
        Figure(
            "resize: that batch ÷ any on these cores, p50", median(slowness), "×",
            note=f"{usually} ms on one core and two",
        ),
        Figure(
            f"answered once and right, over {count} resizes", answered, "", at_least(1.0),
            f"{runs} batches",
        ),
    ]  # fmt: skip
    result.details["effect_ms"] = {"confirmed": confirmed, "begun": begun, "slowness": slowness}


def _alike(results: Sequence[bytes], right: Sequence[bytes]) -> bool:
    return len(results) == len(right) and all(
        np.allclose(np.frombuffer(a, np.float32), np.frombuffer(b, np.float32), rtol=1e-3)
        for a, b in zip(results, right, strict=True)
    )


Times = dict[tuple[str, int], list[list[float]]]
"""Seconds by worker and number of cores, in rounds."""


async def _latency(options: Options, result: Result) -> None:
    """Every worker has its turn in every round."""
    rounds = 6 if options.quick else 25
    lines: list[tuple[str, ...]] = []
    for model, rows in COMPARED:
        times: Times = {}
        async with Workers() as workers:
            resized = {
                LADDER: await workers.start(_two(), (1, 2), model),
                SINGLE: await workers.start(_two(), (2,), model),
                WIDE: await workers.start(_two(), (MANY,), model),
            }
            started = {len(on): await workers.start(on, (), model) for on in (_one(), _two())}
            for number in range(rounds):
                for on in (_one(), _two()):
                    named = {STARTED: started[len(on)][0]}
                    for name, (worker, _) in resized.items():
                        await worker.resize(on)
                        named[name] = worker
                    names = list(named)
                    shift = number % len(names)
                    for name in names[shift:] + names[:shift]:
                        await named[name].run(rows)
                        taken = [await named[name].run(rows) for _ in range(ROUND)]
                        times.setdefault((name, len(on)), []).append(taken)
        _compare(f"{model}, batch {rows}", times, result, lines)
        result.details[f"latency_s, {model}, {rows}"] = {
            f"{name}, {count}": _flat(taken) for (name, count), taken in times.items()
        }
    result.tables.append(Table("latency, ms", ("worker", "p50", "p99"), tuple(lines)))


def _compare(title: str, times: Times, result: Result, lines: list[tuple[str, ...]]) -> None:
    """Figures of the resized workers beside those started so, and a line for each."""
    for (name, count), own in sorted(times.items(), key=lambda item: -item[0][1]):
        beside = times[STARTED, count]
        label = f"{title}, {_cores(count)}: {name}"
        p50, p99 = median(_flat(own)) * 1e3, _p99(own) * 1e3
        lines.append((label, f"{p50:.2f}", f"{p99:.2f}"))
        if name == STARTED:
            continue
        ratios = [median(a) / median(b) for a, b in zip(own, beside, strict=True)]
        goal = at_most(TWO_CORES if count == 2 else ONE_CORE) if name == LADDER else None
        result.figures += [
            Figure(f"{label}, p50 ÷ started so", median(ratios), "×", goal),
            Figure(f"{label}, p99 ÷ started so", _p99_ratio(own, beside), "×", goal),
        ]


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [seconds for taken in rounds for seconds in taken]


def _p99(rounds: Sequence[Sequence[float]]) -> float:
    return float(np.quantile(_flat(rounds), 0.99))


def _p99_ratio(own: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]) -> float:
    """Rounds were taken side by side; they are cut into `PARTS` alike."""
    size = max(1, len(own) // PARTS)
    starts = range(0, len(own), size)
    return median(_p99(own[at : at + size]) / _p99(beside[at : at + size]) for at in starts)


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


async def _memory(options: Options, result: Result) -> None:
    """Ladders of two and of four sessions; a session needs no core of its own."""
    lines = []
    for model in LADDER_MODELS[: 1 if options.quick else None]:
        async with Workers() as workers:
            held: dict[tuple[int, ...], int] = {}
            for threads in ((8,), (1, 8), (1, 2, 4, 8)):
                worker, ready = await workers.start(_two(), threads, model)
                for on in (_two(), _one()):
                    await worker.resize(on)
                    for rows in (32, 32, 1):
                        await worker.run(rows)
                held[threads] = worker.memory
                if len(threads) == 1:
                    continue
                announced = sum(size.nbytes for size in ready.sessions[1:])
                taken = held[threads] - held[8,]
                lines.append(
                    (
                        model,
                        ", ".join(str(size.threads) for size in ready.sessions),
                        f"{ready.sessions[0].nbytes / MIB:.1f}",
                        f"{announced / MIB:.1f}",
                        f"{taken / MIB:.1f}",
                    )
                )
                if len(threads) == 4:
                    result.figures.append(
                        Figure(
                            f"{model}: memory of three more sessions ÷ announced",
                            taken / max(1, announced), "×", at_most(MEMORY_GOAL),
                            f"announced {announced / MIB:.0f} MiB, taken {taken / MIB:.0f} MiB",
                        )
                    )  # fmt: skip
    columns = ("model", "sessions (threads)", "first", "others announced", "others taken")
    result.tables.append(Table("memory, MiB", columns, tuple(lines)))


def _server(options: Options, result: Result) -> None:
    """Resizes under load through the whole server."""
    duration = 5.0 if options.quick else 25.0
    settings = "max_batch: 4\ncores: {min: 1, max: 2}\nscaling: {name: flip, period: 100ms}\n"
    content = model_file(MODEL).read_bytes()
    repository = variant_repository("resize", {MODEL: (content, settings)})
    alone = measure_bare(MODEL, [1], 1.0).alone
    load = Offered(MODEL, Poisson(0.5 / alone), Fixed(1.0))
    with servers.slacktide(
        repository, "--profile-budget", "4s", module="bench.flipping_server", everywhere=True
    ) as serving:
        done = offer(serving, [load], duration=duration, warmup=1.0, seed=SEED)
        port = serving.metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
    answered = done.models[MODEL]
    resizes = {
        line.partition('outcome="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("slacktide_resizes_total{")
    }
    endings = ", ".join(f"{count} {label}" for label, count in answered.endings.items())
    with_result = sum(answered.endings.get(ENDINGS[i].label, 0) for i in (0, 1))
    counts = ", ".join(f"{count:g} {outcome}" for outcome, count in resizes.items())
    result.figures += [
        Figure(
            "server: resizes confirmed under load", resizes["confirmed"], "",
            at_least(20 if options.quick else 200), counts,
        ),
        Figure(
            "server: answered with a result", with_result / answered.submitted, "", at_least(1.0),
            endings,
        ),
        Figure("server: answers, p99", answered.latency_p99_ms, "ms"),
    ]  # fmt: skip


async def _quota(options: Options, result: Result) -> None:
    """A quota of all of a core's time, and of half of it."""
    rounds = 4 if options.quick else 15
    times: dict[Any, list[list[float]]] = {}
    try:
        allocators = {share: QuotaAllocator.in_own_group(share=share) for share in (1.0, 0.5)}
    except QuotaUnavailableError as error:
        result.remarks.append(f"no quota: {error}")
        return
    async with (
        Workers() as affinity,
        Workers(ProcessExecutor(allocators[1.0])) as whole,
        Workers(ProcessExecutor(allocators[0.5])) as half,
    ):
        named = {
            "affinity": (await affinity.start(_one(), (1, 2)))[0],
            "quota of one core": (await whole.start(_one(), (1, 2)))[0],
            "quota of half a core": (await half.start(_one(), (1, 2)))[0],
        }
        for _ in range(rounds):
            for name, worker in named.items():
                await worker.run(1)
                taken = [await worker.run(1) for _ in range(ROUND)]
                times.setdefault(name, []).append(taken)
    beside = times.pop("affinity")
    for name, own in times.items():
        ratio = sum(map(sum, own)) / sum(map(sum, beside))
        result.figures += [
            Figure(f"{name}: mean ÷ affinity", ratio, "×"),
            Figure(f"{name}: p99 ÷ affinity", _p99(own) / _p99(beside), "×"),
        ]
